// Scalar functions of the operator registry in HIP, over float, without ROCm's device library: what the compiler has no
// instruction for is computed in float64 here. Nobody has run it.
#pragma once
#include <cmath>

#include "mirage/hip/device.h"
#include "mirage/gpu_numbers.h"

namespace mirage {

MIRAGE_DEVICE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
MIRAGE_DEVICE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
MIRAGE_DEVICE float to_float(__half x) { return static_cast<float>(x); }
MIRAGE_DEVICE float to_float(__nv_bfloat16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
MIRAGE_DEVICE float to_float(e5m2 x) { return static_cast<float>(__builtin_bit_cast(__half, static_cast<uint16_t>(x.bits << 8))); }
MIRAGE_DEVICE float to_float(e4m3 x) {
    const unsigned sign = (x.bits & 0x80u) << 24, body = x.bits & 0x7fu;
    const float number = body < 8u ? static_cast<float>(body) * 0x1p-9f : float_of((body << 20) + 0x3c000000u);
    return float_of(bits_of(body == 0x7fu ? NAN : number) | sign);
}
MIRAGE_DEVICE void put(__nv_bfloat16& to, float x) { to = __nv_bfloat16(x); }

// 2^x and log2(x) in float64, x > 0, by their series; good to 2^-40 or so.
MIRAGE_DEVICE double power_of_two(double x) {
    if (!(x > -1080.0)) return x != x ? x : 0.0;
    if (x > 1030.0) return INFINITY;
    const double whole = __builtin_rint(x), rest = (x - whole) * 0.6931471805599453;
    double sum = 1.0;
    for (int n = 12; n > 0; --n) sum = 1.0 + sum * rest / n;
    return __builtin_ldexp(sum, static_cast<int>(whole));
}
MIRAGE_DEVICE double logarithm(double x) {
    if (!(x < INFINITY)) return x;
    int power = 0;
    while (x < 0x1p-64) x *= 0x1p64, power -= 64;
    while (x > 0x1p64) x *= 0x1p-64, power += 64;
    while (x < 0.70710678118654752) x *= 2.0, --power;
    while (x > 1.41421356237309505) x *= 0.5, ++power;
    const double s = (x - 1.0) / (x + 1.0);
    double sum = 0.0;
    for (int n = 21; n > 0; n -= 2) sum = 1.0 / n + sum * s * s;
    return power + 2.885390081777927 * s * sum;
}
MIRAGE_DEVICE float expf_(float x) { return static_cast<float>(power_of_two(x * 1.4426950408889634)); }
MIRAGE_DEVICE float m_exp(float x) { return expf_(x); }
MIRAGE_DEVICE float m_log(float x) {
    return x > 0.0f ? static_cast<float>(logarithm(x) * 0.6931471805599453) : x == 0.0f ? -INFINITY : NAN;
}
MIRAGE_DEVICE float m_sqrt(float x) { return __builtin_sqrtf(x); }
MIRAGE_DEVICE float m_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
MIRAGE_DEVICE float tanhf_(float x) {
    const double a = __builtin_fabs(static_cast<double>(x));
    if (a < 0x1p-7) return static_cast<float>(x - x * (a * a) * (1.0 / 3.0 - a * a * (2.0 / 15.0)));  // the two below cancel
    const double e = power_of_two(-2.885390081777927 * a);
    return __builtin_copysignf(static_cast<float>((1.0 - e) / (1.0 + e)), x);
}
MIRAGE_DEVICE float m_tanh(float x) { return tanhf_(x); }
// erf by its series x * sum of (2 x^2)^n / (2n + 1)!!, which has no cancellation, and 1 from 4 on
MIRAGE_DEVICE float erff_(float x) {
    const double a = __builtin_fabs(static_cast<double>(x));
    if (!(a < 4.0)) return x != x ? x : __builtin_copysignf(1.0f, x);
    double term = a, sum = a;
    for (int n = 1; n < 60; ++n) term *= 2.0 * a * a / (2 * n + 1), sum += term;
    const double y = 1.1283791670955126 * sum * power_of_two(-1.4426950408889634 * a * a);
    return __builtin_copysignf(static_cast<float>(y), x);
}
MIRAGE_DEVICE float m_erf(float x) { return erff_(x); }
// sin(x + quarter * pi / 2) by its series around a multiple of pi / 2
MIRAGE_DEVICE float sine(float x, int quarter) {
    if (!(__builtin_fabsf(x) < INFINITY)) return NAN;
    const double turns = __builtin_rint(x * 0.6366197723675814);
    const double r = (x - turns * 1.5707963267948966) - turns * 6.123233995736766e-17;
    const int place = static_cast<int>(static_cast<int64_t>(turns) + quarter) & 3;
    double sum = 1.0;
    for (int n = 14; n > 1; n -= 2) sum = 1.0 - sum * r * r / (n * (n + 1 - 2 * (place % 2)));
    const double y = place % 2 ? sum : sum * r;
    return static_cast<float>(place > 1 ? -y : y);
}
MIRAGE_DEVICE float m_sin(float x) { return sine(x, 0); }
MIRAGE_DEVICE float m_cos(float x) { return sine(x, 1); }
MIRAGE_DEVICE float m_pow(float x, float y) {
    if (y == 0.0f || x == 1.0f) return 1.0f;
    if (x != x || y != y) return NAN;
    const bool whole = __builtin_truncf(y) == y, odd = whole && __builtin_fabsf(y) < 0x1p24f && (static_cast<int>(y) & 1);
    const float a = __builtin_fabsf(x);
    if (a == 1.0f) return x > 0.0f || whole ? (odd ? x : 1.0f) : NAN;
    const bool grows = (a > 1.0f) == (y > 0.0f), last = a == 0.0f || !(a < INFINITY) || !(__builtin_fabsf(y) < INFINITY);
    const float size = last ? (grows ? INFINITY : 0.0f) : static_cast<float>(power_of_two(y * logarithm(a)));
    if (__builtin_signbit(x) == 0) return size;
    return whole ? (odd ? -size : size) : a == 0.0f || !(a < INFINITY) ? size : NAN;
}
MIRAGE_DEVICE float m_abs(float x) { return __builtin_fabsf(x); }
MIRAGE_DEVICE float m_floor(float x) { return __builtin_floorf(x); }
MIRAGE_DEVICE float m_ceil(float x) { return __builtin_ceilf(x); }
MIRAGE_DEVICE float m_rint(float x) { return __builtin_rintf(x); }
MIRAGE_DEVICE float m_trunc(float x) { return __builtin_truncf(x); }
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
MIRAGE_DEVICE float m_round_f16(float x) { return to_float(static_cast<__half>(x)); }
MIRAGE_DEVICE float m_round_bf16(float x) { return to_float(__nv_bfloat16(x)); }
MIRAGE_DEVICE float m_isnan(float x) { return x != x ? 1.0f : 0.0f; }
MIRAGE_DEVICE float m_isinf(float x) { return __builtin_fabsf(x) == INFINITY ? 1.0f : 0.0f; }
MIRAGE_DEVICE float m_where(float c, float x, float y) { return c != 0.0f ? x : y; }
// max and min hand on a NaN from either side, as numpy's do
MIRAGE_DEVICE float m_max(float x, float y) { return (x > y || x != x) ? x : y; }
MIRAGE_DEVICE float m_min(float x, float y) { return (x < y || x != x) ? x : y; }
// a product is rounded before 0 is added, and a difference that reads it is not made one operation with it
MIRAGE_DEVICE float m_rounded(float x) {
#pragma clang fp contract(off)
    return x + 0.0f;
}
MIRAGE_DEVICE float m_lt(float x, float y) { return x < y ? 1.0f : 0.0f; }
MIRAGE_DEVICE float m_le(float x, float y) { return x <= y ? 1.0f : 0.0f; }
MIRAGE_DEVICE float m_sign(float x) { return (x != x) ? x : m_lt(0.0f, x) - m_lt(x, 0.0f); }
MIRAGE_DEVICE float m_sigmoid(float x) { return 1.0f / (1.0f + expf_(-x)); }
MIRAGE_DEVICE float m_silu(float x) { return x / (1.0f + expf_(-x)); }
MIRAGE_DEVICE float m_gelu(float x) { return 0.5f * x * (1.0f + erff_(x * 0.70710678118654752f)); }
MIRAGE_DEVICE float m_gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf_(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
MIRAGE_DEVICE float m_softplus(float x) { return (x > 0.0f ? x : 0.0f) +
           static_cast<float>(0.6931471805599453 * logarithm(1.0 + power_of_two(-1.4426950408889634 * __builtin_fabs(static_cast<double>(x))))); }
MIRAGE_DEVICE float m_softsign(float x) { return x / (1.0f + __builtin_fabsf(x)); }
// x / y, and 0 where that is not a number (a softmax whose NaN become zeros), unless x alone is none; `q` is the quotient
MIRAGE_DEVICE float guarded_div0(float q, float x, float y) { return (q != q) && ((y != y) || !(x != x)) ? 0.0f : q; }
MIRAGE_DEVICE float m_div0(float x, float y) { return guarded_div0(x / y, x, y); }
// x / y, and 0 where y is 0 (a softmax row without any key), unless x is no number; `q` is the quotient
MIRAGE_DEVICE float guarded_share(float q, float x, float y) { return y == 0.0f && !(x != x) ? 0.0f : q; }
MIRAGE_DEVICE float m_share(float x, float y) { return guarded_share(x / y, x, y); }
// exp(x - maximum); a row whose maximum is -inf has nothing to weigh
MIRAGE_DEVICE float m_exp_minus(float x, float maximum) { return maximum == -INFINITY ? 0.0f : expf_(x - maximum); }
// exp(old - new) for a running maximum; 1 while both are -inf
MIRAGE_DEVICE float m_exp_difference(float old_max, float new_max) {
    return old_max == new_max ? 1.0f : expf_(old_max - new_max);
}

}  // namespace mirage
