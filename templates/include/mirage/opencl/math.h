// Scalar functions of the operator registry in OpenCL C 1.2, over float. Precise versions: no fast-math.
#pragma OPENCL FP_CONTRACT OFF
#if defined(cl_khr_fp64)
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

// Tiles of several types take turns in the same local memory.
#if defined(__clang__)
#define ELEMENT __attribute__((may_alias))
#else
#define ELEMENT
#endif
typedef float float32_t ELEMENT;
#if defined(cl_khr_fp64)
typedef double float64_t ELEMENT;
#endif
typedef long int64_t ELEMENT;
typedef int int32_t ELEMENT;
typedef short int16_t ELEMENT;
typedef char int8_t ELEMENT;
typedef uint uint32_t ELEMENT;
typedef ushort uint16_t ELEMENT;
typedef uchar uint8_t ELEMENT;
// Types that devices need not compute with are kept as their bits.
typedef ushort half_bits ELEMENT;
typedef ushort bfloat_bits ELEMENT;
typedef uchar e4m3 ELEMENT;
typedef uchar e5m2 ELEMENT;

// an integer of a tensor as a number of positions: what is far beyond any of them stays so
int whole_number(long x) {
    const long most = 1 << 29;
    return (int)(x > most ? most : x < -most ? -most : x);
}

