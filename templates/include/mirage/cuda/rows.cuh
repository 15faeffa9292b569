// Rows in registers: chunks of memory, reductions over the lanes of a warp and the warps of a block, quotients.
#pragma once
#include "mirage/cuda/sync.cuh"
#include "mirage/cuda/tile.cuh"

namespace mirage {

// N neighbours; in memory at a multiple of their size, or of 16 bytes where they are more
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Chunk {
    T v[N];
};
// Plain loads, which no compiler moves over `wait_for_earlier`.
template <class T, int N>
MIRAGE_DEVICE Chunk<T, N> load_chunk(const T* from) {
    return *reinterpret_cast<const Chunk<T, N>*>(from);
}
template <class T, int N>
MIRAGE_DEVICE void store_chunk(T* to, const Chunk<T, N>& x) {
    *reinterpret_cast<Chunk<T, N>*>(to) = x;
}

// --- reductions -----------------------------------------------------------------------------------------------------
// R over N numbers, neighbours first
template <class R, int N>
MIRAGE_DEVICE float join_parts(const float* at) {
    if constexpr (N == 1) {
        return at[0];
    } else {
        return R::join(join_parts<R, N / 2>(at), join_parts<R, N - N / 2>(at + N / 2));
    }
}
// R over groups of LANES neighbouring lanes
template <class R, int LANES>
MIRAGE_DEVICE float join_lanes(float x) {
#pragma unroll
    for (int d = LANES / 2; d > 0; d >>= 1) x = R::join(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}
// A warp's result where all warps find it behind the next barrier.
MIRAGE_DEVICE void show(float* scratch, float x) {
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// A warp's result where all warps of the cluster's blocks find it behind the cluster's next barrier: block by block.
template <int CLUSTER, int WARPS>
MIRAGE_DEVICE void show_all(float* scratch, float x) {
    if (threadIdx.x % 32 < CLUSTER)
        *in_block(scratch + blockIdx.x % CLUSTER * WARPS + threadIdx.x / 32, threadIdx.x % 32) = x;
}
#endif
// R over COUNT numbers that lie STRIDE apart
template <class R, int COUNT, int STRIDE>
MIRAGE_DEVICE float join_shown(const float* at) {
    float x[COUNT];
#pragma unroll
    for (int k = 0; k < COUNT; ++k) x[k] = at[k * STRIDE];
    return join_parts<R, COUNT>(x);
}

// --- quotients ------------------------------------------------------------------------------------------------------
// A number that many are divided by. Where its reciprocal is exact enough, a quotient is a product, and with EXACT one
// step of correction, which rounds it as a division does.
struct Divisor {
    float number, reciprocal;
    bool plain;
};
MIRAGE_DEVICE Divisor divisor(float number) {
    const float size = fabsf(number);
    return {number, 1.0f / number, size > 0x1p-100f && size < 0x1p+100f};
}
template <bool EXACT>
MIRAGE_DEVICE float divide(float x, const Divisor& by) {
    if (!by.plain) return x / by.number;
    const float q = x * by.reciprocal;
    if constexpr (!EXACT) return q;
    const float better = fmaf(fmaf(-by.number, q, x), by.reciprocal, q);
    return isnan(better) ? q : better;
}

}  // namespace mirage
