// Products of strips whose columns lie in memory as they are stored, in 4 or 8 bits: keys and values of caches.
//
// Each warp unpacks (number - zero), exact in 16 bits, in registers. Of keys, whose rows walk what is summed, a lane has a part
// of each row, so that queries lie in that order too. Values, whose rows are summed, come transposed in pairs of bytes: the columns
// of 16 / BITS matrices alternate.
#pragma once
#include "mirage/cuda/strip_packed.cuh"

namespace mirage {

// --- tiles ----------------------------------------------------------------------------------------------------------
template <class T, int OUTER, int INNER>
using ColumnTile = PackedTile<T, OUTER, INNER>;

// Start copying a tile: `row(o)` points to row o, nullptr for one whose numbers are FILL; PITCH numbers lie from row to row
// where that is known.
template <int THREADS, int PITCH, int FILL, class TILE, class F>
MIRAGE_DEVICE void load_columns(TILE t, int thread, const void* any, F row) {
    using BYTES = typename TILE::BYTES;
    constexpr int COUNT = BYTES::OUTER * BYTES::CHUNKS;
    constexpr unsigned FILLED = TILE::T::BITS == 4 ? (FILL & 15) * 0x11111111u : (FILL & 255) * 0x01010101u;
    const BYTES to{t.at};
    const auto copy = [](uint8_t* place, const uint8_t* from, int) { copy_async<16>(place, from, 16); };
    if (even_rows<THREADS, PITCH * TILE::T::BITS / 8>(to, thread, row, copy)) return;
#pragma unroll 1
    for (int k = thread; k < COUNT; k += THREADS) {
        const int o = k / BYTES::CHUNKS, c = k % BYTES::CHUNKS;
        const uint8_t* const from = row(o);
        if (FILL != 0 && from == nullptr) *reinterpret_cast<uint4*>(to.chunk(o, c)) = make_uint4(FILLED, FILLED, FILLED, FILLED);
        else copy_async<16>(to.chunk(o, c), from != nullptr ? from + 16 * c : any, from != nullptr ? 16 : 0);
    }
}

// --- numbers to operands --------------------------------------------------------------------------------------------
// Eight neighbours in words as pairs: of 4 bits (0, 4) (1, 5) (2, 6) (3, 7), of 8 in their order.
template <int ZERO, int BITS, bool SIGNED, class H>
MIRAGE_DEVICE void eight(uint32_t (&p)[4], const uint32_t* words, const Whole<BITS, SIGNED>*, const H* type) {
    using N = Whole<BITS, SIGNED>;
    unpack<false, N::TOP>(p, words, whole_origin<N>(ZERO, type), static_cast<const N*>(nullptr), type);
}
MIRAGE_DEVICE uint32_t halves_of(uint32_t two) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint32_t r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(static_cast<unsigned short>(two)));
    return r;
#else
    const uint32_t apart = __byte_perm(two, 0u, 0x4140), body = apart & 0x007f007fu;
    uint32_t r;  // the exponents of both types differ by 8
    asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"((apart & 0x00800080u) << 8 | body << 7), "r"(0x5c005c00u));
    return r | (((body + 0x00010001u) & 0x00800080u) >> 7) * 0x7e00u;  // no number
#endif
}
MIRAGE_DEVICE uint32_t pair_as(uint32_t x, const __half*) { return x; }
MIRAGE_DEVICE uint32_t pair_as(uint32_t x, const __nv_bfloat16* type) {
    const float2 f = __half22float2(reinterpret_cast<const __half2&>(x));
    return pack(f.x, f.y, type);
}
template <int ZERO, class H>
MIRAGE_DEVICE void eight(uint32_t (&p)[4], const uint32_t* words, const e4m3*, const H* type) {
#pragma unroll
    for (int k = 0; k < 4; ++k) p[k] = pair_as(halves_of(k % 2 ? words[k / 2] >> 16 : words[k / 2]), type);
}

// --- operands -------------------------------------------------------------------------------------------------------
// As `Rows16` whose rows walk the depth, in the order of `DeepColumns`: a lane has a quarter of it, of which a step takes four.
template <class TILE_, int BITS>
struct UnpackedRows {
    using T = typename TILE_::T;
    TILE_ t;
    int first;
    MIRAGE_DEVICE void load(uint32_t (&f)[4], int m, int k) const {
        constexpr int OWN = TILE_::INNER / 32;  // chunks of a lane
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = first + m * 16 + (lane_of() >> 2) + h * 8;
            const uint4 w = *reinterpret_cast<const uint4*>(t.chunk(row, (lane_of() & 3) * OWN + k / 2));
            uint32_t p[4];
            paired<BITS == 4>(p, {w.x, w.y, w.z, w.w});
            f[h] = k % 2 ? p[2] : p[0];
            f[h + 2] = k % 2 ? p[3] : p[1];
        }
    }
};
// Rows of a tile as columns, (numbers - ZERO), whose depth they walk.
template <class TILE, int ZERO>
struct DeepColumns {
    TILE t;
};
// Columns of a tile, whose rows are summed.
template <class TILE, int ZERO>
struct WideColumns {
    TILE t;
};
// The column of a lane's element where those of SLAB matrices alternate.
template <int SLAB>
MIRAGE_DEVICE int slab_col(int n, int i) {
    return n / SLAB * (8 * SLAB) + ((lane_of() & 3) * 2 + (i & 1)) * SLAB + n % SLAB;
}

