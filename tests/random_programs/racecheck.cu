// What racecheck (compute-sanitizer 2025.3, CUDA 13.0) says of small kernels that are right by the rules of PTX:
//
//     nvcc -std=c++17 -O3 -arch=sm_90a racecheck.cu -o racecheck
//     for k in a b c d e; do compute-sanitizer --tool racecheck ./racecheck $k; done
//
// It reports a and d, and nothing of b, c and e. So barriers of some warps are misread while other warps wait at the
// block's own one already, and barriers in memory between the blocks of a cluster are not seen.
#include <cooperative_groups.h>

#include <cstdint>
#include <cstdio>

namespace cg = cooperative_groups;

__device__ void named(int id, int n) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory"); }

// Two groups of two warps write, meet and read, once in each turn; then all wait for one another (BARRIERS times) and write
// again. Without UNEVEN both have a turn, with it only the first.
template <bool UNEVEN, int BARRIERS>
__global__ void groups(float* out) {
    __shared__ float x[128];
    const int t = threadIdx.x, group = t / 64, in = t % 64;
    float sum = 0;
    const int mine = UNEVEN && group == 1 ? 0 : 1;
    for (int turn = 0; turn < mine; ++turn) {
        x[group * 64 + in] = in;
        named(1 + group, 64);
        sum += x[group * 64 + (in + 37) % 64];
    }
    for (int k = 0; k < BARRIERS; ++k) __syncthreads();
    x[(t + 5) % 128] = sum;
    __syncthreads();
    out[t] = x[(t + 1) % 128];
}

__device__ uint32_t at(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Two blocks of a cluster show one another a number for each thread: by a barrier in memory that the warps of both arrive
// at, or by the cluster's own.
template <bool IN_MEMORY>
__global__ void __cluster_dims__(2, 1, 1) shown(float* out) {
    __shared__ float x[128];
    __shared__ alignas(8) uint64_t full;
    auto cluster = cg::this_cluster();
    const int t = threadIdx.x;
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(&full)), "r"(8) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster.sync();
    x[t] = static_cast<float>(cluster.block_rank() * 1000 + t);
    if (IN_MEMORY) {
        __syncwarp();
        if (t % 32 < 2)
            asm volatile(
                "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
                "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(at(&full)),
                "r"(t % 32)
                : "memory");
        asm volatile(
            "{\n.reg .pred done;\nAGAIN_%=:\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1, 0x989680;\n"
            "@done bra.uni END_%=;\nbra.uni AGAIN_%=;\nEND_%=:\n}" ::"r"(at(&full)),
            "r"(0)
            : "memory");
    } else {
        cluster.sync();
    }
    float* const mine = cluster.map_shared_rank(&x[(t + 33) % 128], 0);
    float* const other = cluster.map_shared_rank(&x[(t + 33) % 128], 1);
    out[blockIdx.x * 128 + t] = *mine + *other;
    cluster.sync();
}

int main(int count, char** arguments) {
    if (count != 2) return 2;
    float* out;
    cudaMalloc(&out, 4096);
    switch (arguments[1][0]) {
        case 'a': groups<true, 1><<<2, 128>>>(out); break;
        case 'b': groups<false, 1><<<2, 128>>>(out); break;
        case 'c': groups<true, 2><<<2, 128>>>(out); break;
        case 'd': shown<true><<<4, 128>>>(out); break;
        case 'e': shown<false><<<4, 128>>>(out); break;
    }
    std::printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
