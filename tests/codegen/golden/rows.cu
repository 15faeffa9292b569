// golden
#include "mirage/cuda/launch.cuh"
#include "mirage/cuda/rows.cuh"
#include "mirage/entry.h"

// Named after the fragment: nvcc names what has internal linkage after the folder and the moment of the compilation.
namespace kernels_golden {
using namespace mirage;

struct Parameters0 {
    const __half* x0;
    const __half* x1;
    const __half* x2;
    const __half* x3;
    __half* y0;
    __half* y1;
};

__global__ void __launch_bounds__(128) kernel0(const Parameters0 p) {
    launch_dependents();
    using offset_t [[maybe_unused]] = int;
    [[maybe_unused]] constexpr int THREADS = 128, LANES = 64, SLOTS = 1, WIDTH = 8;
    extern __shared__ __align__(1024) unsigned char shared[];
    float* const scratch = reinterpret_cast<float*>(shared);
    const offset_t lane = threadIdx.x % LANES;
    const offset_t row = static_cast<offset_t>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    const bool real = row < 3;
    const offset_t i_a = row;
    #pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
        const offset_t at = s * LANES + lane;
        const offset_t i_b = at * WIDTH;
        if (real && at < 33) {
            fetch_ahead(p.x0 + i_a * 264 + i_b);
            fetch_ahead(p.x1 + i_a * 264 + i_b);
            fetch_ahead(p.x2 + i_b);
            fetch_ahead(p.x3 + i_b);
        }
    }
    wait_for_earlier();
    Chunk<__half, WIDTH> x0_in[SLOTS];
    Chunk<__half, WIDTH> x1_in[SLOTS];
    Chunk<__half, WIDTH> x2_in[SLOTS];
    Chunk<__half, WIDTH> x3_in[SLOTS];
    #pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
        const offset_t at = s * LANES + lane;
        const offset_t i_b = at * WIDTH;
        if (real && at < 33) {
            x0_in[s] = load_chunk<__half, WIDTH>(p.x0 + i_a * 264 + i_b);
            x1_in[s] = load_chunk<__half, WIDTH>(p.x1 + i_a * 264 + i_b);
            x2_in[s] = load_chunk<__half, WIDTH>(p.x2 + i_b);
            x3_in[s] = load_chunk<__half, WIDTH>(p.x3 + i_b);
        }
    }
    float e4_kept[SLOTS][WIDTH];
    float e16_kept[SLOTS][WIDTH];
    double e5_part[1];
    for (double& x : e5_part) x = Sum::none();
    #pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
        const offset_t at = s * LANES + lane;
        const offset_t i_b = at * WIDTH;
        if (real && at < 33) {
            float e5_chunk[WIDTH];
            float y0_out[WIDTH];
            #pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                const float e4 = to_float(x0_in[s].v[j]) + to_float(x1_in[s].v[j]);
                e4_kept[s][j] = e4;
                e5_chunk[j] = e4;
                y0_out[j] = e4;
            }
            e5_part[0] = Sum::join(e5_part[0], double(join_parts<Sum, WIDTH>(e5_chunk)));
            store_chunk(p.y0 + i_a * 264 + i_b, rounded<__half>(y0_out));
        }
    }
    double e5 = join_lanes<Sum, 32>(join_parts<Sum, 1>(e5_part));
    show(reinterpret_cast<double*>(scratch + 0), e5);
    __syncthreads();
    e5 = join_warps<Sum, 2>(reinterpret_cast<double*>(scratch + 0) + threadIdx.x / LANES * 2);
    const float e8 = to_float(e5 * 0x1.f07c1f07c1f08p-9);
    float e11_part[4];
    for (float& x : e11_part) x = Sum::none();
    #pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
        const offset_t at = s * LANES + lane;
        if (real && at < 33) {
            #pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                const float e9 = e4_kept[s][j] - e8;
                const float e10 = e9 * e9;
                const float e16 = to_float(x3_in[s].v[j]) * e9;
                e16_kept[s][j] = e16;
                e11_part[j % 4] = Sum::join(e11_part[j % 4], e10);
            }
        }
    }
    float e11 = join_lanes<Sum, 32>(join_parts<Sum, 4>(e11_part));
    show(scratch + 8, e11);
    __syncthreads();
    e11 = join_warps<Sum, 2>(scratch + 8 + threadIdx.x / LANES * 2);
    const float e13 = e11 / 0x1.08p+8f;
    const float e14 = e13 + 0x1.0624dep-10f;
    const float e15 = m_sqrt(e14);
    const Divisor e15_by = divisor(e15);
    #pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
        const offset_t at = s * LANES + lane;
        const offset_t i_b = at * WIDTH;
        if (real && at < 33) {
            float y1_out[WIDTH];
            #pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                const float e17 = divide<false>(e16_kept[s][j], e15_by);
                const float e18 = to_float(x2_in[s].v[j]) + e17;
                y1_out[j] = e18;
            }
            store_chunk(p.y1 + i_a * 264 + i_b, rounded<__half>(y1_out));
        }
    }
}

}  // namespace kernels_golden
using namespace kernels_golden;

extern "C" MIRAGE_EXPORT int64_t mirage_golden_workspace(const int64_t* extents) {
    (void)extents;
    return 0;
}

extern "C" MIRAGE_EXPORT int mirage_golden(const void* const* in, void* const* out, void* workspace,
                                             const int64_t* extents, void* stream) {
    (void)workspace;
    (void)extents;
    cudaError_t status = cudaSuccess;
    {
        Parameters0 p;
        p.x0 = static_cast<const __half*>(in[0]);
        p.x1 = static_cast<const __half*>(in[1]);
        p.x2 = static_cast<const __half*>(in[2]);
        p.x3 = static_cast<const __half*>(in[3]);
        p.y0 = static_cast<__half*>(out[0]);
        p.y1 = static_cast<__half*>(out[1]);
        const int64_t blocks = int64_t{1} * 2;
        if (blocks > 0) {
            static std::atomic<uint64_t> admitted{0};
            status = mirage::launch(kernel0, admitted, blocks, 128, 48, 1, true, stream, p);
            if (status != cudaSuccess) return static_cast<int>(status);
        }
    }
    return static_cast<int>(status);
}
