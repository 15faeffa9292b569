// Stages of one kernel, between which all of its blocks, which are resident, wait for one another.
//
// `gate` points to a word and a counter of blocks for each barrier. What they hold before does not matter: the block of task 0
// clears the counters and opens the gate with a number that no other launch has (`fresh`); blocks look at the gate before they are at the
// first barrier, behind which block 0 closes it again. So a CUDA graph may start the same launch, with the same number, again.
#pragma once
#include "mirage/cuda/ptx.cuh"

namespace mirage {

MIRAGE_DEVICE uint64_t seen_by_grid(const uint64_t* from) {
    uint64_t x;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    return x;
}

// The first task of a block waits for earlier launches (each thread has to before it reads anything but constants), and block 0
// opens the gate of `count` barriers.
MIRAGE_DEVICE void grid_start(unsigned task, uint64_t* gate, uint64_t fresh, int count) {
    wait_for_earlier();
    if (task != 0 || threadIdx.x != 0) return;
    for (int number = 1; number <= count; ++number) gate[number] = 0;
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(gate), "l"(fresh) : "memory");
}

// The block is at barrier `number`, 1 or more; what its threads wrote before is visible to all that wait there.
MIRAGE_DEVICE void grid_arrive(uint64_t* gate, uint64_t fresh, int number) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (number == 1)
        while (seen_by_grid(gate) != fresh) {
        }
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(gate + number), "l"(uint64_t{1}) : "memory");
}

// The first task of a block (it has the block's number) waits until all blocks are at barrier `number`. Every thread calls it
// before its first read of anything that another stage writes.
MIRAGE_DEVICE void grid_wait(unsigned task, uint64_t* gate, int number) {
    if (task != blockIdx.x) return;
    if (threadIdx.x == 0) {
        while (seen_by_grid(gate + number) != gridDim.x) {
        }
        if (number == 1 && blockIdx.x == 0) *gate = 0;
    }
    __syncthreads();
}

}  // namespace mirage
