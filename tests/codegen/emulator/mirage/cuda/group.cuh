// Stands in for the header of the same name: products of the four warps of 64 rows. Where an instruction finds an element:
// the address of a swizzled tile has its bits 4 to 6 exchanged by its bits 7 to 9.
#pragma once
#include "mirage/cuda/ptx.cuh"

namespace mirage {

inline void show_products() {}
inline void products_begin() {}
inline void products_commit() {}
template <int PENDING>
void products_wait() {}
template <int N>
void pin(float (&)[N][4]) {}

template <class T>
float emulate_swizzled(const T* from, int bytes) {
    const auto at = reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(bytes);
    return to_float(*reinterpret_cast<const T*>(at ^ (at >> 7 & 7) << 4));
}
// Columns of `b` that are TURNED lie in panels of 64, the start of the first one may be within a panel.
template <int N, bool TURNED, class T>
void multiply_group(float (&c)[N / 8][4], const T* a, const T* b, int panel) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
    if (reinterpret_cast<uintptr_t>(a) % 32 || reinterpret_cast<uintptr_t>(b) % 16)
        emulator::fail("an operand of a warpgroup is not aligned", N);
    for (int n = 0; n < N / 8; ++n)
        for (int i = 0; i < 4; ++i) {
            const int row = warp * 16 + lane / 4 + i / 2 * 8, col = n * 8 + lane % 4 * 2 + i % 2;
            for (int k = 0; k < 16; ++k) {
                const int at = TURNED ? col / 64 * panel + k * 128 + col % 64 * 2 : col * 128 + k * 2;
                c[n][i] += emulate_swizzled(a, row * 128 + k * 2) * emulate_swizzled(b, at);
            }
        }
}

}  // namespace mirage
