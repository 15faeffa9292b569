// Threads that wait for one another (some warps of a block, the blocks of a cluster), and a fast power of two.
#pragma once
#include "mirage/cuda/math.cuh"

namespace mirage {

// THREADS threads (whole warps) of the block wait at barrier `id` (1 to 15); a single warp needs no barrier.
template <int THREADS>
MIRAGE_DEVICE void wait_together(int id) {
    if constexpr (THREADS == 32) {
        __syncwarp();
    } else {
        asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
    }
}

// 2^x by the special-function unit
MIRAGE_DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// All threads of a cluster's blocks come here; what they wrote before `cluster_arrive` is visible after `cluster_wait`.
MIRAGE_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
MIRAGE_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
MIRAGE_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Where block `rank` of the cluster has what lies at `p` in the shared memory of this one.
template <class T>
MIRAGE_DEVICE T* in_block(T* p, unsigned rank) {
    T* there;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(rank));
    return there;
}
#endif

}  // namespace mirage
