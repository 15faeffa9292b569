// What a CUDA error means, with the versions or the architectures that do not fit where these are the reason. The CUDA
// run-time library is linked statically; these are its C entry points (cudaError_t as int).
#ifndef MIRAGE_CUDA_ERROR_HPP
#define MIRAGE_CUDA_ERROR_HPP

#include "mirage/ort_shapes.hpp"

#define MIRAGE_WORDS_(...) #__VA_ARGS__
#define MIRAGE_WORDS(...) MIRAGE_WORDS_(__VA_ARGS__)

extern "C" {
int cudaDriverGetVersion(int* version);
int cudaRuntimeGetVersion(int* version);
int cudaGetDevice(int* device);
int cudaDeviceGetAttribute(int* value, int attribute, int device);
const char* cudaGetErrorName(int error);
const char* cudaGetErrorString(int error);
}

namespace mirage {

// "the NVIDIA driver is for CUDA 12.2; this library was built with CUDA 13.0"; versions are 1000 * major + 10 * minor, 0 where there is none.
inline void add_cuda_versions(Message& message) {
    int driver = 0, own = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&own);
    if (driver == 0) message.add("; there is no NVIDIA driver");
    if (driver != 0) message.add("; the NVIDIA driver is for CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    message.add("; this library was built with CUDA %d.%d", own / 1000, own % 1000 / 10);
}

// "the device has compute capability 8.9; this library holds code for sm_90a".
inline void add_architectures(Message& message) {
    constexpr int major_attribute = 75, minor_attribute = 76;
    int device = 0, major = 0, minor = 0;
    if (cudaGetDevice(&device) == 0 && cudaDeviceGetAttribute(&major, major_attribute, device) == 0 &&
        cudaDeviceGetAttribute(&minor, minor_attribute, device) == 0) {
        message.add("; the device has compute capability %d.%d", major, minor);
    }
    message.add("; this library holds code for %s", MIRAGE_WORDS(MIRAGE_ARCHS));
}

inline void add_cuda_error(Message& message, int code) {
    constexpr int insufficient_driver = 35, invalid_function = 98, no_image = 209, invalid_ptx = 218, newer_ptx = 222;
    message.add("CUDA error %d (%s): %s", code, cudaGetErrorName(code), cudaGetErrorString(code));
    if (code == insufficient_driver || code == newer_ptx) add_cuda_versions(message);
    if (code == invalid_function || code == no_image || code == invalid_ptx) add_architectures(message);
}

}  // namespace mirage

#endif  // MIRAGE_CUDA_ERROR_HPP
