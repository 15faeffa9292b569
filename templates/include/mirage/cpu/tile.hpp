// Tiles of one task on a CPU: copies with conversion, contractions, reductions the compiler can vectorise.
#pragma once
#include <cstdlib>

#include "mirage/cpu/levels.hpp"

namespace mirage {
inline namespace MIRAGE_ISA {

// Scratch of the running thread, kept from task to task.
struct Scratch {
    void* data = nullptr;
    size_t size = 0;
    ~Scratch() { std::free(data); }
};
inline unsigned char* scratch(size_t size) {
    static thread_local Scratch own;
    if (own.size < size) {
        std::free(own.data);
        own.data = std::aligned_alloc(128, (size + 127) / 128 * 128);
        own.size = own.data != nullptr ? size : 0;
    }
    return static_cast<unsigned char*>(own.data);
}
MIRAGE_INLINE int smaller(int64_t a, int64_t b) { return static_cast<int>(a < b ? a : b); }

// --- rows with conversion -----------------------------------------------------------------------------------------------
template <class T>
MIRAGE_INLINE void load_row(float* __restrict to, const T* __restrict from, int n) {
    int i = 0;
#if defined(__F16C__)
    if constexpr (sizeof(T) == sizeof(half) && __is_same(T, half))
        for (; i + 8 <= n; i += 8) {
            const Floats8 wide = from_halves(from + i);
            std::memcpy(to + i, &wide, sizeof wide);
        }
#endif
    MIRAGE_VECTOR_LOOP
    for (int k = i; k < n; ++k) to[k] = to_float(from[k]);
}
#define MIRAGE_PACKED(NAME, BITS, SIGNED)                                                                         \
    MIRAGE_INLINE float number_##NAME(const uint8_t* from, int64_t at) { return packed_number<BITS, SIGNED>(from, at); } \
    MIRAGE_INLINE void load_##NAME(float* __restrict to, const uint8_t* __restrict from, int64_t at, int n) {      \
        load_packed<BITS, SIGNED>(to, from, at, n);                                                               \
    }
MIRAGE_PACKED(u4, 4, false)
MIRAGE_PACKED(i4, 4, true)
MIRAGE_PACKED(u2, 2, false)
MIRAGE_PACKED(i2, 2, true)
#undef MIRAGE_PACKED
MIRAGE_INLINE float number_e2m1(const uint8_t* from, int64_t at) { return e2m1_number(uint32_t(from[at / 2]) >> (at % 2 * 4)); }
MIRAGE_INLINE void load_e2m1(float* __restrict to, const uint8_t* __restrict from, int64_t at, int n) {
    MIRAGE_VECTOR_LOOP
    for (int i = 0; i < n; ++i) to[i] = number_e2m1(from, at + i);
}
template <class T>
MIRAGE_INLINE void store_row(T* __restrict to, const float* __restrict from, int n) {
    int i = 0;
#if defined(__F16C__)
    if constexpr (sizeof(T) == sizeof(half) && __is_same(T, half))
        for (; i + 8 <= n; i += 8) to_halves(to + i, from + i);
#endif
    MIRAGE_VECTOR_LOOP
    for (int k = i; k < n; ++k) put(to[k], from[k]);
}

// --- reductions -------------------------------------------------------------------------------------------------------------
// Each has `take(x, y)`, which joins y to x.
struct Sum {
    using Wide = double;
    static inline float none() { return 0.0f; }
    MIRAGE_INLINE void take(double& x, double y) { x += y; }
};
struct Max {
    using Wide = float;
    static inline float none() { return -INFINITY; }
    MIRAGE_INLINE void take(float& x, float y) { x = m_max(x, y); }
};
// R over f(0) .. f(n - 1), in sixteen interleaved parts so that it can run on vectors. Sums are made in double: a row of equal
// numbers would be rounded to one side again and again
constexpr int PARTS = 16;
template <class R, class F>
MIRAGE_INLINE typename R::Wide reduce(int n, F f) {
    using Wide = typename R::Wide;
    Wide part[PARTS];
    for (int l = 0; l < PARTS; ++l) part[l] = R::none();
    int k = 0;
    for (; k + PARTS <= n; k += PARTS) {
        MIRAGE_VECTOR_PARTS
        for (int l = 0; l < PARTS; ++l) R::take(part[l], static_cast<Wide>(f(k + l)));
    }
    for (int l = 0, rest = n - k; l < rest; ++l) R::take(part[l], static_cast<Wide>(f(k + l)));
    for (int width = PARTS / 2; width > 0; width /= 2)
        for (int l = 0; l < width; ++l) R::take(part[l], part[l + width]);
    return part[0];
}

// The sum of numbers that lie side by side. Four are added as they are, which is exact for equal ones.
MIRAGE_INLINE double sum_of_row(const float* p, int n) {
    constexpr int COUNT = LANES / 2;  // in double
    typedef double Part __attribute__((vector_size(sizeof(Vector))));
    typedef float Few __attribute__((vector_size(COUNT * sizeof(float))));
    Part part[2] = {};
    const auto add = [&](const Vector& x) {
        Few few[2];
        std::memcpy(few, &x, sizeof x);
        for (int l = 0; l < 2; ++l) part[l] += __builtin_convertvector(few[l], Part);
    };
    int k = 0;
    for (; k + 4 * LANES <= n; k += 4 * LANES) {
        Vector x[4];
        for (int l = 0; l < 4; ++l) x[l] = load_vector(p + k + l * LANES);
        add((x[0] + x[1]) + (x[2] + x[3]));
    }
    for (; k + LANES <= n; k += LANES) add(load_vector(p + k));
    double lane[COUNT];
    part[0] += part[1];
    std::memcpy(lane, &part[0], sizeof lane);
    for (; k < n; ++k) lane[0] += static_cast<double>(p[k]);
    for (int width = COUNT / 2; width > 0; width /= 2)
        for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
    return lane[0];
}
// The most of numbers that lie side by side. The instruction leaves a NaN out that something follows: the sum shows it.
MIRAGE_INLINE float most_of_row(const float* p, int n) {
    constexpr int AT_ONCE = 4;
    Vector most[AT_ONCE], sum = {};
    for (int l = 0; l < AT_ONCE; ++l) most[l] = Vector{} - INFINITY;
    int k = 0;
    for (; k + AT_ONCE * LANES <= n; k += AT_ONCE * LANES)
        for (int l = 0; l < AT_ONCE; ++l) {
            const Vector x = load_vector(p + k + l * LANES);
            most[l] = most[l] > x ? most[l] : x;
            sum += x;
        }
    for (int l = 1; l < AT_ONCE; ++l) most[0] = most[0] > most[l] ? most[0] : most[l];
    float lane[LANES], total = add_lanes(sum);
    store_vector(lane, most[0]);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; ++l) lane[l] = lane[l] > lane[l + width] ? lane[l] : lane[l + width];
    float top = lane[0];
    for (; k < n; ++k) {
        top = top > p[k] ? top : p[k];
        total += p[k];
    }
    for (int i = 0; total != total && i < n; ++i) top = m_max(top, p[i]);
    return top;
}
// R over numbers that lie side by side.
template <class R>
MIRAGE_INLINE typename R::Wide reduce_row(const float* p, int n) {
    if constexpr (__is_same(R, Max)) {
        return most_of_row(p, n);
    } else {
        return sum_of_row(p, n);
    }
}

}  // namespace MIRAGE_ISA
}  // namespace mirage
