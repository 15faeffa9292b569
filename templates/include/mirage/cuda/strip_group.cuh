// Products of strips by the warps of 64 rows together (sm_90a).
#pragma once
#include "mirage/cuda/group.cuh"
#include "mirage/cuda/strip.cuh"

namespace mirage {

// out += a * b over 16 KT positions; both are tiles of whole panels (64 elements of each row), the rows of `a` are depth.
template <int KT, class S, class LEFT, class RIGHT, bool INNER_DEPTH>
MIRAGE_DEVICE void strip_contract_together(S& out, const Rows16<LEFT, true>& a, const Columns8<RIGHT, INNER_DEPTH>& b) {
    using T = typename LEFT::T;
    constexpr int N = S::NT % 16 == 0 ? 128 : 8 * S::NT, PANEL = 64;
    static_assert(S::MT == 1 && LEFT::PANELS && RIGHT::PANELS, "16 rows of a warp, whole panels");
    pin(out.v[0]);
    products_begin();
#pragma unroll
    for (int k = 0; k < KT; ++k) {
        const T* const left = a.t.at + (k / 4 * LEFT::OUTER + a.first / 64 * 64) * PANEL + k % 4 * 16;
#pragma unroll
        for (int n = 0; n < S::NT; n += N / 8) {
            const int col = b.first + n;
            const T* const right = b.t.at + (INNER_DEPTH ? (k / 4 * RIGHT::OUTER + col * 8) * PANEL + k % 4 * 16
                                                         : (col / 8 * RIGHT::OUTER + k * 16) * PANEL + col % 8 * 8);
            auto& part = reinterpret_cast<float(&)[N / 8][4]>(out.v[0][n]);
            multiply_group<N, !INNER_DEPTH>(part, left, right, RIGHT::OUTER * PANEL * static_cast<int>(sizeof(T)));
        }
    }
    products_commit();
    products_wait<0>();
    pin(out.v[0]);
}

}  // namespace mirage
