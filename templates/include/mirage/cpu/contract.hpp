// Contractions of tiles: c[i][j] += sum over k of a(i, k) * b(j, k), with blocks of the result in registers.
//
// `a` is a tile in scratch memory. `b` is a tile or a stored tensor of any type that contractions take, converted while
// it is read. What is done depends on how `b` lies and on the number of rows:
// - columns side by side, few rows: rows of `b` are read in the order in which they lie, some of them at a time, so that
//   weights stream from memory once (`stream`);
// - summed positions side by side, very few rows: dot products (`dots`);
// - else columns are packed, some at a time, and all rows meet them in the first-level cache (`panels`).
#pragma once
#include <type_traits>

#include "mirage/cpu/math.hpp"

namespace mirage {
inline namespace MIRAGE_ISA {

#if defined(__AVX512F__)
constexpr int LANES = 16, BLOCK_ROWS = 12;
#elif defined(__AVX2__)
constexpr int LANES = 8, BLOCK_ROWS = 6;
#else
constexpr int LANES = 4, BLOCK_ROWS = 4;
#endif
constexpr int BLOCK_COLS = 2 * LANES;  // two vectors
constexpr int DEPTH = 128;             // products that are added up before they join the result: long sums stay accurate
constexpr int STREAMS = 8;                     // rows of b that are read at a time where they lie far apart
constexpr int PACKED = 64;                     // columns of b that are packed at a time
constexpr int CLOSE = 512;                     // where rows of b lie at most so far apart, a few of them are packed
constexpr int APART = 16384;                   // sums that are made apart from the result
constexpr int STREAMED_ROWS = 3 * BLOCK_ROWS;  // up to here b is converted again for every block of rows, not packed
typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef uint16_t Shorts __attribute__((vector_size(LANES * 2)));

MIRAGE_INLINE Vector load_vector(const float* p) {
    Vector v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
MIRAGE_INLINE Vector load_vector(const bfloat* p) {
    Shorts bits;
    std::memcpy(&bits, p, sizeof bits);
    const Words wide = __builtin_convertvector(bits, Words) << 16;
    Vector v;
    std::memcpy(&v, &wide, sizeof v);
    return v;
}
MIRAGE_INLINE Vector load_vector(const half* p) {
    Vector v;
#if defined(__F16C__)
    Floats8 part[LANES / 8];
    for (int i = 0; i < LANES / 8; ++i) part[i] = from_halves(p + 8 * i);
    std::memcpy(&v, part, sizeof v);
#else
    for (int i = 0; i < LANES; ++i) v[i] = to_float(p[i]);
#endif
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

// An operand: element (i, k) lies at data[i * row + k * depth].
template <class T>
struct Operand {
    const T* data;
    int64_t row, depth;
};
template <class T>
MIRAGE_INLINE Operand<T> operand(const T* data, int64_t row, int64_t depth) {
    return {data, row, depth};
}
// The result: element (i, j) lies at data[i * row + j]; `fresh`: what is there does not count.
struct Result {
    float* data;
    int64_t row;
    bool fresh;
};

// What is known of a contraction when it is compiled, 0 for what is not: the least and the most rows of the result, its
// columns, the most summed positions, and how far neighbours lie apart: summed positions of `a`, columns and summed
// positions of `b`. `ADD_`: the result may be added to. Code that such a contraction does not need is not compiled.
template <int LEAST_ = 0, int MOST_ = 0, int COLS_ = 0, int TERMS_ = 0, int64_t A_ = 0, int64_t ROW_ = 0,
          int64_t DEPTH_ = 0, bool ADD_ = true>
struct Known {
    static constexpr int LEAST = LEAST_ > 0 ? LEAST_ : 1, MOST = MOST_ > 0 ? MOST_ : 1 << 20;
    static constexpr int64_t A = A_, ROW = ROW_, DEEP = DEPTH_;
    static constexpr bool WHOLE = COLS_ > 0 && COLS_ % BLOCK_COLS == 0, FRESH = !ADD_ && TERMS_ > 0 && TERMS_ <= DEPTH;
};
// The same as far as it decides what is compiled: contractions of one kind share their code. SIDE and DEEP: columns and
// summed positions of b lie side by side (1), do not (2), or may (0); REACH: rows of b lie close (1), far apart (2).
template <int LEAST_, int MOST_, int SIDE_, int DEEP_, int REACH_, bool WHOLE_, bool FRESH_>
struct Kind {
    static constexpr int LEAST = LEAST_, MOST = MOST_, SIDE = SIDE_, DEEP = DEEP_, REACH = REACH_;
    static constexpr bool WHOLE = WHOLE_, FRESH = FRESH_;
};
constexpr int together(int64_t distance) { return distance == 0 ? 0 : distance == 1 ? 1 : 2; }
template <class K, int LEAST = K::LEAST, int MOST = K::MOST>
using KindOf = Kind<LEAST, MOST, together(K::ROW), together(K::DEEP), K::DEEP == 0 ? 0 : K::DEEP <= CLOSE ? 1 : 2, K::WHOLE,
                    K::FRESH>;

// Rows in blocks of nearly one size: the size of the first block of `rows` rows.
MIRAGE_INLINE constexpr int first_block(int rows) {
    const int count = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    return (rows + count - 1) / count;
}
// Whether `least` to `most` rows have a block of some size.
constexpr bool is_made(int size, int least, int most) {
    const int last = most - least < BLOCK_ROWS * BLOCK_ROWS ? most : least + BLOCK_ROWS * BLOCK_ROWS;
    for (int rows = least; rows <= last; ++rows)
        for (int left = rows; left > 0; left -= first_block(left))
            if (first_block(left) == size) return true;
    return false;
}
constexpr int smallest_block(int least, int most) {
    int size = 1;
    while (!is_made(size, least, most)) ++size;
    return size;
}

// How a block of rows of `a` lies: element (r, k) at data[r * lda + k], or, TURNED, at data[k * ROWS + r].
enum Rows { PLAIN, TURNED };

// ROWS x VECTORS of c; row k of b at b + k * ldb
template <Rows FORM, int ROWS, int VECTORS, class T>
MIRAGE_INLINE void block(Result c, const float* a, int64_t lda, const T* b, int64_t ldb, int depth) {
    Vector sum[ROWS][VECTORS] = {};
    for (int k = 0; k < depth; ++k) {
        Vector x[VECTORS];
        for (int v = 0; v < VECTORS; ++v) x[v] = load_vector(b + k * ldb + v * LANES);
        for (int r = 0; r < ROWS; ++r) {
            const float y = FORM == TURNED ? a[k * ROWS + r] : a[r * lda + k];
            for (int v = 0; v < VECTORS; ++v) sum[r][v] += y * x[v];
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) {
            float* const to = c.data + r * c.row + v * LANES;
            store_vector(to, c.fresh ? sum[r][v] : load_vector(to) + sum[r][v]);
        }
}
// The same for a block of LEAST to MOST rows, of which SIZE is known when it runs.
template <Rows FORM, int VECTORS, int LEAST, int MOST, int SIZE = MOST < BLOCK_ROWS ? MOST : BLOCK_ROWS, class T>
MIRAGE_INLINE void block_of(int rows, Result c, const float* a, int64_t lda, const T* b, int64_t ldb, int depth) {
    if constexpr (is_made(SIZE, LEAST, MOST)) {
        constexpr bool LAST = SIZE == smallest_block(LEAST, MOST);
        if (LAST || rows == SIZE) return block<FORM, SIZE, VECTORS>(c, a, lda, b, ldb, depth);
    }
    if constexpr (SIZE > smallest_block(LEAST, MOST))
        block_of<FORM, VECTORS, LEAST, MOST, SIZE - 1>(rows, c, a, lda, b, ldb, depth);
}
template <int LEAST, int MOST, class T>
[[maybe_unused]] static void blocks(int rows, Result c, const float* a, int64_t lda, const T* b, int64_t ldb,
                                    int depth) {
    for (int i = 0, part = 0; i < rows; i += part) {
        part = first_block(rows - i);
        const Result to = {c.data + i * c.row, c.row, c.fresh};
        block_of<PLAIN, 2, LEAST, MOST>(part, to, a + i * lda, lda, b, ldb, depth);
    }
}

// Numbers between panels of some depth: a line apart, or many of them would share places of the first-level cache.
MIRAGE_INLINE int panel_size(int depth) { return (depth + 1) * BLOCK_COLS; }
// Of eight numbers those at four places.
template <int A, int B, int C, int D, class V>
MIRAGE_INLINE V four_of(V x, V y) {
#if defined(__clang__)
    return __builtin_shufflevector(x, y, A, B, C, D);
#else
    typedef int32_t Places __attribute__((vector_size(16)));
    return __builtin_shuffle(x, y, Places{A, B, C, D});
#endif
}
// Four rows of LANES neighbours, `row` apart, as four columns of rows that are `apart`.
template <class T>
MIRAGE_INLINE void turn_four(float* __restrict to, const T* __restrict from, int64_t row, int apart) {
    typedef float Four __attribute__((vector_size(16)));
    Four x[4][LANES / 4];
    for (int q = 0; q < 4; ++q) {
        const Vector wide = load_vector(from + q * row);
        std::memcpy(x[q], &wide, sizeof wide);
    }
    for (int l = 0; l < LANES / 4; ++l) {
        const Four low[2] = {four_of<0, 4, 1, 5>(x[0][l], x[1][l]), four_of<0, 4, 1, 5>(x[2][l], x[3][l])};
        const Four high[2] = {four_of<2, 6, 3, 7>(x[0][l], x[1][l]), four_of<2, 6, 3, 7>(x[2][l], x[3][l])};
        const Four column[4] = {four_of<0, 1, 4, 5>(low[0], low[1]), four_of<2, 3, 6, 7>(low[0], low[1]),
                                four_of<0, 1, 4, 5>(high[0], high[1]), four_of<2, 3, 6, 7>(high[0], high[1])};
        for (int t = 0; t < 4; ++t) std::memcpy(to + (4 * l + t) * apart, &column[t], sizeof(Four));
    }
}
// Four rows of `depth` neighbours, `row` apart, as four columns of a panel.
template <class T>
MIRAGE_INLINE void turn_rows(float* __restrict to, const T* __restrict from, int64_t row, int depth) {
    int k = 0;
    for (; k + LANES <= depth; k += LANES) turn_four(to + k * BLOCK_COLS, from + k, row, BLOCK_COLS);
    for (; k < depth; ++k)
        for (int q = 0; q < 4; ++q) to[k * BLOCK_COLS + q] = to_float(from[q * row + k]);
}
// Columns as panels of BLOCK_COLS: number (k, j) of a panel at [k * BLOCK_COLS + j], zeros behind the last column. Rows of
// b are read in the order in which they lie.
template <int SIDE, bool WHOLE, class T>
[[maybe_unused]] static void pack(float* __restrict to, Operand<T> b, int width, int depth) {
    const int whole = SIDE != 2 && b.row == 1 ? width / BLOCK_COLS : 0;
    for (int k = 0; SIDE != 2 && k < depth; ++k)
        for (int p = 0; p < whole; ++p)
            for (int v = 0; v < 2; ++v) {
                const int at = v * LANES;
                const Vector x = load_vector(b.data + k * b.depth + p * BLOCK_COLS + at);
                store_vector(to + p * panel_size(depth) + k * BLOCK_COLS + at, x);
            }
    for (int p = whole; !(SIDE == 1 && WHOLE) && p * BLOCK_COLS < width; ++p) {
        const int left = width - p * BLOCK_COLS < BLOCK_COLS ? width - p * BLOCK_COLS : BLOCK_COLS;
        float* const panel = to + p * panel_size(depth);
        const Operand<T> from = {b.data + p * BLOCK_COLS * b.row, b.row, b.depth};
        int q = 0;
        if (left < BLOCK_COLS) std::memset(panel, 0, static_cast<size_t>(depth) * BLOCK_COLS * sizeof(float));
        if (SIDE != 1 && b.depth == 1)
            for (; q + 4 <= left; q += 4) turn_rows(panel + q, from.data + q * b.row, b.row, depth);
        for (; q < left; ++q)
            for (int k = 0; k < depth; ++k) panel[k * BLOCK_COLS + q] = to_float(from.data[q * b.row + k * b.depth]);
    }
}
// Fewer than BLOCK_COLS columns of a panel.
template <int LEAST, int MOST>
[[maybe_unused]] static void narrow_blocks(int rows, Result c, int width, const float* a, int64_t lda,
                                           const float* panel, int depth) {
    alignas(64) float part[BLOCK_ROWS * BLOCK_COLS] = {};
    for (int i = 0, high = 0; i < rows; i += high) {
        high = first_block(rows - i);
        const Result to = {part, BLOCK_COLS, true};
        if (width <= LANES)
            block_of<PLAIN, 1, LEAST, MOST>(high, to, a + i * lda, lda, panel, BLOCK_COLS, depth);
        else
            block_of<PLAIN, 2, LEAST, MOST>(high, to, a + i * lda, lda, panel, BLOCK_COLS, depth);
        for (int r = 0; r < high; ++r)
            for (int q = 0; q < width; ++q) {
                float& to = c.data[(i + r) * c.row + q];
                to = part[r * BLOCK_COLS + q] + (c.fresh ? 0.0f : to);
            }
    }
}
// Columns from `from` on, packed some at a time.
template <class K, class T>
[[maybe_unused]] static void panels(Result c, int rows, int from, int cols, int depth, const float* a, int64_t lda,
                                    Operand<T> b) {
    alignas(64) float packed[(DEPTH + 1) * PACKED];
    for (int first = from; first < cols; first += PACKED) {
        const int width = cols - first < PACKED ? cols - first : PACKED;
        pack<K::SIDE, K::WHOLE>(packed, operand(b.data + first * b.row, b.row, b.depth), width, depth);
        for (int j = 0; j < width; j += BLOCK_COLS) {
            const float* const panel = packed + j / BLOCK_COLS * panel_size(depth);
            const Result to = {c.data + first + j, c.row, c.fresh};
            if (K::WHOLE || j + BLOCK_COLS <= width) {
                blocks<K::LEAST, K::MOST>(rows, to, a, lda, panel, BLOCK_COLS, depth);
            } else if constexpr (!K::WHOLE) {
                narrow_blocks<K::LEAST, K::MOST>(rows, to, width - j, a, lda, panel, depth);
            }
        }
    }
}
// Few rows, columns of b side by side: STREAMS rows of b at a time, as far as the columns go.
template <int LEAST, int MOST, class T>
[[maybe_unused]] static void stream_rows(Result c, int rows, int whole, int depth, const float* a, int64_t lda,
                                         const T* b, int64_t ldb) {
    float turned[STREAMED_ROWS * DEPTH / 2];
    const int step = rows == 1 && ldb <= CLOSE ? DEPTH / 2 : STREAMS;
    for (int k = 0; k < depth; k += step) {
        const int part = depth - k < step ? depth - k : step;
        const bool fresh = c.fresh && k == 0;
        for (int i = 0, high = 0; i < rows; i += high) {
            high = first_block(rows - i);
            for (int t = 0; t < part; ++t)
                for (int r = 0; r < high; ++r) turned[i * part + t * high + r] = a[(i + r) * lda + k + t];
        }
        const T* const from = b + k * ldb;
        int j = 0;
        if constexpr (LEAST == 1)
            if (rows == 1)
                for (; j + 4 * BLOCK_COLS <= whole; j += 4 * BLOCK_COLS)
                    block<TURNED, 1, 8>({c.data + j, c.row, fresh}, turned, 0, from + j, ldb, part);
        if constexpr (LEAST <= 3)
            if (rows <= 3)  // more columns at a time keep the multipliers busy
                for (; j + 2 * BLOCK_COLS <= whole; j += 2 * BLOCK_COLS)
                    block_of<TURNED, 4, LEAST, (MOST < 3 ? MOST : 3)>(rows, {c.data + j, c.row, fresh}, turned, 0, from + j, ldb,
                                                                      part);
        for (; j < whole; j += BLOCK_COLS)
            for (int i = 0, high = 0; i < rows; i += high) {
                high = first_block(rows - i);
                const Result to = {c.data + i * c.row + j, c.row, fresh};
                block_of<TURNED, 2, LEAST, MOST>(high, to, turned + i * part, 0, from + j, ldb, part);
            }
    }
}
// The same for any number of columns. Sums over all of the depth are made apart before they join the result.
template <class K, class T>
[[maybe_unused]] static void stream(Result c, int rows, int cols, int depth, const float* a, int64_t lda,
                                    const T* b, int64_t ldb) {
    constexpr int MOST = K::MOST < STREAMED_ROWS ? K::MOST : STREAMED_ROWS;
    const int whole = K::WHOLE ? cols : cols / BLOCK_COLS * BLOCK_COLS;
    if (K::FRESH || c.fresh || depth <= STREAMS) {
        stream_rows<K::LEAST, MOST>(c, rows, whole, depth, a, lda, b, ldb);
    } else if constexpr (!K::FRESH) {
        alignas(64) float sums[APART];
        const int most = APART / rows / BLOCK_COLS * BLOCK_COLS;
        for (int j = 0; j < whole; j += most) {
            const int width = whole - j < most ? whole - j : most;
            stream_rows<K::LEAST, MOST>({sums, width, true}, rows, width, depth, a, lda, b + j, ldb);
            for (int i = 0; i < rows; ++i)
                for (int q = 0; q < width; q += LANES) {
                    float* const to = c.data + i * c.row + j + q;
                    store_vector(to, load_vector(to) + load_vector(sums + i * width + q));
                }
        }
    }
    if constexpr (!K::WHOLE)
        if (whole < cols) panels<K>(c, rows, whole, cols, depth, a, lda, operand(b, 1, ldb));
}
// ROWS (up to 3) times columns that lie depth-first in memory: dot products, four columns at a time
template <int ROWS, class T>
[[maybe_unused]] static void dots(Result c, int cols, int depth, const float* a, int64_t lda, Operand<T> b) {
    const int whole = depth / LANES * LANES;
    for (int j = 0; j < cols; j += 4) {
        const int width = cols - j < 4 ? cols - j : 4;
        const T* from[4];
        for (int q = 0; q < 4; ++q) from[q] = b.data + (j + (q < width ? q : 0)) * b.row;
        Vector sum[ROWS][4] = {};
        for (int k = 0; k < whole; k += LANES)
            for (int q = 0; q < 4; ++q) {
                const Vector y = load_vector(from[q] + k);
                for (int r = 0; r < ROWS; ++r) sum[r][q] += load_vector(a + r * lda + k) * y;
            }
        for (int r = 0; r < ROWS; ++r)
            for (int q = 0; q < width; ++q) {
                float total = add_lanes(sum[r][q]);
                for (int k = whole; k < depth; ++k) total += a[r * lda + k] * to_float(from[q][k]);
                float& to = c.data[r * c.row + j + q];
                to = total + (c.fresh ? 0.0f : to);
            }
    }
}
// At most DEPTH summed positions, those of a row of a side by side.
template <class K, class T>
[[maybe_unused]] static void contract_part(Result c, int rows, int cols, int depth, const float* a, int64_t lda,
                                           Operand<T> b) {
    constexpr bool NEVER = K::SIDE == 2 || K::LEAST > STREAMED_ROWS || (K::REACH == 1 && K::LEAST > 1);
    constexpr bool ALWAYS = K::SIDE == 1 && K::MOST <= STREAMED_ROWS && (K::REACH == 2 || K::MOST == 1);
    if constexpr (!NEVER) {
        const bool close = b.depth <= CLOSE && rows > 1;
        if (ALWAYS || (b.row == 1 && rows <= STREAMED_ROWS && !close))
            return stream<K>(c, rows, cols, depth, a, lda, b.data, b.depth);
    }
    if constexpr (!ALWAYS && K::SIDE != 1 && K::DEEP != 2 && K::LEAST <= 3) {
        if (b.depth == 1 && b.row != 1) {
            if (K::LEAST == 1 && rows == 1) return dots<1>(c, cols, depth, a, lda, b);
            if (K::LEAST <= 2 && K::MOST >= 2 && rows == 2) return dots<2>(c, cols, depth, a, lda, b);
            if (K::MOST >= 3 && rows == 3) return dots<3>(c, cols, depth, a, lda, b);
        }
    }
    if constexpr (!ALWAYS) panels<K>(c, rows, 0, cols, depth, a, lda, b);
}
// c[rows][cols] += (or = without `add`) sum over depth of a(i, k) * b(j, k); what `K` says has to hold
template <class K = Known<>, class T>
[[maybe_unused]] static void contract(float* c, int64_t ldc, int rows, int cols, int depth, Operand<float> a,
                                      Operand<T> b, bool add) {
    constexpr int HEIGHT = 64;  // rows of an operand that is turned
    if (depth == 0 && !add)
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < cols; ++j) c[i * ldc + j] = 0.0f;
    for (int k = 0; k < depth; k += DEPTH) {
        const int part = depth - k < DEPTH ? depth - k : DEPTH;
        const Operand<T> y = {b.data + k * b.depth, b.row, b.depth};
        const bool fresh = !add && k == 0;
        if constexpr (K::A == 0 || K::A == 1)
            if (K::A == 1 || a.depth == 1) {
                contract_part<KindOf<K>>({c, ldc, fresh}, rows, cols, part, a.data + k, a.row, y);
                continue;
            }
        if constexpr (K::A != 1) {
            using Part = std::conditional_t<(K::MOST <= HEIGHT), KindOf<K>, KindOf<K, 1, HEIGHT>>;
            alignas(64) float turned[HEIGHT * DEPTH];
            for (int i = 0; i < rows; i += HEIGHT) {
                const int height = rows - i < HEIGHT ? rows - i : HEIGHT;
                for (int t = 0; t < part; ++t)
                    for (int r = 0; r < height; ++r)
                        turned[r * DEPTH + t] = a.data[(i + r) * a.row + (k + t) * a.depth];
                contract_part<Part>({c + i * ldc, ldc, fresh}, height, cols, part, turned, DEPTH, y);
            }
        }
    }
}

}  // namespace MIRAGE_ISA
}  // namespace mirage
