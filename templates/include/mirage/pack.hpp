// Weights packed for products (`mirage_packing` in entry.h), once when a session is made.
#ifndef MIRAGE_PACK_HPP
#define MIRAGE_PACK_HPP

#include <atomic>
#include <cstdlib>
#include <cstring>
#if defined(__linux__)
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
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
inline int64_t panels(const mirage_packing& p) { return (matrix(p).columns + panel - 1) / panel + 1; }
inline size_t panels_size(const mirage_packing& p) {
    const int64_t words = (matrix(p).deep + numbers_in_word(p) - 1) / numbers_in_word(p);
    return (size_t(panels(p)) * size_t(words * panel) * size_t(p.bytes) + 63) / 64 * 64;
}

// ---- split weights (mirage/cpu/split.hpp) --------------------------------------------------------------------------
constexpr int64_t split_step = 32, split_matrix = 16 * split_step;
constexpr size_t split_line = 64;  // bytes in front
inline size_t split_size(const mirage_packing& p) {
    return size_t(panels(p)) * size_t((matrix(p).deep + split_step - 1) / split_step * 3 * split_matrix) * 2;
}
// Whether the processor multiplies matrices of bfloat16 (AMX), and the system lets this process do so: it is asked to.
inline bool multiplies_matrices() {
#if defined(__x86_64__) && defined(__linux__)
    unsigned a = 0, b = 0, c = 0, d = 0, saved = 0, high = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return false;  // bf16, tiles
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1)) return false;                     // avx512_bf16
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    constexpr int request = 0x1023, tiles = 18;
    return (saved >> 17 & 3) == 3 && syscall(SYS_arch_prctl, request, tiles) == 0;
#else
    return false;
