// Launching a kernel: large shared memory, clusters, overlap with the kernel before it.
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

namespace mirage {

// The architecture of the current device as __CUDA_ARCH__ has it, such as 900; 0 where there is none.
inline int capability() {
    static std::atomic<int> known[64] = {};
    int device = 0, major = 0, minor = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device > 63) return 0;
    const int before = known[device].load(std::memory_order_relaxed);
    if (before != 0) return before;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
        return 0;
    const int now = 100 * major + 10 * minor;
    known[device].store(now, std::memory_order_relaxed);
    return now;
}

// Raise what a kernel may ask for beyond the defaults, once for each kernel and device.
template <class P>
cudaError_t admit(void (*kernel)(P), int shared_bytes, int cluster, std::atomic<uint64_t>& admitted) {
    int device = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status != cudaSuccess) return status;
    const uint64_t bit = uint64_t{1} << (device & 63);
    if (device < 64 && (admitted.load(std::memory_order_acquire) & bit)) return cudaSuccess;
    if (shared_bytes > 48 * 1024)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (status == cudaSuccess && cluster > 8)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (status == cudaSuccess) admitted.fetch_or(bit, std::memory_order_release);
    return status;
}

// Launch `kernel` on `stream` in clusters of `cluster` consecutive blocks. A `dependent` launch may begin before the work
// before it on the stream has ended; the kernel itself waits for that (`wait_for_earlier`) before it reads what others
// may have written and before it writes. Blocks of a `resident` launch all run at the same time, or none does.
template <class P>
cudaError_t launch(void (*kernel)(P), std::atomic<uint64_t>& admitted, int64_t blocks, int threads, int shared_bytes,
                   int cluster, bool dependent, void* stream, const P& parameters, bool resident = false) {
    if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
    const cudaError_t status = admit(kernel, shared_bytes, cluster, admitted);
    if (status != cudaSuccess) return status;
    cudaLaunchAttribute attributes[3];
    unsigned count = 0;
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count].val.clusterDim.x = static_cast<unsigned>(cluster);
        attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
        ++count;
    }
    if (dependent) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count].val.programmaticStreamSerializationAllowed = 1;
        ++count;
    }
    if (resident) {
        attributes[count].id = cudaLaunchAttributeCooperative;
        attributes[count].val.cooperative = 1;
        ++count;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, parameters);
}

// Launch at most `tasks` blocks, whole clusters of them, that are all resident at the same time: as many as the device holds,
// which is asked once for each kernel (`P` is its own) and device.
template <class P>
cudaError_t launch_resident(void (*kernel)(P), std::atomic<uint64_t>& admitted, int64_t tasks, int threads, int shared_bytes,
                            int cluster, bool dependent, void* stream, const P& parameters) {
    static std::atomic<int> known[64] = {};
    int device = 0, held = 0, units = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess) status = admit(kernel, shared_bytes, cluster, admitted);
    if (status != cudaSuccess) return status;
    if (device < 64) held = known[device].load(std::memory_order_relaxed);
    if (held == 0 && cluster > 1) {
        cudaLaunchAttribute attribute;
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(static_cast<unsigned>(cluster));
        config.blockDim = dim3(static_cast<unsigned>(threads));
        config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
        config.attrs = &attribute;
        config.numAttrs = 1;
        status = cudaOccupancyMaxActiveClusters(&held, kernel, &config);
        held *= cluster;
    } else if (held == 0) {
        status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&held, kernel, threads, static_cast<size_t>(shared_bytes));
        if (status == cudaSuccess) status = cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
        held *= units;
    }
    if (status != cudaSuccess) return status;
    if (device < 64) known[device].store(held, std::memory_order_relaxed);
    const int64_t blocks = (tasks < held ? tasks : held) / cluster * cluster;
    if (blocks <= 0) return cudaErrorCooperativeLaunchTooLarge;
    return launch(kernel, admitted, blocks, threads, shared_bytes, cluster, dependent, stream, parameters, true);
}

// A number that no other launch has.
inline uint64_t fresh_number() {
    static std::atomic<uint64_t> launches{0};
    const uint64_t library = reinterpret_cast<uintptr_t>(&launches);
    return (2 * (launches.fetch_add(1, std::memory_order_relaxed) + library) + 1) * 0x9e3779b97f4a7c15u;  // odd
}

}  // namespace mirage
