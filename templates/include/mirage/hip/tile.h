// Tiles of one thread block in HIP: the instructions of cuda/tile.cuh with AMD's matrix instructions and waves. Warps are
// groups of 32 threads, as everywhere; a wave is one of them on gfx11 and two neighbours on gfx9. Nobody has run it.
#pragma once
#include <type_traits>

#include "mirage/hip/math.h"

namespace mirage {

using half4 = __half __attribute__((ext_vector_type(4)));
using half16 = __half __attribute__((ext_vector_type(16)));
using short4 = short __attribute__((ext_vector_type(4)));
using short16 = short __attribute__((ext_vector_type(16)));
using float4 = float __attribute__((ext_vector_type(4)));
using float8 = float __attribute__((ext_vector_type(8)));

// --- fragments ------------------------------------------------------------------------------------------------------
// M x N floats spread over WM x WN warps. How the accumulators of a wave lie:
//   MFMA   gfx9, two warps side by side: v[m][n] is the lane's part of a 16 x 16 matrix, one row and four columns
//   WMMA   gfx11: v[m][n] and v[m][n + 1] are, for an even n, one row and eight columns, every other one
//   PLAIN  where neither fits: two neighbouring columns of two rows, 8 apart, of every 16 x 8 matrix
enum class Layout { PLAIN, MFMA, WMMA };
template <int M_, int N_, int WM_, int WN_>
struct Fragment {
    static constexpr int M = M_, N = N_, WM = WM_, WN = WN_, MT = M / (16 * WM), NT = N / (8 * WN);
    static_assert(M % (16 * WM) == 0 && N % (8 * WN) == 0, "a fragment is whole matrices for every warp");
#if defined(__GFX9__)
    static constexpr Layout LAYOUT = WN % 2 == 0 ? Layout::MFMA : Layout::PLAIN;
#elif defined(__GFX11__)
    static constexpr Layout LAYOUT = NT % 2 == 0 ? Layout::WMMA : Layout::PLAIN;
#else
    static constexpr Layout LAYOUT = Layout::PLAIN;
#endif
    static constexpr int COLUMNS = LAYOUT == Layout::MFMA ? WN / 2 : WN;         //!< parts side by side
    static constexpr int WIDTH = LAYOUT == Layout::MFMA ? 16 * NT : 8 * NT;      //!< columns of a part
    static constexpr int ROWS = LAYOUT == Layout::PLAIN ? 2 : 1;                 //!< rows of a lane in a matrix
    float v[MT][NT][4];

