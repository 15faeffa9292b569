// Contractions with a constant operand of quantised numbers, (q - zero) scale, that stay packed until they are in registers.
//
// A panel has 16 columns (`pack` in pack.hpp makes it when a session is made): words of 32 bits, side by side those of its
// columns, each with 32 / BITS numbers along the sum, the first in its low bits, numbers with a sign with the top bit turned.
// Scales lie in panels as they are stored, zero points as a byte each. A number in its place in a mantissa is a float without a
// conversion: 2^23 / 2^place more than the number; the difference of that and the same of the zero point is exact.
// - few rows: sums of q - zero times x over what shares a scale, times the scale (`quantised_block`);
// - more rows, and without panels: a part of the columns is unpacked to floats that stay in the first-level cache.
#pragma once
#include "mirage/cpu/packed.hpp"

#define MIRAGE_MEMBER __attribute__((always_inline)) inline

namespace mirage {
inline namespace MIRAGE_ISA {

constexpr int UNPACKED_ROWS = LANES == 16 ? 5 : LANES == 8 ? 4 : 3;  // rows for which numbers are unpacked into registers
constexpr int ALONE = LANES == 16 ? 1 : 2;  // vectors that few rows meet at a time: one panel streams faster than two
constexpr int FEW_ROWS = LANES == 16 ? 20 : LANES == 8 ? 8 : 4;      // up to here they are unpacked again for every so many rows
constexpr int SHARED_ROWS = 16;  // contractions of as many rows and more need all sizes of blocks, and share them

// Numbers as they are stored: several in a byte, the first in its low bits, or one.
template <int BITS_, bool SIGNED_>
struct Whole {
    using Element = uint8_t;
    static constexpr int BITS = BITS_, TURNED = SIGNED_ ? 1 << (BITS_ - 1) : 0, LOW = (1 << BITS_) - 1;
};
using U2 = Whole<2, false>;
using I2 = Whole<2, true>;
using U4 = Whole<4, false>;
using I4 = Whole<4, true>;
using U8 = Whole<8, false>;
using I8 = Whole<8, true>;
// Scales and zero points that are no whole numbers.
template <class T>
struct Real {
    using Element = T;
};

// Number (j, k) of a constant matrix is its element `at` + j * row + k * depth, one of which is 1; its panels (nullptr: there are
// none), which have `deep` positions.
template <class F>
struct Stored {
    const typename F::Element* data;
    int64_t at, row, depth;
    const void* panels;
    int64_t deep;

    int64_t column() const { return row == 1 && depth != 1 ? at % depth : at / row; }
    int64_t position() const { return row == 1 && depth != 1 ? at / depth : at % row; }
};
template <class F, class T>
MIRAGE_INLINE Stored<F> stored(const T* data, int64_t at, int64_t row, int64_t depth, const T* panels, int64_t deep) {
    return {reinterpret_cast<const typename F::Element*>(data), at, row, depth, panels, deep};
}
// One number for all, and one that is whole.
struct Same {
    float value;
};
struct SameWhole : Same {};
MIRAGE_INLINE Same same(float value) { return {value}; }
MIRAGE_INLINE SameWhole same_whole(float value) { return {{value}}; }

// The operand; `block` positions along the sum share a scale and a zero point.
template <class Q, class Z, class S>
struct Quantised {
    Stored<Q> numbers;
    Z zero;
    S scale;
    int64_t block;
};
template <class Q, class Z, class S>
MIRAGE_INLINE Quantised<Q, Z, S> quantised(Stored<Q> numbers, Z zero, S scale, int64_t block) {
    return {numbers, zero, scale, block};
}

// Numbers that share bytes, the first one in the low bits: one of them, and a row as floats.
template <int BITS, bool SIGNED>
MIRAGE_INLINE float packed_number(const uint8_t* from, int64_t at) {
    constexpr int PER = 8 / BITS, TOP = SIGNED ? 1 << (BITS - 1) : 0;
    const int bits = (from[at / PER] >> (at % PER * BITS)) & ((1 << BITS) - 1);
    return static_cast<float>((bits ^ TOP) - TOP);
}
template <int BITS, bool SIGNED>
MIRAGE_INLINE void load_packed(float* __restrict to, const uint8_t* __restrict from, int64_t at, int n) {
    constexpr int PER = 8 / BITS, LOW = (1 << BITS) - 1, TOP = SIGNED ? 1 << (BITS - 1) : 0;
    int i = 0;
    for (; i < n && (at + i) % PER != 0; ++i) to[i] = packed_number<BITS, SIGNED>(from, at + i);
    const uint8_t* const whole = from + (at + i) / PER;
    const int bytes = (n - i) / PER;
    MIRAGE_VECTOR_LOOP
    for (int k = 0; k < bytes; ++k)
        for (int j = 0; j < PER; ++j)
            to[i + k * PER + j] = static_cast<float>((((whole[k] >> (j * BITS)) & LOW) ^ TOP) - TOP);
    for (i += bytes * PER; i < n; ++i) to[i] = packed_number<BITS, SIGNED>(from, at + i);
}
template <int BITS, bool SIGNED>
MIRAGE_INLINE float element(const Stored<Whole<BITS, SIGNED>>& x, int64_t j, int64_t k) {
    return packed_number<BITS, SIGNED>(x.data, x.at + j * x.row + k * x.depth);
}
template <class T>
MIRAGE_INLINE float element(const Stored<Real<T>>& x, int64_t j, int64_t k) {
    return to_float(x.data[x.at + j * x.row + k * x.depth]);
}
MIRAGE_INLINE float element(Same x, int64_t, int64_t) { return x.value; }

// --- panels -------------------------------------------------------------------------------------------------------------
typedef uint8_t Bytes __attribute__((vector_size(LANES)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));

// What a block of positions shares, for the columns of a vector: `at` is where the panel of the first column begins.
template <class T>
MIRAGE_INLINE const T* place(const T* panels, int64_t deep, int64_t j, int64_t k) {
    return panels + (j / PANEL * deep + k) * PANEL + j % PANEL;
}
MIRAGE_INLINE Vector load_vector(const uint8_t* p) {
    Bytes bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Vector);
}
template <class T>
struct OfBlocks {
    const T* first;
    MIRAGE_MEMBER Vector get(int64_t block) const { return load_vector(first + block * PANEL); }
    MIRAGE_MEMBER void fetch(int64_t block, int64_t ahead) const { __builtin_prefetch(first + block * PANEL + ahead, 0, 2); }
};
struct OfAll {
    Vector value;
    MIRAGE_MEMBER Vector get(int64_t) const { return value; }
    MIRAGE_MEMBER void fetch(int64_t, int64_t) const {}
};
template <class F>
MIRAGE_INLINE int64_t deep_of(const Stored<F>& x) { return x.deep; }
MIRAGE_INLINE int64_t deep_of(Same) { return 0; }
template <class F>
MIRAGE_INLINE OfBlocks<typename F::Element> of_blocks(const Stored<F>& x, int64_t j) {
    return {place(static_cast<const typename F::Element*>(x.panels), x.deep, x.column() + j, x.position())};
}
MIRAGE_INLINE OfAll of_blocks(Same x, int64_t) { return {Vector{} + x.value}; }

// Zero points beside numbers in words: whole ones are taken off together with what is more in a mantissa; what makes of them those
// of numbers whose top bits are turned.
template <class Q, class Z>
struct Zero {
    static constexpr bool APART = true;
    static constexpr int TURNED = Q::TURNED;
};
template <class Q, int BITS, bool SIGNED>
struct Zero<Q, Stored<Whole<BITS, SIGNED>>> {
    static constexpr bool APART = false;
    static constexpr int TURNED = Q::TURNED - Whole<BITS, SIGNED>::TURNED;
};
template <class Q>
struct Zero<Q, SameWhole> {
    static constexpr bool APART = false;
    static constexpr int TURNED = Q::TURNED;
};

// The numbers of a word for LANES columns, one after the other along the sum.
template <class Q, bool APART>
struct Numbers {
    static constexpr int PER = 32 / Q::BITS, PLACES = PER / 2;
    Vector less[PLACES], zero;

