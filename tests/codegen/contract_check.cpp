// Compares mirage::contract with plain loops for many shapes, layouts and element types; prints what differs, returns how
// many do. Guard numbers around every array show writes outside; reads outside are the sanitizers' business.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "mirage/cpu/levels.hpp"
#include "mirage/pack.hpp"

namespace {
using namespace mirage;

constexpr float GUARD = 12345.0f;

// small whole numbers over 8: exact in every type, so that sums are equal to the last bit
float number(int i) { return static_cast<float>((i * 7919 + i / 13) % 17 - 8) / 8.0f; }

struct Shape {
    int rows, cols, depth;
    bool a_turned, b_turned, add;
    int pad;  // elements between rows beyond what they hold
};

// what plain loops make of the operands, in the place of `c`
template <class T>
void plain(const Shape& s, const float* a, int64_t a_row, int64_t a_depth, const T* b, int64_t b_row, int64_t b_depth,
           float* c, int64_t c_pitch) {
    for (int i = 0; i < s.rows; ++i)
        for (int j = 0; j < s.cols; ++j) {
            float sum = s.add ? GUARD : 0.0f;
            for (int k = 0; k < s.depth; ++k) sum += a[i * a_row + k * a_depth] * to_float(b[j * b_row + k * b_depth]);
            c[i * c_pitch + j] = sum;
        }
}

template <class T, class K = Known<>>
bool agrees(const Shape& s, const char* type) {
    const int a_pitch = (s.a_turned ? s.rows : s.depth) + s.pad, b_pitch = (s.b_turned ? s.depth : s.cols) + s.pad;
    const int a_rows = s.a_turned ? s.depth : s.rows, b_rows = s.b_turned ? s.cols : s.depth;
    const int c_pitch = s.cols + s.pad;
    // the last row of an operand ends where its elements do
    std::vector<float> a(static_cast<size_t>(a_rows > 0 ? a_pitch * a_rows - s.pad : 0));
    std::vector<T> b(static_cast<size_t>(b_rows > 0 ? b_pitch * b_rows - s.pad : 0));
    std::vector<float> c(static_cast<size_t>(c_pitch * s.rows) + 64, GUARD);
    for (size_t i = 0; i < a.size(); ++i) a[i] = number(static_cast<int>(i));
    for (size_t i = 0; i < b.size(); ++i) put(b[i], number(static_cast<int>(i) + 5));
    const int64_t a_row = s.a_turned ? 1 : a_pitch, a_depth = s.a_turned ? a_pitch : 1;
    const int64_t b_row = s.b_turned ? b_pitch : 1, b_depth = s.b_turned ? 1 : b_pitch;
    std::vector<float> wanted = c;
    plain(s, a.data(), a_row, a_depth, b.data(), b_row, b_depth, wanted.data(), c_pitch);
    contract<K>(c.data(), c_pitch, s.rows, s.cols, s.depth, operand<float>(a.data(), a_row, a_depth),
             operand<T>(b.data(), b_row, b_depth), s.add);
    if (c == wanted) return true;
    std::printf("%s: %d x %d over %d, a turned %d, b turned %d, add %d, pad %d\n", type, s.rows, s.cols, s.depth,
                s.a_turned, s.b_turned, s.add, s.pad);
    return false;
}

// An operand that is part of a larger matrix with a packed form: from its summed position 3 and its column `first` on, with
// three columns behind it. It is the right one, or, `left`, the other one.
template <class T>
bool agrees_packed(const Shape& s, int first, bool left, const char* type) {
    const int count = left ? s.rows : s.cols, others = left ? s.cols : s.rows;
    const int wide = first + count + 3, deep = s.depth + 4;
    std::vector<T> whole(static_cast<size_t>(wide * deep));
    for (size_t i = 0; i < whole.size(); ++i) put(whole[i], number(static_cast<int>(i) + 5));
    const int64_t row = s.b_turned ? deep : 1, depth = s.b_turned ? 1 : wide;
    const mirage_packing how = {0, int(sizeof(T)), row, depth, wide * deep, 0, 0, 0};
    T* const panels = static_cast<T*>(pack(how, whole.data()).data);
    const T* const part = whole.data() + first * row + 3 * depth;
    const int pitch = (s.a_turned ? others : s.depth) + s.pad, c_pitch = s.cols + s.pad;
    std::vector<float> other(static_cast<size_t>(pitch * (s.a_turned ? s.depth : others)) + 1);
    for (size_t i = 0; i < other.size(); ++i) other[i] = number(static_cast<int>(i));
    std::vector<float> c(static_cast<size_t>(c_pitch * s.rows) + 64, GUARD);
    std::vector<float> wanted = c;
    const int64_t other_row = s.a_turned ? 1 : pitch, other_depth = s.a_turned ? pitch : 1;
    const Operand<float> plain_side = {other.data(), other_row, other_depth};
    const Packed<T> packed_side = packed(operand<T>(part, row, depth), static_cast<const T*>(whole.data()), static_cast<const T*>(panels), deep);
    if constexpr (std::is_same_v<T, float>)
        if (left) {
            plain(s, part, row, depth, other.data(), other_row, other_depth, wanted.data(), c_pitch);
            if (depth == 1)  // as is known of it when it is compiled, and not of the other side
                contract<Known<0, 0, 0, 0, 1>>(c.data(), c_pitch, s.rows, s.cols, s.depth, packed_side, plain_side, s.add);
            else
                contract(c.data(), c_pitch, s.rows, s.cols, s.depth, packed_side, plain_side, s.add);
        }
    if (!left) {
        plain(s, other.data(), other_row, other_depth, part, row, depth, wanted.data(), c_pitch);
        contract(c.data(), c_pitch, s.rows, s.cols, s.depth, plain_side, packed_side, s.add);
    }
    release(panels);
    if (c == wanted) return true;
    std::printf("packed %s: %d x %d over %d from %d, left %d, a turned %d, b turned %d, add %d, pad %d\n", type, s.rows, s.cols,
                s.depth, first, left, s.a_turned, s.b_turned, s.add, s.pad);
    return false;
}

// Numbers of all 24 bits.
float odd_number(uint32_t i) {
    const uint32_t mixed = (i + 1) * 2654435761u;
    return (float(mixed >> 8) / float(1 << 23) - 1.0f) * float(1 + mixed % 7);
}

// Equal but for rounding, or the same infinity, or both no number.
bool same(float x, float y) { return (x != x && y != y) || x == y || std::abs(x - y) <= 1e-5f * std::abs(y); }

// Weights that are split where the processor multiplies matrices: from summed position `k` and column `first` on, part of a larger
// matrix. Errors are those of float32; numbers that cannot be split come out as they would if nothing were packed.
bool agrees_split(const Shape& s, int first, int k, bool left, float odd) {
    const int count = left ? s.rows : s.cols, others = left ? s.cols : s.rows;
    const int wide = first + count + 3, deep = k + s.depth + 5;
    std::vector<float> whole(static_cast<size_t>(wide * deep)), other(static_cast<size_t>(others * s.depth));
    for (size_t i = 0; i < whole.size(); ++i) whole[i] = odd_number(uint32_t(i));
    for (size_t i = 0; i < other.size(); ++i) other[i] = odd_number(uint32_t(i) + 99);
    if (odd != 0) other[other.size() / 2] = odd;
    const bool all = odd != 0 && std::abs(odd) < 1;  // tiny ones only where there are no others
    if (all) std::fill(other.begin(), other.end(), odd);
    const int64_t row = s.b_turned ? deep : 1, depth = s.b_turned ? 1 : wide;
    const mirage_packing how = {0, 4, row, depth, wide * deep, 0, 0, 1};
    const bool able = LANES == 16 && multiplies_matrices();
    const PackedForm form = pack(how, whole.data(), able);
    const float* const part = whole.data() + first * row + k * depth;
    const Operand<float> own = {part, row, depth};
    const Operand<float> side = {other.data(), s.a_turned ? 1 : s.depth, s.a_turned ? others : 1};
    const Split<float> packed_side = split(own, static_cast<const float*>(whole.data()), static_cast<const float*>(form.data), deep);
    const auto made = [&](auto weights) {
        std::vector<float> c(static_cast<size_t>(s.cols * s.rows), GUARD);
        if (left) contract(c.data(), s.cols, s.rows, s.cols, s.depth, weights, side, s.add);
        if (!left) contract(c.data(), s.cols, s.rows, s.cols, s.depth, side, weights, s.add);
        return c;
    };
    const std::vector<float> c = made(packed_side), plainly = made(own);
    std::vector<float> scratch(static_cast<size_t>(others * count));
    const bool taken = by_matrices<Plain>(scratch.data(), count, others, count, s.depth, side, packed_side, false);
    bool right = taken == (able && first % 16 == 0 && k % 32 == 0);
    double error = 0, usual = 0, scale = 0;
    for (int i = 0; i < s.rows; ++i)
        for (int j = 0; j < s.cols; ++j) {
            double sum = s.add ? double(GUARD) : 0, terms = std::abs(sum);
            const int mine = left ? i : j, its = left ? j : i;
            for (int t = 0; t < s.depth; ++t) {
                const double term = double(part[mine * row + t * depth]) * double(side.data[its * side.row + t * side.depth]);
                sum += term, terms += std::abs(term);
            }
            const size_t at = static_cast<size_t>(i * s.cols + j);
            const bool usual_row = std::isfinite(plainly[at]) && std::abs(plainly[at]) < 1e20f && !all;
            if (all || !usual_row) right &= same(c[at], plainly[at]);
            if (usual_row) error += (c[at] - sum) * (c[at] - sum), usual += (plainly[at] - sum) * (plainly[at] - sum), scale += terms * terms;
        }
    right &= std::sqrt(error) <= 1.2 * std::sqrt(usual) + (s.rows * s.cols < 100 ? 1e-7 * std::sqrt(scale) : 0);
    release(form.data);
    if (right) return true;
    std::printf("split: %d x %d over %d from %d, %d, left %d, a turned %d, b turned %d, add %d, odd %g: taken %d, off by %g, %g\n",
                s.rows, s.cols, s.depth, first, k, left, s.a_turned, s.b_turned, s.add, double(odd), taken, std::sqrt(error), std::sqrt(usual));
    return false;
}
int failures_split(int rows, int cols, int depth, int form) {
    const Shape s = {rows, cols, depth, (form & 1) != 0, (form & 2) != 0, (form & 4) != 0, 0};
    const float odd[] = {0, 0, 0, INFINITY, NAN, 1e30f, 1e-20f, 1e-42f};
    const int first = form % 5 == 4 ? 21 : form % 3 * 16, k = form % 7 == 6 ? 16 : form % 2 * 32;
    return !agrees_split(s, first, k, form % 3 == 0, odd[form % 8]) + !agrees_split(s, first, k, form % 3 != 0, 0);
}

// Numbers so far apart, rounded to 8 bits with one scale. Those that are given are odd multiples of one: none lies between two.
void round_plainly(float* x, int64_t apart, int count) {
    float largest = 0;
    for (int i = 0; i < count; ++i) largest = std::max(largest, std::abs(x[i * apart]));
    for (int i = 0; i < count; ++i) x[i * apart] = std::nearbyint(x[i * apart] * 127 / largest) * (largest / 127);
}

// Quantised numbers, part of a larger matrix, with the zero points and scales of blocks, that are packed or (not `panels`) as they
// are stored, times others as they are or (`in_bytes`) rounded, as columns, or, `left`, as rows: `first` columns and a whole block in front, three columns behind.
template <class Q, class Z, bool SAME>
bool agrees_quantised(const Shape& s, int first, int block, bool left, bool panels, bool in_bytes) {
    const int count = left ? s.rows : s.cols, others = left ? s.cols : s.rows, wide = first + count + 3;
    const int blocks = (s.depth + block - 1) / block + 1, deep = blocks * block, c_pitch = s.cols + s.pad;
    const int64_t row = s.b_turned ? deep : 1, depth = s.b_turned ? 1 : wide;
    const int64_t own_row = s.b_turned ? blocks : 1, own_depth = s.b_turned ? 1 : wide;
    std::vector<uint8_t> q(static_cast<size_t>(wide * deep * Q::BITS / 8 + 1));
    const bool greatest = s.pad == 2;  // of all numbers, whose sums are the largest that there are
    for (size_t i = 0; i < q.size(); ++i) q[i] = greatest ? 255 : static_cast<uint8_t>(i * 151 + i / 7);
    std::vector<uint8_t> bytes(static_cast<size_t>(wide * blocks));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 89);
    std::vector<float> reals(bytes.size()), scales(bytes.size());
    for (size_t i = 0; i < reals.size(); ++i) reals[i] = number(int(i)), scales[i] = number(int(i) + 3);
    const mirage_packing how = {0, 4, row, depth, wide * deep, Q::BITS, Q::TURNED, 0};
    const mirage_packing of_floats = {0, 4, own_row, own_depth, wide * blocks, 0, 0, 0};
    constexpr bool WHOLE = std::is_same_v<typename Z::Element, uint8_t>;
    mirage_packing of_zeros = of_floats;
    if constexpr (WHOLE) of_zeros = {0, 1, own_row, own_depth, wide * blocks, Z::BITS, Z::TURNED, 0};
    const void* const zeros = WHOLE ? static_cast<const void*>(bytes.data()) : reals.data();
    void* const made[] = {pack(how, q.data()).data, pack(of_zeros, zeros).data, pack(of_floats, scales.data()).data};
    const auto of = [&](int i) { return panels ? made[i] : nullptr; };
    const int64_t at = first * own_row + own_depth;  // behind the first block
    const auto numbers = stored<Q>(q.data(), first * row + block * depth, row, depth, static_cast<const uint8_t*>(of(0)), deep);
    const auto scale = stored<Real<float>>(scales.data(), at, own_row, own_depth, static_cast<const float*>(of(2)), blocks);
    const auto zero = [&] {
        if constexpr (SAME) {
            return same_whole(3.0f);
        } else if constexpr (WHOLE) {
            return stored<Z>(bytes.data(), at, own_row, own_depth, static_cast<const uint8_t*>(of(1)), blocks);
        } else {
            return stored<Z>(reals.data(), at, own_row, own_depth, static_cast<const float*>(of(1)), blocks);
        }
    }();
    std::vector<float> floats(static_cast<size_t>(count * s.depth));
    for (int j = 0; j < count; ++j)
        for (int k = 0; k < s.depth; ++k)
            floats[static_cast<size_t>(j * s.depth + k)] =
                (element(numbers, j, k) - element(zero, j, k / block)) * element(scale, j, k / block);
    const int pitch = s.a_turned ? others : s.depth;
    std::vector<float> other(static_cast<size_t>(others * s.depth)), c(static_cast<size_t>(c_pitch * s.rows), GUARD), wanted = c;
    for (size_t i = 0; i < other.size(); ++i) other[i] = greatest ? 1.0f : 2 * number(static_cast<int>(i)) + 0.125f;
    const int most = std::min(block, DEPTH);
    const size_t parts = static_cast<size_t>((s.depth + most - 1) / most), held = static_cast<size_t>(s.depth + 15) / 16 * 16;
    std::vector<unsigned char> room(static_cast<size_t>(others) * (held + 16 * parts));
    const Operand<float> as_it_is = {other.data(), s.a_turned ? 1 : pitch, s.a_turned ? pitch : 1};
    std::vector<float> taken = other;
    for (int r = 0; in_bytes && panels && first % 16 == 0 && r < others; ++r)
        for (int k = 0, part = 0; k < s.depth; k += part) {
            part = std::min({most, block - k % block, s.depth - k});
            round_plainly(taken.data() + r * as_it_is.row + k * as_it_is.depth, as_it_is.depth, part);
        }
    const auto own = quantised(numbers, zero, scale, block);
    const auto multiply = [&](auto side) {
        if (left) {
            contract(c.data(), c_pitch, s.rows, s.cols, s.depth, own, side, s.add);
        } else {
            contract(c.data(), c_pitch, s.rows, s.cols, s.depth, side, own, s.add);
        }
    };
    if (left) plain(s, floats.data(), s.depth, 1, taken.data(), as_it_is.row, as_it_is.depth, wanted.data(), c_pitch);
    if (!left) plain(s, taken.data(), as_it_is.row, as_it_is.depth, floats.data(), s.depth, 1, wanted.data(), c_pitch);
    if (in_bytes) multiply(to_bytes(as_it_is, room.data()));
    if (!in_bytes) multiply(as_it_is);
    bool spreads = true;  // what is no number comes out of all sums that it is part of, and of no others
    for (const float odd : {NAN, INFINITY, -INFINITY}) {
        if (!in_bytes) break;
        const std::vector<float> usual = c;
        std::fill(c.begin(), c.end(), GUARD);
        other[0] = odd;
        multiply(to_bytes(as_it_is, room.data()));
        for (int i = 0; i < s.rows; ++i)
            for (int j = 0; j < s.cols; ++j) {
                const size_t at = static_cast<size_t>(i * c_pitch + j);
                spreads &= (left ? j : i) == 0 ? !std::isfinite(c[at]) : c[at] == usual[at];
            }
        c = usual;
    }
    for (void* p : made) release(p);
    float off = 0;  // products have more bits than floats: sums are rounded
    for (size_t i = 0; i < c.size(); ++i) off = std::max(off, std::abs(c[i] - wanted[i]) / (std::abs(wanted[i]) + Q::LOW * s.depth));
    if (spreads && off < (in_bytes ? 3e-6f : 1e-6f)) return true;
    std::printf("quantised %d bits, same %d, whole %d: %d x %d over %d in %d from %d, left %d, panels %d, in bytes %d, off by %g\n", Q::BITS, SAME, WHOLE,
                s.rows, s.cols, s.depth, block, first, left, panels, in_bytes, static_cast<double>(off));
    return false;
}
int failures_quantised(int rows, int cols, int depth, int block, int form) {
    const Shape s = {rows, cols, depth, (form & 1) != 0, (form & 2) != 0, (form & 4) != 0, form % 3};
    const int first = form % 5 == 4 ? 21 : form % 3 * 16;
    const bool left = form % 7 == 0, panels = form % 8 != 5;
    int failed = 0;
    for (const bool in_bytes : {false, true})
        failed += !agrees_quantised<U4, U4, true>(s, first, block, left, panels, in_bytes) +
                  !agrees_quantised<U4, U4, false>(s, first, block, left, panels, in_bytes) +
                  !agrees_quantised<I4, U8, false>(s, first, block, left, panels, in_bytes) +
                  !agrees_quantised<U8, Real<float>, false>(s, first, block, left, panels, in_bytes) +
                  !agrees_quantised<I8, I8, true>(s, first, block, left, panels, in_bytes) +
                  !agrees_quantised<U2, U2, false>(s, first, block, left, panels, in_bytes);
    return failed;
}

