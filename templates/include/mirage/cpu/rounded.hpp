// Contractions of quantised weights with activations that the model lets kernels round to 8 bits: integers are multiplied.
//
// Rows of activations are rounded once for a contraction, by parts that share a scale of the weights (and at most DEPTH positions):
// scale = |largest| / 127. Sums of whole numbers join the result times both scales, less what the weights' zero point has brought:
//   sum (q - zero) s x r = s r (sum q x) - zero s (r sum x).
// A word of a panel holds in its every (8 / BITS)th number the bytes of one instruction; rounded numbers lie in that order. Weights
// without panels are multiplied in float32.
#pragma once
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "mirage/cpu/quantised.hpp"
#include "mirage/cpu/split.hpp"

#define MIRAGE_MEMBER __attribute__((always_inline)) inline

namespace mirage {
inline namespace MIRAGE_ISA {

constexpr int UNIT = 32;                            // positions whose products fit 16 bits where there are no wider sums
constexpr int TALL = LANES == 16 ? 12 : LANES == 8 ? 4 : 2;  // rows that meet a word in registers
constexpr int LINE = 16;                            // positions that are rounded at a time
// Loops whose sums stay in registers, which would be indexed otherwise. Compilers with more registers see to it themselves.
#if !defined(__AVX2__) || defined(__AVX512F__)
#define MIRAGE_UNROLLED
#elif defined(__clang__)
#define MIRAGE_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define MIRAGE_UNROLLED _Pragma("GCC unroll 16")
#endif

// Activations, and room for them in bytes: `rounded_bytes` in codegen/cpu/products.py says how much.
struct Rounded {
    Operand<float> plain;
    unsigned char* room;
};
MIRAGE_INLINE Rounded to_bytes(Operand<float> plain, unsigned char* room) { return {plain, room}; }

// --- rounding -----------------------------------------------------------------------------------------------------------
// Rounded rows: of each part the scale, and the scale times the sum of its numbers; numbers in the order of words.
struct Lines {
    float* scales;
    int8_t* numbers;
    int parts, pitch;

    MIRAGE_MEMBER const float* scale(int r, int part) const { return scales + (static_cast<int64_t>(r) * parts + part) * 2; }
    MIRAGE_MEMBER const int8_t* at(int r, int k) const { return numbers + static_cast<int64_t>(r) * pitch + k; }
};
MIRAGE_INLINE Lines lines(unsigned char* room, int rows, int depth, int64_t block) {
    const int most = static_cast<int>(block < DEPTH ? block : DEPTH), parts = 2 * ((depth + most - 1) / most);
    float* const scales = reinterpret_cast<float*>(room);
    return {scales, reinterpret_cast<int8_t*>(scales + static_cast<int64_t>(rows) * parts * 2), parts, (depth + LINE - 1) / LINE * LINE};
}
// The place of number i of a LINE of words with so many bits for each.
template <int BITS>
constexpr int placed(int i) {
    constexpr int PER = 32 / BITS, APART = 8 / BITS;
    return i / PER * PER + i % APART * 4 + i % PER / APART;
}
// Of LANES whole numbers the largest, and the sum.
MIRAGE_INLINE int32_t largest_lane(Ints x) {
    int32_t most = x[0];
    for (int i = 1; i < LANES; ++i) most = x[i] > most ? x[i] : most;
    return most;
}
MIRAGE_INLINE int32_t lanes_sum(Words x) {
    uint32_t sum = 0;
    for (int i = 0; i < LANES; ++i) sum += x[i];
    return static_cast<int32_t>(sum);
}
template <class Bits>
MIRAGE_INLINE Bits bits_of(Vector x) {
    Bits bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
// A LINE of bytes in the order of words.
template <int BITS>
MIRAGE_INLINE void put_line(int8_t* to, const int8_t* line, int count) {
    alignas(16) int8_t own[LINE], order[LINE];
    for (int i = 0; i < LINE; ++i) order[placed<BITS>(i)] = static_cast<int8_t>(i);
#if defined(__AVX2__)
    typedef char Line __attribute__((vector_size(LINE)));
    Line bytes, places;
    std::memcpy(&bytes, line, sizeof bytes);
    std::memcpy(&places, order, sizeof places);
    bytes = __builtin_ia32_pshufb128(bytes, places);
    std::memcpy(own, &bytes, sizeof bytes);
#else
    for (int i = 0; i < LINE; ++i) own[i] = line[order[i]];
#endif
    std::memcpy(to, own, static_cast<size_t>(count));
}
// `count` numbers, zeros behind the last one up to whole words: the sum of what they are rounded to, in units of `scale`.
template <int BITS>
MIRAGE_INLINE int round_part(int8_t* __restrict to, const float* __restrict x, int count, float* scale) {
    constexpr float SHIFT = 12582912.0f;  // 3/2 2^23: the low bits of a sum with it are a whole number
    constexpr int PER = 32 / BITS;
    const auto load = [&](int i) __attribute__((always_inline)) {
        if (i + LANES <= count) return load_vector(x + i);
        alignas(64) float rest[LANES] = {};
        for (int k = i; k < count; ++k) rest[k - i] = x[k];
        return load_vector(rest);
    };
    Ints sizes = {};
    for (int i = 0; i < count; i += LANES) {
        const Ints size = bits_of<Ints>(load(i)) & 0x7fffffff;  // what is no number is larger than all that are
        sizes = size > sizes ? size : sizes;
    }
    const float unit = as_float(static_cast<uint32_t>(largest_lane(sizes))) * (1.0f / 127.0f);
    *scale = unit < 0x1p-126f ? 0x1p-126f : unit;
    const float inverse = 1.0f / *scale;
    Words sum = {};  // of what is no number anything
    for (int from = 0; from < count; from += LINE) {
        alignas(16) int8_t line[LINE];
        for (int i = 0; i < LINE; i += LANES) {
            const Words bits = bits_of<Words>(load(from + i) * inverse + SHIFT) - 0x4b400000u;
            sum += bits;
            const Bytes bytes = __builtin_convertvector(bits, Bytes);
            std::memcpy(line + i, &bytes, sizeof bytes);
        }
        const int words = (count - from + PER - 1) / PER * PER;
        put_line<BITS>(to + from, line, words < LINE ? words : LINE);
    }
    return lanes_sum(sum);
}
template <int BITS>
[[maybe_unused]] static void round_rows(const Lines& to, Operand<float> a, int rows, int depth, Parts parts) {
    alignas(64) float turned[DEPTH];
    for (int r = 0; r < rows; ++r) {
        Parts own = parts;
        for (int at = 0, part = 0, n = 0; at < depth; at += part, ++n) {
            part = own.next(depth - at);
            const float* x = a.data + r * a.row + at * a.depth;
            if (a.depth != 1) {
                for (int k = 0; k < part; ++k) turned[k] = x[k * a.depth];
                x = turned;
            }
            float* const scale = const_cast<float*>(to.scale(r, n));
            const int sum = round_part<BITS>(const_cast<int8_t*>(to.at(r, at)), x, part, scale);
            scale[1] = scale[0] * static_cast<float>(sum);
        }
    }
}

// --- sums of bytes ------------------------------------------------------------------------------------------------------
// Sums of LANES columns: `add` four products for each, of bytes without a sign and of four rounded numbers; `close` comes before
// more than UNIT positions are added.
template <int BITS>
struct Loops {
    using Four = const int8_t*;
    static constexpr bool LONE = false, WIDE = false;
    Ints sum;
    MIRAGE_MEMBER static Four four(const int8_t* x) { return x; }
    MIRAGE_MEMBER void add(Words q, Four x) {
        for (int i = 0; i < 4; ++i) {
            const Words part = (q >> (8 * i)) & 255u;
            Ints whole;
            std::memcpy(&whole, &part, sizeof whole);
            sum += whole * static_cast<int32_t>(x[i]);
        }
    }
    MIRAGE_MEMBER void close() {}
};
#if defined(__AVX2__)
// The compilers' builtins, as in math.hpp: <immintrin.h> takes longer to read than a kernel to compile.
typedef char Chars __attribute__((vector_size(LANES * 4)));
typedef short Pairs __attribute__((vector_size(LANES * 4)));
#if !defined(__AVX512F__)
MIRAGE_INLINE Pairs times(Chars q, Chars x) { return __builtin_ia32_pmaddubsw256(q, x); }
MIRAGE_INLINE Ints joined(Pairs x, Pairs y) { return __builtin_ia32_pmaddwd256(x, y); }
// With 16 registers, products are made where they are written down: compilers make all first, and keep them in memory.
MIRAGE_INLINE Chars of_four(const int8_t* x) {
    typedef int8_t Four[4];
    Chars of;
    __asm__ volatile("vpbroadcastd %1, %0" : "=x"(of) : "m"(*reinterpret_cast<const Four*>(x)));
    return of;
}
MIRAGE_INLINE void made(Pairs& x) { __asm__ volatile("" : "+x"(x)); }
#else
#if defined(__clang__)
MIRAGE_INLINE Pairs times(Chars q, Chars x) { return __builtin_ia32_pmaddubsw512(q, x); }
MIRAGE_INLINE Ints joined(Pairs x, Pairs y) { return __builtin_ia32_pmaddwd512(x, y); }
#else
MIRAGE_INLINE Pairs times(Chars q, Chars x) { return __builtin_ia32_pmaddubsw512_mask(q, x, Pairs{}, 0xffffffffu); }
MIRAGE_INLINE Ints joined(Pairs x, Pairs y) { return __builtin_ia32_pmaddwd512_mask(x, y, Ints{}, 0xffffu); }
#endif
MIRAGE_INLINE Chars of_four(const int8_t* x) {
    uint32_t bytes;
    std::memcpy(&bytes, x, sizeof bytes);
    return reinterpret_cast<Chars>(Words{} + bytes);
}
MIRAGE_INLINE void made(Pairs&) {}
#endif
// The same in 16 bits, which hold the sums of a UNIT of numbers below 16; bytes are two of these.
template <int BITS>
struct InPairs {
    using Four = Chars;
    static constexpr bool LONE = LANES == 8, WIDE = LONE && BITS < 8;  // registers hold sums of TALL rows with two vectors
    Ints sum;
    Pairs low, high;
    MIRAGE_MEMBER static Four four(const int8_t* x) { return of_four(x); }
    MIRAGE_MEMBER static void add(Pairs& to, Words q, Four x) {
        to += times(reinterpret_cast<Chars>(q), x);
        made(to);
    }
    MIRAGE_MEMBER void add(Words q, Four x) {
        add(low, BITS == 8 ? q & 0x0f0f0f0fu : q, x);
        if (BITS == 8) add(high, (q >> 4) & 0x0f0f0f0fu, x);
    }
    MIRAGE_MEMBER void close() {
        sum += joined(low, Pairs{} + short(1));
        if (BITS == 8) sum += joined(high, Pairs{} + short(16));
        low = high = Pairs{};
    }
};
template <int BITS>
using Sums = InPairs<BITS>;
#else
template <int BITS>
using Sums = Loops<BITS>;
#endif
#if defined(__AVX512F__)
// The same with AVX512-VNNI, which some processors with AVX-512 lack.
struct InFours {
    using Four = const int8_t*;
    static constexpr bool LONE = false, WIDE = false;
    Ints sum;
    MIRAGE_MEMBER static Four four(const int8_t* x) { return x; }
    MIRAGE_MEMBER void add(Words q, Four x) {
        typedef int8_t Bytes4[4];
        __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(q), "m"(*reinterpret_cast<const Bytes4*>(x)));
    }
    MIRAGE_MEMBER void close() {}
};
inline bool has_fours() {
    static const bool has = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c >> 11 & 1) != 0;
    }();
    return has;
}
#endif