    static constexpr uint32_t power(int place) { return uint32_t(150 - Q::BITS * place) << 23; }
    MIRAGE_MEMBER void set(Vector of, float turned) {
        zero = of + turned;
        for (int p = 0; p < PLACES; ++p) {
            less[p] = Vector{} + as_float(power(p));
            if (!APART) less[p] += zero;
        }
    }
    MIRAGE_MEMBER Vector get(const Words& word, const Words& high, int i) const {
        const int p = i % PLACES;
        const Words bits = ((i < PLACES ? word : high) & (uint32_t(Q::LOW) << (Q::BITS * p))) | power(p);
        Vector x;
        std::memcpy(&x, &bits, sizeof x);
        return APART ? (x - less[p]) - zero : x - less[p];
    }
};
MIRAGE_INLINE Words load_words(const uint32_t* p) {
    Words w;
    std::memcpy(&w, p, sizeof w);
    return w;
}

// Positions along the sum in parts that share a scale.
struct Parts {
    int64_t size, block, left, skipped;
    // how many the next one has, of at most `most`
    MIRAGE_MEMBER int next(int64_t most) {
        if (left == 0) left = size - skipped, skipped = 0, ++block;
        most = most < DEPTH ? most : DEPTH;
        const int64_t n = left < most ? left : most;
        left -= n;
        return static_cast<int>(n);
    }
};
template <class Q, class Z, class S>
struct Columns {
    const Quantised<Q, Z, S>& x;
    int64_t groups;
    using Number = Q;
    using Unpacked = Numbers<Q, Zero<Q, Z>::APART>;
    static constexpr int TURNED = Zero<Q, Z>::TURNED;  // what is more in a number than in its zero point

