// What HIP kernels need of the language, without ROCm's headers: clang knows the attributes and the instructions.
#pragma once
#include <cstdint>

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads) __attribute__((launch_bounds(threads)))
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))

struct MirageThread {
    struct X {
        __device__ operator int() const { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
    };
    static constexpr X x{};
};
struct MirageBlock {
    struct X {
        __device__ operator unsigned() const { return __builtin_amdgcn_workgroup_id_x(); }
    };
    static constexpr X x{};
};
static constexpr MirageThread threadIdx{};
static constexpr MirageBlock blockIdx{};

using __half = _Float16;
struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __device__ explicit __nv_bfloat16(float x) {
        const uint32_t of = __builtin_bit_cast(uint32_t, x);
        bits = static_cast<uint16_t>(x != x ? 0x7fffu : (of + 0x7fffu + (of >> 16 & 1u)) >> 16);
    }
};

__device__ __forceinline__ void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ __forceinline__ void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
// The value that lane `lane ^ mask` of the wave has.
__device__ __forceinline__ int lane_of() {
    return static_cast<int>(__builtin_amdgcn_workitem_id_x()) & (__builtin_amdgcn_wavefrontsize() - 1);
}
__device__ __forceinline__ float exchanged(float x, int mask) {
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute((lane_of() ^ mask) << 2, __builtin_bit_cast(int, x)));
}
__device__ __forceinline__ double exchanged(double x, int mask) {
    const uint64_t bits = __builtin_bit_cast(uint64_t, x);
    const int at = (lane_of() ^ mask) << 2;
    const uint32_t low = __builtin_amdgcn_ds_bpermute(at, static_cast<int>(bits));
    const uint32_t high = __builtin_amdgcn_ds_bpermute(at, static_cast<int>(bits >> 32));
    return __builtin_bit_cast(double, static_cast<uint64_t>(high) << 32 | low);
}
template <class T>
__device__ __forceinline__ T min(T x, T y) {
    return y < x ? y : x;
}
