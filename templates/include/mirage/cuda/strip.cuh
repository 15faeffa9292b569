// Strips: what one warp holds of a matrix, and the tiles in shared memory that its operands come from.
//
// A strip is MT x NT matrices of 16 x 8 floats in the accumulator layout of mma.m16n8: a lane holds two neighbouring
// columns of two rows, 8 apart, of each of them. A tile is a matrix of rows of 16-byte chunks, whose places are exchanged
// so that eight rows of one chunk lie in different banks.
#pragma once
#include "mirage/cuda/math.cuh"
#include "mirage/cuda/ptx.cuh"
#include "mirage/cuda/split.cuh"
#include "mirage/cuda/sync.cuh"

namespace mirage {

// --- registers ------------------------------------------------------------------------------------------------------
template <int MT_, int NT_>
struct Strip {
    static constexpr int MT = MT_, NT = NT_;
    float v[MT][NT][4];
    MIRAGE_DEVICE void fill(float x) {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int n = 0; n < NT; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) v[m][n][i] = x;
    }
};

// A number for each row of a strip: the four lanes of a row hold the same.
template <int MT_>
struct StripRows {
    static constexpr int MT = MT_;
    float v[MT][2];
    MIRAGE_DEVICE void fill(float x) {
#pragma unroll
        for (int m = 0; m < MT; ++m) v[m][0] = v[m][1] = x;
    }
};

MIRAGE_DEVICE int lane_of() { return threadIdx.x & 31; }
// Row and column of a lane's element i of matrix (m, n), of the strip of warp `member` of its group.
template <class S>
MIRAGE_DEVICE int strip_row(int member, int m, int i) {
    return (member * S::MT + m) * 16 + (lane_of() >> 2) + (i >> 1) * 8;
}
MIRAGE_DEVICE int strip_col(int n, int i) { return n * 8 + (lane_of() & 3) * 2 + (i & 1); }
// The same where several warps lie side by side along the columns, of which this is number `share`.
template <class S>
MIRAGE_DEVICE int strip_col(int share, int n, int i) {
    return strip_col(share * S::NT + n, i);
}

#define MIRAGE_STRIP(S)                                                                                      \
    _Pragma("unroll") for (int m_ = 0; m_ < S::MT; ++m_) _Pragma("unroll") for (int n_ = 0; n_ < S::NT; ++n_) \
        _Pragma("unroll") for (int i_ = 0; i_ < 4; ++i_)
#define MIRAGE_STRIP_ROWS(S) \
    _Pragma("unroll") for (int m_ = 0; m_ < S::MT; ++m_) _Pragma("unroll") for (int h_ = 0; h_ < 2; ++h_)
// The same of the upper halves of matrices, which have all rows then.
#define MIRAGE_STRIP_HALF(S)                                                                                 \
    _Pragma("unroll") for (int m_ = 0; m_ < S::MT; ++m_) _Pragma("unroll") for (int n_ = 0; n_ < S::NT; ++n_) \
        _Pragma("unroll") for (int i_ = 0; i_ < 2; ++i_)
#define MIRAGE_STRIP_ROWS_HALF(S) \
    _Pragma("unroll") for (int m_ = 0; m_ < S::MT; ++m_) _Pragma("unroll") for (int h_ = 0; h_ < 1; ++h_)

