// bfloat16 for the emulator.
#pragma once
#include "cuda_fp16.h"

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float x) {
        const float r = static_cast<float>(emulate_round(static_cast<double>(x), 8, -126));
        uint32_t whole;
        std::memcpy(&whole, &r, 4);
        bits = static_cast<uint16_t>(whole >> 16 | (std::isnan(x) ? 0x40 : 0));
    }
};
inline float __bfloat162float(__nv_bfloat16 b) {
    const uint32_t whole = static_cast<uint32_t>(b.bits) << 16;
    float x;
    std::memcpy(&x, &whole, 4);
    return x;
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }

struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
