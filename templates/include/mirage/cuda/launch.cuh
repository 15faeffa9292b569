// Launching a kernel with a large dynamic shared memory block.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mirage {

// Raise the kernel's shared memory limit when it needs more than the default, then launch it on `stream`.
template <class P>
cudaError_t launch(void (*kernel)(P), int64_t blocks, int threads, int shared_bytes, void* stream, const P& parameters) {
    if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
    if (shared_bytes > 48 * 1024) {
        const cudaError_t status =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
        if (status != cudaSuccess) return status;
    }
    void* arguments[] = {const_cast<P*>(&parameters)};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
                            dim3(static_cast<unsigned>(threads)), arguments, static_cast<size_t>(shared_bytes),
                            static_cast<cudaStream_t>(stream));
}

}  // namespace mirage