// The sum or maximum over the lanes that share a row.
template <class R>
MIRAGE_DEVICE float over_row(float x) {
    x = R::join(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return R::join(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
struct StripSum {
    static MIRAGE_DEVICE float none() { return 0.0f; }
    static MIRAGE_DEVICE float join(float x, float y) { return x + y; }
};
struct StripMax {
    static MIRAGE_DEVICE float none() { return -INFINITY; }
    // A NaN may be lost here: the row's exponentials keep it.
    static MIRAGE_DEVICE float join(float x, float y) { return fmaxf(x, y); }
};

// Exponentials that keep numbers small, by the special-function unit: a relative error of 2^-22 and the rounding of the
// exponent, 2^-24 of |x - maximum|. (The difference comes first: x log2(e) - maximum log2(e) in one instruction is wrong by
// 2^-24 of |maximum|, and maxima of masked rows are large.) Infinities are treated as in math.cuh.
constexpr float LOG2_E = 1.4426950408889634f;
MIRAGE_DEVICE float strip_exp_minus(float x, float maximum) {
    const float base = maximum == -INFINITY ? 0.0f : maximum;
    return power_of_two((x - base) * LOG2_E);
}
MIRAGE_DEVICE float strip_exp_difference(float old_max, float new_max) {
    return old_max == new_max ? 1.0f : power_of_two((old_max - new_max) * LOG2_E);
}

// --- tiles ----------------------------------------------------------------------------------------------------------
template <class T_, int OUTER_, int INNER_>
struct Tile {
    using T = T_;
    static constexpr int OUTER = OUTER_, INNER = INNER_, VEC = 16 / sizeof(T), CHUNKS = INNER / VEC;
    static constexpr int GROUP = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : CHUNKS % 2 == 0 ? 2 : 1;
    static constexpr bool PANELS = GROUP == 8 && OUTER % 8 == 0;  //!< eight chunks of all rows lie together
    static_assert(INNER % VEC == 0, "rows are whole chunks");
    T* at;
    static MIRAGE_DEVICE int index(int outer, int chunk) {
        const int low = chunk & (GROUP - 1), place = low ^ ((outer / (8 / GROUP)) & (GROUP - 1));
        if constexpr (PANELS) return ((chunk / 8 * OUTER + outer) * 8 + place) * VEC;
        else return (outer * CHUNKS + chunk - low + place) * VEC;
    }
    // The place of a chunk `down` rows below one that is in a row before STEP, a power of two that `down` is a multiple of.
    static MIRAGE_DEVICE int below(int index, int down) {
        return (index ^ (((down / (8 / GROUP)) & (GROUP - 1)) * VEC)) + down * (PANELS ? 8 : CHUNKS) * VEC;
    }
    MIRAGE_DEVICE T* chunk(int outer, int c) const { return at + index(outer, c); }
    MIRAGE_DEVICE T* element(int outer, int inner) const { return chunk(outer, inner / VEC) + inner % VEC; }
    // An element 8 `eights` rows and 2 `pairs` chunks from (outer, inner), inner below two chunks: a lane computes its first
    // place once.
    MIRAGE_DEVICE T* beyond(int outer, int inner, int eights, int pairs) const {
        const int c = 2 * pairs;
        if constexpr (GROUP == 1) return element(outer + 8 * eights, inner + c * VEC);
        const int start = (index(outer, inner / VEC) + inner % VEC) ^ ((c & (GROUP - 1)) * VEC);
        const int chunks = PANELS ? c / 8 * OUTER * 8 + 64 * eights : (c & ~(GROUP - 1)) + 8 * eights * CHUNKS;
        return at + start + chunks * VEC;
    }
};

// Rows lie PITCH elements apart, the first one at `from`: `each(to, from, c)` for chunk c of every row that a thread has.
// Neighbouring threads take neighbouring chunks, and a warp no part of a row that it could take whole: lines of memory are asked
// for once. Places follow from a thread's first one by constants.
template <int THREADS, int PITCH, int AT = 0, class TILE, class E, class G>
MIRAGE_DEVICE void even_chunks(TILE t, int thread, E* from, G each) {
    if constexpr (AT < TILE::CHUNKS) {
        constexpr int WIDE = TILE::CHUNKS - AT < THREADS ? TILE::CHUNKS - AT : THREADS, STEP = power_below(THREADS / WIDE);
        if (THREADS == WIDE * STEP || thread < WIDE * STEP) {
            const int o = thread / WIDE, c = AT + thread % WIDE, first = TILE::index(o, c);
            E* const own = from + o * PITCH + c * TILE::VEC;
#pragma unroll
            for (int down = 0; down < TILE::OUTER; down += STEP)
                if (TILE::OUTER % STEP == 0 || o + down < TILE::OUTER) each(t.at + TILE::below(first, down), own + down * PITCH, c);
        }
        even_chunks<THREADS, PITCH, AT + WIDE>(t, thread, from, each);
    }
}
// The same where PITCH is known (0: it is not) and `row` says of the first row and the last one where they lie (SURE: it does);
// else false.
template <int THREADS, int PITCH, bool SURE = false, class TILE, class F, class G>
MIRAGE_DEVICE bool even_rows(TILE t, int thread, F row, G each) {
    if constexpr (PITCH > 0) {
        auto* const from = row(0);
        if (!SURE && (from == nullptr || row(TILE::OUTER - 1) == nullptr)) return false;
        even_chunks<THREADS, PITCH>(t, thread, from, each);
        return true;
    } else {
        return false;
    }
}

// Start copying a tile: `row(o)` points to the start of row o, PITCH elements (0: as it says) behind the one before, nullptr for
// one that is zero (SURE: none is); of a row, elements from `valid` on, a whole chunk where rows have a PITCH, are zero. `any` is
// a valid address. ROLLED: few instructions matter more than their number.
template <int THREADS, int PITCH = 0, bool SURE = false, bool ROLLED = false, class TILE, class F>
MIRAGE_DEVICE void load_tile(TILE t, int thread, const typename TILE::T* any, int valid, F row) {
    using T = typename TILE::T;
    const auto copy = [&](T* to, const T* from, int c) { copy_chunk(to, from, TILE::VEC * c < valid); };
    if (even_rows<THREADS, PITCH, SURE>(t, thread, row, copy)) return;
    constexpr int COUNT = TILE::OUTER * TILE::CHUNKS, EACH = (COUNT + THREADS - 1) / THREADS;
    constexpr int AT_ONCE = ROLLED ? 1 : EACH <= 8 ? EACH : 4;  // addresses of more would be kept through the loop
#pragma unroll AT_ONCE
    for (int i = 0; i < EACH; ++i) {
        const int k = i * THREADS + thread;
        if (COUNT % THREADS != 0 && k >= COUNT) break;
        const int o = k / TILE::CHUNKS, c = k % TILE::CHUNKS;
        const auto* const from = row(o);
        int bytes = 16;
        if (TILE::VEC * (c + 1) > valid) bytes = max(0, valid - TILE::VEC * c) * static_cast<int>(sizeof(T));
        if (!SURE && from == nullptr) bytes = 0;
        copy_async<16>(t.chunk(o, c), bytes > 0 ? from + TILE::VEC * c : any, bytes);
    }
}

// The same at once: what is summed in front of the loop need not wait for what has been asked for before.
template <int THREADS, class TILE, class F>
MIRAGE_DEVICE void read_tile(TILE t, int thread, int valid, F row) {
    constexpr int COUNT = TILE::OUTER * TILE::CHUNKS, EACH = (COUNT + THREADS - 1) / THREADS;
    constexpr int AT_ONCE = EACH <= 8 ? EACH : 4;
#pragma unroll 1
    for (int begin = 0; begin < EACH; begin += AT_ONCE) {
        alignas(16) typename TILE::T x[AT_ONCE][TILE::VEC] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int k = (begin + i) * THREADS + thread, c = k % TILE::CHUNKS;
            const auto* const from = k < COUNT ? row(k / TILE::CHUNKS) : nullptr;
            const int left = from != nullptr ? valid - TILE::VEC * c : 0;
            if (left >= TILE::VEC) {
                *reinterpret_cast<int4*>(x[i]) = *reinterpret_cast<const int4*>(from + TILE::VEC * c);
            } else {
#pragma unroll
                for (int e = 0; e < TILE::VEC; ++e)
                    if (e < left) x[i][e] = from[TILE::VEC * c + e];
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {  // behind all loads, which no store may come between
            const int k = (begin + i) * THREADS + thread;
            if (COUNT % THREADS != 0 && k >= COUNT) break;
            *reinterpret_cast<int4*>(t.chunk(k / TILE::CHUNKS, k % TILE::CHUNKS)) = *reinterpret_cast<const int4*>(x[i]);
        }
    }
}

// The same as `load_tile` of a tensor in two parts: a row that `first` does not have is `next`'s.
template <int THREADS, int PITCH, class TILE, class F, class G>
MIRAGE_DEVICE void load_parts(TILE t, int thread, const typename TILE::T* any, int valid, F first, G next) {
    using T = typename TILE::T;
    const auto copy = [&](T* to, const T* from, int c) { copy_chunk(to, from, TILE::VEC * c < valid); };
    if (even_rows<THREADS, PITCH>(t, thread, first, copy)) return;
    if (first(0) == nullptr && even_rows<THREADS, PITCH>(t, thread, next, copy)) return;
    load_tile<THREADS, 0, false, (PITCH > 0)>(t, thread, any, valid, [&](int o) {
        const auto* const from = first(o);
        return from != nullptr ? from : next(o);
    });
}

// Store a tile's rows: `row(o)` points to the place of row o, nullptr for one that is not stored.
template <int THREADS, int PITCH, class TILE, class F>
MIRAGE_DEVICE void store_tile(TILE t, int thread, F row) {
    using T = typename TILE::T;
    const auto put = [&](const T* from, T* to) { *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(from); };
    if (even_rows<THREADS, PITCH>(t, thread, row, [&](const T* from, T* to, int) { put(from, to); })) return;
    constexpr int COUNT = TILE::OUTER * TILE::CHUNKS, AT_ONCE = PITCH > 0 ? 1 : 4;
#pragma unroll AT_ONCE
    for (int k = thread; k < COUNT; k += THREADS) {
        const int o = k / TILE::CHUNKS, c = k % TILE::CHUNKS;
        T* const to = row(o);
        if (to != nullptr) put(t.chunk(o, c), to + TILE::VEC * c);
    }
}

// Eight (or four) neighbouring elements as floats.
template <class T, int N>
MIRAGE_DEVICE void chunk_floats(float (&x)[N], const T* from) {
    static_assert(N * sizeof(T) == 16, "a chunk is 16 bytes");
    alignas(16) T raw[N];
    *reinterpret_cast<int4*>(raw) = *reinterpret_cast<const int4*>(from);
#pragma unroll
    for (int e = 0; e < N; ++e) x[e] = to_float(raw[e]);
}

// --- operands of products -------------------------------------------------------------------------------------------
// `load(f, m, k)`: the operand of matrix row m at depth k, in steps of 16 by 16. INNER_DEPTH: rows of the tile walk the
// depth, else they walk the matrix's rows.
template <class TILE_, bool INNER_DEPTH>
struct Rows16 {
    using T = typename TILE_::T;
    static constexpr bool TILE = true;
    TILE_ t;
    int first;
    MIRAGE_DEVICE void load(uint32_t (&f)[4], int m, int k) const {
        const int l = lane_of(), low = l & 7, second = (l >> 3) & 1, third = l >> 4;
        if constexpr (INNER_DEPTH) load_matrices<false>(f, t.chunk(first + m * 16 + low + second * 8, k * 2 + third));
        else load_matrices<true>(f, t.chunk(k * 16 + low + third * 8, first / 8 + m * 2 + second));
    }
    // float32: two rows of matrix m at a depth of the k-th 16
    MIRAGE_DEVICE void one(float (&x)[2], int m, int k, int depth) const {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = first + m * 16 + (lane_of() >> 2) + h * 8;
            x[h] = INNER_DEPTH ? *t.element(row, 16 * k + depth) : *t.element(16 * k + depth, row);
        }
    }
    // Which of 8 positions a lane has in either half of an instruction: places in different banks however the operands lie.
    static MIRAGE_DEVICE int depth(int half) { return (lane_of() & 3) ^ (((lane_of() & 1) ^ half) << 2); }
    MIRAGE_DEVICE void own(float (&x)[2], int m, int k, int eight, int half) const {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = lane_of() >> 2, rows = 2 * m + h, deep = 2 * k + eight;
            x[h] = INNER_DEPTH ? *t.beyond(first + row, depth(half), rows, deep)
                               : *t.beyond(depth(half), row, deep, first / 8 + rows);
        }
    }
    template <int MT, int KT>
    MIRAGE_DEVICE float top() const {
        if constexpr (INNER_DEPTH) return top_of<16 * MT, 4 * KT>([&](int r, int c) { return t.chunk(first + r, c); });
        else return top_of<16 * KT, 4 * MT>([&](int r, int c) { return t.chunk(r, first / 4 + c); });
    }
};
// The same for the columns, 8 at a time (`load2`) or 16 (`load4`), from the `first` eight on.
template <class TILE, bool INNER_DEPTH>
struct Columns8 {
    TILE t;
    int first = 0;
    MIRAGE_DEVICE void load2(uint32_t (&f)[2], int n, int k) const {
        const int l = lane_of(), low = l & 7, second = (l >> 3) & 1;
        if constexpr (INNER_DEPTH) load_matrices<false>(f, t.chunk((first + n) * 8 + low, k * 2 + second));
        else load_matrices<true>(f, t.chunk(k * 16 + low + second * 8, first + n));
    }
    MIRAGE_DEVICE void load4(uint32_t (&f)[4], int n, int k) const {
        const int l = lane_of(), low = l & 7, second = (l >> 3) & 1, third = l >> 4;
        if constexpr (INNER_DEPTH) load_matrices<false>(f, t.chunk((first + n + third) * 8 + low, k * 2 + second));
        else load_matrices<true>(f, t.chunk(k * 16 + low + second * 8, first + n + third));
    }
    // float32: two columns of matrix n at a depth of the k-th 16
    MIRAGE_DEVICE void one(float (&x)[2], int n, int k, int depth) const {
        const int col = (first + n) * 8 + (lane_of() & 3) * 2, at = 16 * k + depth;
        if constexpr (INNER_DEPTH) {
            x[0] = *t.element(col, at), x[1] = *t.element(col + 1, at);
        } else {
            const float2 both = *reinterpret_cast<const float2*>(t.element(at, col));
            x[0] = both.x, x[1] = both.y;
        }
    }
    // the column that a lane has in an instruction
    MIRAGE_DEVICE float own(int n, int k, int eight, int depth) const {
        const int col = lane_of() >> 2, deep = 2 * k + eight;
        return INNER_DEPTH ? *t.beyond(col, depth, first + n, deep) : *t.beyond(depth, col, deep, first + n);
    }
    template <int NT, int KT>
    MIRAGE_DEVICE float top() const {
        if constexpr (INNER_DEPTH) return top_of<8 * NT, 4 * KT>([&](int r, int c) { return t.chunk(first * 8 + r, c); });
        else return top_of<16 * KT, 2 * NT>([&](int r, int c) { return t.chunk(r, first * 2 + c); });
    }
};
// Operands of rows that were read before the loop.
template <class T_, int MT, int KT>
struct HeldRows {
    using T = T_;
    uint32_t f[MT][KT][4];
    template <class R>
    MIRAGE_DEVICE void read(R rows) {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int k = 0; k < KT; ++k) rows.load(f[m][k], m, k);
    }
    MIRAGE_DEVICE void load(uint32_t (&x)[4], int m, int k) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = f[m][k][i];
    }
};
MIRAGE_DEVICE uint32_t pack(float x, float y, const __half*) {
    const __half2 h = __floats2half2_rn(x, y);
    return reinterpret_cast<const uint32_t&>(h);
}
MIRAGE_DEVICE uint32_t pack(float x, float y, const __nv_bfloat16*) {
    const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    return reinterpret_cast<const uint32_t&>(h);
}
// A strip as operand: its columns are the depth.
template <class T_, class S>
struct StripOperand {
    using T = T_;
    static constexpr bool TILE = false;
    const S& s;
    MIRAGE_DEVICE void load(uint32_t (&f)[4], int m, int k) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float(&x)[4] = s.v[m][2 * k + (i >> 1)];
            f[i] = pack(x[(i & 1) * 2], x[(i & 1) * 2 + 1], static_cast<const T*>(nullptr));
        }
    }
    // float32: the lane of the same rows that has a depth of the k-th 16 shows it
    MIRAGE_DEVICE void one(float (&x)[2], int m, int k, int depth) const {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float(&low)[4] = s.v[m][2 * k], (&high)[4] = s.v[m][2 * k + 1];
            const float even = depth < 8 ? low[2 * h] : high[2 * h], odd = depth < 8 ? low[2 * h + 1] : high[2 * h + 1];
            x[h] = __shfl_sync(0xffffffffu, depth & 1 ? odd : even, (lane_of() & ~3) | (depth % 8 / 2));
        }
    }
    // Instructions sum the columns that a lane has anyway.
    static MIRAGE_DEVICE int depth(int half) { return (lane_of() & 3) * 2 + half; }
    MIRAGE_DEVICE void own(float (&x)[2], int m, int k, int eight, int half) const {
#pragma unroll
        for (int h = 0; h < 2; ++h) x[h] = s.v[m][2 * k + eight][half + 2 * h];
    }
    template <int MT, int KT>
    MIRAGE_DEVICE float top() const {
        float found = 0.0f;
        MIRAGE_STRIP(S) found = fmaxf(found, fabsf(s.v[m_][n_][i_]));
        return found;
    }
};