// --- products -----------------------------------------------------------------------------------------------------------
// Sums of the bytes of ROWS with columns of VECTORS: few have several sums side by side, as elsewhere.
template <class Sum, class Q, int ROWS, int VECTORS>
struct ByteSums {
    static constexpr int BITS = Q::BITS, PER = 32 / BITS, SOME = ROWS * VECTORS;
    static constexpr int SUMS = LANES == 16 ? (SOME < 4 ? 4 : SOME < 8 ? 2 : 1) : SOME < 4 ? 8 / BITS : 1;
    Sum sum[SUMS][ROWS][VECTORS];

    // with word `n` of so many; those so many bytes `ahead` are fetched to the second-level cache
    MIRAGE_MEMBER void step(int n, const uint32_t** from, const int8_t* x, int64_t pitch, int64_t ahead) {
        Words word[VECTORS];
        for (int v = 0; v < VECTORS; ++v) {
            if (v * LANES % PANEL == 0) __builtin_prefetch(reinterpret_cast<const char*>(from[v]) + ahead, 0, 2);
            word[v] = load_words(from[v]);
            from[v] += PANEL;
        }
        MIRAGE_UNROLLED
        for (int g = 0; g < 8 / BITS; ++g) {
            Words bytes[VECTORS];
            for (int v = 0; v < VECTORS; ++v)
                bytes[v] = BITS == 8 ? word[v] : (word[v] >> (g * BITS)) & (0x01010101u * uint32_t(Q::LOW));
            MIRAGE_UNROLLED
            for (int r = 0; r < ROWS; ++r) {
                const auto four = Sum::four(x + r * pitch + 4 * g);
                for (int v = 0; v < VECTORS; ++v) sum[(n * (8 / BITS) + g) % SUMS][r][v].add(bytes[v], four);
            }
        }
    }
    MIRAGE_MEMBER void close() {
        for (int s = 0; s < SUMS; ++s)
            for (int r = 0; r < ROWS; ++r)
                for (int v = 0; v < VECTORS; ++v) sum[s][r][v].close();
    }
    MIRAGE_MEMBER void unit(const uint32_t** from, const int8_t* x, int64_t pitch, int64_t ahead) {
        MIRAGE_UNROLLED
        for (int n = 0; n < UNIT / PER; ++n) step(n, from, x + n * PER, pitch, ahead);
        close();
    }
    // over `left` positions from words `from` on, which move behind them
    MIRAGE_MEMBER void run(const uint32_t** from, const int8_t* x, int64_t pitch, int left, int64_t ahead = FETCHED) {
        for (; left >= UNIT; left -= UNIT, x += UNIT) unit(from, x, pitch, ahead);
        if (left <= 0) return;
        for (; left > 0; left -= PER, x += PER) step(0, from, x, pitch, ahead);
        close();
    }
    MIRAGE_MEMBER Ints total(int r, int v) const {
        Ints of = sum[0][r][v].sum;
        for (int s = 1; s < SUMS; ++s) of += sum[s][r][v].sum;
        return of;
    }
};
// ROWS x VECTORS of c, from column j and row i of the rounded ones on; behind the columns there may be `more`. Parts of panels are
// no stream that a processor sees: that of the next panel is fetched.
template <class Sum, int ROWS, int VECTORS, class C>
MIRAGE_INLINE void rounded_block(Result c, const Lines& a, int i, const C& b, int64_t j, int depth, bool more) {
    const uint32_t* from[VECTORS];
    decltype(of_blocks(b.x.zero, j)) zeros[VECTORS];
    decltype(of_blocks(b.x.scale, j)) scales[VECTORS];
    b.begin(from, zeros, scales, j);
    constexpr int PANELS = VECTORS * LANES < PANEL ? 1 : VECTORS * LANES / PANEL;
    const bool apart = more && depth < b.x.numbers.deep;
    const int64_t ahead = apart ? b.words_ahead(PANELS) * 4 : FETCHED;
    Vector total[ROWS][VECTORS] = {};
    Parts parts = b.parts(0);
    for (int at = 0, part = 0, n = 0; at < depth; at += part, ++n) {
        part = parts.next(depth - at);
        ByteSums<Sum, typename C::Number, ROWS, VECTORS> sums = {};
        if (Sum::LONE && part == UNIT) {
            sums.unit(from, a.at(i, at), a.pitch, ahead);
        } else {
            sums.run(from, a.at(i, at), a.pitch, part, ahead);
        }
        for (int v = 0; v < VECTORS; ++v) {
            if (apart && v * LANES % PANEL == 0) scales[v].fetch(parts.block, b.scales_ahead(PANELS));
            const Vector scale = scales[v].get(parts.block);
            const Vector less = scale * (zeros[v].get(parts.block) + static_cast<float>(C::TURNED));
            for (int r = 0; r < ROWS; ++r) {
                const float* const own = a.scale(i + r, n);
                const Vector whole = __builtin_convertvector(sums.total(r, v), Vector);
                total[r][v] += scale * own[0] * whole - less * own[1];
            }
        }
    }
    put_block(c, total);
}
// How many rows come next: sizes that are compiled.
MIRAGE_INLINE constexpr int rounded_rows(int rows) {
    return rows >= TALL ? TALL : rows >= 4 ? 4 : rows >= 2 ? 2 : rows;
}
template <class Sum, int SIZE, class C>
MIRAGE_INLINE void rounded_block_of(int rows, Result c, const Lines& a, int i, const C& b, int64_t j, int depth, bool more) {
    if (SIZE == 1 || rows == SIZE) {
        constexpr int VECTORS = SIZE == 1 ? ALONE : SIZE == 2 || Sum::WIDE ? 2 : 1;
        for (int v = 0; v < BLOCK_COLS / LANES; v += VECTORS)
            rounded_block<Sum, SIZE, VECTORS>({c.data + v * LANES, c.row, c.fresh}, a, i, b, j + v * LANES, depth,
                                              more || v + VECTORS < BLOCK_COLS / LANES);
        return;
    }
    if constexpr (SIZE > 1) rounded_block_of<Sum, rounded_rows(SIZE - 1)>(rows, c, a, i, b, j, depth, more);
}
template <class Sum, class Form, int MOST, class C>
[[maybe_unused]] static void rounded_products(Result c, int rows, int cols, int depth, const Lines& a, const C& b) {
    for (int j = 0; j < cols; j += BLOCK_COLS) {
        const int width = cols - j < BLOCK_COLS ? cols - j : BLOCK_COLS;
        for (int i = 0, high = 0; i < rows; i += high) {
            high = rounded_rows(rows - i);
            if (Form::DIRECT && width == BLOCK_COLS) {
                rounded_block_of<Sum, rounded_rows(MOST)>(high, {c.data + i * c.row + j, c.row, c.fresh}, a, i, b, j, depth,
                                                          j + BLOCK_COLS < cols);
            } else {
                alignas(64) float own[TALL * BLOCK_COLS];
                rounded_block_of<Sum, rounded_rows(MOST)>(high, {own, BLOCK_COLS, true}, a, i, b, j, depth, false);
                Form::put(c, own, i, j, high, width);
            }
        }
    }
}
template <class Form, int MOST, class Q, class Z, class S>
[[maybe_unused]] static void rounded_contract(Result c, int rows, int cols, int depth, Rounded a, const Quantised<Q, Z, S>& x) {
    const Columns<Q, Z, S> b = columns(x);
    const Lines own = lines(a.room, rows, depth, x.block);
    round_rows<Q::BITS>(own, a.plain, rows, depth, b.parts(0));
#if defined(__AVX512F__)
    if (has_fours()) return rounded_products<InFours, Form, MOST>(c, rows, cols, depth, own, b);
#endif
    rounded_products<Sums<Q::BITS>, Form, MOST>(c, rows, cols, depth, own, b);
}
// As those of activations that stay as they are.
template <int LEAST, int MOST, class Q, class Z, class S>
MIRAGE_INLINE void products(Result c, int rows, int cols, int depth, Rounded a, const Quantised<Q, Z, S>& b) {
    if (!has_panels(b)) return quantised_many<Plain, false>(c, rows, cols, depth, a.plain, b, false);
    rounded_contract<Plain, MOST>(c, rows, cols, depth, a, b);
}
template <class K = Known<>, class Q, class Z, class S>
[[maybe_unused]] static void contract(float* c, int64_t ldc, int rows, int cols, int depth, Quantised<Q, Z, S> a, Rounded b,
                                      bool add) {
    if (!has_panels(a)) return contract<K>(c, ldc, rows, cols, depth, a, b.plain, add);
    rounded_contract<Turned, 1 << 20>({c, ldc, !add}, cols, rows, depth, b, a);
}

}  // namespace MIRAGE_ISA
}  // namespace mirage
#undef MIRAGE_MEMBER