    // the words of columns from j on, from position `at` on
    MIRAGE_MEMBER const uint32_t* words(int64_t j, int64_t at) const {
        const Stored<Q>& n = x.numbers;
        return place(static_cast<const uint32_t*>(n.panels), groups, n.column() + j, (n.position() + at) / Unpacked::PER);
    }
    template <class ZeroPoints>
    MIRAGE_MEMBER Unpacked numbers(const ZeroPoints& zeros, int64_t block) const {
        Unpacked u;
        u.set(zeros.get(block), static_cast<float>(TURNED));
        return u;
    }
    // where VECTORS from column j on begin: their words, and what their blocks share
    template <int VECTORS, class Zeros, class Scales>
    MIRAGE_MEMBER void begin(const uint32_t* (&from)[VECTORS], Zeros (&zeros)[VECTORS], Scales (&scales)[VECTORS], int64_t j) const {
        for (int v = 0; v < VECTORS; ++v) {
            from[v] = words(j + v * LANES, 0);
            zeros[v] = of_blocks(x.zero, j + v * LANES);
            scales[v] = of_blocks(x.scale, j + v * LANES);
        }
    }
    // How far words, and scales, lie behind those at the same positions of the columns of so many panels before them.
    MIRAGE_MEMBER int64_t words_ahead(int panels) const { return panels * groups * PANEL; }
    MIRAGE_MEMBER int64_t scales_ahead(int panels) const { return panels * deep_of(x.scale) * PANEL; }
    MIRAGE_MEMBER Parts parts(int64_t at) const { return {x.block, at / x.block - 1, 0, at % x.block}; }
};
template <class F>
MIRAGE_INLINE bool has_panels(const Stored<F>& x) { return x.panels != nullptr && x.column() % PANEL == 0; }
MIRAGE_INLINE bool has_panels(Same) { return true; }
template <class Q, class Z, class S>
MIRAGE_INLINE bool has_panels(const Quantised<Q, Z, S>& x) {
    constexpr int PER = 32 / Q::BITS;
    return has_panels(x.numbers) && has_panels(x.zero) && has_panels(x.scale) && x.numbers.position() % PER == 0;
}
template <class Q, class Z, class S>
MIRAGE_INLINE Columns<Q, Z, S> columns(const Quantised<Q, Z, S>& x) {
    constexpr int PER = 32 / Q::BITS;
    return {x, (x.numbers.deep + PER - 1) / PER};
}

// Sums put in their places, or added to what is there.
template <int ROWS, int VECTORS>
MIRAGE_INLINE void put_block(Result c, const Vector (&total)[ROWS][VECTORS]) {
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) {
            float* const to = c.data + r * c.row + v * LANES;
            store_vector(to, c.fresh ? total[r][v] : load_vector(to) + total[r][v]);
        }
}