// --- products -------------------------------------------------------------------------------------------------------
// out += a * b over 16 KT positions, which every lane has a quarter of
template <int KT, class OUT, class A, class TILE, int ZERO>
MIRAGE_DEVICE void contract_stored(OUT& out, const A& a, DeepColumns<TILE, ZERO> b) {
    using N = typename TILE::T;
    using H = typename A::T;
    using BYTES = typename TILE::BYTES;
    constexpr int WORDS = KT * N::BITS / 8, UNIT = WORDS % 4 == 0 ? 4 : WORDS % 2 == 0 ? 2 : 1, AT_ONCE = OUT::NT % 4 == 0 ? 4 : OUT::NT % 2 == 0 ? 2 : 1;
    static_assert(TILE::INNER == 16 * KT && KT % 2 == 0, "whole steps");
    const int row = lane_of() >> 2, part = lane_of() & 3;
#pragma unroll
    for (int first = 0; first < OUT::NT; first += AT_ONCE) {
        uint32_t w[AT_ONCE][WORDS];
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n)
#pragma unroll
            for (int i = 0; i < WORDS; i += UNIT) {
                uint32_t some[UNIT];
                shared_words(some, tile_place(BYTES{b.t.at}, (first + n) * 8 + row, (part * WORDS + i) * 4));
#pragma unroll
                for (int e = 0; e < UNIT; ++e) w[n][i + e] = some[e];
            }
#pragma unroll
        for (int j = 0; j < KT / 2; ++j) {
            uint32_t p[AT_ONCE][4];
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n)
                eight<ZERO>(p[n], w[n] + j * (N::BITS / 4), static_cast<const N*>(nullptr), static_cast<const H*>(nullptr));
#pragma unroll
            for (int m = 0; m < OUT::MT; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    uint32_t fa[4];
                    a.load(fa, m, 2 * j + h);
#pragma unroll
                    for (int n = 0; n < AT_ONCE; ++n)
                        multiply(out.v[m][first + n], fa, {p[n][2 * h], p[n][2 * h + 1]}, static_cast<const H*>(nullptr));
                }
        }
    }
}
// out += a * b over 16 KT rows of the tile
template <int KT, class OUT, class A, class TILE, int ZERO>
MIRAGE_DEVICE void contract_stored(OUT& out, const A& a, WideColumns<TILE, ZERO> b) {
    using N = typename TILE::T;
    using H = typename A::T;
    using BYTES = typename TILE::BYTES;
    constexpr int SLAB = 16 / N::BITS, SLABS = BYTES::CHUNKS;
    static_assert(OUT::NT == SLABS * SLAB && TILE::OUTER == 16 * KT, "the tile has all columns");
    const BYTES t{b.t.at};
    const int l = lane_of(), low = l & 7, second = (l >> 3) & 1, third = l >> 4;
#pragma unroll
    for (int k = 0; k < KT; ++k) {
        uint32_t fa[OUT::MT][4];
#pragma unroll
        for (int m = 0; m < OUT::MT; ++m) a.load(fa[m], m, k);
#pragma unroll
        for (int s = 0; s < SLABS; s += 2) {
            uint32_t w[4];
            if (s + 1 < SLABS) {
                load_matrices<true>(w, t.chunk(k * 16 + low + second * 8, s + third));
            } else {
                uint32_t two[2];
                load_matrices<true>(two, t.chunk(k * 16 + low + second * 8, s));
                w[0] = two[0], w[1] = two[1];
            }
#pragma unroll
            for (int half = 0; half < 2 && s + half < SLABS; ++half) {
                uint32_t x[SLAB], y[SLAB], p[4];  // of 8 rows each
                if constexpr (N::BITS == 4) {
                    eight<ZERO>(p, w + 2 * half, static_cast<const N*>(nullptr), static_cast<const H*>(nullptr));
#pragma unroll
                    for (int c = 0; c < SLAB; ++c) x[c] = p[c];
                    eight<ZERO>(p, w + 2 * half + 1, static_cast<const N*>(nullptr), static_cast<const H*>(nullptr));
#pragma unroll
                    for (int c = 0; c < SLAB; ++c) y[c] = p[c];
                } else {
                    const uint32_t both[2] = {__byte_perm(w[2 * half], 0u, 0x3120), __byte_perm(w[2 * half + 1], 0u, 0x3120)};
                    eight<ZERO>(p, both, static_cast<const N*>(nullptr), static_cast<const H*>(nullptr));
                    x[0] = p[0], x[1] = p[1], y[0] = p[2], y[1] = p[3];
                }
#pragma unroll
                for (int m = 0; m < OUT::MT; ++m)
#pragma unroll
                    for (int c = 0; c < SLAB; ++c)
                        multiply(out.v[m][(s + half) * SLAB + c], fa[m], {x[c], y[c]}, static_cast<const H*>(nullptr));
            }
        }
    }
}

}  // namespace mirage
