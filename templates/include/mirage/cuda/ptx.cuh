// The instructions that C++ has no words for: asynchronous copies and matrix products of a warp.
#pragma once
#include "mirage/cuda/math.cuh"

namespace mirage {

MIRAGE_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// BYTES (4, 8 or 16) of which the first `valid` are read, the rest is zero
template <int BYTES>
MIRAGE_DEVICE void copy_async(void* to, const void* from, int valid) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid));
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES),
                     "r"(valid));
    }
}
// 16 bytes, or zeros
MIRAGE_DEVICE void copy_chunk(void* to, const void* from, bool there) {
    asm volatile("{ .reg .pred none; setp.eq.s32 none, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, none; }" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(static_cast<int>(there)));
}
MIRAGE_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;"); }
template <int PENDING>
MIRAGE_DEVICE void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// --- dependent launches ---------------------------------------------------------------------------------------------
// The kernel after this one may begin; it waits itself before it reads. Nothing before sm_90.
MIRAGE_DEVICE void launch_dependents() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Wait until the kernels before this one have ended and what they wrote is visible. Every thread calls it before its
// first read of anything but constants, and before its first write.
MIRAGE_DEVICE void wait_for_earlier() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Ask for the line of memory that holds `from`, to have it nearer when it is read; reads nothing itself.
MIRAGE_DEVICE void fetch_ahead(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// --- matrices -------------------------------------------------------------------------------------------------------
// four or two 8 x 8 matrices of 16-bit elements; lane l brings the address of row l % 8 of matrix l / 8
template <bool TRANSPOSED>
MIRAGE_DEVICE void load_matrices(uint32_t (&r)[4], const void* address) {
    if constexpr (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(address))
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(address))
                     : "memory");
    }
}
template <bool TRANSPOSED>
MIRAGE_DEVICE void load_matrices(uint32_t (&r)[2], const void* address) {
    if constexpr (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1])
                     : "r"(shared_address(address))
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1])
                     : "r"(shared_address(address))
                     : "memory");
    }
}
MIRAGE_DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const __half*) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
MIRAGE_DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const __nv_bfloat16*) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// d = a * b + c of 16 x 8 and 8 x 8 tf32 numbers, of which the upper 19 bits count
MIRAGE_DEVICE void multiply_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

}  // namespace mirage
