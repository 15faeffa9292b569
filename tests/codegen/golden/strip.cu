// golden
#include "mirage/cuda/launch.cuh"
#include "mirage/cuda/strip.cuh"
#include "mirage/cuda/tile.cuh"
#include "mirage/entry.h"

// Named after the fragment: nvcc names what has internal linkage after the folder and the moment of the compilation.
namespace kernels_golden {
using namespace mirage;

struct Parameters0 {
    const __half* x0;
    const __half* x1;
    const __half* x2;
    __half* y0;
};

__global__ void __launch_bounds__(128, 3) kernel0(const Parameters0 parameters) {
    constexpr int THREADS = 128, GROUP = 64, GROUPS = 2;
    using offset_t [[maybe_unused]] = int;
    extern __shared__ __align__(1024) unsigned char shared[];
    const __half* const __restrict__ x0 = parameters.x0;
    const __half* const __restrict__ x1 = parameters.x1;
    const __half* const __restrict__ x2 = parameters.x2;
    __half* const __restrict__ y0 = parameters.y0;
    unsigned block = blockIdx.x;
    [[maybe_unused]] const unsigned e_block = block % 3;
    [[maybe_unused]] const offset_t e_at = static_cast<offset_t>(e_block) * 32;
    block /= 3;
    [[maybe_unused]] const unsigned c_block = block % 1;
    [[maybe_unused]] const offset_t c_at = static_cast<offset_t>(c_block) * 24;
    block /= 1;
    [[maybe_unused]] const unsigned b_block = block % 1;
    [[maybe_unused]] const offset_t b_at = static_cast<offset_t>(b_block) * 24;
    block /= 1;
    [[maybe_unused]] const unsigned a_block = block % 2;
    [[maybe_unused]] const offset_t a_at = static_cast<offset_t>(a_block) * 1;
    block /= 2;
    (void)block;
    const int group = static_cast<int>(threadIdx.x) / GROUP, in_group = static_cast<int>(threadIdx.x) % GROUP;
    [[maybe_unused]] const int member = in_group / 32;
    using Tile_t2 = Tile<__half, 32, 16>;
    using Tile_t1 = Tile<__half, 32, 16>;
    using S_t4 = Strip<1, 4>;
    using S_t12 = Strip<1, 4>;
    using S_t13 = Strip<1, 4>;
    using Tile_t0 = Tile<__half, 32, 24>;
    using S_t16 = Strip<1, 3>;
    const unsigned rank = e_block;
    [[maybe_unused]] __half* const t1_tile = reinterpret_cast<__half*>(shared + 8448);
    [[maybe_unused]] float* const t6 = reinterpret_cast<float*>(shared + 9472);
    [[maybe_unused]] float* const t7_all = reinterpret_cast<float*>(shared + 9600);
    [[maybe_unused]] float* const t9_all = reinterpret_cast<float*>(shared + 9856);
    [[maybe_unused]] float* const t9_inverse_all = reinterpret_cast<float*>(shared + 10112);
    [[maybe_unused]] float* const sent = reinterpret_cast<float*>(shared + 10368);
    [[maybe_unused]] float* const t13_max_shares = reinterpret_cast<float*>(shared + 10496);
    [[maybe_unused]] float* const t16_shares = reinterpret_cast<float*>(shared + 10880);
    [[maybe_unused]] float* const t17_shares = reinterpret_cast<float*>(shared + 13184);
    [[maybe_unused]] float* const t16_part = reinterpret_cast<float*>(shared + 0);
    [[maybe_unused]] float* const t17_part = reinterpret_cast<float*>(shared + 7168);
    [[maybe_unused]] float* const t13_max_part = reinterpret_cast<float*>(shared + 7424);
    [[maybe_unused]] float* const t13_max_merged = reinterpret_cast<float*>(shared + 7680);
    [[maybe_unused]] float* const t13_max_weight = reinterpret_cast<float*>(shared + 7808);
    [[maybe_unused]] float* const t17_merged = reinterpret_cast<float*>(shared + 8064);
    [[maybe_unused]] float* const t13_common_merged = reinterpret_cast<float*>(shared + 8192);
    [[maybe_unused]] float* const t19_merged = reinterpret_cast<float*>(shared + 8320);
    unsigned char* const ring = shared + group * 2560;
    float* const t7 = t7_all + group * 32;
    float* const t9 = t9_all + group * 32;
    float* const t9_inverse = t9_inverse_all + group * 32;
    const int steps = static_cast<int>((min(offset_t(e_at + 32), offset_t(72)) - e_at + 31) / 32);
    const int mine = steps > group ? (steps - group + GROUPS - 1) / GROUPS : 0;
    if (threadIdx.x == 0) expect_sent(sent, 288 + 48 * 48 + 288);
    cluster_arrive_relaxed();
    auto load_constants = [&](int turn, int slot) {
        (void)slot;
        if (turn >= mine) return;
        [[maybe_unused]] const offset_t e_step = static_cast<offset_t>(turn * GROUPS + group) * 32;
        [[maybe_unused]] unsigned char* const stage = ring + slot * 2560;
    };
    auto load_others = [&](int turn, int slot) {
        (void)slot;
        if (turn < mine) {
            [[maybe_unused]] const offset_t e_step = static_cast<offset_t>(turn * GROUPS + group) * 32;
            [[maybe_unused]] unsigned char* const stage = ring + slot * 2560;
            load_tile<GROUP, 16, false>(Tile_t2{reinterpret_cast<__half*>(stage + 0)}, in_group, x1, 16, [&](int o) {
                (void)o;
                [[maybe_unused]] const int i_e = o;
                const __half* const from = x1 + a_at * 1152 + (e_at + e_step + i_e) * 16;
                return e_at + e_step + i_e < 72 ? from : nullptr;
            });
            load_tile<GROUP, 16, false>(Tile_t0{reinterpret_cast<__half*>(stage + 1024)}, in_group, x2, static_cast<int>(min(offset_t(24), offset_t(16 - c_at))), [&](int o) {
                (void)o;
                [[maybe_unused]] const int i_e = o;
                const __half* const from = x2 + a_at * 1152 + (e_at + e_step + i_e) * 16 + c_at;
                return e_at + e_step + i_e < 72 ? from : nullptr;
            });
        }
        copy_commit();
    };
    for (int turn = 0; turn < 1; ++turn) load_constants(turn, turn);
    launch_dependents();
    wait_for_earlier();
    load_tile<THREADS, 0, false>(Tile_t1{t1_tile}, static_cast<int>(threadIdx.x), x0, 16, [&](int o) {
        (void)o;
        [[maybe_unused]] const int i_b = o;
        const __half* const from = x0 + a_at * 144 + (b_at + i_b) * 16;
        return o < 24 && b_at + i_b < 9 ? from : nullptr;
    });
    copy_commit();
    for (int turn = 0; turn < 1; ++turn) load_others(turn, turn);
    copy_wait<1>();
    __syncthreads();
    reduce<StripSum, 24, 2, THREADS>([&](int o, int k) {
        (void)o, (void)k;
        [[maybe_unused]] const int i_b = o;
        const int first = k * 8;
        float x0_part[8];
        tile_floats(x0_part, Tile_t1{t1_tile}, i_b, first);
        float total = StripSum::none();
        #pragma unroll
        for (int e = 0; e < 8; ++e) {
            [[maybe_unused]] const int i_d = first + e;
            const bool e0 = b_at + i_b < 9;
            const float e1 = x0_part[e] * x0_part[e];
            total = StripSum::join(total, e0 ? e1 : StripSum::none());
        }
        return total;
    }, [&](int o, float x) {
        t6[o] = x;
    });
    __syncthreads();
    HeldRows<__half, 1, 1> t1_held;
    t1_held.read(Rows16<Tile_t1, true>{Tile_t1{t1_tile}, member * 16});
    StripRows<1> t8_rows;
    MIRAGE_STRIP_ROWS(StripRows<1>) {
        [[maybe_unused]] const int r_ = min(strip_row<StripRows<1>>(member, m_, h_ * 2), 23);
        [[maybe_unused]] const int i_b = r_;
        const float e0 = 0x1p-4f * t6[i_b];
        const float e1 = 0x1.0624dep-10f + e0;
        const float e2 = m_sqrt(e1);
        t8_rows.v[m_][h_] = e2;
    }
    StripRows<1> t13_max;
    t13_max.fill(-INFINITY);
    Strip<1, 3> t16;
    t16.fill(0.0f);
    StripRows<1> t17;
    t17.fill(0.0f);
    int slot = 0;
    for (int turn = 0; turn < mine; ++turn) {
        copy_wait<0>();
        wait_together<GROUP>(1 + group);
        copy_commit();
        [[maybe_unused]] const offset_t e_step = static_cast<offset_t>(turn * GROUPS + group) * 32;
        [[maybe_unused]] unsigned char* const stage = ring + slot * 2560;
        Strip<1, 4> t4;
        t4.fill(0.0f);
        strip_contract<1>(t4, t1_held, Columns8<Tile_t2, true>{Tile_t2{reinterpret_cast<__half*>(stage + 0)}});
        #pragma unroll
        for (int part = 0; part < 1; ++part) {
            const int k = part * GROUP + in_group;
            {
                [[maybe_unused]] const int o = k / 2, first = k % 2 * Tile_t2::VEC;
                float sum = 0.0f;
                float x[Tile_t2::VEC];
                chunk_floats(x, Tile_t2{reinterpret_cast<__half*>(stage + 0)}.chunk(o, first / Tile_t2::VEC));
                #pragma unroll
                for (int e = 0; e < Tile_t2::VEC; ++e) {
                    [[maybe_unused]] const int i_e = o;
                    [[maybe_unused]] const int i_d = first + e;
                    const bool inside = e_at + e_step + i_e < 72;
                    const float e0 = x[e] * x[e];
                    sum += inside ? e0 : 0.0f;
                }
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                if (k % 2 == 0) t7[o] = sum;
            }
        }
        wait_together<GROUP>(1 + group);
        for (int i = in_group; i < 32; i += GROUP) {
            [[maybe_unused]] const int i_e = i;
            const float e0 = 0x1p-4f * t7[i_e];
            const float e1 = 0x1.0624dep-10f + e0;
            const float e2 = m_sqrt(e1);
            t9[i] = e2;
            t9_inverse[i] = 1.0f / t9[i];
        }
        wait_together<GROUP>(1 + group);
        Strip<1, 4> t12;
        MIRAGE_STRIP(S_t12) {
            [[maybe_unused]] const int r_ = min(strip_row<S_t12>(member, m_, i_), 23), c_ = strip_col(n_, i_);
            [[maybe_unused]] const int i_b = r_;
            [[maybe_unused]] const int i_e = c_;
            const float e0 = 1.0f / t8_rows.v[m_][i_ >> 1];
            const float e1 = t4.v[m_][n_][i_] * e0;
            const float e2 = e1 * t9_inverse[i_e];
            const float e3 = 0x1p-2f * e2;
            t12.v[m_][n_][i_] = e3;
        }
        StripRows<1> t13_top;
        MIRAGE_STRIP_ROWS(StripRows<1>) {
            float x = StripMax::none();
            #pragma unroll
            for (int n_ = 0; n_ < 4; ++n_) {
                #pragma unroll
                for (int i_ = 2 * h_; i_ < 2 * h_ + 2; ++i_) {
                    [[maybe_unused]] const int r_ = min(strip_row<S_t12>(member, m_, i_), 23), c_ = strip_col(n_, i_);
                    [[maybe_unused]] const int i_b = r_;
                    [[maybe_unused]] const int i_e = c_;
                    x = StripMax::join(x, e_at + e_step + i_e < 72 ? t12.v[m_][n_][i_] : StripMax::none());
                }
            }
            t13_top.v[m_][h_] = over_row<StripMax>(x);
        }
        StripRows<1> t13_shrink;
        MIRAGE_STRIP_ROWS(StripRows<1>) {
            const float low = t13_max.v[m_][h_], high = fmaxf(low, t13_top.v[m_][h_]);
            t13_max.v[m_][h_] = high;
            t13_shrink.v[m_][h_] = strip_exp_difference(low, high);
        }
        Strip<1, 4> t13;
        MIRAGE_STRIP(S_t13) {
            const float e0 = strip_exp_minus(t12.v[m_][n_][i_], t13_max.v[m_][i_ >> 1]);
            t13.v[m_][n_][i_] = e0;
        }
        MIRAGE_STRIP(S_t13) {
            [[maybe_unused]] const int r_ = min(strip_row<S_t13>(member, m_, i_), 23), c_ = strip_col(n_, i_);
            [[maybe_unused]] const int i_b = r_;
            [[maybe_unused]] const int i_e = c_;
            if (!(e_at + e_step + i_e < 72)) t13.v[m_][n_][i_] = 0.0f;
        }
        MIRAGE_STRIP(S_t16) t16.v[m_][n_][i_] *= t13_shrink.v[m_][i_ >> 1];
        strip_contract<2>(t16, StripOperand<__half, S_t13>{t13}, Columns8<Tile_t0, false>{Tile_t0{reinterpret_cast<__half*>(stage + 1024)}});
        MIRAGE_STRIP_ROWS(StripRows<1>) {
            float x = StripSum::none();
            #pragma unroll
            for (int n_ = 0; n_ < 4; ++n_) {
                #pragma unroll
                for (int i_ = 2 * h_; i_ < 2 * h_ + 2; ++i_) {
                    [[maybe_unused]] const int r_ = min(strip_row<S_t13>(member, m_, i_), 23), c_ = strip_col(n_, i_);
                    [[maybe_unused]] const int i_b = r_;
                    [[maybe_unused]] const int i_e = c_;
                    x = StripSum::join(x, e_at + e_step + i_e < 72 ? t13.v[m_][n_][i_] : StripSum::none());
                }
            }
            t17.v[m_][h_] = t17.v[m_][h_] * t13_shrink.v[m_][h_] + x;
        }
        slot = slot + 1;
    }
    copy_wait<0>();
    __syncthreads();
    MIRAGE_STRIP(S_t16) {
        const int r = strip_row<S_t16>(member, m_, i_), c = strip_col(n_, i_);
        t16_part[(group * 32 + r) * 28 + c] = t16.v[m_][n_][i_];
    }
    MIRAGE_STRIP_ROWS(StripRows<1>) {
        const float x = over_row<StripSum>(t17.v[m_][h_]);
        if ((lane_of() & 3) == 0) {
            t17_part[group * 32 + strip_row<StripRows<1>>(member, m_, h_ * 2)] = x;
        }
    }
    MIRAGE_STRIP_ROWS(StripRows<1>) {
        const float x = t13_max.v[m_][h_];
        if ((lane_of() & 3) == 0) {
            t13_max_part[group * 32 + strip_row<StripRows<1>>(member, m_, h_ * 2)] = x;
        }
    }
    __syncthreads();
    #pragma unroll 1
    for (int r = threadIdx.x; r < 24; r += THREADS) {
        float high = -INFINITY;
        for (int g = 0; g < GROUPS; ++g) high = fmaxf(high, t13_max_part[g * 32 + r]);
        t13_max_merged[r] = high;
        for (int g = 0; g < GROUPS; ++g) {
            t13_max_weight[g * 32 + r] = strip_exp_difference(t13_max_part[g * 32 + r], high);
        }
        float t17_x = 0.0f;
        for (int g = 0; g < GROUPS; ++g) t17_x += t17_part[g * 32 + r] * t13_max_weight[g * 32 + r];
        t17_merged[r] = t17_x;
    }
    __syncthreads();
    cluster_wait();
    #pragma unroll 1
    for (int i = threadIdx.x; i < 24; i += THREADS) {
        [[maybe_unused]] const int i_b = i;
        float share[1] = {t13_max_merged[i_b]};
        for (unsigned to = 0; to < 3; ++to) {
            send_floats(t13_max_shares + (rank * 24 + i), to, share, sent);
        }
    }
    #pragma unroll 1
    for (int i = threadIdx.x; i < 144; i += THREADS) {
        [[maybe_unused]] const int first = i % 6 * 4, outer = i / 6;
        [[maybe_unused]] const int i_b = outer;
        float t16_x[4] = {};
        #pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            add_scaled(t16_x, t16_part + (g * 32 + outer) * 28 + first, t13_max_weight[g * 32 + outer]);
        }
        float share[4];
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            [[maybe_unused]] const int i_c = first + e;
            share[e] = t16_x[e];
        }
        send_floats(t16_shares + (rank * 48 + i % 48) * 4, i / 48, share, sent);
    }
    #pragma unroll 1
    for (int i = threadIdx.x; i < 24; i += THREADS) {
        [[maybe_unused]] const int i_b = i;
        float share[1] = {t17_merged[i_b]};
        for (unsigned to = 0; to < 3; ++to) send_floats(t17_shares + (rank * 24 + i), to, share, sent);
    }
    await_sent(sent);
    #pragma unroll 1
    for (int r = threadIdx.x; r < 24; r += THREADS) {
        float x = -INFINITY;
        for (int s = 0; s < 3; ++s) x = fmaxf(x, t13_max_shares[s * 24 + r]);
        t13_common_merged[r] = x;
    }
    #pragma unroll 1
    for (int r = threadIdx.x; r < 24; r += THREADS) {
        float x = 0.0f;
        for (int s = 0; s < 3; ++s) {
            x += t17_shares[s * 24 + r] * strip_exp_difference(t13_max_shares[s * 24 + r], t13_common_merged[r]);
        }
        t19_merged[r] = x;
    }
    __syncthreads();
    #pragma unroll 1
    for (int j = threadIdx.x; j < 48; j += THREADS) {
        const int i = static_cast<int>(rank) * 48 + j;
        if (i >= 144) break;
        [[maybe_unused]] const int first = i % 6 * 4, outer = i / 6;
        {
            [[maybe_unused]] const int i_b = outer;
            float t18_x[4] = {};
            #pragma unroll
            for (int s = 0; s < 3; ++s) {
                add_scaled(t18_x, t16_shares + (s * 48 + i - static_cast<int>(rank) * 48) * 4, strip_exp_difference(t13_max_shares[s * 24 + i_b], t13_common_merged[i_b]));
            }
            float result[4];
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                [[maybe_unused]] const int i_c = first + e;
                const float e0 = t18_x[e] / t19_merged[i_b];
                result[e] = e0;
            }
            [[maybe_unused]] const int i_c = first;
            if (b_at + i_b < 9 && c_at + i_c < 16) {
                put_vector(y0 + a_at * 144 + (b_at + i_b) * 16 + c_at + i_c, result);
            }
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
        p.y0 = static_cast<__half*>(out[0]);
        const int64_t blocks = int64_t{1} * 2 * 1 * 1 * 3;
        if (blocks > 0) {
            static std::atomic<uint64_t> admitted{0};
            status = mirage::launch(kernel0, admitted, blocks, 128, 116736, 3, true, stream, p);
            if (status != cudaSuccess) return static_cast<int>(status);
        }
    }
    return static_cast<int>(status);
}
