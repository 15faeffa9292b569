// The matrix product of a warpgroup (sm_90a): c += a * b of 64 x 16 and 16 x COLUMNS, which is there when it was waited for.
//
//     wgmma<COLUMNS, T, LEFT_TURNED, RIGHT_TURNED>(c, left, right, more)  operands in shared memory, given by descriptors
//     wgmma<COLUMNS, T, RIGHT_TURNED>(c, words, right, more)              the left one in registers, as words of two elements
//
// COLUMNS is 8 to 256 in steps of 8, T is __half or __nv_bfloat16. Without `more` what stands in `c` counts as 0. Operands
// are TURNED whose neighbours in memory are not those along what is summed.
#pragma once
#include "mirage/cuda/math.cuh"

namespace mirage {

template <class T, int COLUMNS>
struct Wgmma;

// F(n, numbers of the operands c[n]) for all n behind 0.
#define MIRAGE_BEHIND_1(F)
#define MIRAGE_BEHIND_2(F) MIRAGE_BEHIND_1(F) F(1, 4, 5, 6, 7)
#define MIRAGE_BEHIND_3(F) MIRAGE_BEHIND_2(F) F(2, 8, 9, 10, 11)
#define MIRAGE_BEHIND_4(F) MIRAGE_BEHIND_3(F) F(3, 12, 13, 14, 15)
#define MIRAGE_BEHIND_5(F) MIRAGE_BEHIND_4(F) F(4, 16, 17, 18, 19)
#define MIRAGE_BEHIND_6(F) MIRAGE_BEHIND_5(F) F(5, 20, 21, 22, 23)
#define MIRAGE_BEHIND_7(F) MIRAGE_BEHIND_6(F) F(6, 24, 25, 26, 27)
#define MIRAGE_BEHIND_8(F) MIRAGE_BEHIND_7(F) F(7, 28, 29, 30, 31)
#define MIRAGE_BEHIND_9(F) MIRAGE_BEHIND_8(F) F(8, 32, 33, 34, 35)
#define MIRAGE_BEHIND_10(F) MIRAGE_BEHIND_9(F) F(9, 36, 37, 38, 39)
#define MIRAGE_BEHIND_11(F) MIRAGE_BEHIND_10(F) F(10, 40, 41, 42, 43)
#define MIRAGE_BEHIND_12(F) MIRAGE_BEHIND_11(F) F(11, 44, 45, 46, 47)
#define MIRAGE_BEHIND_13(F) MIRAGE_BEHIND_12(F) F(12, 48, 49, 50, 51)
#define MIRAGE_BEHIND_14(F) MIRAGE_BEHIND_13(F) F(13, 52, 53, 54, 55)
#define MIRAGE_BEHIND_15(F) MIRAGE_BEHIND_14(F) F(14, 56, 57, 58, 59)
#define MIRAGE_BEHIND_16(F) MIRAGE_BEHIND_15(F) F(15, 60, 61, 62, 63)
#define MIRAGE_BEHIND_17(F) MIRAGE_BEHIND_16(F) F(16, 64, 65, 66, 67)
#define MIRAGE_BEHIND_18(F) MIRAGE_BEHIND_17(F) F(17, 68, 69, 70, 71)
#define MIRAGE_BEHIND_19(F) MIRAGE_BEHIND_18(F) F(18, 72, 73, 74, 75)
#define MIRAGE_BEHIND_20(F) MIRAGE_BEHIND_19(F) F(19, 76, 77, 78, 79)
#define MIRAGE_BEHIND_21(F) MIRAGE_BEHIND_20(F) F(20, 80, 81, 82, 83)
#define MIRAGE_BEHIND_22(F) MIRAGE_BEHIND_21(F) F(21, 84, 85, 86, 87)
#define MIRAGE_BEHIND_23(F) MIRAGE_BEHIND_22(F) F(22, 88, 89, 90, 91)
#define MIRAGE_BEHIND_24(F) MIRAGE_BEHIND_23(F) F(23, 92, 93, 94, 95)
#define MIRAGE_BEHIND_25(F) MIRAGE_BEHIND_24(F) F(24, 96, 97, 98, 99)
#define MIRAGE_BEHIND_26(F) MIRAGE_BEHIND_25(F) F(25, 100, 101, 102, 103)
#define MIRAGE_BEHIND_27(F) MIRAGE_BEHIND_26(F) F(26, 104, 105, 106, 107)
#define MIRAGE_BEHIND_28(F) MIRAGE_BEHIND_27(F) F(27, 108, 109, 110, 111)
#define MIRAGE_BEHIND_29(F) MIRAGE_BEHIND_28(F) F(28, 112, 113, 114, 115)
#define MIRAGE_BEHIND_30(F) MIRAGE_BEHIND_29(F) F(29, 116, 117, 118, 119)
#define MIRAGE_BEHIND_31(F) MIRAGE_BEHIND_30(F) F(30, 120, 121, 122, 123)
#define MIRAGE_BEHIND_32(F) MIRAGE_BEHIND_31(F) F(31, 124, 125, 126, 127)
#define MIRAGE_NUMBERS(n, n0, n1, n2, n3) ", %" #n0 ", %" #n1 ", %" #n2 ", %" #n3
#define MIRAGE_OPERANDS(n, ...) , "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])

// The text up to what is turned, given that of the left operand and the numbers of others.
#define MIRAGE_WGMMA_TEXT(N, COLUMNS, TYPE, LEFT, RIGHT, MORE)                                                         \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %" #MORE ", 0;\nwgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE \
    " {%0, %1, %2, %3" MIRAGE_BEHIND_##N(MIRAGE_NUMBERS) "}, " LEFT ", %" #RIGHT ", p, 1, 1"
#define MIRAGE_WGMMA_C(N)                                                                                              \
    "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]) MIRAGE_BEHIND_##N(MIRAGE_OPERANDS)
// The instruction of a type for N eighths of columns; n0, n1 and so on are the numbers of the operands behind those of c.
#define MIRAGE_WGMMA_OF(T, TYPE, N, COLUMNS, n0, n1, n2, n3, n4, n5, n6)                                               \
    template <>                                                                                                        \
    struct Wgmma<T, COLUMNS> {                                                                                         \
        template <int LEFT_TURNED, int RIGHT_TURNED>                                                                   \
        MIRAGE_DEVICE static void tiles(float (&c)[N][4], uint64_t left, uint64_t right, int more) {                   \
            asm volatile(MIRAGE_WGMMA_TEXT(N, COLUMNS, TYPE, "%" #n0, n1, n2) ", %" #n3 ", %" #n4 ";\n}"               \
                         : MIRAGE_WGMMA_C(N)                                                                           \
                         : "l"(left), "l"(right), "r"(more), "n"(LEFT_TURNED), "n"(RIGHT_TURNED));                     \
        }                                                                                                              \
        template <int RIGHT_TURNED>                                                                                    \
        MIRAGE_DEVICE static void words(float (&c)[N][4], const uint32_t (&w)[4], uint64_t right, int more) {          \
            asm volatile(MIRAGE_WGMMA_TEXT(N, COLUMNS, TYPE, "{%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}", n4, n5)       \
                         ", %" #n6 ";\n}"                                                                              \
                         : MIRAGE_WGMMA_C(N)                                                                           \
                         : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(right), "r"(more), "n"(RIGHT_TURNED));      \
        }                                                                                                              \
    };
#define MIRAGE_WGMMA(...)                         \
    MIRAGE_WGMMA_OF(__half, "f16", __VA_ARGS__) \
    MIRAGE_WGMMA_OF(__nv_bfloat16, "bf16", __VA_ARGS__)
MIRAGE_WGMMA(1, 8, 4, 5, 6, 7, 8, 9, 10)
MIRAGE_WGMMA(2, 16, 8, 9, 10, 11, 12, 13, 14)
MIRAGE_WGMMA(3, 24, 12, 13, 14, 15, 16, 17, 18)
MIRAGE_WGMMA(4, 32, 16, 17, 18, 19, 20, 21, 22)
MIRAGE_WGMMA(5, 40, 20, 21, 22, 23, 24, 25, 26)
MIRAGE_WGMMA(6, 48, 24, 25, 26, 27, 28, 29, 30)
MIRAGE_WGMMA(7, 56, 28, 29, 30, 31, 32, 33, 34)
MIRAGE_WGMMA(8, 64, 32, 33, 34, 35, 36, 37, 38)
MIRAGE_WGMMA(9, 72, 36, 37, 38, 39, 40, 41, 42)
MIRAGE_WGMMA(10, 80, 40, 41, 42, 43, 44, 45, 46)
MIRAGE_WGMMA(11, 88, 44, 45, 46, 47, 48, 49, 50)
MIRAGE_WGMMA(12, 96, 48, 49, 50, 51, 52, 53, 54)
MIRAGE_WGMMA(13, 104, 52, 53, 54, 55, 56, 57, 58)
MIRAGE_WGMMA(14, 112, 56, 57, 58, 59, 60, 61, 62)
MIRAGE_WGMMA(15, 120, 60, 61, 62, 63, 64, 65, 66)
MIRAGE_WGMMA(16, 128, 64, 65, 66, 67, 68, 69, 70)
MIRAGE_WGMMA(17, 136, 68, 69, 70, 71, 72, 73, 74)
MIRAGE_WGMMA(18, 144, 72, 73, 74, 75, 76, 77, 78)
MIRAGE_WGMMA(19, 152, 76, 77, 78, 79, 80, 81, 82)
MIRAGE_WGMMA(20, 160, 80, 81, 82, 83, 84, 85, 86)
MIRAGE_WGMMA(21, 168, 84, 85, 86, 87, 88, 89, 90)
MIRAGE_WGMMA(22, 176, 88, 89, 90, 91, 92, 93, 94)
MIRAGE_WGMMA(23, 184, 92, 93, 94, 95, 96, 97, 98)
MIRAGE_WGMMA(24, 192, 96, 97, 98, 99, 100, 101, 102)
MIRAGE_WGMMA(25, 200, 100, 101, 102, 103, 104, 105, 106)
MIRAGE_WGMMA(26, 208, 104, 105, 106, 107, 108, 109, 110)
MIRAGE_WGMMA(27, 216, 108, 109, 110, 111, 112, 113, 114)
MIRAGE_WGMMA(28, 224, 112, 113, 114, 115, 116, 117, 118)
MIRAGE_WGMMA(29, 232, 116, 117, 118, 119, 120, 121, 122)
MIRAGE_WGMMA(30, 240, 120, 121, 122, 123, 124, 125, 126)
MIRAGE_WGMMA(31, 248, 124, 125, 126, 127, 128, 129, 130)
MIRAGE_WGMMA(32, 256, 128, 129, 130, 131, 132, 133, 134)

template <int COLUMNS, class T, bool LEFT_TURNED, bool RIGHT_TURNED>
MIRAGE_DEVICE void wgmma(float (&c)[COLUMNS / 8][4], uint64_t left, uint64_t right, bool more) {
    Wgmma<T, COLUMNS>::template tiles<LEFT_TURNED, RIGHT_TURNED>(c, left, right, more);
}
template <int COLUMNS, class T, bool RIGHT_TURNED>
MIRAGE_DEVICE void wgmma(float (&c)[COLUMNS / 8][4], const uint32_t (&words)[4], uint64_t right, bool more) {
    Wgmma<T, COLUMNS>::template words<RIGHT_TURNED>(c, words, right, more);
}

}  // namespace mirage