#define float_of_plain(x) ((float)(x))
// Bytes lie between: they may be read and written as numbers of another type.
float float_of_half(half_bits x) {
    const uchar bytes[2] __attribute__((aligned(2))) = {x & 0xff, x >> 8};
    return vload_half(0, (const half*)bytes);
}
float float_of_bfloat(bfloat_bits x) { return as_float((uint)x << 16); }
float float_of_e5m2(e5m2 x) { return float_of_half((half_bits)((uint)x << 8)); }
float float_of_e4m3(e4m3 x) {
    const uint sign = ((uint)x & 0x80u) << 24, body = x & 0x7fu;
    const float number = body < 8u ? (float)body * 0x1p-9f : as_float((body << 20) + 0x3c000000u);
    return as_float(as_uint(body == 0x7fu ? NAN : number) | sign);
}
float float_of_e2m1(uint bits) {
    const uint sign = (bits & 8u) << 28, body = bits & 7u;
    return as_float(as_uint(body < 2u ? (float)body * 0.5f : as_float((body << 22) + 0x3f000000u)) | sign);
}
half_bits half_of_float(float x) {
    uchar bytes[2] __attribute__((aligned(2)));
    vstore_half_rte(x, 0, (half*)bytes);
    return bytes[0] | (half_bits)bytes[1] << 8;
}
bfloat_bits bfloat_of_float(float x) {
    const uint bits = as_uint(x);
    return isnan(x) ? (bfloat_bits)0x7fff : (bfloat_bits)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
// number `at` of those that share bytes, the first one in the low bits
#define PACKED(BITS, TOP, from, at) \
    ((float)(((((int)(from)[(at) / (8 / BITS)] >> ((int)((at) % (8 / BITS)) * BITS)) & ((1 << BITS) - 1)) ^ TOP) - TOP))
#define number_u4(from, at) PACKED(4, 0, from, at)
#define number_i4(from, at) PACKED(4, 8, from, at)
#define number_u2(from, at) PACKED(2, 0, from, at)
#define number_i2(from, at) PACKED(2, 2, from, at)
#define number_e2m1(from, at) float_of_e2m1((uint)(from)[(at) / 2] >> ((int)((at) % 2) * 4))

// put(to, x): x rounded to the element type of `to`
#define put_plain(to, x) ((to) = (x))
#define put_half(to, x) ((to) = half_of_float(x))
#define put_bfloat(to, x) ((to) = bfloat_of_float(x))

float m_exp(float x) { return exp(x); }
float m_log(float x) { return log(x); }
float m_sqrt(float x) { return sqrt(x); }
float m_rsqrt(float x) { return 1.0f / sqrt(x); }
float m_tanh(float x) { return tanh(x); }
float m_erf(float x) { return erf(x); }
float m_sin(float x) { return sin(x); }
float m_cos(float x) { return cos(x); }
float m_pow(float x, float y) { return pow(x, y); }
float m_abs(float x) { return fabs(x); }
float m_floor(float x) { return floor(x); }
float m_ceil(float x) { return ceil(x); }
float m_rint(float x) { return rint(x); }
float m_trunc(float x) { return trunc(x); }
// x in units of a scale, as a byte holds it whose zero point is a whole number, less that; NaN is the byte 0
float m_levels(float x, float scale, float zero) {
    const float level = m_rint(x / scale) + zero, above = level > 0.0f ? level : 0.0f;
    return (above < 255.0f ? above : 255.0f) - zero;
}
// what is left of a number in a narrower type: outside of an integer's numbers its smallest one, of types of less than 4
// bytes the low bits of that; and no -0
float m_to_i64(float x) { return x >= -0x1p63f && x < 0x1p63f ? trunc(x) + 0.0f : -0x1p63f; }
int word_of(float x) { return x >= -0x1p31f && x < 0x1p31f ? (int)x : INT_MIN; }
float m_to_i32(float x) { return (float)word_of(x); }
float m_to_i16(float x) { return (float)(short)word_of(x); }
float m_to_i8(float x) { return (float)(char)word_of(x); }
float m_to_u16(float x) { return (float)(ushort)word_of(x); }
float m_to_u8(float x) { return (float)(uchar)word_of(x); }
float m_round_f16(float x) { return float_of_half(half_of_float(x)); }
float m_round_bf16(float x) { return float_of_bfloat(bfloat_of_float(x)); }
float m_isnan(float x) { return isnan(x) ? 1.0f : 0.0f; }
float m_isinf(float x) { return isinf(x) ? 1.0f : 0.0f; }
float m_where(float c, float x, float y) { return c != 0.0f ? x : y; }
// max and min hand on a NaN from either side, as numpy's do
float m_max(float x, float y) { return x > y || isnan(x) ? x : y; }
float m_min(float x, float y) { return x < y || isnan(x) ? x : y; }
float m_rounded(float x) { return x + 0.0f; }
float m_lt(float x, float y) { return x < y ? 1.0f : 0.0f; }
float m_le(float x, float y) { return x <= y ? 1.0f : 0.0f; }
float m_sign(float x) { return isnan(x) ? x : m_lt(0.0f, x) - m_lt(x, 0.0f); }
float m_sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
float m_silu(float x) { return x / (1.0f + exp(-x)); }
float m_gelu(float x) { return 0.5f * x * (1.0f + erf(x * 0.70710678118654752f)); }
float m_gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanh(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
float m_softplus(float x) { return fmax(x, 0.0f) + log1p(exp(-fabs(x))); }
float m_softsign(float x) { return x / (1.0f + fabs(x)); }
// x / y, and 0 where that is not a number (a softmax whose NaN become zeros), unless x alone is none; `q` is the quotient
float guarded_div0(float q, float x, float y) { return isnan(q) && (isnan(y) || !isnan(x)) ? 0.0f : q; }
float m_div0(float x, float y) { return guarded_div0(x / y, x, y); }
// x / y, and 0 where y is 0 (a softmax row without any key), unless x is no number; `q` is the quotient
float guarded_share(float q, float x, float y) { return y == 0.0f && !isnan(x) ? 0.0f : q; }
float m_share(float x, float y) { return guarded_share(x / y, x, y); }
// exp(x - maximum); a row whose maximum is -inf has nothing to weigh
float m_exp_minus(float x, float maximum) { return maximum == -INFINITY ? 0.0f : exp(x - maximum); }
// exp(old - new) for a running maximum; 1 while both are -inf
float m_exp_difference(float old_max, float new_max) { return old_max == new_max ? 1.0f : exp(old_max - new_max); }
