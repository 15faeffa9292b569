// Contractions with a constant operand that lies packed: columns in panels of PANEL, number (k, j) of the whole matrix at
// [j / PANEL * deep * PANEL + k * PANEL + j % PANEL], zeros behind the last column (`pack` in pack.hpp makes them when a session is
// made). A panel is read from its beginning to its end, and fetched ahead.
#pragma once
#include "mirage/cpu/contract.hpp"

namespace mirage {
inline namespace MIRAGE_ISA {

constexpr int PANEL = 16;
constexpr int FETCHED = 2048;      // bytes that a panel is fetched ahead by the first block of rows that meets it
constexpr int ROWS_FETCHED = 512;  // the same for rows that are turned
constexpr int WAYS = 8;            // lines of the first-level cache that may lie at the same place
constexpr int TURNED_ROWS = 192;   // rows, and
constexpr int PANEL_ROWS = 384;    // summed positions of them, that meet a panel while it is in the first-level cache
constexpr int PAIR = 2 * PANEL;    // columns of two panels, which few rows read side by side: a core reads more from two places
constexpr int PAIRED_ROWS = BLOCK_COLS < PAIR ? BLOCK_ROWS * BLOCK_COLS / PAIR : 0;  // whose sums registers hold

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

// ROWS x VECTORS of c; column j of b in the panel at b + j / PANEL * panel. With each position what lies `fetched` bytes further on
// is fetched (0: nothing is, and the loop holds nothing but loads and multiply-adds).
template <Rows FORM, int ROWS, int VECTORS, class T>
MIRAGE_INLINE void packed_block(Result c, const float* a, int64_t lda, const T* b, int64_t panel, int depth,
                                int64_t fetched) {
    for (int r = 0; ROWS > 1 && r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) __builtin_prefetch(c.data + r * c.row + v * LANES, 1);
    const auto column = [&](int k, int v) { return b + v * LANES / PANEL * panel + k * PANEL + v * LANES % PANEL; };
    for (int first = 0; first < depth; first += DEPTH) {
        const int last = depth - first < DEPTH ? depth : first + DEPTH;
        Vector sum[ROWS][VECTORS] = {};
        const auto add = [&](int k) {
            Vector x[VECTORS];
            if (FORM == TURNED) __builtin_prefetch(reinterpret_cast<const char*>(a + k * ROWS) + ROWS_FETCHED);
            for (int v = 0; v < VECTORS; ++v) x[v] = load_vector(column(k, v));
            for (int r = 0; r < ROWS; ++r) {
                const float y = FORM == TURNED ? a[k * ROWS + r] : a[r * lda + k];
                for (int v = 0; v < VECTORS; ++v) sum[r][v] += y * x[v];
            }
        };
        if (ROWS > 1 && fetched != 0)
            for (int k = first; k < last; ++k) {
                for (int v = 0; v < VECTORS; v += PANEL > LANES ? PANEL / LANES : 1)
                    __builtin_prefetch(reinterpret_cast<const char*>(column(k, v)) + fetched, 0, 2);
                add(k);
            }
        else {
#pragma GCC unroll 8  // counting is a tenth of the instructions
            for (int k = first; k < last; ++k) add(k);
        }
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECTORS; ++v) {
                float* const to = c.data + r * c.row + v * LANES;
                store_vector(to, c.fresh && first == 0 ? sum[r][v] : load_vector(to) + sum[r][v]);
            }
    }
}
// The same for a block of LEAST to MOST rows, of which SIZE is known when it runs.
template <Rows FORM, int VECTORS, int LEAST, int MOST, int SIZE = MOST < BLOCK_ROWS ? MOST : BLOCK_ROWS, class T>
MIRAGE_INLINE void packed_block_of(int rows, Result c, const float* a, int64_t lda, const T* b, int64_t panel, int depth,
                                   int64_t fetched) {
    if constexpr (is_made(SIZE, LEAST, MOST)) {
        constexpr bool LAST = SIZE == smallest_block(LEAST, MOST);
        if (LAST || rows == SIZE) return packed_block<FORM, SIZE, VECTORS>(c, a, lda, b, panel, depth, fetched);
    }
    if constexpr (SIZE > smallest_block(LEAST, MOST))
        packed_block_of<FORM, VECTORS, LEAST, MOST, SIZE - 1>(rows, c, a, lda, b, panel, depth, fetched);
}
// `high` rows of `a` from row i and position k on, as `TURNED` has them. Rows far apart share places of the first-level cache.
[[maybe_unused]] static void turn_block(float* __restrict to, Operand<float> a, int i, int high, int k, int depth) {
    const float* const from = a.data + i * a.row + k * a.depth;
    int t = 0;
    if (a.depth == 1 && high >= 4)
        for (; t + LANES <= depth; t += LANES)
            for (int r = 0; r < high; r += 4) {
                const int at = r + 4 <= high ? r : high - 4;  // the last four may have been turned
                turn_four(to + t * high + at, from + at * a.row + t, a.row, high);
            }
    for (; t < depth; ++t)
        for (int r = 0; r < high; ++r) to[t * high + r] = from[r * a.row + t * a.depth];
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
// Rows of `a`, whose summed positions lie side by side or which are turned, times columns of panels.
template <Rows FORM, class Form, int LEAST, int MOST, bool WHOLE, class T>
[[maybe_unused]] static void packed_rows(Result c, int rows, int cols, int depth, const float* a, int64_t lda,
                                         const T* b, int64_t panel) {
    int j = 0;
    if constexpr (Form::DIRECT && LEAST <= PAIRED_ROWS) {
        constexpr int FEW = MOST < PAIRED_ROWS ? MOST : PAIRED_ROWS;
        for (; rows <= FEW && j + PAIR <= cols; j += PAIR)
            packed_block_of<FORM, PAIR / LANES, LEAST, FEW>(rows, {c.data + j, c.row, c.fresh}, a, lda, b + j / PANEL * panel, panel, depth, 0);
    }
    for (; j < cols; j += BLOCK_COLS) {
        const T* const from = b + j / PANEL * panel + j % PANEL;
        const int width = WHOLE || cols - j > BLOCK_COLS ? BLOCK_COLS : cols - j;
        for (int i = 0, second = 0, high = 0; i < rows; i += high) {
            high = first_block(rows - i);
            // the first block fetches this panel ahead, the second one the next panel
            const int64_t fetched = i == 0 ? FETCHED : i == second ? BLOCK_COLS / PANEL * panel * int64_t(sizeof(T)) : 0;
            if (i == 0) second = high;
            const float* const x = a + i * (FORM == TURNED ? depth : lda);
            if (Form::DIRECT && (WHOLE || width == BLOCK_COLS)) {
                packed_block_of<FORM, 2, LEAST, MOST>(high, {c.data + i * c.row + j, c.row, c.fresh}, x, lda, from, panel, depth, fetched);
            } else if constexpr (!Form::DIRECT || !WHOLE) {
                alignas(64) float own[BLOCK_ROWS * BLOCK_COLS];
                packed_block_of<FORM, 2, LEAST, MOST>(high, {own, BLOCK_COLS, true}, x, lda, from, panel, depth, fetched);
                Form::put(c, own, i, j, high, width);
            }
        }
    }
}
// Rows of `a` that lie in any way. They are turned, some at a time, where their positions do not lie side by side, and where a
// block of them is higher than the first-level cache has room for rows that lie a multiple of its size apart. Few rows meet
// all of a panel, so that it is read from its beginning to its end. STRIDE: how far positions of `a` lie apart; 0: not known.
template <class Form, int64_t STRIDE, int LEAST, int MOST, bool WHOLE, class T>
[[maybe_unused]] static void packed_parts(float* c, int64_t ldc, int rows, int cols, int depth, Operand<float> a, const T* b,
                                          int64_t panel, bool add) {
    constexpr int LEAST_TURNED = MOST > TURNED_ROWS ? 1 : LEAST, MOST_TURNED = MOST > TURNED_ROWS ? TURNED_ROWS : MOST;
    constexpr int MOST_PLAIN = BLOCK_ROWS > WAYS ? 1 : MOST;
    if constexpr (LEAST <= MOST_PLAIN && (STRIDE == 0 || STRIDE == 1))
        if (a.depth == 1 && rows <= MOST_PLAIN) {
            const int reach = rows > BLOCK_ROWS ? PANEL_ROWS : depth;
            for (int k = 0; k < depth; k += reach) {
                const Result to = {c, ldc, !add && k == 0};
                const int part = depth - k < reach ? depth - k : reach;
                packed_rows<PLAIN, Form, LEAST, MOST_PLAIN, WHOLE>(to, rows, cols, part, a.data + k, a.row, b + k * PANEL, panel);
            }
            return;
        }
    if constexpr (MOST > MOST_PLAIN || STRIDE != 1) {
        alignas(64) float turned[TURNED_ROWS * PANEL_ROWS];
        const int pieces = (rows + TURNED_ROWS - 1) / TURNED_ROWS, each = (rows + pieces - 1) / pieces;
        const int tall = (each + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
        const int reach = rows > BLOCK_ROWS ? PANEL_ROWS : TURNED_ROWS / BLOCK_ROWS * PANEL_ROWS;
        for (int first = 0; first < rows; first += tall) {
            const int some = rows - first < tall ? rows - first : tall;
            for (int k = 0; k < depth; k += reach) {
                const int part = depth - k < reach ? depth - k : reach;
                for (int i = 0, high = 0; i < some; i += high) {
                    high = first_block(some - i);
                    turn_block(turned + i * part, a, first + i, high, k, part);
                }
                const Result to = {c + (Form::DIRECT ? first * ldc : first), ldc, !add && k == 0};
                packed_rows<TURNED, Form, LEAST_TURNED, MOST_TURNED, WHOLE>(to, some, cols, part, turned, 0, b + k * PANEL, panel);
            }
        }
    }
}
// As `contract` of operands that are not packed.
template <class K = Known<>, class T>
[[maybe_unused]] static void contract(float* c, int64_t ldc, int rows, int cols, int depth, Operand<float> a, Packed<T> b,
                                      bool add) {
    const T* const panels = begin(b);
    if (panels == nullptr || depth == 0) return contract<K>(c, ldc, rows, cols, depth, a, b.plain, add);
    packed_parts<Plain, K::A, K::LEAST, K::MOST, K::WHOLE>(c, ldc, rows, cols, depth, a, panels, b.deep * PANEL, add);
}
template <class K = Known<>, class T>
[[maybe_unused]] static void contract(float* c, int64_t ldc, int rows, int cols, int depth, Packed<T> a, Operand<float> b,
                                      bool add) {
    const T* const panels = begin(a);
    if (panels == nullptr || depth == 0) return contract<K>(c, ldc, rows, cols, depth, a.plain, b, add);
    packed_parts<Turned, K::DEEP, 1, 1 << 20, false>(c, ldc, cols, rows, depth, b, panels, a.deep * PANEL, add);
}

}  // namespace MIRAGE_ISA
}  // namespace mirage
