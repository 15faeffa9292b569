// float32 products by matrix instructions, at the accuracy of float32.
//
// A number is the sum of two that the instructions take (tf32, 11 bits of significand): the nearest one and what that leaves,
// which together hold 23 bits and a sign. A product is the sum of three: the last one, of what both leave, is 2^-24 of it at
// most. Instructions cut their sums off, so no more than 16 positions are summed by them, the small products first; these
// sums are added up by ordinary additions. Infinities, and numbers so large or so small that parts of them are out of
// range, are for ordinary multiply-adds (`in_range`).
#pragma once
#include "mirage/cuda/math.cuh"
#include "mirage/cuda/ptx.cuh"

namespace mirage {

constexpr int SPLIT_DEPTH = 16;  //!< positions that are summed by matrix instructions alone

// COUNT operands of 16 positions, each in two instructions of 8, EACH registers of a lane in each, as large and small parts
template <int COUNT, int EACH>
struct Parts {
    uint32_t big[COUNT][2][EACH], small[COUNT][2][EACH];
    // `squares` says later whether numbers were in range.
    MIRAGE_DEVICE void set(int n, int half, int i, float x, float& squares) {
        const uint32_t nearest = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
        big[n][half][i] = nearest;
        small[n][half][i] = __float_as_uint(x - __uint_as_float(nearest));
        squares = fmaf(x, x, squares);
    }
};

// Whether the parts of the warp's operands have all bits that count, and products and sums of them are finite: the sum of
// squares is neither very small (2^-100: parts of less than 2^-136 are cut off) nor very large nor NaN, or all are zero:
// top() is the largest magnitude that a lane has. All lanes get the same answer.
template <class F>
MIRAGE_DEVICE bool in_range(float squares, F top) {
    const unsigned kinds = (squares < 1.3292280e36f ? 0u : 1u) | (squares > 7.8886091e-31f ? 2u : 0u);
    const unsigned found = __reduce_or_sync(0xffffffffu, kinds);
    return found == 2u || (found == 0u && __reduce_max_sync(0xffffffffu, __float_as_uint(top())) == 0u);
}

// sums[m][n] += a[m] * b[n] over 16 positions. An instruction waits for the one before it that adds to the same numbers, so
// few matrices are summed in several chains.
template <class S, int M, int N>
MIRAGE_DEVICE void add_parts(S& sums, const Parts<M, 4>& a, const Parts<N, 2>& b, int m0, int n0) {
    constexpr int CHAINS = M * N > 4 ? 1 : M * N > 2 ? 2 : M * N > 1 ? 3 : 6;
    float c[CHAINS][M][N][4];
#pragma unroll
    for (int part = 0; part < 6; ++part)
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < N; ++n) {
                const int half = part % 2;
                const int chain = CHAINS == 2 ? part / 4 : part * CHAINS / 6;
                const bool fresh = part == 0 || chain != (CHAINS == 2 ? (part - 1) / 4 : (part - 1) * CHAINS / 6);
                float(&to)[4] = c[chain][m][n], from[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) from[i] = fresh ? 0.0f : to[i];
                if (part < 2) multiply_tf32(to, a.small[m][half], b.big[n][half], from);
                else if (part < 4) multiply_tf32(to, a.big[m][half], b.small[n][half], from);
                else multiply_tf32(to, a.big[m][half], b.big[n][half], from);
            }
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float sum = c[0][m][n][i];
#pragma unroll
                for (int k = 1; k < CHAINS; ++k) sum += c[k][m][n][i];
                sums.v[m0 + m][n0 + n][i] += sum;
            }
}

// --- products of registers and tiles -----------------------------------------------------------------------------------
// An operand A of rows has own(x, m, k, eight, half): the two numbers that a lane has of matrix m in one half of an instruction
// on 8 of the k-th 16 positions, at depth(half) of these 8; and one(x, m, k, depth), its two rows at any of the 16. An operand
// B of columns has own(n, k, eight, depth), its column in instructions, and one(x, n, k, depth), its two columns of results. Both
// have top<COUNT, KT>(), the largest magnitude of a lane's share of COUNT matrices and 16 KT positions. TILE: k may be a variable.

// The operands of M matrices of rows from `m0` on, at the k-th 16 positions; the sum of this lane's squares.
template <int M, class A>
MIRAGE_DEVICE float split_rows(Parts<M, 4>& parts, const A& a, int m0, int k) {
    float squares[2] = {};
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int eight = 0; eight < 2; ++eight)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float x[2];
                a.own(x, m0 + m, k, eight, half);
                parts.set(m, eight, 2 * half, x[0], squares[0]);
                parts.set(m, eight, 2 * half + 1, x[1], squares[1]);
            }
    return squares[0] + squares[1];
}
// The same of columns, for rows of an operand A.
template <class A, int N, class B>
MIRAGE_DEVICE float split_columns(Parts<N, 2>& parts, const B& b, int n0, int k) {
    float squares[2] = {};
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
        for (int eight = 0; eight < 2; ++eight)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                parts.set(n, eight, half, b.own(n0 + n, k, eight, A::depth(half)), squares[half]);
    return squares[0] + squares[1];
}

