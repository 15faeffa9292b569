// Matrix instructions of a warpgroup (sm_90a) that add to what four warps hold of 64 rows; both operands are in shared memory.
#pragma once
#include "mirage/cuda/warpgroup.cuh"

namespace mirage {

// What this thread has written to shared memory is seen by matrix instructions of warpgroups behind the next barrier.
MIRAGE_DEVICE void show_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// c += a * b of 64 x 16 and 16 x N, given by descriptors. Rows of the tile of `b` walk what is summed, or, TURNED, columns.
template <int N, bool TURNED, class T>
struct GroupProduct;

#define MIRAGE_FOUR(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define MIRAGE_NUMBERS_16 \
            "%0, %1, %2, %3, %4, %5, %6, %7"
#define MIRAGE_FLOATS_16 \
            MIRAGE_FOUR(0), MIRAGE_FOUR(1)
#define MIRAGE_NUMBERS_32 \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define MIRAGE_FLOATS_32 \
            MIRAGE_FOUR(0), MIRAGE_FOUR(1), MIRAGE_FOUR(2), MIRAGE_FOUR(3)
#define MIRAGE_NUMBERS_64 \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
            "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MIRAGE_FLOATS_64 \
            MIRAGE_FOUR(0), MIRAGE_FOUR(1), MIRAGE_FOUR(2), MIRAGE_FOUR(3), MIRAGE_FOUR(4), MIRAGE_FOUR(5), \
            MIRAGE_FOUR(6), MIRAGE_FOUR(7)
#define MIRAGE_NUMBERS_128 \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
            "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
            "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
            "%56, %57, %58, %59, %60, %61, %62, %63"
#define MIRAGE_FLOATS_128 \
            MIRAGE_FOUR(0), MIRAGE_FOUR(1), MIRAGE_FOUR(2), MIRAGE_FOUR(3), MIRAGE_FOUR(4), MIRAGE_FOUR(5), \
            MIRAGE_FOUR(6), MIRAGE_FOUR(7), MIRAGE_FOUR(8), MIRAGE_FOUR(9), MIRAGE_FOUR(10), MIRAGE_FOUR(11), \
            MIRAGE_FOUR(12), MIRAGE_FOUR(13), MIRAGE_FOUR(14), MIRAGE_FOUR(15)

#define MIRAGE_GROUP_PRODUCT(N, TYPE, NAME, LEFT, RIGHT, TURN, MORE)                                                     \
    template <bool TURNED>                                                                                             \
    struct GroupProduct<N, TURNED, TYPE> {                                                                             \
        static MIRAGE_DEVICE void add(float (&c)[N / 8][4], uint64_t a, uint64_t b) {                                  \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #MORE ", 0;\n"                                          \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" MIRAGE_NUMBERS_##N       \
                         "}, %" #LEFT ", %" #RIGHT ", p, 1, 1, 0, %" #TURN ";\n}"                                      \
                         : MIRAGE_FLOATS_##N                                                                           \
                         : "l"(a), "l"(b), "n"(static_cast<int>(TURNED)), "r"(1));                                     \
        }                                                                                                              \
    };
MIRAGE_GROUP_PRODUCT(16, __half, "f16", 8, 9, 10, 11)
MIRAGE_GROUP_PRODUCT(16, __nv_bfloat16, "bf16", 8, 9, 10, 11)
MIRAGE_GROUP_PRODUCT(32, __half, "f16", 16, 17, 18, 19)
MIRAGE_GROUP_PRODUCT(32, __nv_bfloat16, "bf16", 16, 17, 18, 19)
MIRAGE_GROUP_PRODUCT(64, __half, "f16", 32, 33, 34, 35)
MIRAGE_GROUP_PRODUCT(64, __nv_bfloat16, "bf16", 32, 33, 34, 35)
MIRAGE_GROUP_PRODUCT(128, __half, "f16", 64, 65, 66, 67)
MIRAGE_GROUP_PRODUCT(128, __nv_bfloat16, "bf16", 64, 65, 66, 67)

// The same, given by where the operands lie in tiles of panels: `a` from 16 columns of 64 rows on, `b` from the first of 16
// rows (or, TURNED, of 16 columns) on, whose panels are `panel` bytes apart.
template <int N, bool TURNED, class T>
MIRAGE_DEVICE void multiply_group(float (&c)[N / 8][4], const T* a, const T* b, int panel) {
    const uint64_t left = tile_descriptor(shared_address(a), 16), right = tile_descriptor(shared_address(b), panel);
    GroupProduct<N, TURNED, T>::add(c, left, right);
}

}  // namespace mirage
