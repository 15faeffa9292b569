// Half precision for the emulator, rounded in double arithmetic.
#pragma once
#include "cuda_runtime.h"

// x rounded to `bits` bits of significand, exponents from `lowest` on
inline double emulate_round(double x, int bits, int lowest) {
    if (x == 0.0 || !std::isfinite(x)) return x;
    const int unit = std::max(std::ilogb(x), lowest) - bits + 1;
    return std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
}

struct __half {
    uint16_t bits;
    __half() = default;
    explicit __half(float x) {
        const double r = emulate_round(std::fabs(static_cast<double>(x)), 11, -14);
        if (std::isnan(r)) bits = 0x7fff;
        else if (r >= 65536.0) bits = 0x7c00;
        else if (r < std::ldexp(1.0, -14)) bits = static_cast<uint16_t>(std::ldexp(r, 24));
        else {
            const int e = std::ilogb(r);
            bits = static_cast<uint16_t>((e + 15) << 10 | (static_cast<int>(std::ldexp(r, 10 - e)) & 0x3ff));
        }
        if (std::signbit(x)) bits |= 0x8000;
    }
};
inline std::vector<float> emulate_halves() {
    std::vector<float> all;
    for (int bits = 0; bits < 0x10000; ++bits) {
        const int e = bits >> 10 & 31, m = bits & 0x3ff;
        const double x = e == 31 ? (m ? NAN : INFINITY) : e ? std::ldexp(1024 + m, e - 25) : std::ldexp(m, -24);
        all.push_back(static_cast<float>(bits & 0x8000 ? -x : x));
    }
    return all;
}
inline const std::vector<float> emulated_halves = emulate_halves();
inline float __half2float(__half h) { return emulated_halves[h.bits]; }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __ushort_as_half(unsigned short bits) {
    __half h;
    h.bits = bits;
    return h;
}

struct __half2 {
    __half x, y;
};
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
