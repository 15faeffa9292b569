// Products of strips with quantised weights that lie in memory as they are stored, several numbers in a word.
//
// Matrix instructions multiply (number - zero), which 16 bits hold exactly, and the scale of a block multiplies its sum. The
// order of summed positions is free: a lane takes eight neighbours, of 4 bits the pairs (0, 4) (1, 5) (2, 6) (3, 7).
#pragma once
#include "mirage/cuda/strip.cuh"

namespace mirage {

// --- tiles ----------------------------------------------------------------------------------------------------------
using u8 = Whole<8, false>;
using i8 = Whole<8, true>;
template <class T>
struct Real {
    using STORED = T;
    static constexpr int BITS = 8 * sizeof(T);
};
template <class T>
struct ElementOf {
    using TYPE = Real<T>;
};
template <int BITS, bool SIGNED>
struct ElementOf<Whole<BITS, SIGNED>> {
    using TYPE = Whole<BITS, SIGNED>;
};

// number `at` of a tensor of such numbers, the first one of a byte
template <class T, class STORED>
MIRAGE_DEVICE const uint8_t* packed_at(const STORED* from, int64_t at) {
    return reinterpret_cast<const uint8_t*>(from) + static_cast<uint64_t>(at) * T::BITS / 8;
}

// OUTER rows of INNER numbers
template <class T_, int OUTER_, int INNER_>
struct PackedTile {
    using T = T_;
    using BYTES = Tile<uint8_t, OUTER_, INNER_ * T_::BITS / 8>;
    static constexpr int OUTER = OUTER_, INNER = INNER_;
    uint8_t* at;
};
// As `load_tile`
template <int THREADS, int PITCH, bool SURE, class TILE, class F>
MIRAGE_DEVICE void load_packed(TILE t, int thread, const void* any, int valid, F row) {
    using BYTES = typename TILE::BYTES;
    constexpr int BITS = TILE::T::BITS;
    load_tile<THREADS, PITCH * BITS / 8, SURE>(BYTES{t.at}, thread, static_cast<const uint8_t*>(any), valid * BITS / 8, row);
}

// OUTER rows of INNER elements that go with blocks of numbers, copied UNIT bytes at a time
template <class T_, int OUTER_, int INNER_, int UNIT_>
struct BlockTile {
    using T = typename ElementOf<T_>::TYPE;
    using STORED = typename T::STORED;
    static constexpr int OUTER = OUTER_, INNER = INNER_, UNIT = UNIT_, ROW = INNER * T::BITS / 8;
    static_assert(ROW % UNIT == 0, "rows are whole copies");
    STORED* at;
    MIRAGE_DEVICE uint8_t* piece(int outer, int n) const { return reinterpret_cast<uint8_t*>(at) + outer * ROW + n * UNIT; }
};
template <int THREADS, bool SURE, class TILE, class F>
MIRAGE_DEVICE void load_blocks(TILE t, int thread, const void* any, int valid, F row) {
    constexpr int PIECES = TILE::ROW / TILE::UNIT, COUNT = TILE::OUTER * PIECES, EACH = (COUNT + THREADS - 1) / THREADS;
    const int end = valid * TILE::T::BITS / 8;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int k = i * THREADS + thread;
        if (COUNT % THREADS != 0 && k >= COUNT) break;
        const int o = k / PIECES, n = k % PIECES;
        const auto* const from = row(o);
        const int bytes = !SURE && from == nullptr ? 0 : max(0, min(TILE::UNIT, end - n * TILE::UNIT));
        const void* const place = reinterpret_cast<const uint8_t*>(from) + n * TILE::UNIT;
        copy_async<TILE::UNIT>(t.piece(o, n), SURE || bytes > 0 ? place : any, bytes);
    }
}

// --- numbers to matrix operands -------------------------------------------------------------------------------------
// (a & b) ^ c
MIRAGE_DEVICE uint32_t masked(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
MIRAGE_DEVICE uint32_t twice(uint32_t x) { return x * 0x10001u; }
MIRAGE_DEVICE uint32_t less(uint32_t x, uint32_t y, const __half*) {
    uint32_t r;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
    return r;
}
MIRAGE_DEVICE uint32_t less(uint32_t x, uint32_t y, const __nv_bfloat16*) {
    uint32_t r;  // x * 1 + -y
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(0x3f803f80u), "r"(y ^ 0x80008000u));
    return r;
}

// What is taken from unpacked numbers: a whole zero point, as the exact numbers that pairs of 16 bits begin at, and where
// REST one of any size besides.
struct Origin {
    uint32_t low, high, rest;
    int whole;
};
template <class T>
MIRAGE_DEVICE Origin whole_origin(int zero, const __half*) {
    const uint32_t n = zero + T::TOP;
    return {twice(0x6400u + n), twice(0xd400u + 16 * n), 0u, static_cast<int>(n)};  // 1024 + n, -(64 + n)
}
template <class T>
MIRAGE_DEVICE Origin whole_origin(int zero, const __nv_bfloat16*) {
    const uint32_t n = zero + T::TOP;
    return {twice(0x4300u + n), 0u, 0u, static_cast<int>(n)};  // 128 + n
}