// --- few rows -----------------------------------------------------------------------------------------------------------
// ROWS x VECTORS of c, from column j on; few rows have several sums side by side, or each would wait for the one before it.
template <int ROWS, int VECTORS, class C>
MIRAGE_INLINE void quantised_block(Result c, const float* a, int64_t lda, const C& b, int64_t j, int depth) {
    using Unpacked = typename C::Unpacked;
    constexpr int PER = Unpacked::PER, SUMS = ROWS * VECTORS < 4 ? 4 / (ROWS * VECTORS) : 1;
    const uint32_t* from[VECTORS];
    decltype(of_blocks(b.x.zero, j)) zeros[VECTORS];
    decltype(of_blocks(b.x.scale, j)) scales[VECTORS];
    b.begin(from, zeros, scales, j);
    Vector total[ROWS][VECTORS] = {};
    Parts parts = b.parts(0);
    for (int at = 0, part = 0; at < depth; at += part) {
        part = parts.next(depth - at);
        Unpacked of[VECTORS];
        for (int v = 0; v < VECTORS; ++v) of[v] = b.numbers(zeros[v], parts.block);
        Vector sum[SUMS][ROWS][VECTORS] = {};
        const float* x = a + at;
        const auto step = [&](int count) __attribute__((always_inline)) {
            Words word[VECTORS], high[VECTORS];
            for (int v = 0; v < VECTORS; ++v) {
                if (v * LANES % PANEL == 0) __builtin_prefetch(reinterpret_cast<const char*>(from[v]) + FETCHED);
                word[v] = load_words(from[v]);
                high[v] = word[v] >> 16;
                from[v] += PANEL;
            }
            for (int i = 0; i < PER; ++i) {
                if (i >= count) break;
                for (int v = 0; v < VECTORS; ++v) {
                    const Vector y = of[v].get(word[v], high[v], i);
                    for (int r = 0; r < ROWS; ++r) sum[i % SUMS][r][v] += x[r * lda + i] * y;
                }
            }
            x += PER;
        };
        int left = part;
        for (; left >= PER; left -= PER) step(PER);
        if (left > 0) step(left);
        for (int v = 0; v < VECTORS; ++v) {
            const Vector scale = scales[v].get(parts.block);
            for (int r = 0; r < ROWS; ++r) {
                for (int s = 1; s < SUMS; ++s) sum[0][r][v] += sum[s][r][v];
                total[r][v] += scale * sum[0][r][v];
            }
        }
    }
    put_block(c, total);
}
// The same for a block of SIZE rows or fewer, and the columns of BLOCK_COLS.
template <int SIZE, class C>
MIRAGE_INLINE void quantised_block_of(int rows, Result c, const float* a, int64_t lda, const C& b, int64_t j, int depth) {
    constexpr int VECTORS = SIZE <= 3 ? ALONE : 1;
    if (SIZE == 1 || rows == SIZE) {
        for (int v = 0; v < BLOCK_COLS / LANES; v += VECTORS)
            quantised_block<SIZE, VECTORS>({c.data + v * LANES, c.row, c.fresh}, a, lda, b, j + v * LANES, depth);
        return;
    }
    if constexpr (SIZE > 1) quantised_block_of<SIZE - 1>(rows, c, a, lda, b, j, depth);
}
template <class Form, int MOST, class C>
[[maybe_unused]] static void quantised_few(Result c, int rows, int cols, int depth, const float* a, int64_t lda, const C& b) {
    constexpr int SIZE = MOST < UNPACKED_ROWS ? MOST : UNPACKED_ROWS;
    for (int j = 0; j < cols; j += BLOCK_COLS) {
        const int width = cols - j < BLOCK_COLS ? cols - j : BLOCK_COLS;
        for (int i = 0, high = 0; i < rows; i += high) {
            const int count = (rows - i + SIZE - 1) / SIZE;
            high = (rows - i + count - 1) / count;
            if (Form::DIRECT && width == BLOCK_COLS) {
                quantised_block_of<SIZE>(high, {c.data + i * c.row + j, c.row, c.fresh}, a + i * lda, lda, b, j, depth);
            } else {
                alignas(64) float own[UNPACKED_ROWS * BLOCK_COLS];
                quantised_block_of<SIZE>(high, {own, BLOCK_COLS, true}, a + i * lda, lda, b, j, depth);
                Form::put(c, own, i, j, high, width);
            }
        }
    }
}

