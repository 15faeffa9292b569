// Contractions of whole numbers: activations in levels, which are at most 256 neighbouring whole numbers with 0 among them, the
// same for all rows, and
// quantised weights without scales.
//
// Levels are bytes once they are moved by their middle. Sums are made in 32 bits, which hold them exactly:
//   sum x (q - zero) = sum byte q + middle sum q - zero sum x.
// The sums of q alone are those with a row of ones. Processors with tiles (AMX) multiply 16 rows with 16 columns at a time: a
// panel holds the bytes of a tile in its order. Weights without panels are multiplied in float32.
#pragma once
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "mirage/cpu/rounded.hpp"

#define MIRAGE_MEMBER __attribute__((always_inline)) inline

namespace mirage {
inline namespace MIRAGE_ISA {

constexpr int TILE = 16, TILE_DEPTH = 64;  // rows and columns of a tile, and the positions that it sums
constexpr int HIGH = 2 * TILE;             // rows that meet columns at a time
constexpr int TILED_ROWS = 5;              // from here on tiles are faster

// Activations, and room for them in bytes: `levels_bytes` in codegen/cpu/operands.py says how much.
struct Levels {
    Operand<float> plain;
    unsigned char* room;
};
MIRAGE_INLINE Levels in_levels(Operand<float> plain, unsigned char* room) { return {plain, room}; }

// --- bytes --------------------------------------------------------------------------------------------------------------
// Rows of bytes in the order of words, zeros behind the last one of each; the first one is of ones, the others have sums.
// Behind them there is room for a row of floats.
struct LevelRows {
    int32_t middle;
    uint32_t* sums;
    int8_t* numbers;
    float* turned;
    int64_t pitch;
};
MIRAGE_INLINE LevelRows level_rows(unsigned char* room, int rows, int depth) {
    const int64_t high = (rows + TILE) / TILE * TILE + 1, pitch = (depth + TILE_DEPTH - 1) / TILE_DEPTH * TILE_DEPTH + TILE_DEPTH;
    uint32_t* const sums = reinterpret_cast<uint32_t*>(room);
    int8_t* const numbers = reinterpret_cast<int8_t*>(sums + high);
    return {0, sums, numbers, reinterpret_cast<float*>(numbers + high * pitch), pitch};
}
MIRAGE_INLINE Words whole_of(Vector x) {
    constexpr float SHIFT = 12582912.0f;  // 3/2 2^23: the low bits of a sum with it are a whole number
    return bits_of<Words>(x + SHIFT) - 0x4b400000u;
}
// `count` bytes that `get` makes, LANES at a time, in the order of words, and zeros behind them.
template <int BITS, class Get>
MIRAGE_INLINE void put_bytes(int8_t* to, int64_t pitch, int count, const Get& get) {
    int i = 0;
    for (; BITS == 8 && i + LANES <= count; i += LANES) {
        const Bytes bytes = __builtin_convertvector(get(i), Bytes);
        std::memcpy(to + i, &bytes, sizeof bytes);
    }
    std::memset(to + i, 0, static_cast<size_t>(pitch - i));
    for (i = i / LINE * LINE; i < count; i += LINE) {
        alignas(16) int8_t line[LINE] = {};
        for (int k = 0; k < LINE && i + k < count; k += LANES) {
            const Bytes bytes = __builtin_convertvector(get(i + k), Bytes);
            const int left = count - i - k;
            std::memcpy(line + k, &bytes, left < LANES ? static_cast<size_t>(left) : sizeof bytes);
        }
        put_line<BITS>(to + i, line, LINE);
    }
}
// Rows one after the other, those that are turned again and again.
struct LevelLines {
    Operand<float> a;
    int depth;
    float* turned;

    MIRAGE_MEMBER const float* row(int r) const {
        const float* const x = a.data + r * a.row;
        if (a.depth == 1) return x;
        for (int k = 0; k < depth; ++k) turned[k] = x[k * a.depth];
        return turned;
    }
    MIRAGE_MEMBER Words get(const float* x, int i) const {
        if (i + LANES <= depth) return whole_of(load_vector(x + i));
        alignas(64) float rest[LANES] = {};
        for (int k = i; k < depth; ++k) rest[k - i] = x[k];
        return whole_of(load_vector(rest));
    }
};
template <int BITS>
[[maybe_unused]] static void level_all(LevelRows& to, Operand<float> a, int rows, int depth) {
    put_bytes<BITS>(to.numbers, to.pitch, depth, [](int) __attribute__((always_inline)) { return Words{} + 1u; });
    const LevelLines lines = {a, depth, to.turned};
    Ints least = {};
    for (int r = 0; r < rows; ++r) {
        const float* const x = lines.row(r);
        Words sum = {};
        for (int i = 0; i < depth; i += LANES) {
            const Words level = lines.get(x, i);
            const Ints own = reinterpret_cast<Ints>(level);
            least = own < least ? own : least;
            sum += level;
        }
        to.sums[r + 1] = static_cast<uint32_t>(lanes_sum(sum));
    }
    int32_t low = 0;
    for (int i = 0; i < LANES; ++i) low = least[i] < low ? least[i] : low;
    to.middle = low < -255 ? -127 : low + 128;  // less is of what is no number
    for (int r = 0; r < rows; ++r) {
        const float* const x = lines.row(r);
        const auto get = [&](int i) __attribute__((always_inline)) { return lines.get(x, i) - static_cast<uint32_t>(to.middle); };
        put_bytes<BITS>(to.numbers + (r + 1) * to.pitch, to.pitch, depth, get);
    }
}

// --- sums ---------------------------------------------------------------------------------------------------------------
// Sums of ROWS of bytes, `pitch` apart, with BLOCK_COLS columns from j on; a row of them after the other.
template <class Sum, int ROWS, class C>
MIRAGE_INLINE void level_sums(uint32_t* to, const int8_t* x, int64_t pitch, const C& b, int64_t j, int depth) {
    constexpr int VECTORS = ROWS <= (LANES == 8 && C::Number::BITS == 8 ? 2 : 4) ? 2 : 1;
    for (int v = 0; v < BLOCK_COLS / LANES; v += VECTORS) {
        const uint32_t* from[VECTORS];
        for (int w = 0; w < VECTORS; ++w) from[w] = b.words(j + (v + w) * LANES, 0);
        ByteSums<Sum, typename C::Number, ROWS, VECTORS> sums = {};
        sums.run(from, x, pitch, depth);
        for (int r = 0; r < ROWS; ++r)
            for (int w = 0; w < VECTORS; ++w) {
                const Ints of = sums.total(r, w);
                std::memcpy(to + r * BLOCK_COLS + (v + w) * LANES, &of, sizeof of);
            }
    }
}
template <class Sum, int SIZE, class C>
MIRAGE_INLINE void level_sums_of(int rows, uint32_t* to, const int8_t* x, int64_t pitch, const C& b, int64_t j, int depth) {
    if (SIZE == 1 || rows == SIZE) return level_sums<Sum, SIZE>(to, x, pitch, b, j, depth);
    if constexpr (SIZE > 1) level_sums_of<Sum, rounded_rows(SIZE - 1)>(rows, to, x, pitch, b, j, depth);
}
#if defined(__AVX512F__) && defined(__linux__) && __has_include(<amxtileintrin.h>)
#define MIRAGE_TILES
// True where the processor has tiles of bytes, and the system lets this process use them.
inline bool has_tiles() {
    static const bool has = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        constexpr unsigned WANTED = 1u << 24 | 1u << 25;  // tiles, and those of bytes
        if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & WANTED) != WANTED) return false;
        constexpr long PERMISSION = 0x1023, DATA = 18;  // ARCH_REQ_XCOMP_PERM
        return syscall(SYS_arch_prctl, PERMISSION, DATA) == 0;
    }();
    return has;
}
#define MIRAGE_TILE_LOAD(TILE_, FROM, APART) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #TILE_ ::"r"(FROM), "r"(static_cast<int64_t>(APART)) : "memory")
#define MIRAGE_TILE_STORE(TILE_, TO, APART) \
    __asm__ volatile("tilestored %%tmm" #TILE_ ", (%0,%1,1)" ::"r"(TO), "r"(static_cast<int64_t>(APART)) : "memory")
#define MIRAGE_TILE_ADD(C_, A_, B_) __asm__ volatile("tdpbsud %%tmm" #B_ ", %%tmm" #A_ ", %%tmm" #C_ ::)
// The sums of HIGH rows, or of TILE (not `both`), with BLOCK_COLS columns; the `first` ones fetch those that come next.
template <class C>
MIRAGE_INLINE void tile_sums(bool both, bool first, uint32_t* to, const int8_t* x, int64_t pitch, const C& b, int64_t j, int depth) {
    const uint32_t *left = b.words(j, 0), *right = b.words(j + TILE, 0);
    const int64_t next = 2 * (right - left);
    __asm__ volatile("tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3" ::);
    for (int k = 0; k < depth; k += TILE_DEPTH, left += TILE * TILE, right += TILE * TILE) {
        for (int i = 0; first && i < TILE; ++i) {
            __builtin_prefetch(left + next + i * PANEL, 0, 2);
            __builtin_prefetch(right + next + i * PANEL, 0, 2);
        }
        MIRAGE_TILE_LOAD(6, left, 64);
        MIRAGE_TILE_LOAD(7, right, 64);
        MIRAGE_TILE_LOAD(4, x + k, pitch);
        MIRAGE_TILE_ADD(0, 4, 6);
        MIRAGE_TILE_ADD(1, 4, 7);
        if (!both) continue;
        MIRAGE_TILE_LOAD(5, x + TILE * pitch + k, pitch);
        MIRAGE_TILE_ADD(2, 5, 6);
        MIRAGE_TILE_ADD(3, 5, 7);
    }
    constexpr int APART = BLOCK_COLS * 4;
    MIRAGE_TILE_STORE(0, to, APART);
    MIRAGE_TILE_STORE(1, to + TILE, APART);
    if (!both) return;
    MIRAGE_TILE_STORE(2, to + TILE * BLOCK_COLS, APART);
    MIRAGE_TILE_STORE(3, to + TILE * BLOCK_COLS + TILE, APART);
}
#undef MIRAGE_TILE_LOAD
#undef MIRAGE_TILE_STORE
#undef MIRAGE_TILE_ADD
#endif
// How sums are made: in registers, or in tiles.
template <class Sum, int MOST>
struct InRegisters {
    static constexpr bool TOGETHER = true;  // with the row of ones
    MIRAGE_MEMBER static int rows(int left) { return rounded_rows(left); }
    template <class C>
    MIRAGE_MEMBER static void sums(int high, bool, uint32_t* to, const int8_t* x, int64_t pitch, const C& b, int64_t j, int depth) {
        level_sums_of<Sum, rounded_rows(MOST + 1)>(high, to, x, pitch, b, j, depth);
    }
};
struct InTiles {
    static constexpr bool TOGETHER = false;
    MIRAGE_MEMBER static int rows(int left) { return left < HIGH ? left : HIGH; }
    template <class C>
    MIRAGE_MEMBER static void sums(int high, bool first, uint32_t* to, const int8_t* x, int64_t pitch, const C& b, int64_t j, int depth) {
#if defined(MIRAGE_TILES)
        tile_sums(high > TILE, first, to, x, pitch, b, j, depth);
#endif
    }
};

// --- products -----------------------------------------------------------------------------------------------------------
// Zero points of columns, as they are beside numbers in words: of LANES, or one for all.
struct OneZero {
    uint32_t zero;
    MIRAGE_MEMBER uint32_t times(uint32_t sum) const { return sum * zero; }
    MIRAGE_MEMBER OneZero get(int64_t) const { return *this; }
};
struct ColumnZeros {
    Words zero;
    MIRAGE_MEMBER Words times(uint32_t sum) const { return sum * zero; }
};
template <class C, class Z>
struct Zeros {
    const Z& of;
    MIRAGE_MEMBER ColumnZeros get(int64_t j) const {
        const Vector zero = of_blocks(of, j).get(0) + static_cast<float>(C::TURNED);
        return {reinterpret_cast<Words>(__builtin_convertvector(zero, Ints))};
    }
};
template <class C, class Z>
MIRAGE_INLINE Zeros<C, Z> zeros_of(const Z& of) { return {of}; }
template <class C>
MIRAGE_INLINE OneZero zeros_of(const SameWhole& of) { return {static_cast<uint32_t>(static_cast<int32_t>(of.value)) + C::TURNED}; }
template <class How, class Sum, class Form, class C>
[[maybe_unused]] static void level_products(Result c, int rows, int cols, int depth, const LevelRows& a, const C& b) {
    const auto zeros = zeros_of<C>(b.x.zero);
    for (int j = 0; j < cols; j += BLOCK_COLS) {
        const int width = cols - j < BLOCK_COLS ? cols - j : BLOCK_COLS;
        alignas(64) uint32_t numbers[BLOCK_COLS], part[HIGH * BLOCK_COLS];
        alignas(64) float own[HIGH * BLOCK_COLS];
        if (!How::TOGETHER) level_sums<Sum, 1>(numbers, a.numbers, a.pitch, b, j, depth);
        for (int i = How::TOGETHER ? 0 : 1, high = 0; i <= rows; i += high) {
            high = How::rows(rows + 1 - i);
            How::sums(high, i <= 1, part, a.numbers + i * a.pitch, a.pitch, b, j, depth);
            const int first = i == 0;  // behind the ones
            if (first) std::memcpy(numbers, part, sizeof numbers);
            const bool direct = Form::DIRECT && width == BLOCK_COLS;
            float* const to = direct ? c.data + (i - 1) * c.row + j : own;
            const int64_t row = direct ? c.row : BLOCK_COLS;
            for (int v = 0; v < BLOCK_COLS; v += LANES) {
                const Words all = load_words(numbers + v) * static_cast<uint32_t>(a.middle);
                const auto zero = zeros.get(j + v);
                for (int r = first; r < high; ++r) {
                    const Words total = load_words(part + r * BLOCK_COLS + v) + all - zero.times(a.sums[i + r]);
                    const Vector found = __builtin_convertvector(reinterpret_cast<Ints>(total), Vector);
                    float* const place = to + r * row + v;
                    store_vector(place, direct && !c.fresh ? load_vector(place) + found : found);
                }
            }
            if (!direct) Form::put(c, own + first * BLOCK_COLS, i - 1 + first, j, high - first, width);
        }
    }
}
template <class Form, int MOST, class Q, class Z, class S>
[[maybe_unused]] static void level_contract(Result c, int rows, int cols, int depth, Levels a, const Quantised<Q, Z, S>& x) {
    const Columns<Q, Z, S> b = columns(x);
    LevelRows own = level_rows(a.room, rows, depth);
    level_all<Q::BITS>(own, a.plain, rows, depth);
#if defined(MIRAGE_TILES)
    if (Q::BITS == 8 && MOST >= TILED_ROWS && rows >= TILED_ROWS && depth % TILE_DEPTH == 0 && has_tiles()) {
        begin_matrices();
        level_products<InTiles, InFours, Form>(c, rows, cols, depth, own, b);
        return end_matrices();
    }
#endif
#if defined(__AVX512F__)
    if (has_fours()) return level_products<InRegisters<InFours, MOST>, InFours, Form>(c, rows, cols, depth, own, b);
#endif
    level_products<InRegisters<Sums<Q::BITS>, MOST>, Sums<Q::BITS>, Form>(c, rows, cols, depth, own, b);
}
template <int LEAST, int MOST, class Q, class Z, class S>
MIRAGE_INLINE void products(Result c, int rows, int cols, int depth, Levels a, const Quantised<Q, Z, S>& b) {
    if (!has_panels(b)) return quantised_many<Plain, false>(c, rows, cols, depth, a.plain, b, false);
    level_contract<Plain, MOST>(c, rows, cols, depth, a, b);
}
template <class K = Known<>, class Q, class Z, class S>
[[maybe_unused]] static void contract(float* c, int64_t ldc, int rows, int cols, int depth, Quantised<Q, Z, S> a, Levels b,
                                      bool add) {
    if (!has_panels(a)) return contract<K>(c, ldc, rows, cols, depth, a, b.plain, add);
    level_contract<Turned, 1 << 20>({c, ldc, !add}, cols, rows, depth, b, a);
}

}  // namespace MIRAGE_ISA
}  // namespace mirage
#undef MIRAGE_MEMBER
