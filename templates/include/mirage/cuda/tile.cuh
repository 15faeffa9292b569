// Tiles of one thread block: matrix fragments in registers, asynchronous copies, contractions and reductions.
#pragma once
#include "mirage/cuda/math.cuh"
#include "mirage/cuda/ptx.cuh"
#include "mirage/cuda/split.cuh"

namespace mirage {

// --- fragments ------------------------------------------------------------------------------------------------------
// M x N floats spread over WM x WN warps in the accumulator layout of mma.m16n8: a lane holds two neighbouring columns
// of two rows, 8 apart, of every 16 x 8 matrix.
template <int M_, int N_, int WM_, int WN_>
struct Fragment {
    static constexpr int M = M_, N = N_, WM = WM_, WN = WN_, MT = M / (16 * WM), NT = N / (8 * WN);
    static_assert(M % (16 * WM) == 0 && N % (8 * WN) == 0, "a fragment is whole matrices for every warp");
    float v[MT][NT][4];

    static MIRAGE_DEVICE int warp() { return threadIdx.x >> 5; }
    static MIRAGE_DEVICE bool active() { return warp() < WM * WN; }
    static MIRAGE_DEVICE int warp_row() { return warp() % WM; }
    static MIRAGE_DEVICE int warp_col() { return warp() / WM; }
    static MIRAGE_DEVICE int row(int m, int i) {
        return (warp_row() * MT + m) * 16 + ((threadIdx.x & 31) >> 2) + (i >> 1) * 8;
    }
    static MIRAGE_DEVICE int col(int n, int i) {
        return (warp_col() * NT + n) * 8 + (threadIdx.x & 3) * 2 + (i & 1);
    }
    MIRAGE_DEVICE void fill(float x) {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int n = 0; n < NT; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) v[m][n][i] = x;
    }
};

// Visit the elements of fragments of one shape F; m_, n_, i_ index their registers.
#define MIRAGE_EACH(F)                                 \
    if (F::active())                                   \
        _Pragma("unroll") for (int m_ = 0; m_ < F::MT; ++m_) _Pragma("unroll") for (int n_ = 0; n_ < F::NT; ++n_) \
            _Pragma("unroll") for (int i_ = 0; i_ < 4; ++i_)

// --- copies from global to shared memory ----------------------------------------------------------------------------
template <class T>
struct Row {
    const T* from;  // nullptr: the row lies outside and is zero
    int to;         // element offset in the tile
};

// ROWS rows of COLS elements in chunks of BYTES; `row(r)` says where row r comes from and goes to. Columns from `valid`
// on are zero. Sources and destinations are aligned to BYTES.
template <class T, int ROWS, int COLS, int BYTES, int THREADS, class F>
MIRAGE_DEVICE void load_rows(T* tile, const T* any, int valid, F row) {
    constexpr int VEC = BYTES / sizeof(T), CHUNKS = COLS / VEC;
    static_assert(COLS % VEC == 0, "rows are whole chunks");
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int c = i % CHUNKS * VEC;
        const Row<T> r = row(i / CHUNKS);
        const int left = r.from != nullptr ? (valid - c) * static_cast<int>(sizeof(T)) : 0;
        const int bytes = left < 0 ? 0 : (left > BYTES ? BYTES : left);
        copy_async<BYTES>(tile + r.to + c, bytes > 0 ? r.from + c : any, bytes);
    }
}

// --- contractions ---------------------------------------------------------------------------------------------------
// acc += a * b over K positions. A_ROWS: a is stored [M][K] (else [K][M]); B_ROWS: b is stored [K][N] (else [N][K]).
template <int K, bool A_ROWS, int LDA, bool B_ROWS, int LDB, class F, class T>
MIRAGE_DEVICE void contract(F& acc, const T* a, const T* b) {
    if (!F::active()) return;
    const int lane = threadIdx.x & 31;
    const int m0 = F::warp_row() * F::MT * 16, n0 = F::warp_col() * F::NT * 8;
    const int low = lane & 7, second = (lane >> 3) & 1, third = lane >> 4;
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        uint32_t fa[F::MT][4];
#pragma unroll
        for (int m = 0; m < F::MT; ++m) {
            const int row = m0 + m * 16;
            const int at = A_ROWS ? (row + low + second * 8) * LDA + k + third * 8
                                  : (k + low + third * 8) * LDA + row + second * 8;
            load_matrices<!A_ROWS>(fa[m], a + at);
        }
#pragma unroll
        for (int n = 0; n < F::NT; ++n) {
            uint32_t fb[2];
            const int col = n0 + n * 8;
            const int at = B_ROWS ? (k + low + second * 8) * LDB + col : (col + low) * LDB + k + second * 8;
            load_matrices<B_ROWS>(fb, b + at);
#pragma unroll
            for (int m = 0; m < F::MT; ++m) multiply(acc.v[m][n], fa[m], fb, a);
        }
    }
}