// --- warps that share columns ---------------------------------------------------------------------------------------
// A sum or maximum of rows over the ACROSS warps of a group that share their columns: each puts its own to `place`, which
// has ACROSS numbers for each row, and all join them behind a barrier.
template <int MEMBERS, class V>
MIRAGE_DEVICE void put_share(float* place, const V& x, int member, int share) {
    MIRAGE_STRIP_ROWS(V) {
        const int row = strip_row<V>(member, m_, h_ * 2);
        if ((lane_of() & 3) == 0) place[share * (16 * MEMBERS * V::MT) + row] = x.v[m_][h_];
    }
}
template <class R, int ACROSS, int MEMBERS, class V>
MIRAGE_DEVICE void join_shares(V& x, const float* place, int member) {
    MIRAGE_STRIP_ROWS(V) {
        const int row = strip_row<V>(member, m_, h_ * 2);
        x.v[m_][h_] = place[row];
#pragma unroll
        for (int s = 1; s < ACROSS; ++s) x.v[m_][h_] = R::join(x.v[m_][h_], place[s * (16 * MEMBERS * V::MT) + row]);
    }
}
// A warp's share of a strip to the tile that holds all of it.
template <class TILE, class S>
MIRAGE_DEVICE void put_strip(TILE t, const S& s, int member, int share) {
    using T = typename TILE::T;
#pragma unroll
    for (int m = 0; m < S::MT; ++m)
#pragma unroll
        for (int n = 0; n < S::NT; ++n)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                T* const to = t.element(strip_row<S>(member, m, i), strip_col<S>(share, n, i));
                const float x = s.v[m][n][i], y = s.v[m][n][i + 1];
                if constexpr (sizeof(T) == 4) *reinterpret_cast<float2*>(to) = float2{x, y};
                else *reinterpret_cast<uint32_t*>(to) = pack(x, y, static_cast<const T*>(nullptr));
            }
}

