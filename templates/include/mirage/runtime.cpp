// What every library has beside its kernels and their table: custom operators of ONNX Runtime, and the C functions of mirage.h
// that no operator has for itself.
#include "mirage/ort_ops.hpp"

extern "C" MIRAGE_EXPORT uint64_t mirage_packed_bytes() { return mirage::packed_bytes.load(); }

#if defined(MIRAGE_WITH_CUDA)
extern "C" MIRAGE_EXPORT void mirage_cuda_error(int code, char* text, size_t bytes) {
    mirage::Message message;
    mirage::add_cuda_error(message, code);
    snprintf(text, bytes, "%s", message.text);
}
#endif

#if defined(MIRAGE_WITH_OPENCL)
extern "C" MIRAGE_EXPORT const char* mirage_opencl_message() { return mirage::opencl::message(); }
extern "C" MIRAGE_EXPORT void mirage_opencl_counts(uint64_t* counts) {
    const mirage::opencl::Counts& c = mirage::opencl::counts();
    counts[0] = c.calls, counts[1] = c.to, counts[2] = c.from, counts[3] = c.shared;
}
#endif