// out += a * b of M x N matrices from (m0, n0) on at the first COUNT of the k-th 16 positions, by multiply-adds, AT_ONCE of these
// positions unrolled
template <int M, int N, int COUNT = SPLIT_DEPTH, int AT_ONCE = 1, class S, class A, class B>
MIRAGE_DEVICE void multiply_add(S& out, const A& a, const B& b, int m0, int n0, int k) {
#pragma unroll AT_ONCE
    for (int depth = 0; depth < COUNT; ++depth) {
        float y[N][2];
#pragma unroll
        for (int n = 0; n < N; ++n) b.one(y[n], n0 + n, k, depth);
#pragma unroll
        for (int m = 0; m < M; ++m) {
            float x[2];
            a.one(x, m0 + m, k, depth);
#pragma unroll
            for (int n = 0; n < N; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float& to = out.v[m0 + m][n0 + n][i];
                    to = fmaf(x[i >> 1], y[n][i & 1], to);
                }
        }
    }
}
// The largest divisor of n up to `most`, or 1
MIRAGE_DEVICE constexpr int share_of(int n, int most) {
    int found = 1;
    for (int d = 1; d <= n && d <= most; ++d)
        if (n % d == 0) found = d;
    return found;
}

// The largest magnitude of this lane's share of ROWS rows of CHUNKS chunks of four numbers; place(row, chunk) says where.
template <int ROWS, int CHUNKS, class F>
MIRAGE_DEVICE float top_of(F place) {
    float top = 0.0f;
    const int lane = threadIdx.x & 31;
#pragma unroll 8
    for (int i = 0; i < (ROWS * CHUNKS + 31) / 32; ++i) {
        const int k = min(i * 32 + lane, ROWS * CHUNKS - 1);
        const float4 x = *reinterpret_cast<const float4*>(place(k / CHUNKS, k % CHUNKS));
        top = fmaxf(fmaxf(fmaxf(top, fabsf(x.x)), fmaxf(fabsf(x.y), fabsf(x.z))), fabsf(x.w));
    }
    return top;
}

// How a strip is made of M x N matrices at a time: the operand that takes fewer registers is held, the other one is split bit
// by bit.
template <class S>
struct Blocking {
    static constexpr bool HOLD_ROWS = 2 * S::MT <= S::NT;
    static constexpr int M = HOLD_ROWS ? S::MT : share_of(S::MT, S::NT > 2 ? 8 / S::NT : 4);
    static constexpr int N = HOLD_ROWS ? share_of(S::NT, S::MT * S::NT > 24 && S::MT == 1 ? 4 : 8 / S::MT) : S::NT;
    static constexpr int COUNT = HOLD_ROWS ? S::NT / N : S::MT / M;
};

// out += a * b over the k-th 16 positions; each block of matrices by what suits its numbers, or, UNSEEN, by matrix
// instructions, and `rows` and `columns` get the squares.
template <int KT, bool UNSEEN, class S, class A, class B>
MIRAGE_DEVICE void split_step(S& out, const A& a, const B& b, int k, float& rows, float& columns) {
    using BY = Blocking<S>;
    Parts<BY::M, 4> x;
    Parts<BY::N, 2> y;
    const float held = BY::HOLD_ROWS ? split_rows(x, a, 0, k) : split_columns<A>(y, b, 0, k);
    const auto top_a = [&] { return a.template top<S::MT, KT>(); };
    const auto top_b = [&] { return b.template top<S::NT, KT>(); };
    const bool fits = UNSEEN || (BY::HOLD_ROWS ? in_range(held, top_a) : in_range(held, top_b));
    float squares = 0.0f;
#pragma unroll
    for (int block = 0; block < BY::COUNT; ++block) {
        const int m = BY::HOLD_ROWS ? 0 : block * BY::M, n = BY::HOLD_ROWS ? block * BY::N : 0;
        const float own = BY::HOLD_ROWS ? split_columns<A>(y, b, n, k) : split_rows(x, a, m, k);
        squares += own;
        if (UNSEEN || ((BY::HOLD_ROWS ? in_range(own, top_b) : in_range(own, top_a)) && fits)) add_parts(out, x, y, m, n);
        else multiply_add<BY::M, BY::N>(out, a, b, m, n, k);
    }
    rows += BY::HOLD_ROWS ? held : squares, columns += BY::HOLD_ROWS ? squares : held;
}

// out += a * b over 16 KT positions. One matrix of columns is multiplied by multiply-adds: to split the rows would take as long.
// Where registers allow, instructions make sums of their own, which are made again if an operand turns out to be out of
// range. A long sum over tiles is a loop in parts: registers would hold all its addresses.
template <int KT, class S, class A, class B>
MIRAGE_DEVICE void contract_exactly(S& out, const A& a, const B& b) {
    constexpr int AT_ONCE = A::TILE && KT > 4 ? 2 : KT;
    float rows = 0.0f, columns = 0.0f;
    if constexpr (S::MT * S::NT > 8 && S::NT > 1) {
#pragma unroll AT_ONCE
        for (int k = 0; k < KT; ++k) split_step<KT, false>(out, a, b, k, rows, columns);
    } else {
        S sums;
        sums.fill(0.0f);
        if constexpr (S::NT > 1) {
#pragma unroll AT_ONCE
            for (int k = 0; k < KT; ++k) split_step<KT, true>(sums, a, b, k, rows, columns);
        }
        if (S::NT == 1 || !in_range(rows, [&] { return a.template top<S::MT, KT>(); }) ||
            !in_range(columns, [&] { return b.template top<S::NT, KT>(); })) {
            sums.fill(0.0f);
#pragma unroll AT_ONCE
            for (int k = 0; k < KT; ++k) multiply_add<S::MT, S::NT, SPLIT_DEPTH, S::NT == 1 ? SPLIT_DEPTH : 1>(sums, a, b, 0, 0, k);
        }
#pragma unroll
        for (int m = 0; m < S::MT; ++m)
#pragma unroll
            for (int n = 0; n < S::NT; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) out.v[m][n][i] += sums.v[m][n][i];
    }
}

}  // namespace mirage
