// Starting HIP kernels without ROCm's headers: libamdhip64 is found when the first kernel starts, so that the library loads
// where there is none. Errors are hipError_t; -1: there is no libamdhip64. Nobody has run it.
#pragma once
#include <dlfcn.h>

#include <cstdint>

using cudaError_t = int;
using cudaStream_t = void*;  // a hipStream_t
constexpr cudaError_t cudaSuccess = 0;

namespace mirage::hip {

template <class F>
F* function(const char* name) {
    static void* const library = dlopen("libamdhip64.so", RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(library, name));
}
template <class F, class... A>
int call(const char* name, A... args) {
    F* const f = function<F>(name);
    return f == nullptr ? -1 : f(args...);
}

// A kernel as the compiler's start-up code tells of it: what stands for it on the host, its name, the image that has it for
// all architectures, and its function on each device once it was started there.
struct Kernel {
    const void* host;
    const char* name;
    const void* image;
    void* functions[64];
};
inline Kernel* known(const void* host, const char* name = nullptr, const void* image = nullptr) {
    static Kernel kernels[4096];
    static int count = 0;
    for (int n = 0; n < count; ++n)
        if (kernels[n].host == host) return &kernels[n];
    if (name == nullptr || count == 4096) return nullptr;
    kernels[count] = {host, name, image, {}};
    return &kernels[count++];
}

template <class P>
int launch(void (*host)(P), int64_t blocks, int threads, int shared_bytes, void* stream, P parameters) {
    if (blocks > 0x7fffffff) return 1;  // hipErrorInvalidValue
    int device = 0;
    int status = call<int(int*)>("hipGetDevice", &device);
    if (status != 0) return status;
    Kernel* const kernel = known(reinterpret_cast<const void*>(host));
    if (device < 0 || device > 63 || kernel == nullptr) return 101;  // hipErrorInvalidDevice
    void* function = __atomic_load_n(&kernel->functions[device], __ATOMIC_ACQUIRE);
    if (function == nullptr) {
        void* module = nullptr;
        status = call<int(void**, const void*)>("hipModuleLoadData", &module, kernel->image);
        if (status == 0) status = call<int(void**, void*, const char*)>("hipModuleGetFunction", &function, module, kernel->name);
        if (status != 0) return status;
        __atomic_store_n(&kernel->functions[device], function, __ATOMIC_RELEASE);
    }
    void* arguments[] = {&parameters};
    using Launch = int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
    return call<Launch>("hipModuleLaunchKernel", function, static_cast<unsigned>(blocks), 1u, 1u, static_cast<unsigned>(threads),
                        1u, 1u, static_cast<unsigned>(shared_bytes), stream, static_cast<void**>(arguments),
                        static_cast<void**>(nullptr));
}

}  // namespace mirage::hip

inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
    return mirage::hip::call<int(void*, int, size_t, void*)>("hipMemsetAsync", to, value, bytes, stream);
}

// What the compiler's own start-up code and the host's stubs of kernels call: kernels are noted, nothing starts by a stub.
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
#define MIRAGE_OWN __attribute__((visibility("hidden"), used)) inline
extern "C" {
MIRAGE_OWN void** __hipRegisterFatBinary(const void* wrapper) {  // magic and version, then the image
    return const_cast<void**>(&static_cast<void* const*>(wrapper)[1]);
}
MIRAGE_OWN void __hipUnregisterFatBinary(void**) {}
MIRAGE_OWN int __hipRegisterFunction(void** image, const void* host, char*, const char* name, unsigned, void*, void*, void*, void*,
                                     int*) {
    return mirage::hip::known(host, name, *image) == nullptr;
}
MIRAGE_OWN int hipLaunchKernel(const void*, dim3, dim3, void**, size_t, void*) { return 1; }
MIRAGE_OWN int __hipPopCallConfiguration(dim3*, dim3*, size_t*, void**) { return 1; }
MIRAGE_OWN int __hipPushCallConfiguration(dim3, dim3, size_t, void*) { return 1; }
}