    static MIRAGE_DEVICE int part() { return LAYOUT == Layout::MFMA ? threadIdx.x / 64 : threadIdx.x / 32; }
    static MIRAGE_DEVICE int lane() { return LAYOUT == Layout::MFMA ? threadIdx.x % 64 : threadIdx.x % 32; }
    static MIRAGE_DEVICE bool active() { return threadIdx.x / 32 < WM * WN; }
    static MIRAGE_DEVICE int warp_row() { return part() % WM; }
    static MIRAGE_DEVICE int warp_col() { return part() / WM; }
    static MIRAGE_DEVICE int row(int m, int i) {
        const int first = (warp_row() * MT + m) * 16;
        return first + (LAYOUT == Layout::PLAIN ? lane() / 4 + i / 2 * 8 : lane() % 16);
    }
    static MIRAGE_DEVICE int col(int n, int i) {
        const int first = warp_col() * WIDTH;
        if constexpr (LAYOUT == Layout::MFMA) return first + n * 16 + lane() / 16 * 4 + i;
        if constexpr (LAYOUT == Layout::WMMA) return first + n / 2 * 16 + (n % 2 * 4 + i) * 2 + lane() / 16;
        return first + n * 8 + lane() % 4 * 2 + i % 2;
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
// Copies have ended, for the thread that makes them, when their statement has.
MIRAGE_DEVICE void copy_commit() {}
template <int PENDING>
MIRAGE_DEVICE void copy_wait() {}

template <class T>
struct Row {
    const T* from;  // nullptr: the row lies outside and is zero
    int to;         // element offset in the tile
};
template <class T, int COUNT>
struct alignas(COUNT * sizeof(T)) Chunk {
    T v[COUNT];
};

// ROWS rows of COLS elements in chunks of BYTES; `row(r)` says where row r comes from and goes to. Columns from `valid`
// on are zero. Sources and destinations are aligned to BYTES.
template <class T, int ROWS, int COLS, int BYTES, int THREADS, class F>
MIRAGE_DEVICE void load_rows(T* tile, const T*, int valid, F row) {
    constexpr int VEC = BYTES / sizeof(T), CHUNKS = COLS / VEC;
    static_assert(COLS % VEC == 0, "rows are whole chunks");
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int c = i % CHUNKS * VEC;
        const Row<T> r = row(i / CHUNKS);
        Chunk<T, VEC> chunk = {};
        if (r.from != nullptr && c + VEC <= valid) {
            chunk = *reinterpret_cast<const Chunk<T, VEC>*>(r.from + c);
        } else if (r.from != nullptr) {
            for (int v = 0; v < VEC && c + v < valid; ++v) chunk.v[v] = r.from[c + v];
        }
        *reinterpret_cast<Chunk<T, VEC>*>(tile + r.to + c) = chunk;
    }
}

// --- contractions ---------------------------------------------------------------------------------------------------
// Matrix instructions multiply the columns of b by the rows of a, so that a lane's results are of one row.
#if defined(__GFX9__)
MIRAGE_DEVICE float4 multiply(half4 b, half4 a, float4 c) { return __builtin_amdgcn_mfma_f32_16x16x16f16(b, a, c, 0, 0, 0); }
MIRAGE_DEVICE float4 multiply(short4 b, short4 a, float4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(b, a, c, 0, 0, 0);
}
#elif defined(__GFX11__)
MIRAGE_DEVICE float8 multiply(half16 b, half16 a, float8 c) { return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(b, a, c); }
MIRAGE_DEVICE float8 multiply(short16 b, short16 a, float8 c) { return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(b, a, c); }
#endif
MIRAGE_DEVICE __half number(__half x) { return x; }
MIRAGE_DEVICE short number(__nv_bfloat16 x) { return static_cast<short>(x.bits); }

// A lane's COUNT numbers of an operand, from position `first` on of row or column `at`.
template <class V, int COUNT, bool ALONG, int LD, class T>
MIRAGE_DEVICE V operand(const T* tile, int at, int first) {
    V found;
#pragma unroll
    for (int j = 0; j < COUNT; ++j) found[j] = number(tile[ALONG ? at * LD + first + j : (first + j) * LD + at]);
    return found;
}
template <class T>
struct Operands;
template <>
struct Operands<__half> {
    using Four = half4;
    using Sixteen = half16;
};
template <>
struct Operands<__nv_bfloat16> {
    using Four = short4;
    using Sixteen = short16;
};

// acc += a * b over K positions. A_ROWS: a is stored [M][K] (else [K][M]); B_ROWS: b is stored [K][N] (else [N][K]).
template <int K, bool A_ROWS, int LDA, bool B_ROWS, int LDB, class F, class T>
MIRAGE_DEVICE void contract(F& acc, const T* a, const T* b) {
    if (!F::active()) return;
#if defined(__GFX9__) || defined(__GFX11__)
    if constexpr (sizeof(T) == 2 && K % 16 == 0 && F::LAYOUT != Layout::PLAIN) {
        constexpr bool MFMA = F::LAYOUT == Layout::MFMA;
        constexpr int EACH = MFMA ? 4 : 16, STEP = MFMA ? 1 : 2;
        using V = std::conditional_t<MFMA, typename Operands<T>::Four, typename Operands<T>::Sixteen>;
        const int lane = F::lane();
#pragma unroll
        for (int k = 0; k < K; k += 16) {
            const int first = k + (MFMA ? lane / 16 * 4 : 0);
            V rows[F::MT];
#pragma unroll
            for (int m = 0; m < F::MT; ++m) rows[m] = operand<V, EACH, A_ROWS, LDA>(a, F::row(m, 0), first);
#pragma unroll
            for (int n = 0; n < F::NT; n += STEP) {
                const int col = F::warp_col() * F::WIDTH + n / STEP * 16 + lane % 16;
                const V columns = operand<V, EACH, !B_ROWS, LDB>(b, col, first);
#pragma unroll
                for (int m = 0; m < F::MT; ++m) {
                    decltype(multiply(columns, rows[m], {})) c;
#pragma unroll
                    for (int i = 0; i < 4 * STEP; ++i) c[i] = acc.v[m][n + i / 4][i % 4];
                    c = multiply(columns, rows[m], c);
#pragma unroll
                    for (int i = 0; i < 4 * STEP; ++i) acc.v[m][n + i / 4][i % 4] = c[i];
                }
            }
        }
        return;
    }
#endif
    F sums;  // these positions' own, which is then added
    sums.fill(0.0f);
    for (int k = 0; k < K; ++k) {
        float x[F::MT][4], y[F::NT][4];
#pragma unroll
        for (int m = 0; m < F::MT; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) x[m][i] = to_float(a[A_ROWS ? F::row(m, i) * LDA + k : k * LDA + F::row(m, i)]);
#pragma unroll
        for (int n = 0; n < F::NT; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) y[n][i] = to_float(b[B_ROWS ? k * LDB + F::col(n, i) : F::col(n, i) * LDB + k]);
#pragma unroll
        for (int m = 0; m < F::MT; ++m)
#pragma unroll
            for (int n = 0; n < F::NT; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) sums.v[m][n][i] = __builtin_fmaf(x[m][i], y[n][i], sums.v[m][n][i]);
    }
#pragma unroll
    for (int m = 0; m < F::MT; ++m)
#pragma unroll
        for (int n = 0; n < F::NT; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc.v[m][n][i] += sums.v[m][n][i];
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

// For each of OUT results, R over `value(o, k)` for k < OVER, in the type T, then `put(o, result)`: 32 threads at a time.
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
        for (int d = LANES / 2; d > 0; d >>= 1) x = R::join(x, exchanged(x, d));
        if (o < OUT && lane == 0) put(o, x);
    }
}

// For each row of a fragment, R over `value(row, col, m, n, i)`; partial results of parts meet in scratch[COLUMNS][M].
template <class R, class F, int THREADS, class V, class P>
MIRAGE_DEVICE void reduce_rows(float* scratch, V value, P put) {
    constexpr bool PLAIN = F::LAYOUT == Layout::PLAIN;
    if (F::active()) {
#pragma unroll
        for (int m = 0; m < F::MT; ++m)
#pragma unroll
            for (int h = 0; h < F::ROWS; ++h) {
                constexpr int EACH = 4 / F::ROWS;
                float x = R::none();
#pragma unroll
                for (int n = 0; n < F::NT; ++n)
#pragma unroll
                    for (int i = h * EACH; i < (h + 1) * EACH; ++i) x = R::join(x, value(F::row(m, i), F::col(n, i), m, n, i));
                // lanes of one row are neighbours, or 16 apart
                for (int d = PLAIN ? 1 : 16; d < (PLAIN ? 4 : F::LAYOUT == Layout::MFMA ? 64 : 32); d <<= 1)
                    x = R::join(x, exchanged(x, d));
                if (PLAIN ? F::lane() % 4 == 0 : F::lane() < 16) scratch[F::warp_col() * F::M + F::row(m, h * EACH)] = x;
            }
    }
    __syncthreads();
    for (int r = threadIdx.x; r < F::M; r += THREADS) {
        float x = R::none();
#pragma unroll
        for (int w = 0; w < F::COLUMNS; ++w) x = R::join(x, scratch[w * F::M + r]);
        put(r, x);
    }
}

// For each column; scratch[WM][N].
template <class R, class F, int THREADS, class V, class P>
MIRAGE_DEVICE void reduce_cols(float* scratch, V value, P put) {
    constexpr bool PLAIN = F::LAYOUT == Layout::PLAIN;
    if (F::active()) {
#pragma unroll
        for (int n = 0; n < F::NT; ++n)
#pragma unroll
            for (int h = 0; h < 4 / F::ROWS; ++h) {
                float x = R::none();
#pragma unroll
                for (int m = 0; m < F::MT; ++m)
#pragma unroll
                    for (int i = h; i < 4; i += 4 / F::ROWS) x = R::join(x, value(F::row(m, i), F::col(n, i), m, n, i));
                for (int d = PLAIN ? 4 : 1; d < (PLAIN ? 32 : 16); d <<= 1) x = R::join(x, exchanged(x, d));
                if (PLAIN ? F::lane() < 4 : F::lane() % 16 == 0) scratch[F::warp_row() * F::N + F::col(n, h)] = x;
            }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < F::N; c += THREADS) {
        float x = R::none();
#pragma unroll
        for (int w = 0; w < F::WM; ++w) x = R::join(x, scratch[w * F::N + c]);
        put(c, x);
    }
}

// --- reductions over blocks -----------------------------------------------------------------------------------------
// Whether this block is the last of `count` to come here; what the others wrote before is then visible to all its threads.
MIRAGE_DEVICE bool last_to_arrive(unsigned* arrivals, unsigned count) {
    __shared__ unsigned before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) before = __hip_atomic_fetch_add(arrivals, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    __syncthreads();
    const bool last = before == count - 1;
    if (last) __threadfence();
    return last;
}

}  // namespace mirage