template <bool REST, int TOP>
MIRAGE_DEVICE void unpack(uint32_t (&p)[4], const uint32_t* words, const Origin& z, const Whole<4, (TOP > 0)>*, const __half* t) {
    const uint32_t w = *words, v = w >> 8;
    constexpr uint32_t LOW = 0x64006400u | TOP * 0x10001u, HIGH = 0x64006400u | TOP * 0x100010u, SIXTEENTH = 0x2c002c00u;
    p[0] = less(masked(w, 0x000f000fu, LOW), z.low, t);
    p[2] = less(masked(v, 0x000f000fu, LOW), z.low, t);
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(p[1]) : "r"(masked(w, 0x00f000f0u, HIGH)), "r"(SIXTEENTH), "r"(z.high));
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(p[3]) : "r"(masked(v, 0x00f000f0u, HIGH)), "r"(SIXTEENTH), "r"(z.high));
#pragma unroll
    for (int k = 0; REST && k < 4; ++k) p[k] = less(p[k], z.rest, t);
}
template <bool REST, int TOP>
MIRAGE_DEVICE void unpack(uint32_t (&p)[4], const uint32_t* words, const Origin& z, const Whole<4, (TOP > 0)>*,
                          const __nv_bfloat16* t) {
    const uint32_t w = *words;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        p[k] = less(masked(w >> (4 * k), 0x000f000fu, 0x43004300u | TOP * 0x10001u), z.low, t);
        if constexpr (REST) p[k] = less(p[k], z.rest, t);
    }
}
template <bool REST, int TOP>
MIRAGE_DEVICE void unpack(uint32_t (&p)[4], const uint32_t* words, const Origin& z, const Whole<8, (TOP > 0)>*, const __half* t) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const uint32_t w = words[k / 2] ^ (TOP ? 0x80808080u : 0u);
        p[k] = less(__byte_perm(w, 0x64646464u, k % 2 ? 0x4342 : 0x4140), z.low, t);
        if constexpr (REST) p[k] = less(p[k], z.rest, t);
    }
}
template <bool REST, int TOP>
MIRAGE_DEVICE void unpack(uint32_t (&p)[4], const uint32_t* words, const Origin& z, const Whole<8, (TOP > 0)>*,
                          const __nv_bfloat16* t) {
    const float origin = 8388608.0f + static_cast<float>(z.whole);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const uint32_t w = words[k / 2] ^ (TOP ? 0x80808080u : 0u);
        const float x = __uint_as_float(__byte_perm(w, 0x4b000000u, k % 2 ? 0x7652 : 0x7650)) - origin;
        const float y = __uint_as_float(__byte_perm(w, 0x4b000000u, k % 2 ? 0x7653 : 0x7651)) - origin;
        p[k] = pack(x, y, t);
        if constexpr (REST) p[k] = less(p[k], z.rest, t);
    }
}

// Eight neighbours of a column as the pairs that `unpack` makes.
template <bool OF_FOUR_BITS>
MIRAGE_DEVICE void paired(uint32_t (&p)[4], const uint32_t (&w)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) p[k] = OF_FOUR_BITS ? __byte_perm(w[k / 2], w[k / 2 + 2], k % 2 ? 0x7632 : 0x5410) : w[k];
}

// --- operands -------------------------------------------------------------------------------------------------------
template <int N>
struct SameZero {
    static constexpr bool REST = false;
    template <class T, class H>
    MIRAGE_DEVICE Origin at(int, int, const H* t) const {
        return whole_origin<T>(N, t);
    }
};
// zero points of a tile: whole numbers, or of a floating-point type, which are taken off last
template <class TILE>
struct ZeroOf {
    using T = typename TILE::T;
    static constexpr bool REST = T::BITS > 8;
    TILE t;
    template <class Q, class H>
    MIRAGE_DEVICE Origin at(int row, int block, const H* type) const {
        const int element = row * TILE::INNER + block;
        if constexpr (REST) {
            Origin z = whole_origin<Q>(0, type);
            const float zero = to_float(t.at[element]);
            z.rest = pack(zero, zero, type);
            return z;
        } else {
            const int bits = t.at[element * T::BITS / 8] >> (element * T::BITS % 8) & ((1 << T::BITS) - 1);
            return whole_origin<Q>((bits ^ T::TOP) - T::TOP, type);
        }
    }
};
// Rows of (numbers - zero) scale from `first` on.
template <class Q_, class S_, class Z_>
struct PackedRows {
    using Q = Q_;
    using S = S_;
    using Z = Z_;
    Q q;
    S s;
    Z z;
    int first;
};
// M columns, which are the rows of a tile; what lanes of other columns multiply nobody reads.
template <class TILE_, int M_>
struct PackedColumns {
    using TILE = TILE_;
    using T = typename TILE_::T;
    static constexpr int M = M_;
    TILE t;
};

