// Warpgroups of four warps that multiply matrices of 64 rows (sm_90a), with what they keep in registers.
//
// A fragment of 64 rows and 8 * NT columns is float v[NT][4] in every thread of a warpgroup: element (n, i) is row
// 16 * warp + lane / 4 + 8 * (i / 2), column 8 * n + 2 * (lane % 4) + i % 2.
#pragma once
#include "mirage/cuda/tma.cuh"
#include "mirage/cuda/wgmma.cuh"

namespace mirage {

struct Yes {
    static constexpr bool value = true;
};
struct No {
    static constexpr bool value = false;
};

// --- order of matrix products -------------------------------------------------------------------------------------------
MIRAGE_DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MIRAGE_DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
MIRAGE_DEVICE void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// What this thread has written to shared memory is seen by matrix instructions of warpgroups behind the next barrier.
MIRAGE_DEVICE void show_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Registers that products write: nothing reads or writes them across this place.
template <int N>
MIRAGE_DEVICE void pin(float (&v)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(v[i])::"memory");
}
template <int N>
MIRAGE_DEVICE void pin(float (&v)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; ++i) pin(v[i]);
}

// A number that all lanes of a warp have, for the compiler to know that.
MIRAGE_DEVICE int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

template <int REGISTERS>
MIRAGE_DEVICE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
MIRAGE_DEVICE void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
// Some of the block's threads wait for one another; `arrive` counts without waiting.
MIRAGE_DEVICE void wait_named(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
MIRAGE_DEVICE void arrive_named(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
MIRAGE_DEVICE void wait_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
MIRAGE_DEVICE int cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return static_cast<int>(rank);
}

MIRAGE_DEVICE void store_shared(uint32_t at, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}
// A number in the shared memory of block `rank` of the cluster.
MIRAGE_DEVICE float load_of_block(int rank, uint32_t at) {
    float x;
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %1, %2;\nld.shared::cluster.f32 %0, [remote];\n}"
        : "=f"(x)
        : "r"(at), "r"(rank)
        : "memory");
    return x;
}

// --- tiles in shared memory -----------------------------------------------------------------------------------------
// A tile is panels of 64 columns; a row of a panel is 128 bytes, eight chunks of 16 that are swizzled by the row's
// number. Panels start at multiples of 1024 bytes.

// The descriptor of a tile from `address` on whose panels are `panel` bytes apart (what the instruction asks for only
// where columns are not the summed axis).
MIRAGE_DEVICE uint64_t tile_descriptor(uint32_t address, int panel) {
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(panel >> 4) << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | uint64_t{1} << 62;
}
// The address of eight columns of a row.
MIRAGE_DEVICE uint32_t chunk_address(uint32_t tile, int rows, int row, int chunk) {
    return tile + (chunk >> 3) * rows * 128 + row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
}
// Sixteen columns of a fragment of 64 rows from a tile of `rows` rows, whose columns are the fragment's (or, TURNED, whose
// rows are): words (n, h) hold the elements (n, 2 h) and (n, 2 h + 1).
template <bool TURNED>
MIRAGE_DEVICE void load_fragment(uint32_t (&v)[2][2], uint32_t tile, int rows, int row, int col) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int r = row + warp * 16 + lane % 16, c = col + lane / 16 * 8;
    const int turned_row = col + lane % 8 + lane / 16 * 8, turned_col = row + warp * 16 + lane / 8 % 2 * 8;
    const uint32_t at = TURNED ? chunk_address(tile, rows, turned_row, turned_col / 8) : chunk_address(tile, rows, r, c / 8);
    if constexpr (TURNED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v[0][0]), "=r"(v[0][1]), "=r"(v[1][0]), "=r"(v[1][1])
                     : "r"(at)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v[0][0]), "=r"(v[0][1]), "=r"(v[1][0]), "=r"(v[1][1])
                     : "r"(at)
                     : "memory");
    }
}

// The same as a left operand in registers.
template <bool TURNED>
MIRAGE_DEVICE void load_words(uint32_t (&words)[4], uint32_t tile, int rows, int row, int col) {
    uint32_t v[2][2];
    load_fragment<TURNED>(v, tile, rows, row, col);
#pragma unroll
    for (int k = 0; k < 4; ++k) words[k] = v[k / 2][k % 2];
}

