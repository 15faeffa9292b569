// Contractions of many rows with a constant operand that a session has split for matrix instructions (AMX): a float32 number is the
// sum of three numbers of bfloat16, the nearest one, the nearest one to what is left, and the rest. Six of the nine products
// of two such numbers make their product to within 2^-24; in every step small ones are added first. Sums are float32.
//
// How weights lie is told by the line in front of them (`pack` in pack.hpp): 0: panels as in packed.hpp, 1: split. Then a panel of 16
// columns has for every 32 summed positions three matrices, the smallest numbers first, of 16 rows: row r has the positions 2 r
// and 2 r + 1 of each column side by side. Behind the last position and the last column there are zeros, and a panel of these.
#pragma once
#include "mirage/cpu/packed.hpp"

namespace mirage {
inline namespace MIRAGE_ISA {

constexpr int STEP = 32;                 // summed positions of a matrix
constexpr int MATRIX = 16 * STEP;        // numbers of a matrix
constexpr int SPLIT = 3;                 // matrices in the place of one
constexpr int SPLIT_LINE = 64;           // bytes in front of packed weights
constexpr uint32_t SPLIT_LEAST = 0x2b800000u, SPLIT_MOST = 0x5d800000u;  // 2^-40 and 2^60, between which rows are split

// An operand as `Packed`, whose panels may be split.
template <class T>
struct Split {
    Packed<T> as;
    bool split;
};
template <class T>
MIRAGE_INLINE Split<T> split(Operand<T> plain, const T* first, const T* panels, int64_t deep) {
    if (panels == nullptr) return {{plain, first, nullptr, deep}, false};
    const auto* const line = reinterpret_cast<const unsigned char*>(panels);
    return {{plain, first, reinterpret_cast<const T*>(line + SPLIT_LINE), deep}, line[0] != 0};
}

#if defined(__AVX512F__) && defined(__x86_64__) && __has_include(<amxtileintrin.h>)
#define MIRAGE_READ(T, FROM) asm volatile("tileloadd (%0,%1,1), %%tmm" #T ::"r"(FROM), "r"(int64_t(64)) : "memory")
#define MIRAGE_MULTIPLY(C, A, B) asm volatile("tdpbf16ps %%tmm" #B ", %%tmm" #A ", %%tmm" #C ::)
#define MIRAGE_CLEAR(C) asm volatile("tilezero %%tmm" #C ::)
#define MIRAGE_WRITE(C, TO) \
    asm volatile("tilestored %%tmm" #C ", (%0,%1,1)" ::"r"(TO), "r"(int64_t(4 * BLOCK_COLS)) : "memory")

constexpr int SPLIT_ROWS = 64;    // rows of `a` that are split at a time
constexpr int SPLIT_DEPTH = 256;  // summed positions that are added up by instructions before they join the result
typedef uint16_t Halves __attribute__((vector_size(64)));

// All eight matrices of the thread: 16 rows of 64 bytes.
[[maybe_unused]] static void begin_matrices() {
    struct {
        unsigned char palette = 1, start = 0, none[14] = {};
        uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shape;
    asm volatile("ldtilecfg %0" ::"m"(shape));
}
MIRAGE_INLINE void end_matrices() { asm volatile("tilerelease" ::); }

// Whether every row is zero or has its largest number between 2^-40 and 2^60, so that nothing of its products is lost.
[[maybe_unused]] static bool may_split(const float* a, int64_t lda, int rows, int depth) {
    const Words magnitude = Words{} + 0x7fffffffu;
    for (int r = 0; r < rows; ++r) {
        Words most = {};
        const auto take = [&](const float* from, int n) {
            Words x = {};
            std::memcpy(&x, from, n * sizeof(float));
            x &= magnitude;
            most = x > most ? x : most;
        };
        int k = 0;
        for (; k + LANES <= depth; k += LANES) take(a + r * lda + k, LANES);
        if (k < depth) take(a + r * lda + k, depth - k);
        uint32_t largest = 0;
        for (int i = 0; i < LANES; ++i) largest = most[i] > largest ? most[i] : largest;
        if (largest != 0 && (largest < SPLIT_LEAST || largest > SPLIT_MOST)) return false;
    }
    return true;
}
// 32 numbers as bfloat16, rounded to the nearest.
MIRAGE_INLINE Halves nearest(Vector low, Vector high) {
    Halves both;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(low), "v"(high));
    return both;
}
// What is left of numbers when their nearest ones of bfloat16 are taken from them.
MIRAGE_INLINE Vector rest_of(Vector x) {
    Words bits;
    std::memcpy(&bits, &x, sizeof x);
    bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    Vector near;
    std::memcpy(&near, &bits, sizeof near);
    return x - near;
}
// STEP numbers at `to`, what is left of them MATRIX numbers further on, and then what is left of that.
MIRAGE_INLINE void split_numbers(bfloat* to, const float* from) {
    Vector low = load_vector(from), high = load_vector(from + LANES);
    for (int part = 0; part < SPLIT; ++part) {
        const Halves near = nearest(low, high);
        std::memcpy(to + part * MATRIX, &near, sizeof near);
        if (part + 1 < SPLIT) low = rest_of(low), high = rest_of(high);
    }
}
// Rows (16 at most; zeros are the others) of `a` as matrices of `to`: for each STEP of `depth` positions three.
[[maybe_unused]] static void split_rows(bfloat* to, const float* a, int64_t lda, int rows, int depth) {
    if (rows < 16) std::memset(to, 0, size_t(depth + STEP - 1) / STEP * SPLIT * MATRIX * sizeof(bfloat));
    for (int r = 0; r < rows; ++r)
        for (int k = 0; k < depth; k += STEP) {
            bfloat* const row = to + k / STEP * SPLIT * MATRIX + r * STEP;
            const float* const from = a + r * lda + k;
            if (depth - k >= STEP) {
                split_numbers(row, from);
            } else {
                float rest[STEP] = {};
                std::memcpy(rest, from, (depth - k) * sizeof(float));
                split_numbers(row, rest);
            }
        }
}
// TALL x 2 blocks of 16 x 16 of the result, put to `c`: the blocks of rows lie `apart` numbers from one another, panels `panel`.
// Every `of`th line of the two panels that come next is fetched, from line `line` on.
template <int TALL>
[[maybe_unused]] static void split_block(float* c, const bfloat* a, int64_t apart, const bfloat* b, int64_t panel, int steps, int line,
                                         int of) {
    MIRAGE_CLEAR(0);
    MIRAGE_CLEAR(1);
    MIRAGE_CLEAR(2);
    MIRAGE_CLEAR(3);
    const auto rows = [&](const bfloat* from) {
        MIRAGE_READ(4, from);
        if (TALL == 2) MIRAGE_READ(5, from + apart);
    };
    const auto columns = [&](const bfloat* from) {
        MIRAGE_READ(6, from);
        MIRAGE_READ(7, from + panel);
    };
    const auto multiply = [&] {
        MIRAGE_MULTIPLY(0, 4, 6);
        MIRAGE_MULTIPLY(1, 4, 7);
        if (TALL == 2) {
            MIRAGE_MULTIPLY(2, 5, 6);
            MIRAGE_MULTIPLY(3, 5, 7);
        }
    };
    for (int s = 0; s < steps; ++s) {
        const bfloat *const x = a + s * SPLIT * MATRIX, *const y = b + s * SPLIT * MATRIX;
        for (int q = line * STEP; q < SPLIT * MATRIX; q += of * STEP) {
            __builtin_prefetch(y + 2 * panel + q, 0, 2);
            __builtin_prefetch(y + 3 * panel + q, 0, 2);
        }
        rows(x);
        columns(y);
        multiply();
        columns(y + MATRIX);
        multiply();
        rows(x + MATRIX);
        multiply();
        columns(y + 2 * MATRIX);
        multiply();
        rows(x + 2 * MATRIX);
        multiply();
        rows(x);
        multiply();
    }
    MIRAGE_WRITE(0, c);
    MIRAGE_WRITE(1, c + 16);
    if (TALL == 2) {
        MIRAGE_WRITE(2, c + 16 * BLOCK_COLS);
        MIRAGE_WRITE(3, c + 16 * BLOCK_COLS + 16);
    }
}
MIRAGE_INLINE void plain_part(Plain, Result c, int i, Operand<float> a, int rows, Operand<float> b, int cols, int depth) {
    contract(c.data + i * c.row, c.row, rows, cols, depth, a, b, !c.fresh);
}
MIRAGE_INLINE void plain_part(Turned, Result c, int i, Operand<float> a, int rows, Operand<float> b, int cols, int depth) {
    contract(c.data + i, c.row, cols, rows, depth, b, a, !c.fresh);
}
MIRAGE_INLINE void join(Plain, Result c, const float* part, int i, int j, int high, int width) {
    if (width < BLOCK_COLS) return Plain::put(c, part, i, j, high, width);
    for (int r = 0; r < high; ++r)
        for (int q = 0; q < BLOCK_COLS; q += LANES) {
            float* const to = c.data + (i + r) * c.row + j + q;
            const Vector sum = load_vector(part + r * BLOCK_COLS + q);
            store_vector(to, c.fresh ? sum : load_vector(to) + sum);
        }
}
MIRAGE_INLINE void join(Turned, Result c, const float* part, int i, int j, int high, int width) {
    Turned::put(c, part, i, j, high, width);
}
// Rows of `a`, up to SPLIT_ROWS of which lie side by side and up to SPLIT_DEPTH positions, times all columns.
template <class Form>
[[maybe_unused]] static void split_part(Result c, int first, int rows, int cols, const float* a, int64_t lda, int depth,
                                        const bfloat* b, int64_t panel) {
    alignas(64) bfloat numbers[SPLIT_ROWS * SPLIT * SPLIT_DEPTH];
    alignas(64) float part[2 * 16 * BLOCK_COLS];
    const int steps = (depth + STEP - 1) / STEP;
    const int64_t apart = int64_t(steps) * SPLIT * MATRIX;
    for (int i = 0; i < rows; i += 16)
        split_rows(numbers + i / 16 * apart, a + i * lda, lda, rows - i < 16 ? rows - i : 16, depth);
    for (int j = 0; j < cols; j += BLOCK_COLS)
        for (int i = 0; i < rows; i += 32) {
            const int high = rows - i < 32 ? rows - i : 32, width = cols - j < BLOCK_COLS ? cols - j : BLOCK_COLS;
            const bfloat *const x = numbers + i / 16 * apart, *const y = b + j / PANEL * panel;
            if (high <= 16) {
                split_block<1>(part, x, apart, y, panel, steps, i / 32, (rows + 31) / 32);
            } else {
                split_block<2>(part, x, apart, y, panel, steps, i / 32, (rows + 31) / 32);
            }
            join(Form{}, c, part, first + i, j, high, width);
        }
}
// As `packed_parts`. Parts with rows that cannot be split are multiplied `plainly(c, i, rows, k, depth)` from row i and position k on.
template <class Form, class F>
[[maybe_unused]] static void split_parts(float* c, int64_t ldc, int rows, int cols, int depth, Operand<float> a, const bfloat* b,
                                         int64_t panel, bool add, const F& plainly) {
    alignas(64) float turned[SPLIT_ROWS * SPLIT_DEPTH];
    begin_matrices();
    for (int k = 0; k < depth; k += SPLIT_DEPTH)
        for (int i = 0; i < rows; i += SPLIT_ROWS) {
            const int high = rows - i < SPLIT_ROWS ? rows - i : SPLIT_ROWS;
            const int part = depth - k < SPLIT_DEPTH ? depth - k : SPLIT_DEPTH;
            const Result to = {c, ldc, !add && k == 0};
            const float* x = a.data + i * a.row + k;
            int64_t lda = a.row;
            if (a.depth != 1) {
                for (int t = 0; t < part; ++t)
                    for (int r = 0; r < high; ++r) turned[r * SPLIT_DEPTH + t] = a.data[(i + r) * a.row + (k + t) * a.depth];
                x = turned;
                lda = SPLIT_DEPTH;
            }
            if (may_split(x, lda, high, part)) {
                split_part<Form>(to, i, high, cols, x, lda, part, b + k / STEP * SPLIT * MATRIX, panel);
            } else {
                plainly(to, i, high, k, part);
            }
        }
    end_matrices();
}
// The place of the matrices where an operand begins; nullptr where it begins inside of one, and where it is not split.
MIRAGE_INLINE const bfloat* begin(const Split<float>& x, int64_t panel) {
    const Packed<float>& as = x.as;
    const bool across = as.plain.row == 1;
    const int64_t at = as.plain.data - as.first, wide = across ? as.plain.depth : as.plain.row;
    const int64_t column = across ? at % wide : at / wide, k = across ? at / wide : at % wide;
    if (!x.split || column % PANEL != 0 || k % STEP != 0) return nullptr;
    return reinterpret_cast<const bfloat*>(as.panels) + column / PANEL * panel + k / STEP * SPLIT * MATRIX;
}
template <class Form>
MIRAGE_INLINE bool by_matrices(float* c, int64_t ldc, int rows, int cols, int depth, Operand<float> a, const Split<float>& b,
                               bool add) {
    const int64_t panel = (b.as.deep + STEP - 1) / STEP * SPLIT * MATRIX;
    const bfloat* const from = begin(b, panel);
    if (from == nullptr || depth == 0) return false;
    const Operand<float>& whole = b.as.plain;
    split_parts<Form>(c, ldc, rows, cols, depth, a, from, panel, add, [&](Result to, int i, int high, int k, int part) {
        const Operand<float> x = {a.data + i * a.row + k * a.depth, a.row, a.depth};
        const Operand<float> y = {whole.data + k * whole.depth, whole.row, whole.depth};
        plain_part(Form{}, to, i, x, high, y, cols, part);
    });
    return true;
}
#else
template <class Form>
MIRAGE_INLINE bool by_matrices(float*, int64_t, int, int, int, Operand<float>, const Split<float>&, bool) {
    return false;
}
#endif

// As `contract` of packed operands; of split ones, where these cannot be multiplied, from the operand as it is stored.
template <class K = Known<>>
[[maybe_unused]] static void contract(float* c, int64_t ldc, int rows, int cols, int depth, Operand<float> a, Split<float> b,
                                      bool add) {
    if (!b.split) return contract<K>(c, ldc, rows, cols, depth, a, b.as, add);
    if (!by_matrices<Plain>(c, ldc, rows, cols, depth, a, b, add))
        contract<K>(c, ldc, rows, cols, depth, a, b.as.plain, add);
}
template <class K = Known<>>
[[maybe_unused]] static void contract(float* c, int64_t ldc, int rows, int cols, int depth, Split<float> a, Operand<float> b,
                                      bool add) {
    if (!a.split) return contract<K>(c, ldc, rows, cols, depth, a.as, b, add);
    if (!by_matrices<Turned>(c, ldc, cols, rows, depth, b, a, add))
        contract<K>(c, ldc, rows, cols, depth, a.as.plain, b, add);
}

}  // namespace MIRAGE_ISA
}  // namespace mirage
