// Threads that wait for one another (some warps of a block, the blocks of a cluster), and a fast power of two.
#pragma once
#include "mirage/cuda/ptx.cuh"

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

// Blocks of a cluster send one another floats without waiting for one another a second time: a barrier of the receiver counts
// bytes. One thread of every block says how many will come, to all blocks together that send, before it arrives for the
// first time.
MIRAGE_DEVICE void expect_sent(const float* barrier, int bytes) {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n"
        "fence.mbarrier_init.release.cluster;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

// To what lies at `to` in block `rank`, behind the first `cluster_wait`.
template <int N>
MIRAGE_DEVICE void send_floats(const float* to, unsigned rank, const float (&x)[N], const float* barrier) {
    static_assert(N == 1 || N == 4, "a send is of one float, or of four");
    uint32_t there, counts;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(to)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counts) : "r"(shared_address(barrier)), "r"(rank));
    if constexpr (N == 4) {
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
            "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(counts)
            : "memory");
    } else {
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(there),
                     "f"(x[0]), "r"(counts)
                     : "memory");
    }
}

// All threads of a block wait until all of it has come; the barrier's place may be used again.
MIRAGE_DEVICE void await_sent(const float* barrier) {
    if (threadIdx.x == 0) {
        asm volatile(
            "{\n.reg .pred done;\nagain:\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
            "@!done bra again;\n"
            "mbarrier.inval.shared::cta.b64 [%0];\n}" ::"r"(shared_address(barrier))
            : "memory");
    }
    __syncthreads();
}
#endif

}  // namespace mirage
