// Tensors that are stored whole from two parts.
#pragma once
#include "mirage/cuda/ptx.cuh"

namespace mirage {

// `rows` times `first` elements of one tensor and `next` of the other, as thread `at` of `count` copies them: chunks of 16
// bytes where both are whole ones, else single elements.
template <class T>
MIRAGE_DEVICE void join_chunks(T* to, const T* a, const T* b, int64_t rows, int64_t first, int64_t next, int64_t at, int64_t count) {
    constexpr int VEC = 16 / sizeof(T);
    const int64_t whole = first + next;
    if (first % VEC == 0 && next % VEC == 0) {
#pragma unroll 4
        for (int64_t i = at; i < rows * whole / VEC; i += count) {
            const int64_t row = i * VEC / whole, k = i * VEC - row * whole;
            const T* const from = k < first ? a + row * first + k : b + row * next + (k - first);
            *reinterpret_cast<int4*>(to + i * VEC) = *reinterpret_cast<const int4*>(from);
        }
        return;
    }
    for (int64_t i = at; i < rows * whole; i += count) {
        const int64_t row = i / whole, k = i - row * whole;
        to[i] = k < first ? a[row * first + k] : b[row * next + (k - first)];
    }
}

}  // namespace mirage