// --- unpacked parts -----------------------------------------------------------------------------------------------------
// BLOCK_COLS columns as floats: number (k, j) at [k * BLOCK_COLS + j].
template <class C>
[[maybe_unused]] static void unpack(float* to, const C& b, int64_t j, int64_t first, int depth) {
    using Unpacked = typename C::Unpacked;
    constexpr int PER = Unpacked::PER;
    Parts parts = b.parts(first);
    for (int at = 0, part = 0; at < depth; at += part) {
        part = parts.next(depth - at);
        for (int v = 0; v < BLOCK_COLS / LANES; ++v) {
            const Unpacked of = b.numbers(of_blocks(b.x.zero, j + v * LANES), parts.block);
            const Vector scale = of_blocks(b.x.scale, j + v * LANES).get(parts.block);
            for (int k = 0; k < part; k += PER) {
                const Words word = load_words(b.words(j + v * LANES, first + at + k)), high = word >> 16;
                for (int i = 0; i < PER; ++i)
                    if (k + i < part) store_vector(to + (at + k + i) * BLOCK_COLS + v * LANES, of.get(word, high, i) * scale);
            }
        }
    }
}
// The same of numbers as they are stored, `width` columns and zeros behind them.
template <int BITS, bool SIGNED, class Z, class S>
[[maybe_unused]] static void unpack(float* __restrict to, const Quantised<Whole<BITS, SIGNED>, Z, S>& b, int width, int64_t j,
                                    int64_t first, int depth) {
    const Stored<Whole<BITS, SIGNED>>& numbers = b.numbers;
    float row[DEPTH > BLOCK_COLS ? DEPTH : BLOCK_COLS], zero[BLOCK_COLS] = {}, scale[BLOCK_COLS] = {};
    Parts parts = {b.block, first / b.block - 1, 0, first % b.block};
    for (int at = 0, part = 0; at < depth; at += part, to += part * BLOCK_COLS) {
        part = parts.next(depth - at);
        for (int q = 0; q < width; ++q) {
            zero[q] = element(b.zero, j + q, parts.block);
            scale[q] = element(b.scale, j + q, parts.block);
        }
        const int64_t from = numbers.at + j * numbers.row + (first + at) * numbers.depth;
        for (int q = 0; q < BLOCK_COLS && numbers.depth == 1; ++q) {
            if (q < width) load_packed<BITS, SIGNED>(row, numbers.data, from + q * numbers.row, part);
            for (int k = 0; k < part; ++k) to[k * BLOCK_COLS + q] = q < width ? (row[k] - zero[q]) * scale[q] : 0.0f;
        }
        for (int k = 0; k < part && numbers.depth != 1; ++k) {
            load_packed<BITS, SIGNED>(row, numbers.data, from + k * numbers.depth, width);
            for (int q = 0; q < BLOCK_COLS; ++q) to[k * BLOCK_COLS + q] = q < width ? (row[q] - zero[q]) * scale[q] : 0.0f;
        }
    }
}
template <class Form, bool PACKED = true, class Q, class Z, class S>
[[maybe_unused]] static void quantised_many(Result c, int rows, int cols, int depth, Operand<float> a,
                                            const Quantised<Q, Z, S>& x, bool panels) {
    alignas(64) float packed[DEPTH * BLOCK_COLS], turned[BLOCK_ROWS * DEPTH], own[BLOCK_ROWS * BLOCK_COLS];
    const Columns<Q, Z, S> b = columns(x);
    for (int j = 0; j < cols; j += BLOCK_COLS) {
        const int width = cols - j < BLOCK_COLS ? cols - j : BLOCK_COLS;
        for (int k = 0; k < depth; k += DEPTH) {
            const int part = depth - k < DEPTH ? depth - k : DEPTH;
            if constexpr (PACKED)
                if (panels) unpack(packed, b, j, k, part);
            if (!PACKED || !panels) unpack(packed, x, width, j, k, part);
            const bool fresh = c.fresh && k == 0;
            for (int i = 0, high = 0; i < rows; i += high) {
                high = first_block(rows - i);
                const float* from = a.data + i * a.row + k;
                int64_t lda = a.row;
                if (a.depth != 1) {
                    from = turned, lda = DEPTH;
                    for (int t = 0; t < part; ++t)
                        for (int r = 0; r < high; ++r) turned[r * DEPTH + t] = a.data[(i + r) * a.row + (k + t) * a.depth];
                }
                if (Form::DIRECT && width == BLOCK_COLS) {
                    block_of<PLAIN, 2, 1, BLOCK_ROWS>(high, {c.data + i * c.row + j, c.row, fresh}, from, lda, packed, BLOCK_COLS,
                                                      part);
                } else {
                    block_of<PLAIN, 2, 1, BLOCK_ROWS>(high, {own, BLOCK_COLS, true}, from, lda, packed, BLOCK_COLS, part);
                    Form::put({c.data, c.row, fresh}, own, i, j, high, width);
                }
            }
        }
    }
}
template <class Form, int LEAST, int MOST, class Q, class Z, class S>
[[maybe_unused]] static void quantised_contract(Result c, int rows, int cols, int depth, Operand<float> a,
                                                const Quantised<Q, Z, S>& b) {
    const bool panels = has_panels(b);
    if constexpr (LEAST <= FEW_ROWS)
        if (rows <= FEW_ROWS && panels && a.depth == 1)
            return quantised_few<Form, MOST>(c, rows, cols, depth, a.data, a.row, columns(b));
    quantised_many<Form>(c, rows, cols, depth, a, b, panels);
}
template <int LEAST, int MOST, class Q, class Z, class S>
MIRAGE_INLINE void products(Result c, int rows, int cols, int depth, Operand<float> a, const Quantised<Q, Z, S>& b) {
    quantised_contract<Plain, LEAST, MOST>(c, rows, cols, depth, a, b);
}
// Products that take long to compile, for any number of rows: a library has them once (products.cpp), and sources of kernels
// declare those that they share.
template <class A, class W>
void shared_products(Result c, int rows, int cols, int depth, A a, const W& b) {
    products<1, 1 << 20>(c, rows, cols, depth, a, b);
}
#define MIRAGE_PRODUCTS(...)                                                 \
    namespace mirage {                                                       \
    inline namespace MIRAGE_ISA {                                            \
    extern template void shared_products(Result, int, int, int, __VA_ARGS__); \
    }                                                                        \
    }
// As `contract` of other operands.
template <class K = Known<>, class A, class Q, class Z, class S>
[[maybe_unused]] static void contract(float* c, int64_t ldc, int rows, int cols, int depth, A a, Quantised<Q, Z, S> b, bool add) {
    const Result to = {c, ldc, !add};
    if constexpr (K::MOST >= SHARED_ROWS) return shared_products(to, rows, cols, depth, a, b);
    products<K::LEAST, K::MOST>(to, rows, cols, depth, a, b);
}
template <class K = Known<>, class Q, class Z, class S>
[[maybe_unused]] static void contract(float* c, int64_t ldc, int rows, int cols, int depth, Quantised<Q, Z, S> a,
                                      Operand<float> b, bool add) {
    quantised_contract<Turned, 1, 1 << 20>({c, ldc, !add}, cols, rows, depth, b, a);
}

}  // namespace MIRAGE_ISA
}  // namespace mirage
#undef MIRAGE_MEMBER