// Eight elements of a row from column 8 * q on (or, TURNED, of column `row` from row 8 * q on), as words.
template <bool TURNED>
MIRAGE_DEVICE void load_eight(uint32_t (&v)[4], uint32_t tile, int rows, int row, int q) {
    if constexpr (TURNED) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            uint16_t low, high;
            const uint32_t at = chunk_address(tile, rows, q * 8 + 2 * k, row / 8) + row % 8 * 2;
            const uint32_t next = chunk_address(tile, rows, q * 8 + 2 * k + 1, row / 8) + row % 8 * 2;
            asm volatile("ld.shared.u16 %0, [%1];" : "=h"(low) : "r"(at) : "memory");
            asm volatile("ld.shared.u16 %0, [%1];" : "=h"(high) : "r"(next) : "memory");
            v[k] = static_cast<uint32_t>(high) << 16 | low;
        }
    } else {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(chunk_address(tile, rows, row, q))
                     : "memory");
    }
}

// Elements of 16 bits of a row become 0.
MIRAGE_DEVICE void clear_row(uint32_t tile, int rows, int row, int columns) {
    for (int c = 0; c < columns / 8; ++c)
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(chunk_address(tile, rows, row, c)), "r"(0) : "memory");
}

// --- words of two elements of 16 bits -------------------------------------------------------------------------------
template <class T>
struct Words;
template <>
struct Words<__half> {
    MIRAGE_DEVICE static uint32_t pack(float low, float high) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&pair);
    }
    MIRAGE_DEVICE static float low(uint32_t w) { return __low2float(*reinterpret_cast<const __half2*>(&w)); }
    MIRAGE_DEVICE static float high(uint32_t w) { return __high2float(*reinterpret_cast<const __half2*>(&w)); }
};
template <>
struct Words<__nv_bfloat16> {
    MIRAGE_DEVICE static uint32_t pack(float low, float high) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&pair);
    }
    MIRAGE_DEVICE static float low(uint32_t w) { return __uint_as_float(w << 16); }
    MIRAGE_DEVICE static float high(uint32_t w) { return __uint_as_float(w & 0xffff0000u); }
};

// One of two elements that lie at a multiple of their size together, and are read together.
template <class T>
MIRAGE_DEVICE float of_pair(const T* pair, int which) {
    if constexpr (sizeof(T) == 4) {
        const float2 both = *reinterpret_cast<const float2*>(pair);
        return which ? both.y : both.x;
    } else {
        const uint32_t word = *reinterpret_cast<const uint32_t*>(pair);
        return which ? Words<T>::high(word) : Words<T>::low(word);
    }
}