// Levels of which the zero is number `first` % 256 (of the first row the lowest and the highest alone) times quantised numbers without
// scales, as in `agrees_quantised`: sums of whole numbers, exact to the last bit.
template <class Q, class Z, bool SAME>
bool agrees_levels(const Shape& s, int first, bool left, bool panels) {
    const int count = left ? s.rows : s.cols, others = left ? s.cols : s.rows, wide = first + count + 3;
    const int deep = s.depth + 8, c_pitch = s.cols + s.pad, lowest = first % 256;
    const int64_t row = s.b_turned ? deep : 1, depth = s.b_turned ? 1 : wide;
    std::vector<uint8_t> q(static_cast<size_t>(wide * deep * Q::BITS / 8 + 1)), zeros(static_cast<size_t>(wide));
    for (size_t i = 0; i < q.size(); ++i) q[i] = s.pad == 2 ? 255 : static_cast<uint8_t>(i * 151 + i / 7);
    for (size_t i = 0; i < zeros.size(); ++i) zeros[i] = static_cast<uint8_t>(i * 89);
    const mirage_packing how = {0, 4, row, depth, wide * deep, Q::BITS, Q::TURNED, 0};
    const mirage_packing of_zeros = {0, 1, 1, wide, wide, Z::BITS, Z::TURNED, 0};
    void* const made[] = {pack(how, q.data()).data, pack(of_zeros, zeros.data()).data};
    const auto of = [&](int i) { return static_cast<const uint8_t*>(panels ? made[i] : nullptr); };
    const auto numbers = stored<Q>(q.data(), first * row + 8 * depth, row, depth, of(0), deep);
    const auto zero = [&] {
        if constexpr (SAME) {
            return same_whole(3.0f);
        } else {
            return stored<Z>(zeros.data(), first, 1, wide, of(1), 1);
        }
    }();
    const Operand<float> plain_side = {nullptr, s.a_turned ? 1 : s.depth, s.a_turned ? others : 1};
    std::vector<float> other(static_cast<size_t>(others * s.depth)), c(static_cast<size_t>(c_pitch * s.rows), GUARD);
    for (int r = 0; r < others; ++r)
        for (int k = 0; k < s.depth; ++k) {
            const int level = r == 0 ? k % 2 * 255 : (r * 31 + k * 7919) % 256;
            other[static_cast<size_t>(r * plain_side.row + k * plain_side.depth)] = static_cast<float>(level - lowest);
        }
    const size_t high = static_cast<size_t>(others + 16) / 16 * 16 + 1, pitch = static_cast<size_t>(s.depth + 63) / 64 * 64 + 64;
    std::vector<unsigned char> room(4 * high + (high + 4) * pitch);
    const auto own = quantised(numbers, zero, same_whole(1.0f), deep);
    const Levels side = in_levels({other.data(), plain_side.row, plain_side.depth}, room.data());
    if (left) contract(c.data(), c_pitch, s.rows, s.cols, s.depth, own, side, s.add);
    if (!left) contract(c.data(), c_pitch, s.rows, s.cols, s.depth, side, own, s.add);
    bool same = true;
    for (int i = 0; i < s.rows; ++i)
        for (int j = 0; j < s.cols; ++j) {
            double sum = 0;
            const int r = left ? j : i, column = left ? i : j;
            for (int k = 0; k < s.depth; ++k)
                sum += double(other[static_cast<size_t>(r * plain_side.row + k * plain_side.depth)]) *
                       double(element(numbers, column, k) - element(zero, column, 0));
            const float found = c[static_cast<size_t>(i * c_pitch + j)], wanted = float(sum) + (s.add ? GUARD : 0.0f);
            same &= panels && first % 16 == 0 ? found == wanted : std::abs(found - wanted) <= 4e-6f * s.depth * 65025;
        }
    for (void* p : made) release(p);
    if (same) return true;
    std::printf("levels, %d bits, same %d: %d x %d over %d from %d, left %d, panels %d\n", Q::BITS, SAME, s.rows, s.cols, s.depth, first,
                left, panels);
    return false;
}
int failures_levels(int rows, int cols, int depth, int form) {
    const Shape s = {rows, cols, depth, (form & 1) != 0, (form & 2) != 0, (form & 4) != 0, form % 3};
    const int first = form % 5 == 4 ? 21 : form % 13 * 16;
    const bool left = form % 7 == 0, panels = form % 8 != 5;
    return !agrees_levels<I8, I8, true>(s, first, left, panels) + !agrees_levels<U8, U8, false>(s, first, left, panels) +
           !agrees_levels<I8, I8, false>(s, first, left, panels) + !agrees_levels<U4, U4, false>(s, first, left, panels);
}

