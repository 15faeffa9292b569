// Scalar functions of the operator registry, over float; branch-free where a compiler should vectorise them.
// Everything lives in an inline namespace named after the instruction set, because one program holds several versions.
#pragma once
// The C library's own <math.h>: what libstdc++ adds to it takes as long to read as a kernel to compile. Elsewhere the name
// means nothing.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS

#include <cstdint>
#include <cstring>

#ifndef MIRAGE_ISA
#define MIRAGE_ISA base
#endif

#if defined(__clang__)
#define MIRAGE_VECTOR_LOOP _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define MIRAGE_VECTOR_LOOP _Pragma("GCC ivdep")
#define MIRAGE_VECTOR_PARTS _Pragma("GCC ivdep") _Pragma("GCC unroll 1")  // of loops that would be unrolled first
#else
#define MIRAGE_VECTOR_LOOP
#endif
#if !defined(MIRAGE_VECTOR_PARTS)
#define MIRAGE_VECTOR_PARTS MIRAGE_VECTOR_LOOP
#endif
#define MIRAGE_INLINE [[maybe_unused]] static inline __attribute__((always_inline))

namespace mirage {
inline namespace MIRAGE_ISA {

struct half {
    uint16_t bits;
};
struct bfloat {
    uint16_t bits;
};
// float8e4m3fn, which has no infinities, and float8e5m2
struct e4m3 {
    uint8_t bits;
};
struct e5m2 {
    uint8_t bits;
};

MIRAGE_INLINE float as_float(uint32_t x) {
    float y;
    std::memcpy(&y, &x, 4);
    return y;
}
MIRAGE_INLINE uint32_t as_bits(float x) {
    uint32_t y;
    std::memcpy(&y, &x, 4);
    return y;
}

#if defined(__F16C__)  // the compilers' builtins: <immintrin.h> takes longer to read than a kernel to compile
typedef float Floats4 __attribute__((vector_size(16)));
typedef float Floats8 __attribute__((vector_size(32)));
#if defined(__clang__)
typedef _Float16 Halves8 __attribute__((vector_size(16)));
MIRAGE_INLINE Floats8 widen(Halves8 x) { return __builtin_convertvector(x, Floats8); }
#else
typedef short Halves8 __attribute__((vector_size(16)));
MIRAGE_INLINE Floats8 widen(Halves8 x) { return __builtin_ia32_vcvtph2ps256(x); }
#endif

MIRAGE_INLINE Floats8 from_halves(const half* p) {
    Halves8 bits;
    std::memcpy(&bits, p, sizeof bits);
    return widen(bits);
}
MIRAGE_INLINE void to_halves(half* p, const float* from) {
    Floats8 x;
    std::memcpy(&x, from, sizeof x);
    const auto bits = __builtin_ia32_vcvtps2ph256(x, 0);
    std::memcpy(p, &bits, sizeof bits);
}
#endif

MIRAGE_INLINE float to_float(float x) { return x; }
MIRAGE_INLINE float to_float(double x) { return static_cast<float>(x); }
MIRAGE_INLINE float to_float(bfloat x) { return as_float(static_cast<uint32_t>(x.bits) << 16); }
MIRAGE_INLINE float to_float(half x) {  // in integers: compilers turn a loop of these into vector code, not of builtins
    const uint32_t sign = (x.bits & 0x8000u) << 16, body = x.bits & 0x7fffu;
    const float subnormal = static_cast<float>(static_cast<int32_t>(body)) * 5.9604644775390625e-8f;
    const uint32_t normal = (body << 13) + (body >= 0x7c00u ? 0x70000000u : 0x38000000u);
    return as_float(as_bits(body < 0x0400u ? subnormal : as_float(normal)) | sign);
}
MIRAGE_INLINE float to_float(e5m2 x) { return to_float(half{static_cast<uint16_t>(x.bits << 8)}); }
MIRAGE_INLINE float to_float(e4m3 x) {
    const uint32_t sign = (x.bits & 0x80u) << 24, body = x.bits & 0x7fu;
    const float subnormal = static_cast<float>(static_cast<int32_t>(body)) * 0x1p-9f;
    const float number = body < 8u ? subnormal : as_float((body << 20) + 0x3c000000u);
    return as_float(as_bits(body == 0x7fu ? NAN : number) | sign);
}
// float4e2m1 in the low bits: a sign, two bits of an exponent, one of a mantissa
MIRAGE_INLINE float e2m1_number(uint32_t bits) {
    const uint32_t sign = (bits & 8u) << 28, body = bits & 7u;
    const float subnormal = static_cast<float>(static_cast<int32_t>(body)) * 0.5f;
    return as_float(as_bits(body < 2u ? subnormal : as_float((body << 22) + 0x3f000000u)) | sign);
}
MIRAGE_INLINE float to_float(int64_t x) { return static_cast<float>(x); }
MIRAGE_INLINE float to_float(int32_t x) { return static_cast<float>(x); }
MIRAGE_INLINE float to_float(int16_t x) { return static_cast<float>(x); }
MIRAGE_INLINE float to_float(int8_t x) { return static_cast<float>(x); }
MIRAGE_INLINE float to_float(uint32_t x) { return static_cast<float>(x); }
MIRAGE_INLINE float to_float(uint16_t x) { return static_cast<float>(x); }
MIRAGE_INLINE float to_float(uint8_t x) { return static_cast<float>(x); }

// an integer of a tensor as a number of positions: what is far beyond any of them stays so
MIRAGE_INLINE int whole_number(int64_t x) {
    const int64_t most = 1 << 29;
    return static_cast<int>(x > most ? most : x < -most ? -most : x);
}

// put(to, x): x rounded to the element type of `to`
template <class T>
MIRAGE_INLINE void put(T& to, float x) {
    to = static_cast<T>(x);
}
MIRAGE_INLINE void put(bfloat& to, float x) {
    const uint32_t bits = as_bits(x), rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    to.bits = static_cast<uint16_t>((x != x ? bits | 0x400000u : rounded) >> 16);
}
MIRAGE_INLINE void put(half& to, float x) {
#if defined(__F16C__)
    const Floats4 wide = {x, 0, 0, 0};
    to.bits = static_cast<uint16_t>(__builtin_ia32_vcvtps2ph(wide, 0)[0]);
#else
    const uint32_t bits = as_bits(x), sign = (bits >> 16) & 0x8000u, body = bits & 0x7fffffffu;
    uint32_t result;
    if (body > 0x7f800000u) {
        result = 0x7e00u;
    } else if (body >= 0x477ff000u) {
        result = 0x7c00u;  // rounds to 65536 or more
    } else if (body < 0x38800000u) {
        result = as_bits(as_float(body) + 0.5f) - 0x3f000000u;  // below 2^-14: adding 1/2 rounds at 2^-24
    } else {
        result = (body - 0x38000000u + 0xfffu + ((body >> 13) & 1u)) >> 13;
    }
    to.bits = static_cast<uint16_t>(result | sign);
#endif
}

// --- functions --------------------------------------------------------------------------------------------------------
// exp(x) = 2^n * p with whole n and p near 1
struct Power {
    int32_t n;
    float p;
};
MIRAGE_INLINE Power split_exp(float x) {
    const float shifted = x * 1.44269504088896341f + 12582912.0f, n = shifted - 12582912.0f;
    const float r = (x - n * 0.693145751953125f) - n * 1.42860677e-06f;  // in [-ln2/2, ln2/2]
    float p = 0.00019891009596308316f;
    p = p * r + 0.0013933666900006931f;
    p = p * r + 0.008333310908565454f;
    p = p * r + 0.041666464772966816f;
    p = p * r + 0.16666666681640166f;
    p = p * r + 0.5000000013481058f;
    return {static_cast<int32_t>(n), (p * r) * r + r + 1.0f};
}
MIRAGE_INLINE float power_of_two(int32_t n) { return as_float(static_cast<uint32_t>(n + 127) << 23); }
// within 1.5 ulp, subnormal results included
MIRAGE_INLINE float m_exp(float x) {
    const float bounded = x < -104.0f ? 0.0f : (x > 89.0f ? 89.0f : x);  // what vanishes would be slow
    const Power e = split_exp(bounded);
    const int32_t first = e.n >> 1, second = e.n - first;
    const float y = e.p * power_of_two(first) * power_of_two(second);
    return x < -104.0f ? 0.0f : y;  // beyond the largest number y is infinite, and NaN stays NaN
}
// exp of a number up to 0, beside 1: 0 below 2^-127
MIRAGE_INLINE float exp_weight(float x) {
    const Power e = split_exp(-90.0f > x ? -90.0f : x);  // in this order: NaN stays
    return e.p * power_of_two(e.n > -127 ? e.n : -127);
}
MIRAGE_INLINE float m_abs(float x) { return as_float(as_bits(x) & 0x7fffffffu); }
MIRAGE_INLINE float with_sign(float magnitude, float sign) {
    return as_float(as_bits(magnitude) | (as_bits(sign) & 0x80000000u));
}
MIRAGE_INLINE float m_tanh(float x) {
    const float a = m_abs(x), s = x * x;
    float p = 0.002269501684162354f;
    p = p * s + -0.008323187058278775f;
    p = p * s + 0.021762502907359264f;
    p = p * s + -0.0539584616274522f;
    p = p * s + 0.13333300146188914f;
    p = p * s + -0.33333333149374506f;
    const float small = x + x * s * p, large = 1.0f - 2.0f / (m_exp(2.0f * a) + 1.0f);
    return a < 0.63f ? small : with_sign(large, x);
}
MIRAGE_INLINE float m_erf(float x) {
    const float a = m_abs(x), s = x * x, t = a > 4.0f ? 4.0f : a;
    float p = 7.875875062685488e-05f;
    p = p * s + -0.000801686428716587f;
    p = p * s + 0.005189087423433974f;
    p = p * s + -0.026854212010626412f;
    p = p * s + 0.11283594715160218f;
    p = p * s + -0.37612626666720334f;
    p = p * s + 0.12837916584835093f;
    float q = -8.581714046337666e-08f;
    q = q * t + 3.540203672323786e-06f;
    q = q * t + -6.437030597494194e-05f;
    q = q * t + 0.0006969925853089213f;
    q = q * t + -0.00510245955023513f;
    q = q * t + 0.02718104804840489f;
    q = q * t + -0.11116929160622112f;
    q = q * t + -0.630853599713262f;
    q = q * t + -1.1307237911523536f;
    q = q * t + 0.00042651181899311467f;
    const float small = x + x * p, large = 1.0f - m_exp(q);
    return x != x ? x : (a < 1.0f ? small : with_sign(a > 4.0f ? 1.0f : large, x));
}
MIRAGE_INLINE float m_log(float x) { return __builtin_logf(x); }
MIRAGE_INLINE float m_sqrt(float x) { return __builtin_sqrtf(x); }
MIRAGE_INLINE float m_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
MIRAGE_INLINE float m_sin(float x) { return __builtin_sinf(x); }
MIRAGE_INLINE float m_cos(float x) { return __builtin_cosf(x); }
MIRAGE_INLINE float m_pow(float x, float y) { return __builtin_powf(x, y); }
MIRAGE_INLINE float m_floor(float x) { return __builtin_floorf(x); }
MIRAGE_INLINE float m_ceil(float x) { return __builtin_ceilf(x); }
MIRAGE_INLINE float m_rint(float x) { return __builtin_rintf(x); }
MIRAGE_INLINE float m_trunc(float x) { return __builtin_truncf(x); }
// what is left of a number in a narrower type: outside of an integer's numbers its smallest one, of types of less than 4
// bytes the low bits of that; and no -0
MIRAGE_INLINE float m_to_i64(float x) {
    return x >= -9223372036854775808.0f && x < 9223372036854775808.0f ? m_trunc(x) + 0.0f : -9223372036854775808.0f;
}
MIRAGE_INLINE int32_t word_of(float x) {
    const bool fits = x >= -2147483648.0f && x < 2147483648.0f;
    const int32_t word = static_cast<int32_t>(fits ? x : 0.0f);
    return fits ? word : INT32_MIN;
}
MIRAGE_INLINE float m_to_i32(float x) { return static_cast<float>(word_of(x)); }
MIRAGE_INLINE float m_to_i16(float x) { return static_cast<float>(static_cast<int16_t>(word_of(x))); }
MIRAGE_INLINE float m_to_i8(float x) { return static_cast<float>(static_cast<int8_t>(word_of(x))); }
MIRAGE_INLINE float m_to_u16(float x) { return static_cast<float>(static_cast<uint16_t>(word_of(x))); }
MIRAGE_INLINE float m_to_u8(float x) { return static_cast<float>(static_cast<uint8_t>(word_of(x))); }
MIRAGE_INLINE float m_round_f16(float x) {
    half y;
    put(y, x);
    return to_float(y);
}
MIRAGE_INLINE float m_round_bf16(float x) {
    bfloat y;
    put(y, x);
    return to_float(y);
}
MIRAGE_INLINE float m_isnan(float x) { return x != x ? 1.0f : 0.0f; }
MIRAGE_INLINE float m_isinf(float x) { return m_abs(x) == INFINITY ? 1.0f : 0.0f; }
// Without a branch: of a comparison, a choice by it and a load, GCC 12 makes a masked load with the wrong mask.
MIRAGE_INLINE float m_where(float c, float x, float y) {
    const uint32_t mask = -static_cast<uint32_t>(c != 0.0f);
    return as_float((as_bits(x) & mask) | (as_bits(y) & ~mask));
}
// x in units of a scale, as a byte holds it whose zero point is a whole number, less that; NaN is the byte 0. Bits of floats are in
// the order of whole numbers: of two bounds that are compared with compilers make branches.
MIRAGE_INLINE float m_levels(float x, float scale, float zero) {
    const float level = m_rint(x / scale) + zero;
    const int32_t bits = static_cast<int32_t>(as_bits(level) & -static_cast<uint32_t>(level == level));
    constexpr int32_t MOST = 0x437f0000;  // 255
    const int32_t over = (bits & ~(bits >> 31)) - MOST;
    return as_float(static_cast<uint32_t>(MOST + (over & (over >> 31)))) - zero;
}
// max and min hand on a NaN from either side, as numpy's do
MIRAGE_INLINE float m_max(float x, float y) { return (x > y || x != x) ? x : y; }
MIRAGE_INLINE float m_min(float x, float y) { return (x < y || x != x) ? x : y; }
// a product is rounded before 0 is added, in one operation or two, and then no product any more
MIRAGE_INLINE float m_rounded(float x) { return x + 0.0f; }
MIRAGE_INLINE float m_lt(float x, float y) { return x < y ? 1.0f : 0.0f; }
MIRAGE_INLINE float m_le(float x, float y) { return x <= y ? 1.0f : 0.0f; }
MIRAGE_INLINE float m_sign(float x) { return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : x); }
MIRAGE_INLINE float m_sigmoid(float x) { return 1.0f / (1.0f + m_exp(-x)); }
MIRAGE_INLINE float m_silu(float x) { return x / (1.0f + m_exp(-x)); }
MIRAGE_INLINE float m_gelu(float x) { return 0.5f * x * (1.0f + m_erf(x * 0.70710678118654752f)); }
MIRAGE_INLINE float m_gelu_tanh(float x) {
    return 0.5f * x * (1.0f + m_tanh(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
MIRAGE_INLINE float m_softplus(float x) { return (x > 0.0f ? x : 0.0f) + __builtin_log1pf(m_exp(-m_abs(x))); }
MIRAGE_INLINE float m_softsign(float x) { return x / (1.0f + m_abs(x)); }
// x / y, and 0 where y is 0 (a softmax row without any key), unless x is no number
MIRAGE_INLINE float m_share(float x, float y) {
    const float q = x / y;
    return ((y == 0.0f) & (x == x)) ? 0.0f : q;
}
// x / y, and 0 where that is not a number (a softmax whose NaN become zeros), unless x alone is none
MIRAGE_INLINE float m_div0(float x, float y) {
    const float q = x / y;
    return (q != q) & ((y != y) | (x == x)) ? 0.0f : q;
}
// exp(x - maximum); a row whose maximum is -inf has nothing to weigh
MIRAGE_INLINE float m_exp_minus(float x, float maximum) {
    return exp_weight(x - (maximum == -INFINITY ? 0.0f : maximum));
}
// exp(old - new) for a running maximum; 1 while both are -inf
MIRAGE_INLINE float m_exp_difference(float old_max, float new_max) {
    const float e = m_exp(old_max - new_max);
    return old_max == new_max ? 1.0f : e;
}

}  // namespace MIRAGE_ISA
}  // namespace mirage
