// Tiles of one task on a CPU: copies with conversion, contractions, reductions the compiler can vectorise.
#pragma once
#include "mirage/cpu/contract.hpp"

namespace mirage {
inline namespace MIRAGE_ISA {

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
struct Sum {
    static inline float none() { return 0.0f; }
    static inline float join(float x, float y) { return x + y; }
    static inline Vector join(Vector x, Vector y) { return x + y; }
};
struct Max {
    static inline float none() { return -INFINITY; }
    static inline float join(float x, float y) { return m_max(x, y); }
    static inline Vector join(Vector x, Vector y) { return ((x > y) | (x != x)) ? x : y; }
};
// R over f(0) .. f(n - 1), in sixteen interleaved parts so that it can run on vectors
template <class R, class F>
MIRAGE_INLINE float reduce(int n, F f) {
    constexpr int PARTS = 16;
    float part[PARTS];
    for (int l = 0; l < PARTS; ++l) part[l] = R::none();
    int k = 0;
    for (; k + PARTS <= n; k += PARTS) {
        MIRAGE_VECTOR_LOOP
        for (int l = 0; l < PARTS; ++l) part[l] = R::join(part[l], f(k + l));
    }
    for (int l = 0, rest = n - k; l < rest; ++l) part[l] = R::join(part[l], f(k + l));
    for (int width = PARTS / 2; width > 0; width /= 2)
        for (int l = 0; l < width; ++l) part[l] = R::join(part[l], part[l + width]);
    return part[0];
}

// R over numbers that lie side by side
template <class R>
MIRAGE_INLINE float reduce_row(const float* p, int n) {
    constexpr int PARTS = 4;
    Vector part[PARTS];
    for (int l = 0; l < PARTS; ++l) part[l] = Vector{} + R::none();
    int k = 0;
    for (; k + PARTS * LANES <= n; k += PARTS * LANES)
        for (int l = 0; l < PARTS; ++l) part[l] = R::join(part[l], load_vector(p + k + l * LANES));
    for (; k + LANES <= n; k += LANES) part[0] = R::join(part[0], load_vector(p + k));
    const Vector all = R::join(R::join(part[0], part[1]), R::join(part[2], part[3]));
    float lane[LANES];
    store_vector(lane, all);
    for (; k < n; ++k) lane[0] = R::join(lane[0], p[k]);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; ++l) lane[l] = R::join(lane[l], lane[l + width]);
    return lane[0];
}

}  // namespace MIRAGE_ISA
}  // namespace mirage