// The same where all is known when it is compiled, and where only the most rows are.
template <class T, int ROWS, int COLS, int TERMS, bool A_TURNED, bool B_TURNED, bool ADD>
int failures_known() {
    constexpr Shape s = {ROWS, COLS, TERMS, A_TURNED, B_TURNED, ADD, 0};
    using All = Known<ROWS, ROWS, COLS, TERMS, A_TURNED ? ROWS : 1, B_TURNED ? TERMS : 1, B_TURNED ? 1 : COLS, ADD>;
    using Most = Known<0, ROWS + 2, 0, TERMS, 1, B_TURNED ? 0 : 1, 0, ADD>;
    return !agrees<T, All>(s, "known") + (A_TURNED ? 0 : !agrees<T, Most>(s, "up to"));
}

int failures(const Shape& s) {
    int failed = !agrees<float>(s, "f32") + !agrees<half>(s, "f16") + !agrees<bfloat>(s, "bf16");
    if ((s.rows + s.depth / 5 + s.a_turned + s.b_turned + s.add) % 2 == 0) return failed;  // half of them do for packed ones
    const int first = (s.rows * 7 + s.cols) % 4 == 3 ? 21 : (s.rows + s.depth) % 3 * 16;  // 21 lies inside of a panel
    failed += !agrees_packed<float>(s, first, false, "f32") + !agrees_packed<float>(s, first, true, "f32");
    return failed + (s.rows % 2 ? !agrees_packed<half>(s, first, false, "f16") : !agrees_packed<bfloat>(s, first, false, "bf16"));
}

}  // namespace