#endif
}
inline float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
inline uint32_t to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
// Whether every column is zero or has its largest number between 2^-40 and 2^60.
inline bool may_split(const mirage_packing& p, const float* from) {
    const auto [columns, deep] = matrix(p);
    for (int64_t j = 0; j < columns; ++j) {
        uint32_t most = 0;
        for (int64_t k = 0; k < deep; ++k) {
            const uint32_t bits = to_bits(from[j * p.row + k * p.depth]) & 0x7fffffffu;
            most = bits > most ? bits : most;
        }
        if (most != 0 && (most < 0x2b800000u || most > 0x5d800000u)) return false;
    }
    return true;
}
inline void pack_split(const mirage_packing& p, const float* from, uint16_t* to) {
    const auto [columns, deep] = matrix(p);
    const int64_t wide = (deep + split_step - 1) / split_step * 3 * split_matrix;
    memset(to, 0, split_size(p));
    for (int64_t j = 0; j < columns; ++j)
        for (int64_t k = 0; k < deep; ++k) {
            float rest = from[j * p.row + k * p.depth];
            const int64_t row = k % split_step / 2, at = (j % panel) * 2 + k % 2;
            uint16_t* const place = to + j / panel * wide + k / split_step * 3 * split_matrix + row * split_step + at;
            for (int part = 0; part < 3; ++part) {
                const uint32_t bits = to_bits(rest), near = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
                place[(2 - part) * split_matrix] = uint16_t(near);  // in the order in which they are read
                rest -= from_bits(near << 16);
            }
        }
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
// Memory in large pages where the system has them: a core reads them half as fast again as small ones. Pieces share chunks, so that
// what ends inside of a large page, and what is smaller than one, lies in such too; a chunk goes with the last of its pieces.
struct Chunk {
    size_t size, used, pieces;
};
constexpr size_t large_page = size_t(2) << 20, chunk_size = size_t(32) << 20;
constexpr size_t small_piece = size_t(64) << 10;  // bytes from which a piece lies in a chunk
constexpr size_t piece_line = 64;                 // bytes in front of a piece, which tell its chunk, and at the beginning of a chunk
inline std::atomic_flag chunks_taken = ATOMIC_FLAG_INIT;
inline Chunk* last_chunk = nullptr;

// Has what `taken` guards for as long as it lives.
struct Lock {
    std::atomic_flag& taken;
    explicit Lock(std::atomic_flag& flag) : taken(flag) {
        while (taken.test_and_set(std::memory_order_acquire)) {
        }
    }
    ~Lock() { taken.clear(std::memory_order_release); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
};
inline Chunk* new_chunk(size_t bytes) {
    const size_t size = bytes <= chunk_size ? chunk_size : (bytes + large_page - 1) / large_page * large_page;
    void* memory = nullptr;
    if (posix_memalign(&memory, large_page, size) != 0) return nullptr;
#if defined(MADV_HUGEPAGE)
    madvise(memory, size, MADV_HUGEPAGE);  // else pages stay small
#endif
    Chunk* const chunk = static_cast<Chunk*>(memory);
    *chunk = {size, piece_line, 0};
    return chunk;
}
// A piece of memory, aligned to 64 bytes, for `release`. nullptr: there is none.
inline void* pages(size_t bytes) {
    const size_t whole = piece_line + (bytes + 63) / 64 * 64;
    Chunk* chunk = nullptr;
    void* memory = nullptr;
    if (bytes < small_piece) {
        if (posix_memalign(&memory, 64, whole) != 0) return nullptr;
    } else {
        const Lock lock(chunks_taken);
        if (last_chunk == nullptr || last_chunk->size - last_chunk->used < whole) {
            Chunk* const made = new_chunk(piece_line + whole);
            if (made == nullptr) return nullptr;
            last_chunk = made;
        }
        chunk = last_chunk;
        memory = reinterpret_cast<char*>(chunk) + chunk->used;
        chunk->used += whole;
        ++chunk->pieces;
    }
    *static_cast<Chunk**>(memory) = chunk;
    return static_cast<char*>(memory) + piece_line;
}
inline void release(void* piece) {
    if (piece == nullptr) return;
    void* const memory = static_cast<char*>(piece) - piece_line;
    Chunk* const chunk = *static_cast<Chunk**>(memory);
    if (chunk == nullptr) return free(memory);
    const Lock lock(chunks_taken);
    if (--chunk->pieces > 0) return;
    if (chunk == last_chunk) last_chunk = nullptr;
    free(chunk);
}
// Numbers of `bits` bits in words, or as a byte each, with the top bit turned.
template <class T>
inline void pack_words(const mirage_packing& p, const uint8_t* from, T* to) {
    const auto [columns, deep] = matrix(p);
    const int64_t per = numbers_in_word(p), words = (deep + per - 1) / per;
    memset(to, 0, panels_size(p));
    for (int64_t j = 0; j < columns; ++j)
        for (int64_t k = 0; k < deep; ++k) {
            const int64_t at = (j * p.row + k * p.depth) * p.bits;
            const uint32_t number = ((uint32_t(from[at / 8]) >> (at % 8)) & ((1u << p.bits) - 1)) ^ uint32_t(p.turned);
            to[(j / panel * words + k / per) * panel + j % panel] |= T(number << (k % per * p.bits));
        }
}
inline void pack_panels(const mirage_packing& p, const void* from, void* to) {
    if (p.bits != 0 && p.bytes == 4) {
        pack_words(p, static_cast<const uint8_t*>(from), static_cast<uint32_t*>(to));
    } else if (p.bits != 0) {
        pack_words(p, static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to));
    } else if (p.bytes == 4) {
        pack_numbers(p, static_cast<const uint32_t*>(from), static_cast<uint32_t*>(to));
    } else {
        pack_numbers(p, static_cast<const uint16_t*>(from), static_cast<uint16_t*>(to));
    }
}
struct PackedForm {
    void* data;  // nullptr: no memory
    size_t bytes;
};
// Where kernels `split`, a line is in front that tells whether weights are; `able`: they may be.
inline PackedForm pack(const mirage_packing& p, const void* from, bool able = false) {
    const bool split = p.split != 0 && able && may_split(p, static_cast<const float*>(from));
    const size_t line = p.split != 0 ? split_line : 0, bytes = line + (split ? split_size(p) : panels_size(p));
    char* const to = static_cast<char*>(pages(bytes));
    if (to == nullptr) return {nullptr, 0};
    if (line != 0) memset(to, 0, line);
    if (split) {
        to[0] = 1;
        pack_split(p, static_cast<const float*>(from), reinterpret_cast<uint16_t*>(to + line));
    } else {
        pack_panels(p, from, to + line);
    }
    return {to, bytes};
}

// Bytes of all packed weights that live in this process.
inline std::atomic<uint64_t> packed_bytes{0};

// ---- one form for all kernels that read a weight: layers with one weight, branches of an `If` ----------------------------
struct SharedForm {
    const void* from;  // where the weight lies, and
    uint64_t content;  // what it holds: another weight may lie there before the last kernel of the one before is gone
    mirage_packing packing;
    bool able;
    PackedForm form;
    size_t kernels;
    SharedForm* next;
};
inline std::atomic_flag forms_taken = ATOMIC_FLAG_INIT;
inline SharedForm* shared_forms = nullptr;

inline bool equal(const mirage_packing& p, const mirage_packing& q) {
    return p.bytes == q.bytes && p.row == q.row && p.depth == q.depth && p.elements == q.elements && p.bits == q.bits &&
           p.turned == q.turned && p.split == q.split;
}
inline uint64_t mixed(uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
    return sum ^ sum >> 29;
}
inline uint64_t content_of(const mirage_packing& p, const void* from) {
    const size_t bytes = p.bits != 0 ? (size_t(p.elements) * size_t(p.bits) + 7) / 8 : size_t(p.elements) * size_t(p.bytes);
    uint64_t sums[4] = {1, 2, 3, 4}, words[4];
    const char* const at = static_cast<const char*>(from);
    for (size_t i = 0; i < bytes; i += sizeof words) {
        memset(words, 0, sizeof words);
        memcpy(words, at + i, bytes - i < sizeof words ? bytes - i : sizeof words);
        for (int k = 0; k < 4; ++k) sums[k] = mixed(sums[k], words[k]);
    }
    return mixed(mixed(mixed(sums[0], sums[1]), sums[2]), sums[3]);
}
// A form that lives, for one more kernel; nullptr: none does. The caller has the lock.
inline SharedForm* known_form(const SharedForm& wanted) {
    for (SharedForm* s = shared_forms; s != nullptr; s = s->next) {
        if (s->from == wanted.from && s->content == wanted.content && s->able == wanted.able && equal(s->packing, wanted.packing)) {
            ++s->kernels;
            return s;
        }
    }
    return nullptr;
}
// The packed form of a weight, made unless it lives already; for `forget`. nullptr: no memory.
inline SharedForm* shared_form(const mirage_packing& p, const void* from, bool able) {
    const SharedForm wanted{from, content_of(p, from), p, able, {nullptr, 0}, 1, nullptr};
    {
        const Lock lock(forms_taken);
        if (SharedForm* const known = known_form(wanted)) return known;
    }
    const PackedForm form = pack(p, from, able);
    void* const memory = form.data == nullptr ? nullptr : malloc(sizeof(SharedForm));
    if (memory == nullptr) {
        release(form.data);
        return nullptr;
    }
    const Lock lock(forms_taken);
    if (SharedForm* const known = known_form(wanted)) {  // another thread was as far
        release(form.data);
        free(memory);
        return known;
    }
    packed_bytes += form.bytes;
    SharedForm* const made = static_cast<SharedForm*>(memory);
    *made = wanted;
    made->form = form;
    made->next = shared_forms;
    return shared_forms = made;
}
inline void forget(SharedForm* form) {
    if (form == nullptr) return;
    {
        const Lock lock(forms_taken);
        if (--form->kernels > 0) return;
        SharedForm** at = &shared_forms;
        while (*at != form) at = &(*at)->next;
        *at = form->next;
    }
    packed_bytes -= form->form.bytes;
    release(form->form.data);
    free(form);
}

}  // namespace mirage

#endif  // MIRAGE_PACK_HPP
