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
    float top = 0.0f;  //!< the largest magnitude that this lane has had; nothing is said of NaNs
    MIRAGE_DEVICE void set(int n, int half, int i, float x) {
        const uint32_t nearest = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
        big[n][half][i] = nearest;
        small[n][half][i] = __float_as_uint(x - __uint_as_float(nearest));
        top = fmaxf(top, fabsf(x));
    }
};

// Whether the parts of the warp's operands have all bits, and their products and sums are finite: the largest number is
// neither very small (2^-100: parts of less than 2^-136 of it are cut off) nor very large, or all are zero. NaNs make NaNs
// either way. All lanes get the same answer.
MIRAGE_DEVICE bool in_range(float top) {
    const float largest = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(top)));
    return largest == 0.0f || (largest >= 7.8886091e-31f && largest <= 4.6116860e18f);
}

// sums[m][n] += a[m] * b[n] over 16 positions. An instruction waits for the one before it that adds to the same numbers, so
// few matrices are summed in several chains.
template <class S, int M, int N>
MIRAGE_DEVICE void add_parts(S& sums, const Parts<M, 4>& a, const Parts<N, 2>& b, int m0, int n0) {
    constexpr int CHAINS = M * N > 4 ? 1 : M * N > 2 ? 2 : M * N > 1 ? 3 : 6;
    float c[CHAINS][M][N][4] = {};
#pragma unroll
    for (int part = 0; part < 6; ++part)
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < N; ++n) {
                const int half = part % 2;
                float(&to)[4] = c[CHAINS == 2 ? part / 4 : part * CHAINS / 6][m][n];
                if (part < 2) multiply_tf32(to, a.small[m][half], b.big[n][half]);
                else if (part < 4) multiply_tf32(to, a.big[m][half], b.small[n][half]);
                else multiply_tf32(to, a.big[m][half], b.big[n][half]);
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
// B of columns has own(n, k, depth), its column in instructions, and one(x, n, k, depth), its two columns of results. Both
// have top<COUNT, KT>(), the largest magnitude of a lane's share of COUNT matrices and 16 KT positions. TILE: k may be a variable.

// The operands of M matrices of rows from `m0` on, at the k-th 16 positions.
template <int M, class A>
MIRAGE_DEVICE void split_rows(Parts<M, 4>& parts, const A& a, int m0, int k) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int eight = 0; eight < 2; ++eight)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float x[2];
                a.own(x, m0 + m, k, eight, half);
                parts.set(m, eight, 2 * half, x[0]);
                parts.set(m, eight, 2 * half + 1, x[1]);
            }
}
// The same of columns, for rows of an operand A.
template <class A, int N, class B>
MIRAGE_DEVICE void split_columns(Parts<N, 2>& parts, const B& b, int n0, int k) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
        for (int eight = 0; eight < 2; ++eight)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                parts.set(n, eight, half, b.own(n0 + n, k, 8 * eight + A::depth(half)));
}

// out += a * b of M x N matrices from (m0, n0) on at the first COUNT of the k-th 16 positions, by multiply-adds
template <int M, int N, int COUNT = SPLIT_DEPTH, class S, class A, class B>
MIRAGE_DEVICE void multiply_add(S& out, const A& a, const B& b, int m0, int n0, int k) {
#pragma unroll 1
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

// out += a * b over the k-th 16 positions, by matrix instructions; the largest numbers go to `rows` and `columns`. The operand
// that takes fewer registers is held, the other one is split bit by bit.
template <class S, class A, class B>
MIRAGE_DEVICE void split_step(S& out, const A& a, const B& b, int k, float& rows, float& columns) {
    constexpr bool HOLD_ROWS = 2 * S::MT <= S::NT;
    constexpr int M = HOLD_ROWS ? S::MT : share_of(S::MT, S::NT > 2 ? 8 / S::NT : 4);
    constexpr int N = HOLD_ROWS ? share_of(S::NT, S::MT * S::NT > 24 && S::MT == 1 ? 4 : 8 / S::MT) : S::NT;
    Parts<M, 4> x;
    Parts<N, 2> y;
    if constexpr (HOLD_ROWS) split_rows(x, a, 0, k);
    else split_columns<A>(y, b, 0, k);
#pragma unroll
    for (int first = 0; first < (HOLD_ROWS ? S::NT : S::MT); first += HOLD_ROWS ? N : M) {
        if constexpr (HOLD_ROWS) split_columns<A>(y, b, first, k);
        else split_rows(x, a, first, k);
        add_parts(out, x, y, HOLD_ROWS ? 0 : first, HOLD_ROWS ? first : 0);
    }
    rows = fmaxf(rows, x.top), columns = fmaxf(columns, y.top);
}

// out += a * b over 16 KT positions. Where registers allow, instructions make sums of their own and these are made again if an
// operand turns out to be out of range; else operands are looked at first. A long sum over tiles is a loop in parts: registers
// would hold all its addresses.
template <int KT, class S, class A, class B>
MIRAGE_DEVICE void contract_exactly(S& out, const A& a, const B& b) {
    constexpr bool AGAIN = S::MT * S::NT <= 8;
    constexpr int AT_ONCE = A::TILE && KT > 4 ? 2 : KT;
    float rows = 0.0f, columns = 0.0f;
    if constexpr (AGAIN) {
        S sums;
        sums.fill(0.0f);
#pragma unroll AT_ONCE
        for (int k = 0; k < KT; ++k) split_step(sums, a, b, k, rows, columns);
        if (!in_range(rows) || !in_range(columns)) {
            sums.fill(0.0f);
#pragma unroll AT_ONCE
            for (int k = 0; k < KT; ++k) multiply_add<S::MT, S::NT>(sums, a, b, 0, 0, k);
        }
#pragma unroll
        for (int m = 0; m < S::MT; ++m)
#pragma unroll
            for (int n = 0; n < S::NT; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) out.v[m][n][i] += sums.v[m][n][i];
    } else if (in_range(a.template top<S::MT, KT>()) && in_range(b.template top<S::NT, KT>())) {
#pragma unroll AT_ONCE
        for (int k = 0; k < KT; ++k) split_step(out, a, b, k, rows, columns);
    } else {
#pragma unroll AT_ONCE
        for (int k = 0; k < KT; ++k) multiply_add<S::MT, S::NT>(out, a, b, 0, 0, k);
    }
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

}  // namespace mirage
