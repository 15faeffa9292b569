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
    using Wide = double;
    static inline float none() { return 0.0f; }
    static inline double join(double x, double y) { return x + y; }
    static inline float join(float x, float y) { return x + y; }
    static inline Vector join(Vector x, Vector y) { return x + y; }
};
struct Max {
    using Wide = float;
    static inline float none() { return -INFINITY; }
    static inline float join(float x, float y) { return m_max(x, y); }
    static inline Vector join(Vector x, Vector y) { return ((x > y) | (x != x)) ? x : y; }
};
// R over f(from) .. f(to - 1), in sixteen interleaved parts so that it can run on vectors
constexpr int PARTS = 16;
template <class R, class F>
MIRAGE_INLINE float reduce_run(int from, int to, F f) {
    float part[PARTS];
    for (int l = 0; l < PARTS; ++l) part[l] = R::none();
    int k = from;
    for (; k + PARTS <= to; k += PARTS) {
        MIRAGE_VECTOR_LOOP
        for (int l = 0; l < PARTS; ++l) part[l] = R::join(part[l], f(k + l));
    }
    for (int l = 0, rest = to - k; l < rest; ++l) part[l] = R::join(part[l], f(k + l));
    for (int width = PARTS / 2; width > 0; width /= 2)
        for (int l = 0; l < width; ++l) part[l] = R::join(part[l], part[l + width]);
    return part[0];
}
// R over f(0) .. f(n - 1); sums of runs are added as doubles, since a long row of equal numbers would be rounded to one side
constexpr int RUN = 8 * PARTS;
template <class R, class F>
MIRAGE_INLINE float reduce(int n, F f) {
    if (n <= RUN) return reduce_run<R>(0, n, f);
    using Wide = typename R::Wide;
    Wide total = R::none();
    for (int k = 0; k < n; k += RUN)
        total = R::join(total, static_cast<Wide>(reduce_run<R>(k, k + RUN < n ? k + RUN : n, f)));
    return static_cast<float>(total);
}

// R over numbers that lie side by side
template <class R>
MIRAGE_INLINE float reduce_row_run(const float* p, int n) {
    constexpr int VECTORS = 4;
    Vector part[VECTORS];
    for (int l = 0; l < VECTORS; ++l) part[l] = Vector{} + R::none();
    int k = 0;
    for (; k + VECTORS * LANES <= n; k += VECTORS * LANES)
        for (int l = 0; l < VECTORS; ++l) part[l] = R::join(part[l], load_vector(p + k + l * LANES));
    for (; k + LANES <= n; k += LANES) part[0] = R::join(part[0], load_vector(p + k));
    const Vector all = R::join(R::join(part[0], part[1]), R::join(part[2], part[3]));
    float lane[LANES];
    store_vector(lane, all);
    for (; k < n; ++k) lane[0] = R::join(lane[0], p[k]);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; ++l) lane[l] = R::join(lane[l], lane[l + width]);
    return lane[0];
}
template <class R>
MIRAGE_INLINE float reduce_row(const float* p, int n) {
    constexpr int LONG = 4 * RUN;
    if (n <= LONG) return reduce_row_run<R>(p, n);
    using Wide = typename R::Wide;
    Wide total = R::none();
    for (int k = 0; k < n; k += LONG)
        total = R::join(total, static_cast<Wide>(reduce_row_run<R>(p + k, n - k < LONG ? n - k : LONG)));
    return static_cast<float>(total);
}

}  // namespace MIRAGE_ISA
}  // namespace mirage
