// Scalar functions of the operator registry, over float. Precise versions: no fast-math.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "mirage/gpu_numbers.h"

namespace mirage {

__host__ __device__ constexpr int power_below(int n) { return n < 2 ? n : 2 * power_below(n / 2); }  //!< the largest power of two up to n

MIRAGE_DEVICE float to_float(__half x) { return __half2float(x); }
MIRAGE_DEVICE float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
MIRAGE_DEVICE float to_float(e5m2 x) { return __half2float(__ushort_as_half(static_cast<unsigned short>(x.bits << 8))); }
MIRAGE_DEVICE float to_float(e4m3 x) {
    const unsigned sign = (x.bits & 0x80u) << 24, body = x.bits & 0x7fu;
    const float number = body < 8u ? static_cast<float>(body) * 0x1p-9f : __uint_as_float((body << 20) + 0x3c000000u);
    return __uint_as_float(__float_as_uint(body == 0x7fu ? NAN : number) | sign);
}
MIRAGE_DEVICE void put(__half& to, float x) { to = __float2half_rn(x); }
MIRAGE_DEVICE void put(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }

MIRAGE_DEVICE float m_exp(float x) { return expf(x); }
MIRAGE_DEVICE float m_log(float x) { return logf(x); }
MIRAGE_DEVICE float m_sqrt(float x) { return sqrtf(x); }
MIRAGE_DEVICE float m_rsqrt(float x) { return 1.0f / sqrtf(x); }
MIRAGE_DEVICE float m_tanh(float x) { return tanhf(x); }
MIRAGE_DEVICE float m_erf(float x) { return erff(x); }
MIRAGE_DEVICE float m_sin(float x) { return sinf(x); }
MIRAGE_DEVICE float m_cos(float x) { return cosf(x); }
MIRAGE_DEVICE float m_pow(float x, float y) { return powf(x, y); }
MIRAGE_DEVICE float m_abs(float x) { return fabsf(x); }
MIRAGE_DEVICE float m_floor(float x) { return floorf(x); }
MIRAGE_DEVICE float m_ceil(float x) { return ceilf(x); }
MIRAGE_DEVICE float m_rint(float x) { return rintf(x); }
MIRAGE_DEVICE float m_trunc(float x) { return truncf(x); }
// x in units of a scale, as a byte holds it whose zero point is a whole number, less that; NaN is the byte 0
MIRAGE_DEVICE float m_levels(float x, float scale, float zero) {
    const float level = m_rint(x / scale) + zero, above = level > 0.0f ? level : 0.0f;
    return (above < 255.0f ? above : 255.0f) - zero;
}
// what is left of a number in a narrower type: outside of an integer's numbers its smallest one, of types of less than 4
// bytes the low bits of that; and no -0
MIRAGE_DEVICE float m_to_i64(float x) {
    return x >= -9223372036854775808.0f && x < 9223372036854775808.0f ? m_trunc(x) + 0.0f : -9223372036854775808.0f;
}
MIRAGE_DEVICE int32_t word_of(float x) {
    return x >= -2147483648.0f && x < 2147483648.0f ? static_cast<int32_t>(x) : INT32_MIN;
}
MIRAGE_DEVICE float m_to_i32(float x) { return static_cast<float>(word_of(x)); }
MIRAGE_DEVICE float m_to_i16(float x) { return static_cast<float>(static_cast<int16_t>(word_of(x))); }
MIRAGE_DEVICE float m_to_i8(float x) { return static_cast<float>(static_cast<int8_t>(word_of(x))); }
MIRAGE_DEVICE float m_to_u16(float x) { return static_cast<float>(static_cast<uint16_t>(word_of(x))); }
MIRAGE_DEVICE float m_to_u8(float x) { return static_cast<float>(static_cast<uint8_t>(word_of(x))); }
MIRAGE_DEVICE float m_round_f16(float x) { return __half2float(__float2half_rn(x)); }
MIRAGE_DEVICE float m_round_bf16(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
MIRAGE_DEVICE float m_isnan(float x) { return isnan(x) ? 1.0f : 0.0f; }
MIRAGE_DEVICE float m_isinf(float x) { return isinf(x) ? 1.0f : 0.0f; }
MIRAGE_DEVICE float m_where(float c, float x, float y) { return c != 0.0f ? x : y; }
// max and min hand on a NaN from either side, as numpy's do
#if defined(__CUDA_ARCH__)
MIRAGE_DEVICE float m_max(float x, float y) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
}
MIRAGE_DEVICE float m_min(float x, float y) {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
}
#else
MIRAGE_DEVICE float m_max(float x, float y) { return (x > y || isnan(x)) ? x : y; }
MIRAGE_DEVICE float m_min(float x, float y) { return (x < y || isnan(x)) ? x : y; }
#endif
// a product is rounded before 0 is added, and a difference that reads it is not made one operation with it
#if defined(__CUDA_ARCH__)
MIRAGE_DEVICE float m_rounded(float x) { return __fadd_rn(x, 0.0f); }
#else
MIRAGE_DEVICE float m_rounded(float x) { return x + 0.0f; }
#endif
// x < y and x <= y, asked the other way round: of |x| >= 0, x * x > -1 and the like, ptxas 13.0 makes "true" for a NaN as well,
// but not of |x| < 0 "or one of the two is no number"
#if defined(__CUDA_ARCH__)
MIRAGE_DEVICE float m_lt(float x, float y) {
    float found;
    asm("{ .reg .pred not; setp.geu.f32 not, %1, %2; selp.f32 %0, 0f00000000, 0f3F800000, not; }" : "=f"(found) : "f"(x), "f"(y));
    return found;
}
MIRAGE_DEVICE float m_le(float x, float y) {
    float found;
    asm("{ .reg .pred not; setp.gtu.f32 not, %1, %2; selp.f32 %0, 0f00000000, 0f3F800000, not; }" : "=f"(found) : "f"(x), "f"(y));
    return found;
}
#else
MIRAGE_DEVICE float m_lt(float x, float y) { return x < y ? 1.0f : 0.0f; }
MIRAGE_DEVICE float m_le(float x, float y) { return x <= y ? 1.0f : 0.0f; }
#endif
MIRAGE_DEVICE float m_sign(float x) { return isnan(x) ? x : m_lt(0.0f, x) - m_lt(x, 0.0f); }
MIRAGE_DEVICE float m_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
MIRAGE_DEVICE float m_silu(float x) { return x / (1.0f + expf(-x)); }
MIRAGE_DEVICE float m_gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
MIRAGE_DEVICE float m_gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
MIRAGE_DEVICE float m_softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
MIRAGE_DEVICE float m_softsign(float x) { return x / (1.0f + fabsf(x)); }
// x / y, and 0 where that is not a number (a softmax whose NaN become zeros), unless x alone is none; `q` is the quotient
MIRAGE_DEVICE float guarded_div0(float q, float x, float y) { return isnan(q) && (isnan(y) || !isnan(x)) ? 0.0f : q; }
MIRAGE_DEVICE float m_div0(float x, float y) { return guarded_div0(x / y, x, y); }
// x / y, and 0 where y is 0 (a softmax row without any key), unless x is no number; `q` is the quotient
MIRAGE_DEVICE float guarded_share(float q, float x, float y) { return y == 0.0f && !isnan(x) ? 0.0f : q; }
MIRAGE_DEVICE float m_share(float x, float y) { return guarded_share(x / y, x, y); }
// exp(x - maximum); a row whose maximum is -inf has nothing to weigh
MIRAGE_DEVICE float m_exp_minus(float x, float maximum) { return maximum == -INFINITY ? 0.0f : expf(x - maximum); }
// exp(old - new) for a running maximum; 1 while both are -inf
MIRAGE_DEVICE float m_exp_difference(float old_max, float new_max) {
    return old_max == new_max ? 1.0f : expf(old_max - new_max);
}

}  // namespace mirage