// --- rows -----------------------------------------------------------------------------------------------------------
// The four lanes that share rows put their parts together.
MIRAGE_DEVICE float sum_of_row(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
MIRAGE_DEVICE float top_of_row(float x) {
    x = m_max(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return m_max(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// --- functions --------------------------------------------------------------------------------------------------------
constexpr float LOG2E = 1.4426950408889634f;
MIRAGE_DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
MIRAGE_DEVICE float inverse_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
MIRAGE_DEVICE float quick_sigmoid(float x) { return inverse_fast(1.0f + exp2_fast(-x * LOG2E)); }
MIRAGE_DEVICE float quick_silu(float x) { return x * quick_sigmoid(x); }
MIRAGE_DEVICE float quick_gelu_tanh(float x) { return x * quick_sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x)); }
// With erfc as Abramowitz and Stegun have it (7.1.26): the smaller side of the distribution keeps its digits.
MIRAGE_DEVICE float quick_gelu(float x) {
    const float z = fabsf(x) * 0.70710678118654752f, t = inverse_fast(fmaf(0.3275911f, z, 1.0f));
    float sum = fmaf(fmaf(1.061405429f, t, -1.453152027f), t, 1.421413741f);
    sum = fmaf(fmaf(sum, t, -0.284496736f), t, 0.254829592f);
    const float tail = 0.5f * sum * t * exp2_fast(-z * z * LOG2E);
    return x * (x < 0.0f ? tail : 1.0f - tail);
}
// What is taken away from log2(e) * x: a row whose maximum is -inf has nothing to weigh.
MIRAGE_DEVICE float level_of(float maximum) { return maximum == -INFINITY ? 0.0f : maximum * LOG2E; }
// The next running maximum. It stays where it is while what is above it is less than 2^8 times as large: exponentials are at
// most 256 then, and what was accumulated is weighed anew less often.
constexpr float SLACK = 5.545177444479562f;  // log(2^8)
MIRAGE_DEVICE float raised(float before, float maximum) {
    return maximum - before <= SLACK ? before : fmaxf(before, maximum);
}
// exp(x - maximum). The factor by which rounding of `level` is off is the same for all of a row, and cancels.
MIRAGE_DEVICE float exp_below(float x, float level) { return exp2_fast(fmaf(x, LOG2E, -level)); }
// exp(old - new) of two maxima, in agreement with `exp_below`
MIRAGE_DEVICE float exp_between(float old_maximum, float new_maximum) {
    return old_maximum == new_maximum ? 1.0f : exp2_fast(old_maximum * LOG2E - new_maximum * LOG2E);
}

// --- results ----------------------------------------------------------------------------------------------------------
// Lane q of four holds its word of each of four chunks; afterwards the four words of chunk q.
MIRAGE_DEVICE void turn_words(uint32_t (&w)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    uint32_t a = odd ? w[0] : w[1], b = odd ? w[2] : w[3];
    a = __shfl_xor_sync(0xffffffffu, a, 1);
    b = __shfl_xor_sync(0xffffffffu, b, 1);
    (odd ? w[0] : w[1]) = a;
    (odd ? w[2] : w[3]) = b;
    a = high ? w[0] : w[2];
    b = high ? w[1] : w[3];
    a = __shfl_xor_sync(0xffffffffu, a, 2);
    b = __shfl_xor_sync(0xffffffffu, b, 2);
    (high ? w[0] : w[2]) = a;
    (high ? w[1] : w[3]) = b;
}
// Write a fragment: `row(h)` is where the first column of a thread's row h lies, null outside the tensor; `columns` of
// them exist. ALIGNED: rows start at multiples of 16 bytes.
template <bool ALIGNED, class T, int NT, class Row>
MIRAGE_DEVICE void store_rows(const float (&v)[NT][4], Row row, int columns) {
    const int quarter = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        T* const to = row(h);
        if constexpr (ALIGNED && sizeof(T) == 2 && NT % 4 == 0) {
#pragma unroll
            for (int n = 0; n < NT; n += 4) {
                uint32_t w[4];
#pragma unroll
                for (int k = 0; k < 4; ++k) w[k] = Words<T>::pack(v[n + k][2 * h], v[n + k][2 * h + 1]);
                turn_words(w);
                const int c = (n + quarter) * 8;
                if (to == nullptr || c >= columns) continue;
                if (c + 8 <= columns) {
                    *reinterpret_cast<uint4*>(to + c) = make_uint4(w[0], w[1], w[2], w[3]);
                } else {
#pragma unroll
                    for (int k = 0; k < 8; ++k)
                        if (c + k < columns)
                            put(to[c + k], k % 2 ? Words<T>::high(w[k / 2]) : Words<T>::low(w[k / 2]));
                }
            }
        } else if constexpr (ALIGNED && sizeof(T) == 4) {  // four lanes write 32 bytes
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const int c = n * 8 + quarter * 2;
                if (to == nullptr || c >= columns) continue;
                if (c + 2 <= columns)
                    *reinterpret_cast<float2*>(to + c) = make_float2(v[n][2 * h], v[n][2 * h + 1]);
                else
                    put(to[c], v[n][2 * h]);
            }
        } else {
#pragma unroll
            for (int n = 0; n < NT; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int c = n * 8 + quarter * 2 + i;
                    if (to != nullptr && c < columns) put(to[c], v[n][2 * h + i]);
                }
        }
    }
}

}  // namespace mirage
