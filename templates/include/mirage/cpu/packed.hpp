// Contractions with a constant operand that lies packed: columns in panels of PANEL, number (k, j) of the whole matrix at
// [j / PANEL * deep * PANEL + k * PANEL + j % PANEL], zeros behind the last column (`pack` in pack.hpp makes them when a session is
// made). A panel is read from its beginning to its end, and fetched ahead.
#pragma once
#include "mirage/cpu/contract.hpp"

namespace mirage {
inline namespace MIRAGE_ISA {

constexpr int PANEL = 16;
constexpr int FETCHED = 2048;    // bytes that a panel is fetched ahead where several rows meet it
constexpr int PANEL_ROWS = 384;  // summed positions of a panel that all rows meet while it is in the first-level cache

// An operand of which there may be a packed form: `panels` (nullptr: there is none) of the matrix that begins at `first`,
// which has `deep` summed positions.
template <class T>
struct Packed {
    Operand<T> plain;
    const T *first, *panels;
    int64_t deep;
};
template <class T>
MIRAGE_INLINE Packed<T> packed(Operand<T> plain, const T* first, const T* panels, int64_t deep) {
    return {plain, first, panels, deep};
}
// The place in the panels where an operand begins; nullptr where it begins inside of a panel, and without panels.
template <class T>
MIRAGE_INLINE const T* begin(const Packed<T>& x) {
    if (x.panels == nullptr) return nullptr;
    const bool across = x.plain.row == 1;
    const int64_t at = x.plain.data - x.first, wide = across ? x.plain.depth : x.plain.row;
    const int64_t column = across ? at % wide : at / wide, k = across ? at / wide : at % wide;
    return column % PANEL == 0 ? x.panels + column * x.deep + k * PANEL : nullptr;
}

// ROWS x VECTORS of c; column j of b in the panel at b + j / PANEL * panel
template <int ROWS, int VECTORS, class T>
MIRAGE_INLINE void packed_block(Result c, const float* a, int64_t lda, const T* b, int64_t panel, int depth) {
    for (int first = 0; first < depth; first += DEPTH) {
        const int last = depth - first < DEPTH ? depth : first + DEPTH;
        Vector sum[ROWS][VECTORS] = {};
        for (int k = first; k < last; ++k) {
            Vector x[VECTORS];
            for (int v = 0; v < VECTORS; ++v) {
                const T* const from = b + v * LANES / PANEL * panel + k * PANEL + v * LANES % PANEL;
                if (ROWS > 1 && v * LANES % PANEL == 0) __builtin_prefetch(reinterpret_cast<const char*>(from) + FETCHED);
                x[v] = load_vector(from);
            }
            for (int r = 0; r < ROWS; ++r) {
                const float y = a[r * lda + k];
                for (int v = 0; v < VECTORS; ++v) sum[r][v] += y * x[v];
            }
        }
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECTORS; ++v) {
                float* const to = c.data + r * c.row + v * LANES;
                store_vector(to, c.fresh && first == 0 ? sum[r][v] : load_vector(to) + sum[r][v]);
            }
    }
}
// The same for a block of LEAST to MOST rows, of which SIZE is known when it runs.
template <int LEAST, int MOST, int SIZE = MOST < BLOCK_ROWS ? MOST : BLOCK_ROWS, class T>
MIRAGE_INLINE void packed_block_of(int rows, Result c, const float* a, int64_t lda, const T* b, int64_t panel, int depth) {
    if constexpr (is_made(SIZE, LEAST, MOST)) {
        constexpr bool LAST = SIZE == smallest_block(LEAST, MOST);
        if (LAST || rows == SIZE) return packed_block<SIZE, 2>(c, a, lda, b, panel, depth);
    }
    if constexpr (SIZE > smallest_block(LEAST, MOST)) packed_block_of<LEAST, MOST, SIZE - 1>(rows, c, a, lda, b, panel, depth);
}
// What becomes of a block of the result: `part` has a row for each row of `a`, BLOCK_COLS apart.
struct Plain {
    static constexpr bool DIRECT = true;
    MIRAGE_INLINE void put(Result c, const float* part, int i, int j, int high, int width) {
        for (int r = 0; r < high; ++r)
            for (int q = 0; q < width; ++q) {
                float& to = c.data[(i + r) * c.row + j + q];
                to = part[r * BLOCK_COLS + q] + (c.fresh ? 0.0f : to);
            }
    }
};
struct Turned {
    static constexpr bool DIRECT = false;
    MIRAGE_INLINE void put(Result c, const float* part, int i, int j, int high, int width) {
        for (int q = 0; q < width; ++q)
            for (int r = 0; r < high; ++r) {
                float& to = c.data[(j + q) * c.row + i + r];
                to = part[r * BLOCK_COLS + q] + (c.fresh ? 0.0f : to);
            }
    }
};
// Rows of `a`, whose summed positions lie side by side, times columns of panels.
template <class Form, int LEAST, int MOST, bool WHOLE, class T>
[[maybe_unused]] static void packed_rows(Result c, int rows, int cols, int depth, const float* a, int64_t lda, const T* b,
                                         int64_t panel) {
    const int reach = rows <= BLOCK_ROWS ? depth : PANEL_ROWS;
    for (int k = 0; k < depth; k += reach) {
        const int part = depth - k < reach ? depth - k : reach;
        const Result to = {c.data, c.row, c.fresh && k == 0};
        for (int j = 0; j < cols; j += BLOCK_COLS) {
            const T* const from = b + j / PANEL * panel + k * PANEL + j % PANEL;
            const int width = WHOLE || cols - j > BLOCK_COLS ? BLOCK_COLS : cols - j;
            for (int i = 0, high = 0; i < rows; i += high) {
                high = first_block(rows - i);
                const float* const x = a + i * lda + k;
                if (Form::DIRECT && (WHOLE || width == BLOCK_COLS)) {
                    packed_block_of<LEAST, MOST>(high, {c.data + i * c.row + j, c.row, to.fresh}, x, lda, from, panel, part);
                } else if constexpr (!Form::DIRECT || !WHOLE) {
                    alignas(64) float own[BLOCK_ROWS * BLOCK_COLS];
                    packed_block_of<LEAST, MOST>(high, {own, BLOCK_COLS, true}, x, lda, from, panel, part);
                    Form::put(to, own, i, j, high, width);
                }
            }
        }
    }
}
// The same for rows of `a` that lie in any way.
template <class Form, class K, int LEAST, int MOST, bool WHOLE, class T>
[[maybe_unused]] static void packed_parts(float* c, int64_t ldc, int rows, int cols, int depth, Operand<float> a, const T* b,
                                          int64_t panel, bool add) {
    constexpr int HEIGHT = 4 * BLOCK_ROWS;  // rows of an operand that is turned
    if (a.depth == 1) return packed_rows<Form, LEAST, MOST, WHOLE>({c, ldc, !add}, rows, cols, depth, a.data, a.row, b, panel);
    alignas(64) float turned[HEIGHT * DEPTH];
    for (int i = 0; i < rows; i += HEIGHT) {
        const int height = rows - i < HEIGHT ? rows - i : HEIGHT;
        for (int k = 0; k < depth; k += DEPTH) {
            const int part = depth - k < DEPTH ? depth - k : DEPTH;
            for (int t = 0; t < part; ++t)
                for (int r = 0; r < height; ++r) turned[r * DEPTH + t] = a.data[(i + r) * a.row + (k + t) * a.depth];
            const Result to = {c + (Form::DIRECT ? i * ldc : i), ldc, !add && k == 0};
            packed_rows<Form, 1, HEIGHT, WHOLE>(to, height, cols, part, turned, DEPTH, b + k * PANEL, panel);
        }
    }
}
// As `contract` of operands that are not packed.
template <class K = Known<>, class T>
[[maybe_unused]] static void contract(float* c, int64_t ldc, int rows, int cols, int depth, Operand<float> a, Packed<T> b,
                                      bool add) {
    const T* const panels = begin(b);
    if (panels == nullptr || depth == 0) return contract<K>(c, ldc, rows, cols, depth, a, b.plain, add);
    packed_parts<Plain, K, K::LEAST, K::MOST, K::WHOLE>(c, ldc, rows, cols, depth, a, panels, b.deep * PANEL, add);
}
template <class K = Known<>, class T>
[[maybe_unused]] static void contract(float* c, int64_t ldc, int rows, int cols, int depth, Packed<T> a, Operand<float> b,
                                      bool add) {
    const T* const panels = begin(a);
    if (panels == nullptr || depth == 0) return contract<K>(c, ldc, rows, cols, depth, a.plain, b, add);
    packed_parts<Turned, K, 1, 1 << 20, false>(c, ldc, cols, rows, depth, b, panels, a.deep * PANEL, add);
}

}  // namespace MIRAGE_ISA
}  // namespace mirage
