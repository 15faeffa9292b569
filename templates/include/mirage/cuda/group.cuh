// Matrix instructions of a warpgroup (sm_90a) that add to what four warps hold of 64 rows; both operands are in shared memory.
#pragma once
#include "mirage/cuda/warpgroup.cuh"

namespace mirage {

// c += a * b of 64 x 16 and 16 x N, given by where they lie in tiles of panels: `a` from 16 columns of 64 rows on, `b` from
// the first of 16 rows (or, TURNED, of 16 columns) on, whose panels are `panel` bytes apart.
template <int N, bool TURNED, class T>
MIRAGE_DEVICE void multiply_group(float (&c)[N / 8][4], const T* a, const T* b, int panel) {
    const uint64_t left = tile_descriptor(shared_address(a), 16), right = tile_descriptor(shared_address(b), panel);
    wgmma<N, T, false, TURNED>(c, left, right, true);
}

}  // namespace mirage
