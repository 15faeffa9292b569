// Elements of tensors as floats and back, where CUDA and HIP are the same.
#pragma once
#include <cstdint>

namespace mirage {

#define MIRAGE_DEVICE __device__ __forceinline__

MIRAGE_DEVICE float to_float(float x) { return x; }
MIRAGE_DEVICE float to_float(double x) { return static_cast<float>(x); }
// float8e4m3fn, which has no infinities, and float8e5m2
struct e4m3 {
    static constexpr int BITS = 8;
    uint8_t bits;
};
struct e5m2 {
    uint8_t bits;
};
MIRAGE_DEVICE float to_float(int64_t x) { return static_cast<float>(x); }
MIRAGE_DEVICE float to_float(int32_t x) { return static_cast<float>(x); }
MIRAGE_DEVICE float to_float(int16_t x) { return static_cast<float>(x); }
MIRAGE_DEVICE float to_float(int8_t x) { return static_cast<float>(x); }
MIRAGE_DEVICE float to_float(uint32_t x) { return static_cast<float>(x); }
MIRAGE_DEVICE float to_float(uint16_t x) { return static_cast<float>(x); }
MIRAGE_DEVICE float to_float(uint8_t x) { return static_cast<float>(x); }
// an integer of a tensor as a number of positions: what is far beyond any of them stays so
MIRAGE_DEVICE int whole_number(int64_t x) {
    const int64_t most = 1 << 29;
    return static_cast<int>(x > most ? most : x < -most ? -most : x);
}
// number `at` of those that share bytes, the first one in the low bits
template <int BITS, bool SIGNED>
MIRAGE_DEVICE float packed_number(const uint8_t* from, int64_t at) {
    constexpr int PER = 8 / BITS, TOP = SIGNED ? 1 << (BITS - 1) : 0;
    const int bits = (from[at / PER] >> (static_cast<int>(at % PER) * BITS)) & ((1 << BITS) - 1);
    return static_cast<float>((bits ^ TOP) - TOP);
}
// numbers of BITS bits, of two's complement where SIGNED
template <int BITS_, bool SIGNED_>
struct Whole {
    using STORED = uint8_t;
    static constexpr int BITS = BITS_, TOP = SIGNED_ ? 1 << (BITS_ - 1) : 0;  //!< stored ^ TOP is number + TOP
};
using u2 = Whole<2, false>;
using i2 = Whole<2, true>;
using u4 = Whole<4, false>;
using i4 = Whole<4, true>;
MIRAGE_DEVICE float number_u4(const uint8_t* from, int64_t at) { return packed_number<4, false>(from, at); }
MIRAGE_DEVICE float number_i4(const uint8_t* from, int64_t at) { return packed_number<4, true>(from, at); }
MIRAGE_DEVICE float number_u2(const uint8_t* from, int64_t at) { return packed_number<2, false>(from, at); }
MIRAGE_DEVICE float number_i2(const uint8_t* from, int64_t at) { return packed_number<2, true>(from, at); }
// float4e2m1 in the low bits: a sign, two bits of an exponent, one of a mantissa
struct e2m1 {
    static constexpr int BITS = 4, TOP = 0;
};
MIRAGE_DEVICE float e2m1_number(uint32_t bits) {
    const uint32_t body = bits & 7u;
    const float number = body < 2u ? static_cast<float>(body) * 0.5f : static_cast<float>((2u + (body & 1u)) << (body >> 1)) * 0.25f;
    return bits & 8u ? -number : number;
}
MIRAGE_DEVICE float number_e2m1(const uint8_t* from, int64_t at) {
    return e2m1_number(from[at / 2] >> (static_cast<int>(at % 2) * 4));
}

// put(to, x): x rounded to the element type of `to`
template <class T>
MIRAGE_DEVICE void put(T& to, float x) {
    to = static_cast<T>(x);
}

}  // namespace mirage