// out += a * b over the k-th 16 positions, by matrix instructions
template <class S, class A, class B>
MIRAGE_DEVICE void strip_step(S& out, const A& a, const B& b, int k) {
    const typename A::T* const type = nullptr;
    uint32_t fb[S::NT][2];
#pragma unroll
    for (int n = 0; n < S::NT; n += 2) {
        if (n + 1 < S::NT) {
            uint32_t two[4];
            b.load4(two, n, k);
            fb[n][0] = two[0], fb[n][1] = two[1];
            fb[(n + 1) % S::NT][0] = two[2], fb[(n + 1) % S::NT][1] = two[3];
        } else {
            b.load2(fb[n], n, k);
        }
    }
#pragma unroll
    for (int m = 0; m < S::MT; ++m) {
        uint32_t fa[4];
        a.load(fa, m, k);
#pragma unroll
        for (int n = 0; n < S::NT; ++n) multiply(out.v[m][n], fa, fb[n], type);
    }
}
// out += a * b over 16 KT positions. One or two matrices that are summed over many positions are summed in two halves: an
// instruction waits for the one before it that adds to the same numbers.
template <int KT, class S, class A, class B>
MIRAGE_DEVICE void strip_contract(S& out, const A& a, const B& b) {
    if constexpr (KT >= 16 && S::MT * S::NT <= 2) {
        S other;
        other.fill(0.0f);
#pragma unroll
        for (int k = 0; k < KT; ++k) strip_step(k % 2 == 0 ? out : other, a, b, k);
        MIRAGE_STRIP(S) out.v[m_][n_][i_] += other.v[m_][n_][i_];
    } else {
#pragma unroll
        for (int k = 0; k < KT; ++k) strip_step(out, a, b, k);
    }
}