// --- products -------------------------------------------------------------------------------------------------------
// The place of a byte of row `outer` of a tile in shared memory, and those 8 `eights` rows and `chunks` chunks from it: what
// these have in common with the byte's chunk is no bit.
template <class TILE>
MIRAGE_DEVICE uint32_t tile_place(const TILE& t, int outer, int byte) {
    return shared_address(t.chunk(outer, byte / 16)) + byte % 16;
}
template <class TILE>
MIRAGE_DEVICE uint32_t tile_beyond(uint32_t place, int eights, int chunks) {
    const int low = chunks & (TILE::GROUP - 1), row = TILE::PANELS ? 8 : TILE::CHUNKS;
    const int rest = TILE::PANELS ? chunks / 8 * TILE::OUTER * 8 : chunks - low;
    return (place ^ (low * 16)) + (rest + eights * 8 * row) * 16;
}
template <int WORDS>
MIRAGE_DEVICE void shared_words(uint32_t (&w)[WORDS], uint32_t place) {
    if constexpr (WORDS == 1) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w[0]) : "r"(place) : "memory");
    else if constexpr (WORDS == 2)
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(place) : "memory");
    else
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                     : "r"(place)
                     : "memory");
}

// out += a * b over the positions of a tile's rows
template <class OUT, class A, class B>
MIRAGE_DEVICE void packed_contract(OUT& out, const A& a, const B& b) {
    using Q = typename A::Q;
    using S = typename A::S;
    using N = typename Q::T;
    using H = typename B::T;
    using LEFT = typename Q::BYTES;
    using RIGHT = typename B::TILE;
    constexpr int BLOCK = Q::INNER / S::INNER, STEPS = BLOCK / 32, MT = OUT::MT, NT = OUT::NT;
    static_assert(BLOCK % 32 == 0, "whole steps share a scale");
    constexpr int COPIED = S::UNIT / static_cast<int>(sizeof(typename S::STORED)), WORTH = STEPS < 4 ? 8 / STEPS : 2;
    constexpr int SCALES = COPIED < WORTH ? COPIED : WORTH, AT_ONCE = SCALES * STEPS < 8 ? 8 / (SCALES * STEPS) : 1;
    struct alignas(SCALES * sizeof(typename S::STORED)) Scales {
        typename S::STORED of[SCALES];
    };
    const H* const type = nullptr;
    const N* const number = nullptr;
    const int lane_row = lane_of() >> 2, part = lane_of() & 3, row = a.first + lane_row;
    const uint32_t numbers = tile_place(LEFT{a.q.at}, row, part * N::BITS);
    uint32_t columns[NT];
#pragma unroll
    for (int n = 0; n < NT; ++n) columns[n] = tile_place(b.t, B::M % 8 == 0 ? n * 8 + lane_row : min(n * 8 + lane_row, B::M - 1), part * 16);
#pragma unroll AT_ONCE
    for (int first = 0; first < S::INNER; first += SCALES) {
        Scales scales[MT][2];
#pragma unroll
        for (int k = 0; k < 2 * MT; ++k)
            scales[k / 2][k % 2] = *reinterpret_cast<const Scales*>(a.s.at + (row + k * 8) * S::INNER + first);
#pragma unroll
        for (int block = 0; block < SCALES; ++block) {
            OUT sum;
            sum.fill(0.0f);
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
                const int step = (first + block) * STEPS + k;
                uint32_t x[NT][4];
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    uint32_t w[4];
                    shared_words(w, tile_beyond<RIGHT>(columns[n], 0, step * 4));
                    paired<N::BITS == 4>(x[n], w);
                }
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    uint32_t p[2][4];
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        uint32_t w[N::BITS / 4];
                        shared_words(w, tile_beyond<LEFT>(numbers, 2 * m + h, step * (N::BITS / 4)));
                        const Origin zero = a.z.template at<N>(row + m * 16 + h * 8, first + block, type);
                        unpack<A::Z::REST, N::TOP>(p[h], w, zero, number, type);
                    }
#pragma unroll
                    for (int n = 0; n < NT; ++n) {
                        multiply(sum.v[m][n], {p[0][0], p[1][0], p[0][1], p[1][1]}, {x[n][0], x[n][1]}, type);
                        multiply(sum.v[m][n], {p[0][2], p[1][2], p[0][3], p[1][3]}, {x[n][2], x[n][3]}, type);
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                const float scale[2] = {to_float(scales[m][0].of[block]), to_float(scales[m][1].of[block])};
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) out.v[m][n][i] = fmaf(sum.v[m][n][i], scale[i >> 1], out.v[m][n][i]);
            }
        }
    }
}

}  // namespace mirage
