// Rows in registers: chunks of memory, reductions over the lanes of a warp and the warps of a block, quotients.
#pragma once
#include "mirage/cuda/sync.cuh"
#include "mirage/cuda/tile.cuh"

#include <type_traits>

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

// N neighbours of numbers that share bytes, as they are stored: from number `at` of a tensor on
template <class T, int N>
struct alignas(N * T::BITS / 8 < 16 ? N * T::BITS / 8 : 16) Numbers {
    uint8_t v[N * T::BITS / 8];
};
template <class T, int N>
MIRAGE_DEVICE Numbers<T, N> load_numbers(const uint8_t* from, int64_t at) {
    return *reinterpret_cast<const Numbers<T, N>*>(from + static_cast<uint64_t>(at) * T::BITS / 8);
}
template <class T, int N>
MIRAGE_DEVICE float number_in(const Numbers<T, N>& x, int at) {
    constexpr int PER = 8 / T::BITS;
    const uint32_t bits = (x.v[at / PER] >> (at % PER * T::BITS)) & ((1u << T::BITS) - 1);
    if constexpr (std::is_same<T, e2m1>::value) return e2m1_number(bits);
    return __uint_as_float(0x4b000000u | (bits ^ T::TOP)) - (8388608.0f + T::TOP);  // 2^23 + bits, without a conversion
}

// Numbers in an element type, two at a time where there are instructions for that.
template <class T, int N>
MIRAGE_DEVICE Chunk<T, N> rounded(const float (&x)[N]) {
    Chunk<T, N> to;
    if constexpr (N % 2 == 0 && std::is_same<T, __half>::value) {
#pragma unroll
        for (int k = 0; k < N; k += 2) {
            const __half2 two = __floats2half2_rn(x[k], x[k + 1]);
            to.v[k] = two.x;
            to.v[k + 1] = two.y;
        }
    } else if constexpr (N % 2 == 0 && std::is_same<T, __nv_bfloat16>::value) {
#pragma unroll
        for (int k = 0; k < N; k += 2) {
            const __nv_bfloat162 two = __floats2bfloat162_rn(x[k], x[k + 1]);
            to.v[k] = two.x;
            to.v[k + 1] = two.y;
        }
    } else {
#pragma unroll
        for (int k = 0; k < N; ++k) put(to.v[k], x[k]);
    }
    return to;
}

// --- reductions -----------------------------------------------------------------------------------------------------
// R over N numbers of a type T (float or double), neighbours first
template <class R, int N, class T>
MIRAGE_DEVICE T join_parts(const T* at) {
    if constexpr (N == 1) {
        return at[0];
    } else {
        return R::join(join_parts<R, N / 2>(at), join_parts<R, N - N / 2>(at + N / 2));
    }
}
// R over groups of LANES neighbouring lanes
template <class R, int LANES, class T>
MIRAGE_DEVICE T join_lanes(T x) {
#pragma unroll
    for (int d = LANES / 2; d > 0; d >>= 1) x = R::join(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}
// A warp's result where all warps find it behind the next barrier.
template <class T>
MIRAGE_DEVICE void show(T* scratch, T x) {
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// A warp's result where all warps of the cluster's blocks find it behind the cluster's next barrier: block by block.
template <int CLUSTER, int WARPS, class T>
MIRAGE_DEVICE void show_all(T* scratch, T x) {
    if (threadIdx.x % 32 < CLUSTER)
        *in_block(scratch + blockIdx.x % CLUSTER * WARPS + threadIdx.x / 32, threadIdx.x % 32) = x;
}
#endif
// R over COUNT numbers that lie STRIDE apart
template <class R, int COUNT, int STRIDE, class T>
MIRAGE_DEVICE T join_shown(const T* at) {
    T x[COUNT];
#pragma unroll
    for (int k = 0; k < COUNT; ++k) x[k] = at[k * STRIDE];
    return join_parts<R, COUNT>(x);
}
// R over what COUNT warps have shown; of many, every lane takes some.
template <class R, int COUNT, class T>
MIRAGE_DEVICE T join_warps(const T* at) {
    if constexpr (COUNT < 32) {
        return join_shown<R, COUNT, 1>(at);
    } else {
        static_assert(COUNT % 32 == 0, "as many for every lane");
        return join_lanes<R, 32>(join_shown<R, COUNT / 32, 32>(at + threadIdx.x % 32));
    }
}

// --- quotients ------------------------------------------------------------------------------------------------------
// A number that many are divided by: a quotient is a product with its reciprocal, and with EXACT one step of correction,
// which rounds it as a division does. Numbers whose reciprocal floats do not have are brought nearer to 1 by `factor`.
struct Divisor {
    float number, reciprocal, factor;
};
MIRAGE_DEVICE Divisor divisor(float number) {
    const float size = fabsf(number), factor = size < 0x1p-60f ? 0x1p+60f : size > 0x1p+60f ? 0x1p-60f : 1.0f;
    return {number * factor, 1.0f / (number * factor), factor};
}
template <bool EXACT>
MIRAGE_DEVICE float divide(float x, const Divisor& by) {
    const float scaled = x * by.factor, q = scaled * by.reciprocal;
    if constexpr (!EXACT) return q;
    const float better = fmaf(fmaf(-by.number, q, scaled), by.reciprocal, q);
    return isnan(better) ? q : better;
}

}  // namespace mirage
