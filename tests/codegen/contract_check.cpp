// Compares mirage::contract with plain loops for many shapes, layouts and element types; prints what differs, returns how
// many do. Guard numbers around every array show writes outside; reads outside are the sanitizers' business.
#include <cstdio>
#include <vector>

#include "mirage/cpu/packed.hpp"
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
    const mirage_packing how = {0, int(sizeof(T)), row, depth, wide * deep};
    T* const panels = static_cast<T*>(pack(how, whole.data()));
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
            contract(c.data(), c_pitch, s.rows, s.cols, s.depth, packed_side, plain_side, s.add);
        }
    if (!left) {
        plain(s, other.data(), other_row, other_depth, part, row, depth, wanted.data(), c_pitch);
        contract(c.data(), c_pitch, s.rows, s.cols, s.depth, plain_side, packed_side, s.add);
    }
    std::free(panels);
    if (c == wanted) return true;
    std::printf("packed %s: %d x %d over %d from %d, left %d, a turned %d, b turned %d, add %d, pad %d\n", type, s.rows, s.cols,
                s.depth, first, left, s.a_turned, s.b_turned, s.add, s.pad);
    return false;
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

int main() {
    int failed = 0, count = 0;
    for (int rows : {1, 2, 3, 4, 7, 13, 18, 37})
        for (int cols : {1, 7, 16, 33, 150})
            for (int depth : {1, 5, 8, 67, 300})
                for (int form = 0; form < 8; ++form) {
                    ++count;
#if defined(__SANITIZE_ADDRESS__)  // slow: of large ones one form
                    if (rows * cols * depth > 300000 && form != (rows + cols) % 8) continue;
#endif
                    failed += failures({rows, cols, depth, (form & 1) != 0, (form & 2) != 0, (form & 4) != 0, count % 3});
                }
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
