// kernel 0: tensors [0, 1, 2] -> [3]
//   grid a b
//   loop c
//     t0: imap {a<->φ, b<->b} fmap {c}
//     t1: imap {a<->a, b<->φ} fmap {φ}
//     t2: imap {a<->a, b<->φ} fmap {c}
//     t3: imap {a<->φ, b<->b} fmap {c}
//     t8: omap {a, b}
//     prologue t1 = load(x1)
//     body     t0 = load(x0)
//     body     t2 = load(x1)
//     body     t3 = load(x2)
//     body     t4 = contract(t0, t2; c) in f16
//     body     t5 = contract(t1, t3; c) in f16
//     epilogue t6 = accum(t4)
//     epilogue t7 = accum(t5)
//     epilogue t8 = mul(t6, silu(t7))
//     store t8
#include "mirage/cpu/tile.hpp"
#include "mirage/entry.h"

namespace {
using namespace mirage;

struct Parameters0 {
    const half* x0;
    const half* x1;
    const half* x2;
    half* y0;
    int failed;
};

void kernel0(void* data, size_t block) {
    Parameters0& parameters = *static_cast<Parameters0*>(data);
    using offset_t [[maybe_unused]] = int64_t;
    unsigned char* const memory = scratch(640 + 128);
    if (memory == nullptr) {
        parameters.failed = MIRAGE_OUT_OF_MEMORY;
        return;
    }
    const half* const x0 = parameters.x0;
    const half* const x1 = parameters.x1;
    const half* const x2 = parameters.x2;
    half* const y0 = parameters.y0;
    const offset_t b_at = static_cast<offset_t>(block % 6) * 4;
    block /= 6;
    const offset_t a_at = static_cast<offset_t>(block % 4) * 1;
    block /= 4;
    float* const t1 = reinterpret_cast<float*>(memory + 0);
    float* const t2 = reinterpret_cast<float*>(memory + 512);
    float* const t6 = reinterpret_cast<float*>(memory + 256);
    float* const t7 = reinterpret_cast<float*>(memory + 384);
    (void)block;
    {
        load_row(t1 + 0, x1 + a_at * 40, 40);
    }
    for (int i = 0; i < 4; ++i) t6[i] = 0x0p+0f;
    for (int i = 0; i < 4; ++i) t7[i] = 0x0p+0f;
    const int steps = 3;
    for (int step = 0; step < steps; ++step) {
        [[maybe_unused]] const offset_t c_step = static_cast<offset_t>(step) * 16;
        const int n_c_step = smaller(16, 40 - c_step);
        {
            load_row(t2 + 0, x1 + a_at * 40 + c_step, n_c_step);
        }
        mirage::contract<mirage::Known<1, 1, 4, 16, 1, 1, 24, true>>(t6, 4, 1, 4, n_c_step, operand(t2, 1, 1), operand(x0 + c_step * 24 + b_at, 1, 24), true);
        mirage::contract<mirage::Known<1, 1, 4, 16, 1, 1, 24, true>>(t7, 4, 1, 4, n_c_step, operand(t1 + c_step * 1, 1, 1), operand(x2 + c_step * 24 + b_at, 1, 24), true);
    }
    {
        float row[4] = {};
        MIRAGE_VECTOR_LOOP
        for (int i_b = 0; i_b < 4; ++i_b) {
            const float e0 = m_silu(t7[i_b]);
            const float e1 = t6[i_b] * e0;
            row[i_b] = e1;
        }
        store_row(y0 + a_at * 24 + b_at, row, 4);
    }
}


}  // namespace

extern "C" int MIRAGE_CPU_NAME(golden)(const void* const* in, void* const* out, void* workspace,
                                         const int64_t* extents, const mirage_pool* pool) {
    (void)workspace;
    (void)extents;
    (void)pool;
    {
        Parameters0 p;
        p.x0 = static_cast<const half*>(in[0]);
        p.x1 = static_cast<const half*>(in[1]);
        p.x2 = static_cast<const half*>(in[2]);
        p.y0 = static_cast<half*>(out[0]);
        p.failed = MIRAGE_OK;
        const size_t blocks = size_t{1} * static_cast<size_t>(4) * static_cast<size_t>(6);
        mirage_parallel(pool, kernel0, blocks, &p);
        if (p.failed != 0) return p.failed;
    }
    return MIRAGE_OK;
}

extern "C" int64_t MIRAGE_CPU_WORKSPACE_NAME(golden)(const int64_t* extents) {
    (void)extents;
    return 0;
}
