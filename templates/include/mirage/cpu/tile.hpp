// Tiles of one task on a CPU: copies with conversion, contractions on vectors, reductions the compiler can vectorise.
#pragma once
#include "mirage/cpu/math.hpp"

namespace mirage {
inline namespace MIRAGE_ISA {

#if defined(__AVX512F__)
constexpr int LANES = 16, BLOCK_ROWS = 8;
#elif defined(__AVX2__)
constexpr int LANES = 8, BLOCK_ROWS = 6;
#else
constexpr int LANES = 4, BLOCK_ROWS = 4;
#endif
constexpr int BLOCK_COLS = 2 * LANES;  // two vectors
constexpr int DEPTH = 256;             // products that are added up before they join the result: long sums stay accurate
typedef float Vector __attribute__((vector_size(LANES * 4)));

MIRAGE_INLINE Vector load_vector(const float* p) {
    Vector v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
MIRAGE_INLINE void store_vector(float* p, Vector v) { std::memcpy(p, &v, sizeof v); }
MIRAGE_INLINE float add_lanes(Vector v) {
    float part[LANES];
    store_vector(part, v);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) part[i] += part[i + width];
    return part[0];
}

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

// --- contractions ---------------------------------------------------------------------------------------------------------
// An operand: element (i, k) lies at data[i * row + k * depth].
struct Operand {
    const float* data;
    int64_t row, depth;
};

// ROWS x (2 or 1 vectors) of c += a * b, b stored with its columns side by side
template <int ROWS, int VECTORS>
MIRAGE_INLINE void multiply_block(float* c, int64_t ldc, Operand a, const float* b, int64_t ldb, int depth) {
    Vector sum[ROWS][VECTORS] = {};
    for (int k = 0; k < depth; ++k) {
        Vector x[VECTORS];
        for (int v = 0; v < VECTORS; ++v) x[v] = load_vector(b + k * ldb + v * LANES);
        for (int r = 0; r < ROWS; ++r) {
            const float y = a.data[r * a.row + k * a.depth];
            for (int v = 0; v < VECTORS; ++v) sum[r][v] += y * x[v];
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) {
            float* const to = c + r * ldc + v * LANES;
            store_vector(to, load_vector(to) + sum[r][v]);
        }
}
template <int ROWS>
[[maybe_unused]] static void multiply_rows(float* c, int64_t ldc, Operand a, const float* b, int64_t ldb, int cols,
                                           int depth) {
    int j = 0;
    if constexpr (ROWS <= 2)  // few rows: more columns at a time keep the multipliers busy
        for (; j + 8 * LANES <= cols; j += 8 * LANES) multiply_block<ROWS, 8>(c + j, ldc, a, b + j, ldb, depth);
    for (; j + 2 * LANES <= cols; j += 2 * LANES) multiply_block<ROWS, 2>(c + j, ldc, a, b + j, ldb, depth);
    for (; j + LANES <= cols; j += LANES) multiply_block<ROWS, 1>(c + j, ldc, a, b + j, ldb, depth);
    for (; j < cols; ++j)
        for (int r = 0; r < ROWS; ++r) {
            float sum = 0.0f;
            for (int k = 0; k < depth; ++k) sum += a.data[r * a.row + k * a.depth] * b[k * ldb + j];
            c[r * ldc + j] += sum;
        }
}
// c += a * b, b with its columns side by side
[[maybe_unused]] static void multiply_plain(float* c, int64_t ldc, int rows, int cols, int depth, Operand a,
                                            const float* b, int64_t ldb) {
    int i = 0;
    for (; i + BLOCK_ROWS <= rows; i += BLOCK_ROWS)
        multiply_rows<BLOCK_ROWS>(c + i * ldc, ldc, {a.data + i * a.row, a.row, a.depth}, b, ldb, cols, depth);
    for (; i + 2 <= rows; i += 2)
        multiply_rows<2>(c + i * ldc, ldc, {a.data + i * a.row, a.row, a.depth}, b, ldb, cols, depth);
    for (; i < rows; ++i)
        multiply_rows<1>(c + i * ldc, ldc, {a.data + i * a.row, a.row, a.depth}, b, ldb, cols, depth);
}
// one row times columns that lie depth-first in memory: dot products, four at a time
[[maybe_unused]] static void multiply_dots(float* c, int cols, int depth, const float* a, Operand b) {
    int j = 0;
    for (; j + 4 <= cols; j += 4) {
        Vector sum[4] = {};
        int k = 0;
        for (; k + LANES <= depth; k += LANES) {
            const Vector x = load_vector(a + k);
            for (int q = 0; q < 4; ++q) sum[q] += x * load_vector(b.data + (j + q) * b.row + k);
        }
        for (int q = 0; q < 4; ++q) {
            float total = add_lanes(sum[q]);
            for (int t = k; t < depth; ++t) total += a[t] * b.data[(j + q) * b.row + t];
            c[j + q] += total;
        }
    }
    for (; j < cols; ++j) {
        Vector sum = {};
        int k = 0;
        for (; k + LANES <= depth; k += LANES) sum += load_vector(a + k) * load_vector(b.data + j * b.row + k);
        float total = add_lanes(sum);
        for (; k < depth; ++k) total += a[k] * b.data[j * b.row + k];
        c[j] += total;
    }
}
// c += a * b for columns that lie in any other way: some of them at a time are turned
[[maybe_unused]] static void multiply_turned(float* c, int64_t ldc, int rows, int cols, int depth, Operand a,
                                             Operand b) {
    alignas(64) float turned[DEPTH * BLOCK_COLS];
    for (int j = 0; j < cols; j += BLOCK_COLS) {
        const int width = cols - j < BLOCK_COLS ? cols - j : BLOCK_COLS;
        for (int q = 0; q < width; ++q)
            for (int t = 0; t < depth; ++t) turned[t * BLOCK_COLS + q] = b.data[(j + q) * b.row + t * b.depth];
        multiply_plain(c + j, ldc, rows, width, depth, a, turned, BLOCK_COLS);
    }
}
// c[rows][cols] += (or = without `add`) sum over depth of a(i, k) * b(j, k)
[[maybe_unused]] static void contract(float* c, int64_t ldc, int rows, int cols, int depth, Operand a, Operand b,
                                      bool add) {
    if (!add)
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < cols; ++j) c[i * ldc + j] = 0.0f;
    const bool dots = rows <= 2 && a.depth == 1 && b.depth == 1;
    for (int k = 0; k < depth; k += DEPTH) {
        const int part = depth - k < DEPTH ? depth - k : DEPTH;
        const Operand x = {a.data + k * a.depth, a.row, a.depth}, y = {b.data + k * b.depth, b.row, b.depth};
        if (b.row == 1) {
            multiply_plain(c, ldc, rows, cols, part, x, y.data, y.depth);
        } else if (dots) {
            for (int i = 0; i < rows; ++i) multiply_dots(c + i * ldc, cols, part, x.data + i * x.row, y);
        } else {
            multiply_turned(c, ldc, rows, cols, part, x, y);
        }
    }
}

// --- reductions -------------------------------------------------------------------------------------------------------------
struct Sum {
    static inline float none() { return 0.0f; }
    static inline float join(float x, float y) { return x + y; }
};
struct Max {
    static inline float none() { return -INFINITY; }
    static inline float join(float x, float y) { return m_max(x, y); }
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

}  // namespace MIRAGE_ISA
}  // namespace mirage
