// Weights packed for products (`mirage_packing` in entry.h), once when a session is made.
#ifndef MIRAGE_PACK_HPP
#define MIRAGE_PACK_HPP

#include <atomic>
#include <cstdlib>
#include <cstring>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "mirage/entry.h"

namespace mirage {

// Columns in panels of 16, zeros behind the last one (mirage/cpu/packed.hpp and quantised.hpp); a panel of zeros ends them, since two
// may be read together.
constexpr int64_t panel = 16;
struct Matrix {
    int64_t columns, deep;
};
inline Matrix matrix(const mirage_packing& p) {
    const int64_t apart = p.row == 1 ? p.depth : p.row, other = p.elements / apart;
    return p.row == 1 ? Matrix{apart, other} : Matrix{other, apart};
}
inline int64_t numbers_in_word(const mirage_packing& p) { return p.bytes == 4 && p.bits != 0 ? 32 / p.bits : 1; }
inline size_t packed_size(const mirage_packing& p) {
    const Matrix m = matrix(p);
    const int64_t words = (m.deep + numbers_in_word(p) - 1) / numbers_in_word(p);
    return (size_t((m.columns + panel - 1) / panel + 1) * size_t(words * panel) * size_t(p.bytes) + 63) / 64 * 64;
}
template <class T>
inline void pack_numbers(const mirage_packing& p, const T* from, T* to) {
    const auto [columns, deep] = matrix(p);
    const int64_t end = ((columns + panel - 1) / panel + 1) * panel;
    for (int64_t first = 0; first < end; first += panel)
        for (int64_t k = 0; k < deep; ++k)
            for (int64_t j = first; j < first + panel; ++j)
                to[first * deep + k * panel + j - first] = j < columns ? from[j * p.row + k * p.depth] : T(0);
}
// Memory in large pages where the system has them: a core reads them half as fast again as small ones. nullptr: there is none.
inline void* pages(size_t bytes) {
    constexpr size_t large = size_t(2) << 20;
    void* memory = nullptr;
    if (posix_memalign(&memory, bytes < large ? 64 : large, bytes) != 0) return nullptr;
#if defined(MADV_HUGEPAGE)
    if (bytes >= large) madvise(memory, bytes / large * large, MADV_HUGEPAGE);  // else pages stay small
#endif
    return memory;
}
// Numbers of `bits` bits in words, or as a byte each, with the top bit turned.
template <class T>
inline void pack_words(const mirage_packing& p, const uint8_t* from, T* to) {
    const auto [columns, deep] = matrix(p);
    const int64_t per = numbers_in_word(p), words = (deep + per - 1) / per;
    memset(to, 0, packed_size(p));
    for (int64_t j = 0; j < columns; ++j)
        for (int64_t k = 0; k < deep; ++k) {
            const int64_t at = (j * p.row + k * p.depth) * p.bits;
            const uint32_t number = ((uint32_t(from[at / 8]) >> (at % 8)) & ((1u << p.bits) - 1)) ^ uint32_t(p.turned);
            to[(j / panel * words + k / per) * panel + j % panel] |= T(number << (k % per * p.bits));
        }
}
// nullptr: no memory.
inline void* pack(const mirage_packing& p, const void* from) {
    void* const to = pages(packed_size(p));
    if (to == nullptr) return nullptr;
    if (p.bits != 0 && p.bytes == 4) {
        pack_words(p, static_cast<const uint8_t*>(from), static_cast<uint32_t*>(to));
    } else if (p.bits != 0) {
        pack_words(p, static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to));
    } else if (p.bytes == 4) {
        pack_numbers(p, static_cast<const uint32_t*>(from), static_cast<uint32_t*>(to));
    } else {
        pack_numbers(p, static_cast<const uint16_t*>(from), static_cast<uint16_t*>(to));
    }
    return to;
}

// Bytes of all packed weights that live in this process.
inline std::atomic<uint64_t> packed_bytes{0};

}  // namespace mirage

#endif  // MIRAGE_PACK_HPP
