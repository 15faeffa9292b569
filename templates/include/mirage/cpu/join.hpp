// Tensors that are stored whole from two parts.
#pragma once
#include <cstdint>
#include <cstring>

namespace mirage {

// Of `rows` times `first` elements of one tensor and `next` of the other those rows that task `at` of `count` copies.
template <class T>
inline void join_rows(T* to, const T* a, const T* b, int64_t rows, int64_t first, int64_t next, int64_t at, int64_t count) {
    for (int64_t row = at; row < rows; row += count) {
        T* const own = to + row * (first + next);
        if (first > 0) std::memcpy(own, a + row * first, static_cast<size_t>(first) * sizeof(T));
        std::memcpy(own + first, b + row * next, static_cast<size_t>(next) * sizeof(T));
    }
}

}  // namespace mirage