// --- merging --------------------------------------------------------------------------------------------------------
// x += w * from[0..N)
template <int N>
MIRAGE_DEVICE void add_scaled(float (&x)[N], const float* from, float w) {
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int e = 0; e < N; e += 4) {
            const float4 f = *reinterpret_cast<const float4*>(from + e);
            x[e] += w * f.x, x[e + 1] += w * f.y, x[e + 2] += w * f.z, x[e + 3] += w * f.w;
        }
    } else {
#pragma unroll
        for (int e = 0; e < N; ++e) x[e] += w * from[e];
    }
}
template <int N>
MIRAGE_DEVICE void put_floats(float* to, const float (&x)[N]) {
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int e = 0; e < N; e += 4) *reinterpret_cast<float4*>(to + e) = make_float4(x[e], x[e + 1], x[e + 2], x[e + 3]);
    } else {
#pragma unroll
        for (int e = 0; e < N; ++e) to[e] = x[e];
    }
}
// N neighbouring results; `to` is aligned to all of them
template <class T, int N>
MIRAGE_DEVICE void put_vector(T* to, const float (&x)[N]) {
    alignas(sizeof(T) * N) T raw[N];
#pragma unroll
    for (int e = 0; e < N; ++e) put(raw[e], x[e]);
    if constexpr (sizeof raw == 16) *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(raw);
    else if constexpr (sizeof raw == 8) *reinterpret_cast<int2*>(to) = *reinterpret_cast<const int2*>(raw);
    else if constexpr (sizeof raw == 4) *reinterpret_cast<int*>(to) = *reinterpret_cast<const int*>(raw);
    else {
#pragma unroll
        for (int e = 0; e < N; ++e) to[e] = raw[e];
    }
}
// N neighbouring elements as they are stored; `from` is aligned to all of them
template <class T, int N>
MIRAGE_DEVICE void copy_vector(T (&x)[N], const T* from) {
    alignas(sizeof(T) * N) T raw[N];
    if constexpr (sizeof raw == 16) *reinterpret_cast<int4*>(raw) = *reinterpret_cast<const int4*>(from);
    else if constexpr (sizeof raw == 8) *reinterpret_cast<int2*>(raw) = *reinterpret_cast<const int2*>(from);
    else if constexpr (sizeof raw == 4) *reinterpret_cast<int*>(raw) = *reinterpret_cast<const int*>(from);
    else {
#pragma unroll
        for (int e = 0; e < N; ++e) raw[e] = from[e];
    }
#pragma unroll
    for (int e = 0; e < N; ++e) x[e] = raw[e];
}
template <class T, int N>
MIRAGE_DEVICE void floats_of(float (&x)[N], const T (&raw)[N]) {
#pragma unroll
    for (int e = 0; e < N; ++e) x[e] = to_float(raw[e]);
}
template <class T, int N>
MIRAGE_DEVICE void get_vector(float (&x)[N], const T* from) {
    T raw[N];
    copy_vector(raw, from);
    floats_of(x, raw);
}

// N neighbouring elements of a row of a tile from element `first`, a multiple of N, on
template <class TILE, int N>
MIRAGE_DEVICE void tile_floats(float (&x)[N], TILE t, int outer, int first) {
    constexpr int STEP = N < TILE::VEC ? N : TILE::VEC;
#pragma unroll
    for (int e = 0; e < N; e += STEP) {
        float part[STEP];
        get_vector(part, t.element(outer, first + e));
#pragma unroll
        for (int i = 0; i < STEP; ++i) x[e + i] = part[i];
    }
}

}  // namespace mirage