// Operands of float32 products: rows stored [M][K] (else [K][M]), and columns stored [K][N] (else [N][K]).
template <class F, bool ROWS, int LD>
struct FragmentRows {
    static constexpr bool TILE = true;
    const float* at;
    MIRAGE_DEVICE void one(float (&x)[2], int m, int k, int depth) const {
        const int p = k * SPLIT_DEPTH + depth;
#pragma unroll
        for (int h = 0; h < 2; ++h) x[h] = at[ROWS ? F::row(m, 2 * h) * LD + p : p * LD + F::row(m, 2 * h)];
    }
    static MIRAGE_DEVICE int depth(int half) { return (threadIdx.x & 3) + 4 * half; }
    MIRAGE_DEVICE void own(float (&x)[2], int m, int k, int eight, int half) const {
        one(x, m, k, 8 * eight + depth(half));
    }
    template <int MT, int KT>
    MIRAGE_DEVICE float top() const {
        const float* const from = at + F::warp_row() * 16 * MT * (ROWS ? LD : 1);
        return top_of<ROWS ? 16 * MT : 16 * KT, ROWS ? 4 * KT : 4 * MT>([&](int r, int c) { return from + r * LD + 4 * c; });
    }
};
template <class F, bool ROWS, int LD>
struct FragmentColumns {
    const float* at;
    MIRAGE_DEVICE float element(int col, int p) const { return at[ROWS ? p * LD + col : col * LD + p]; }
    MIRAGE_DEVICE void one(float (&x)[2], int n, int k, int depth) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) x[i] = element(F::col(n, i), k * SPLIT_DEPTH + depth);
    }
    MIRAGE_DEVICE float own(int n, int k, int eight, int depth) const {
        return element((F::warp_col() * F::NT + n) * 8 + ((threadIdx.x & 31) >> 2), k * SPLIT_DEPTH + 8 * eight + depth);
    }
    template <int NT, int KT>
    MIRAGE_DEVICE float top() const {
        const float* const from = at + F::warp_col() * 8 * NT * (ROWS ? 1 : LD);
        return top_of<ROWS ? 16 * KT : 8 * NT, ROWS ? 2 * NT : 4 * KT>([&](int r, int c) { return from + r * LD + 4 * c; });
    }
};
// The same at the accuracy of float32; what is left of 16 positions by multiply-adds.
template <int K, bool A_ROWS, int LDA, bool B_ROWS, int LDB, class F>
MIRAGE_DEVICE void contract(F& acc, const float* a, const float* b) {
    if (!F::active()) return;
    const FragmentRows<F, A_ROWS, LDA> rows{a};
    const FragmentColumns<F, B_ROWS, LDB> columns{b};
    constexpr int WHOLE = K / SPLIT_DEPTH;
    if constexpr (WHOLE > 0) contract_exactly<WHOLE>(acc, rows, columns);
    if constexpr (K % SPLIT_DEPTH != 0)
        multiply_add<F::MT, F::NT, K % SPLIT_DEPTH>(acc, rows, columns, 0, 0, WHOLE);
}

// --- reductions -----------------------------------------------------------------------------------------------------
struct Sum {
    static MIRAGE_DEVICE float none() { return 0.0f; }
    static MIRAGE_DEVICE float join(float x, float y) { return x + y; }
    static MIRAGE_DEVICE double join(double x, double y) { return x + y; }
};
struct Max {
    static MIRAGE_DEVICE float none() { return -INFINITY; }
    static MIRAGE_DEVICE float join(float x, float y) { return m_max(x, y); }
};

