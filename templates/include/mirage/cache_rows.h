// New keys and values of attention put into their caches behind what is there, queries and keys turned by rotary embeddings on
// the way: what threads of a CPU and of a GPU do, row by row. Includers define MIRAGE_DEVICE, `to_float` and `put` before.
//
// Lengths are numbers in memory, so a graph of CUDA that was captured once serves every step. A past cache that is the present
// one is written where it lies; else what is filled is copied, and what is behind the new rows becomes 0.
//
// Position p of a sequence has the row p - `dropped` of a buffer, 0 but for caches of a window's size. Attention of such reads
// buffers of their own, which hold what the past caches did and all new rows. When these are complete (a second pass), what the
// present caches keep is copied from them: nothing is moved that anybody still reads, in place too.
#ifndef MIRAGE_CACHE_ROWS_H
#define MIRAGE_CACHE_ROWS_H

#include <cstring>

#include "mirage/entry.h"

namespace mirage {
inline namespace MIRAGE_ISA {

// A number as caches with scales hold it: the nearest one, even of two, within the range; of an int8 NaN is the least.
MIRAGE_DEVICE void store(int8_t* to, int64_t i, float x) {
    to[i] = static_cast<int8_t>(fminf(fmaxf(rintf(x), -128.0f), 127.0f));
}
MIRAGE_DEVICE void store(e4m3* to, int64_t i, float x) {
    const float size = fminf(fabsf(x), 448.0f);
    uint32_t bits, sign;
    memcpy(&bits, &size, 4), memcpy(&sign, &x, 4);
    const uint32_t normal = ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - 0x3c0u;
    const uint32_t body = x != x ? 0x7fu : size < 0x1p-6f ? static_cast<uint32_t>(rintf(size * 512.0f)) : normal;
    to[i].bits = static_cast<uint8_t>(body | (sign >> 24 & 0x80u));
}

// Two whole numbers of 4 bits + 8, the first one in the low bits; of NaN the least.
struct Nibbles {
    uint8_t bits;
};
MIRAGE_DEVICE uint8_t nibble(float x) { return static_cast<uint8_t>(fminf(fmaxf(rintf(x), -8.0f), 7.0f) + 8.0f); }
MIRAGE_DEVICE void store(Nibbles* to, int64_t i, float x, float y) { to[i / 2].bits = static_cast<uint8_t>(nibble(x) | nibble(y) << 4); }

template <class C>
struct PerElement {
    static constexpr int NUMBERS = 1;
};
template <>
struct PerElement<Nibbles> {
    static constexpr int NUMBERS = 2;
};

// T: element, C: element of the caches, T or another one, whose scales are one or one for each of the CHANNELS; SIZE numbers of a head, the first TURNED of which are turned (0: none), as neighbours (INTERLEAVED) or halves;
// PACKED: queries, keys and values in one tensor; LISTED: positions are listed and not counted from what is filled; WINDOW: positions that a query sees where caches keep little more (0: caches keep all).
template <class T_, class C_, int HEADS_, int SHARED_, int SIZE_, int TURNED_, bool INTERLEAVED, bool PACKED, bool LISTED, bool CHANNELS, int WINDOW_>
struct CacheRows {
    using T = T_;
    using C = C_;
    static constexpr int HEADS = HEADS_, SHARED = SHARED_, SIZE = SIZE_, TURNED = TURNED_, WINDOW = WINDOW_;
    static constexpr int PER = PerElement<C>::NUMBERS, PAIRS = SIZE / 2 / PER, BYTES = SIZE / PER * int(sizeof(C));
    static constexpr int QUERIES = PACKED || TURNED > 0 ? HEADS : 0;  // that are written
    static constexpr int ROWS = QUERIES + 2 * SHARED;                  // of a new position
    const T* given[3];
    const C* past[2];
    const int32_t* lengths;
    const T *cos, *sin;
    const int64_t* listed;
    T* turned;
    C *read[2], *present[2];  // what attention reads, and what the caches are then
    const float* scale[2];
    int64_t *before, *last;
    int64_t batch, count, filled_room, room, table;

    // `extents`: batch, new positions, positions of the past caches and of what attention reads, of the tables
    static CacheRows of(const void* const* in, void* const* out, const int64_t* extents) {
        CacheRows r{};
        int i = 0, o = 0;
        for (int k = QUERIES > 0 ? 0 : 1; k < (PACKED ? 1 : 3); ++k) r.given[k] = static_cast<const T*>(in[i++]);
        for (int k = 0; k < 2; ++k) r.past[k] = static_cast<const C*>(in[i++]);
        r.lengths = static_cast<const int32_t*>(in[i++]);
        if (WINDOW == 0) ++i;  // the whole length, which the size of the present caches has
        if (TURNED > 0) r.cos = static_cast<const T*>(in[i++]), r.sin = static_cast<const T*>(in[i++]);
        if (LISTED) r.listed = static_cast<const int64_t*>(in[i++]);
        for (int k = 0; sizeof(C) == 1 && k < 2; ++k) r.scale[k] = static_cast<const float*>(in[i++]);
        if (QUERIES > 0) r.turned = static_cast<T*>(out[o++]);
        for (int k = 0; k < 2; ++k) r.read[k] = r.present[k] = static_cast<C*>(out[o++]);
        r.before = static_cast<int64_t*>(out[o++]), r.last = static_cast<int64_t*>(out[o++]);
        for (int k = 0; WINDOW > 0 && k < 2; ++k) r.present[k] = static_cast<C*>(out[o++]);
        r.batch = extents[0], r.count = extents[1], r.filled_room = extents[2], r.room = extents[3];
        r.table = TURNED > 0 ? extents[4] : 0;
        return r;
    }

    MIRAGE_DEVICE int64_t rows() const { return batch * count * ROWS; }
    MIRAGE_DEVICE int64_t old_rows() const { return WINDOW == 0 && in_place(0) && in_place(1) ? 0 : 2 * batch * SHARED * old_room(); }
    MIRAGE_DEVICE int64_t kept_rows() const { return WINDOW == 0 ? 0 : 2 * batch * SHARED * filled_room; }
    MIRAGE_DEVICE int64_t old_room() const { return WINDOW > 0 ? filled_room : room; }
    MIRAGE_DEVICE bool in_place(int64_t k) const { return past[k] == present[k]; }
    // True if the caches have room for a window.
    bool fits() const { return filled_room >= WINDOW; }
    MIRAGE_DEVICE int64_t filled(int64_t b) const {
        const int64_t n = static_cast<int64_t>(lengths[b]) + 1 - count;
        return n > 0 ? n : 0;
    }
    // How many positions caches have dropped that had so many: those of a window's size drop several at once when they are full.
    MIRAGE_DEVICE int64_t dropped(int64_t positions) const {
        const int64_t over = positions - filled_room, several = filled_room - WINDOW + 1;
        return WINDOW > 0 && over > 0 ? (over + several - 1) / several * several : 0;
    }

    struct Row {
        const T* from;
        T* query;     // where to, or
        C* cache;
        const float* scale;
        int64_t at;  // of the tables; below 0: as it is
        MIRAGE_DEVICE bool real() const { return query != nullptr || cache != nullptr; }
    };

    MIRAGE_DEVICE Row row(int64_t number) const {
        const int head = static_cast<int>(number % ROWS) + (HEADS - QUERIES);
        const int64_t token = number / ROWS, b = token / count, start = filled(b), place = start + token % count;
        const int64_t first = dropped(start);
        if (number % ROWS == 0 && token % count == 0) before[b] = start - first, last[b] = lengths[b] - first;
        const int part = head < HEADS ? 0 : head < HEADS + SHARED ? 1 : 2, own = head - (part > 0 ? HEADS : 0) - (part > 1 ? SHARED : 0);
        Row r = {PACKED ? given[0] + (token * (HEADS + 2 * SHARED) + head) * SIZE
                        : given[part] + (token * (part == 0 ? HEADS : SHARED) + own) * SIZE,
                 nullptr, nullptr, nullptr, -1};
        if (part == 0) r.query = turned + (token * HEADS + own) * SIZE;
        else if (place - first < room) r.cache = read[part - 1] + ((b * SHARED + own) * room + place - first) * (SIZE / PER);
        if (part > 0) r.scale = scale[part - 1] + (CHANNELS ? own * SIZE : 0);
        if (TURNED > 0 && part < 2) {
            const int64_t at = LISTED ? listed[token] : place;
            r.at = at < 0 ? 0 : at < table ? at : table - 1;
        }
        return r;
    }

    // Puts numbers of type T, two that are stored together, where a row goes: as multiples of its scale if the cache has such.
    MIRAGE_DEVICE static void number(const Row& r, int i, T x) {
        if (r.query != nullptr) r.query[i] = x;
        else if constexpr (sizeof(C) > 1) r.cache[i] = x;
        else if constexpr (PER == 1) store(r.cache, i, steps(r, i, x));
    }
    MIRAGE_DEVICE static void numbers(const Row& r, int i, T x, T y) {
        if (PER == 1 || r.query != nullptr) number(r, i, x), number(r, i + 1, y);
        else if constexpr (PER == 2) store(r.cache, i, steps(r, i, x), steps(r, i + 1, y));
    }
    MIRAGE_DEVICE static float steps(const Row& r, int i, T x) {
        const float scale = r.scale[CHANNELS ? i : 0];
        return scale == 0.0f ? 0.0f : to_float(x) / scale;
    }

    // Turns, or copies, pair j of a row, of caches whose numbers share bytes pairs 2j and 2j + 1.
    MIRAGE_DEVICE void pair(const Row& r, int j) const {
        if (PER == 1) {
            const Pair p = turned_pair(r, j);
            number(r, p.x, p.first), number(r, p.y, p.second);
            return;
        }
        const Pair p = turned_pair(r, 2 * j), q = turned_pair(r, 2 * j + 1);
        if (p.y == p.x + 1) numbers(r, p.x, p.first, p.second), numbers(r, q.x, q.first, q.second);
        else numbers(r, p.x, p.first, q.first), numbers(r, p.y, p.second, q.second);
    }

    struct Pair {
        int x, y;
        T first, second;
    };

    MIRAGE_DEVICE Pair turned_pair(const Row& r, int j) const {
        if (r.at < 0 || j >= TURNED / 2) return {2 * j, 2 * j + 1, r.from[2 * j], r.from[2 * j + 1]};
        Pair p = {INTERLEAVED ? 2 * j : j, INTERLEAVED ? 2 * j + 1 : j + TURNED / 2, T{}, T{}};
        const float c = to_float(cos[r.at * (TURNED / 2) + j]), s = to_float(sin[r.at * (TURNED / 2) + j]);
        const float a = to_float(r.from[p.x]), b = to_float(r.from[p.y]);
        put(p.first, a * c - b * s), put(p.second, a * s + b * c);
        return p;
    }

    // The same by 16 bytes: UNITS of a row, each of which is WIDE numbers, or as many of both halves that are turned together.
    static constexpr int WIDE = 16 / int(sizeof(T)), TURNING = TURNED / 2 / WIDE, UNITS = TURNING + (SIZE - TURNED) / WIDE;
    static constexpr bool BY_UNITS = sizeof(C) == sizeof(T) && !INTERLEAVED && TURNED / 2 % WIDE == 0 && SIZE % WIDE == 0;
    struct alignas(16) Chunk {
        T v[WIDE];
    };

    // True if all rows begin at multiples of 16 bytes, where UNITS are moved.
    bool aligned() const {
        const void* const all[] = {given[0], given[1], given[2], cos, sin, turned, read[0], read[1]};
        for (const void* p : all)
            if (reinterpret_cast<uintptr_t>(p) % sizeof(Chunk) != 0) return false;
        return true;
    }

    MIRAGE_DEVICE void unit(const Row& r, int u) const {
        T* const to = r.query != nullptr ? r.query : reinterpret_cast<T*>(r.cache);
        const int x = u < TURNING ? u * WIDE : TURNED + (u - TURNING) * WIDE, y = x + TURNED / 2;
        Chunk a = *reinterpret_cast<const Chunk*>(r.from + x);
        if (u < TURNING) {
            Chunk b = *reinterpret_cast<const Chunk*>(r.from + y);
            if (r.at >= 0) {
                const Chunk c = *reinterpret_cast<const Chunk*>(cos + r.at * (TURNED / 2) + x);
                const Chunk s = *reinterpret_cast<const Chunk*>(sin + r.at * (TURNED / 2) + x);
                for (int i = 0; i < WIDE; ++i) {
                    const float p = to_float(a.v[i]), q = to_float(b.v[i]), cosine = to_float(c.v[i]), sine = to_float(s.v[i]);
                    put(a.v[i], p * cosine - q * sine), put(b.v[i], p * sine + q * cosine);
                }
            }
            *reinterpret_cast<Chunk*>(to + y) = b;
        }
        *reinterpret_cast<Chunk*>(to + x) = a;
    }

    // A row of a cache that is not new.
    struct Old {
        const C* from;  // nullptr: zeros
        C* to;          // nullptr: it stays
    };

    MIRAGE_DEVICE Old old_row(int64_t number) const {
        const int64_t place = number % old_room(), head = number / old_room() % (batch * SHARED), k = number / old_room() / (batch * SHARED);
        const int64_t all = filled(head / SHARED), start = all - dropped(all);
        if (WINDOW > 0 ? place >= start : in_place(k) || (place >= start && place < start + count)) return {nullptr, nullptr};
        C* const to = read[k] + (head * room + place) * (SIZE / PER);
        return {place < start && place < filled_room ? past[k] + (head * filled_room + place) * (SIZE / PER) : nullptr, to};
    }

    // A row of a present cache of the window's size, from what attention reads.
    MIRAGE_DEVICE Old kept_row(int64_t number) const {
        const int64_t place = number % filled_room, head = number / filled_room % (batch * SHARED), k = number / filled_room / (batch * SHARED);
        const int64_t all = filled(head / SHARED), first = dropped(all), total = static_cast<int64_t>(lengths[head / SHARED]) + 1;
        const int64_t begin = dropped(total);
        const bool real = place < total - begin, there = in_place(k) && (!real || (begin == first && place < all - first));
        if (there) return {nullptr, nullptr};
        C* const to = present[k] + (head * filled_room + place) * (SIZE / PER);
        return {real ? read[k] + (head * room + place + begin - first) * (SIZE / PER) : nullptr, to};
    }
};

}  // namespace MIRAGE_ISA
}  // namespace mirage

#endif  // MIRAGE_CACHE_ROWS_H
