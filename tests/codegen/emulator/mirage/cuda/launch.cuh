// Stands in for the header of the same name: the grid runs in the emulator.
#pragma once
#include <cuda_runtime.h>

#include <atomic>

namespace mirage {

template <class P>
cudaError_t launch(void (*kernel)(P), std::atomic<uint64_t>&, int64_t blocks, int threads, int shared_bytes, int cluster,
                   bool dependent, void*, const P& parameters) {
    if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
    emulator::run_grid(static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared_bytes,
                       static_cast<unsigned>(cluster), dependent, [=] { kernel(parameters); });
    return cudaSuccess;
}

}  // namespace mirage