// For each of OUT results, R over `value(o, k)` for k < OVER, in the type T, then `put(o, result)`: a warp at a time.
template <class R, int OUT, int OVER, int THREADS, class T = float, class V, class P>
MIRAGE_DEVICE void reduce(V value, P put) {
    constexpr int LANES = OVER >= 32 ? 32 : OVER >= 16 ? 16 : OVER >= 8 ? 8 : OVER >= 4 ? 4 : OVER >= 2 ? 2 : 1;
    constexpr int GROUPS = THREADS / LANES, ROUNDS = (OUT + GROUPS - 1) / GROUPS;
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    for (int round = 0; round < ROUNDS; ++round) {
        const int o = round * GROUPS + group;
        T x = R::none();
        if (o < OUT)
            for (int k = lane; k < OVER; k += LANES) x = R::join(x, static_cast<T>(value(o, k)));
#pragma unroll
        for (int d = LANES / 2; d > 0; d >>= 1) x = R::join(x, __shfl_xor_sync(0xffffffffu, x, d));
        if (o < OUT && lane == 0) put(o, x);
    }
}

// For each of COUNT results R over scratch[PARTS][COUNT], which all threads see behind a barrier, then `put(o, result)`.
template <class R, int COUNT, int PARTS, int THREADS, class P>
MIRAGE_DEVICE void reduce_parts(const float* scratch, P put) {
    __syncthreads();
    for (int o = threadIdx.x; o < COUNT; o += THREADS) {
        float x = R::none();
#pragma unroll
        for (int part = 0; part < PARTS; ++part) x = R::join(x, scratch[part * COUNT + o]);
        put(o, x);
    }
}

// `reduce` of fewer results than half of the warps, which share each: scratch[SHARES][OUT].
template <class R, int OUT, int OVER, int THREADS, class V, class P>
MIRAGE_DEVICE void reduce_shared(float* scratch, V value, P put) {
    constexpr int SHARES = power_below(THREADS / 32 / OUT);
    const int warp = threadIdx.x / 32, o = warp / SHARES, share = warp % SHARES;
    float x = R::none();
    if (o < OUT)
#pragma unroll 8
        for (int k = share * 32 + threadIdx.x % 32; k < OVER; k += 32 * SHARES) x = R::join(x, value(o, k));
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x = R::join(x, __shfl_xor_sync(0xffffffffu, x, d));
    if (o < OUT && threadIdx.x % 32 == 0) scratch[share * OUT + o] = x;
    reduce_parts<R, OUT, SHARES, THREADS>(scratch, put);
}

// For each row of a fragment, R over `value(row, col, m, n, i)`; partial results of warps meet in scratch[WN][M].
template <class R, class F, int THREADS, class V, class P>
MIRAGE_DEVICE void reduce_rows(float* scratch, V value, P put) {
    if (F::active()) {
#pragma unroll
        for (int m = 0; m < F::MT; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float x = R::none();
#pragma unroll
                for (int n = 0; n < F::NT; ++n)
#pragma unroll
                    for (int i = h * 2; i < h * 2 + 2; ++i) x = R::join(x, value(F::row(m, i), F::col(n, i), m, n, i));
                x = R::join(x, __shfl_xor_sync(0xffffffffu, x, 1));
                x = R::join(x, __shfl_xor_sync(0xffffffffu, x, 2));
                if ((threadIdx.x & 3) == 0) scratch[F::warp_col() * F::M + F::row(m, h * 2)] = x;
            }
    }
    reduce_parts<R, F::M, F::WN, THREADS>(scratch, put);
}

// For each column; scratch[WM][N].
template <class R, class F, int THREADS, class V, class P>
MIRAGE_DEVICE void reduce_cols(float* scratch, V value, P put) {
    if (F::active()) {
#pragma unroll
        for (int n = 0; n < F::NT; ++n)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float x = R::none();
#pragma unroll
                for (int m = 0; m < F::MT; ++m)
#pragma unroll
                    for (int i = h; i < 4; i += 2) x = R::join(x, value(F::row(m, i), F::col(n, i), m, n, i));
#pragma unroll
                for (int d = 4; d < 32; d <<= 1) x = R::join(x, __shfl_xor_sync(0xffffffffu, x, d));
                if ((threadIdx.x & 31) < 4) scratch[F::warp_row() * F::N + F::col(n, h)] = x;
            }
    }
    reduce_parts<R, F::N, F::WM, THREADS>(scratch, put);
}

// --- reductions over blocks -----------------------------------------------------------------------------------------
// Whether this block is the last of `count` to come here; what the others wrote before is then visible to all its threads.
MIRAGE_DEVICE bool last_to_arrive(unsigned* arrivals, unsigned count) {
    __shared__ unsigned before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) before = atomicAdd(arrivals, 1u);
    __syncthreads();
    const bool last = before == count - 1;
    if (last) __threadfence();
    return last;
}

}  // namespace mirage