// Under sanitizers, which are slow, large shapes have one form, and one size of blocks.
#if defined(__SANITIZE_ADDRESS__)
#define LARGE(rows, cols, depth) (rows * cols * depth > 20000)
#else
#define LARGE(rows, cols, depth) false
#endif

int main() {
    int failed = 0, count = 0;
    for (int rows : {1, 2, 3, 4, 7, 13, 18, 37})
        for (int cols : {1, 7, 16, 33, 150})
            for (int depth : {1, 5, 8, 67, 300})
                for (int form = 0; form < 8; ++form) {
                    ++count;
                    if (LARGE(rows, cols, depth) && form != (rows + cols) % 8) continue;
                    failed += failures({rows, cols, depth, (form & 1) != 0, (form & 2) != 0, (form & 4) != 0, count % 3});
                }
    int form = 0;
    for (int rows : {1, 2, 3, 4, 5, 7, 16, 37})
        for (int cols : {1, 16, 48, 77})
            for (int depth : {3, 32, 161, 300})
                for (int block : {16, 32, 160}) {
                    const int own = form++;
                    if (LARGE(rows, cols, depth) && (own + own / 3) % 3 != 0) continue;
                    failed += failures_quantised(rows, cols, depth, block, own);
                }
    for (int rows : {1, 16, 17, 40, 77})
        for (int cols : {5, 16, 32, 75})
            for (int depth : {7, 32, 300, 531}) failed += failures_split(rows, cols, depth, form++);
    for (int rows : {1, 2, 4, 5, 16, 17, 37, 70})
        for (int cols : {1, 16, 48, 77})
            for (int depth : {3, 64, 161, 320}) failed += failures_levels(rows, cols, depth, form++);
    for (int rows : {192, 385})  // more than are turned at a time
        for (int form = 0; form < 4; ++form) failed += failures({rows, 33, 400 + form, (form & 1) != 0, false, (form & 2) != 0, 1});
    failed += failures({17, 2100, 20, false, false, true, 0});  // sums that are made apart, in several parts
    failed += failures({1, 70, 300, false, false, true, 600});  // rows far apart
    failed += failures({9, 70, 300, false, false, true, 600});
    failed += failures({3, 5, 0, false, false, false, 1});  // nothing to sum
    failed += failures_known<float, 1, 64, 40, false, false, false>();
    failed += failures_known<half, 3, 33, 67, false, true, true>();
    failed += failures_known<half, 17, 544, 20, false, false, false>();
    failed += failures_known<float, 70, 33, 300, true, false, true>();
    std::printf("%d shapes, %d failures\n", count, failed);
    return failed == 0 ? 0 : 1;
}
