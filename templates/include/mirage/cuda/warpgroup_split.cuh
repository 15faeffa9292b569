// float32 products of warpgroups by matrix instructions of bfloat16, at the accuracy of float32.
//
// A number (24 bits of significand) is the sum of three of bfloat16 (8 bits each): the nearest one, the nearest one to what
// that leaves, and what is left then. Six of the nine products of two such numbers are made; the others are 2^-24 of theirs.
// Instructions cut their sums off, so tiles of few positions are summed by them, small products first; these sums are added
// up by ordinary additions. Numbers out of range (`in_range`) are for multiply-adds of the tiles as they are.
//
// Tiles of float are panels of 32 columns, swizzled like those of 16-bit types; their parts are three tiles of bfloat16, one
// behind the other.
#pragma once
#include "mirage/cuda/group.cuh"
#include "mirage/cuda/split.cuh"

namespace mirage {

// Numbers that a lane has split. Whether all those of its warp have all their parts, it `tells` others in shared memory;
// `whole` asks the same of its own numbers and of what three warps have told. All lanes of a warp get the same answer.
struct Reach {
    float squares = 0.0f;
    uint32_t bits = 0;

    MIRAGE_DEVICE void add(float x, float y) {
        squares = fmaf(x, x, fmaf(y, y, squares));
        bits |= __float_as_uint(x) | __float_as_uint(y);
    }
    MIRAGE_DEVICE bool own() const {
        return in_range(squares, [&] { return __uint_as_float(bits & 0x7fffffffu); });
    }
    MIRAGE_DEVICE void tell(uint32_t at) const {
        const int known = own();
        if (threadIdx.x % 32 == 0) asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(known) : "memory");
    }
    MIRAGE_DEVICE bool whole(uint32_t told) const {
        int x, y, z;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(told) : "memory");
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(y) : "r"(told + 4) : "memory");
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(z) : "r"(told + 8) : "memory");
        return own() && (x & y & z);
    }
};

// Two numbers as words of their parts, large ones first
MIRAGE_DEVICE void split_pair(uint32_t& large, uint32_t& middle, uint32_t& small, float x, float y) {
    using W = Words<__nv_bfloat16>;
    large = W::pack(x, y);
    x -= W::low(large), y -= W::high(large);
    middle = W::pack(x, y);
    small = W::pack(x - W::low(middle), y - W::high(middle));
}
// The same as word k of left operands in registers
MIRAGE_DEVICE void split_words(uint32_t (&words)[3][4], int k, float x, float y, Reach& reach) {
    split_pair(words[0][k], words[1][k], words[2][k], x, y);
    reach.add(x, y);
}

// The address of an element, whose chunk of four numbers it begins where `column` is a multiple of 4.
MIRAGE_DEVICE uint32_t float_address(uint32_t tile, int rows, int row, int column) {
    return tile + column / 32 * rows * 128 + row * 128 + (((column / 4 & 7) ^ (row & 7)) << 4) + column % 4 * 4;
}
MIRAGE_DEVICE float load_float(uint32_t at) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
    return x;
}

// Sixteen columns of a fragment of 64 rows from a tile of floats (or, TURNED, of one whose rows are the columns).
template <bool TURNED>
MIRAGE_DEVICE void load_floats(float (&v)[2][4], uint32_t tile, int rows, int row, int col) {
    const int lane = threadIdx.x % 32, r = row + threadIdx.x / 32 % 4 * 16 + lane / 4, c = col + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if constexpr (TURNED) {
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    v[n][2 * h + i] = load_float(float_address(tile, rows, c + 8 * n + i, r + 8 * h));
            } else {
                asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                             : "=f"(v[n][2 * h]), "=f"(v[n][2 * h + 1])
                             : "r"(float_address(tile, rows, r + 8 * h, c + 8 * n))
                             : "memory");
            }
        }
}

// A tile of ROWS x COLUMNS floats as its parts, by THREADS threads.
template <int ROWS, int COLUMNS, int THREADS>
MIRAGE_DEVICE void split_tile(uint32_t parts, uint32_t tile, int thread, Reach& reach) {
    constexpr int PART = (COLUMNS + 63) / 64 * ROWS * 128;
#pragma unroll 1
    for (int k = thread; k < ROWS * COLUMNS / 8; k += THREADS) {
        const int row = k % ROWS, eight = k / ROWS;
        float x[8];
#pragma unroll
        for (int h = 0; h < 2; ++h)
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(x[4 * h]), "=f"(x[4 * h + 1]), "=f"(x[4 * h + 2]), "=f"(x[4 * h + 3])
                         : "r"(float_address(tile, ROWS, row, eight * 8 + h * 4))
                         : "memory");
        uint32_t w[3][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) split_words(w, i, x[2 * i], x[2 * i + 1], reach);
        const uint32_t to = chunk_address(parts, ROWS, row, eight);
#pragma unroll
        for (int p = 0; p < 3; ++p)
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + p * PART), "r"(w[p][0]), "r"(w[p][1]),
                         "r"(w[p][2]), "r"(w[p][3])
                         : "memory");
    }
}

// c = a * b by multiply-adds: a fragment of 16 rows of a warp and DEPTH columns, and a tile of floats whose columns (or, TURNED,
// rows) are summed.
template <int COLUMNS, int DEPTH, bool TURNED>
MIRAGE_DEVICE void multiply_floats(float (&c)[COLUMNS / 8][4], const float (&a)[DEPTH / 8][4], uint32_t tile, int rows) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[n][i] = 0.0f;
#pragma unroll
    for (int eight = 0; eight < DEPTH / 8; ++eight)
#pragma unroll 1
        for (int k = 0; k < 8; ++k) {
            const bool odd = k % 2;
            float x[2];
#pragma unroll
            for (int h = 0; h < 2; ++h)
                x[h] = __shfl_sync(0xffffffffu, odd ? a[eight][2 * h + 1] : a[eight][2 * h], (lane & 28) + k / 2);
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int over = eight * 8 + k, column = n * 8 + lane % 4 * 2 + i;
                    const float y = load_float(TURNED ? float_address(tile, rows, over, column)
                                                      : float_address(tile, rows, column, over));
                    c[n][i] = fmaf(x[0], y, c[n][i]);
                    c[n][2 + i] = fmaf(x[1], y, c[n][2 + i]);
                }
        }
}

}  // namespace mirage
