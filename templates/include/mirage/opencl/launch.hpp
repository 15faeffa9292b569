// Starting OpenCL kernels on a queue. Needs no headers of OpenCL: its functions are found in libOpenCL when first called.
//
// Results: 0, else an OpenCL error (below 0) or one of Refusal; `message()` says what happened to the calling thread last.
#pragma once
#include <dlfcn.h>
#include <pthread.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "mirage/opencl/tensor.h"

namespace mirage::opencl {

using Tensor = mirage_opencl_tensor;
using Handle = void*;  // a context, queue, buffer and so on
enum Refusal { NO_LIBRARY = 1, UNFIT_DEVICE = 2 };
enum Info : unsigned {
    DEVICE_LOCAL_BYTES = 0x1023,
    DEVICE_FLOAT = 0x101B,
    DEVICE_NAME = 0x102B,
    DEVICE_DOUBLE = 0x1032,
    QUEUE_CONTEXT = 0x1090,
    QUEUE_DEVICE = 0x1091,
    PROGRAM_LOG = 0x1183,
    KERNEL_GROUP = 0x11B0,
    KERNEL_LOCAL_BYTES = 0x11B2,
};
constexpr uint64_t ROUNDED_DIVISION = 1 << 7;

inline char* message() {
    static thread_local char text[4096];
    return text;
}
__attribute__((format(printf, 2, 3))) inline int failed(int code, const char* format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(message(), 4096, format, values);
    va_end(values);
    return code;
}

// A function of libOpenCL by its type.
template <class F>
F* function(const char* name) {
    static void* const library = [] {
        const char* const other = std::getenv("MIRAGE_OPENCL_LIBRARY");
        return dlopen(other != nullptr ? other : "libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    }();
    return library == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(library, name));
}
// Calls `name`, whose result is an error: `call<int(Handle)>("clFlush", queue)`.
template <class F, class... A>
int call(const char* name, A... args) {
    F* const f = function<F>(name);
    if (f == nullptr)
        return failed(NO_LIBRARY, "libOpenCL.so.1 is not there or has no %s (apt install ocl-icd-libopencl1)", name);
    const int status = f(args...);
    return status == 0 ? 0 : failed(status, "%s failed with OpenCL error %d", name, status);
}
// The same of functions that make something and tell their error by their last argument.
template <class F, class... A>
Handle make(int& status, const char* name, A... args) {
    F* const f = function<F>(name);
    status = f == nullptr ? failed(NO_LIBRARY, "libOpenCL.so.1 is not there, or has no %s", name) : 0;
    Handle const made = f == nullptr ? nullptr : f(args..., &status);
    if (f != nullptr && status != 0) failed(status, "%s failed with OpenCL error %d", name, status);
    return made;
}
using Inquiry = int(Handle, unsigned, size_t, void*, size_t*);
using InquiryOfDevice = int(Handle, Handle, unsigned, size_t, void*, size_t*);

template <class T>
int ask(T& to, const char* name, Handle of, Info what) {
    return call<Inquiry>(name, of, unsigned{what}, sizeof to, static_cast<void*>(&to), static_cast<size_t*>(nullptr));
}

// The kernels of one source, built for each context and device that they are started on.
class Program {
  public:
    constexpr Program(const char* const* texts, unsigned count, bool doubles)
        : texts_(texts), count_(count), doubles_(doubles) {}

    // Starts a kernel; of the arguments a tensor is two.
    template <class... A>
    int start(Handle queue, const char* name, int64_t blocks, int threads, const A&... args) {
        if (blocks > 0x7fffffff) return failed(UNFIT_DEVICE, "%lld groups of work-items", static_cast<long long>(blocks));
        pthread_mutex_lock(&lock_);  // a kernel's arguments are its state
        Handle kernel = nullptr;
        int status = find(kernel, queue, name, threads);
        unsigned number = 0;
        if (status == 0) ((status = status != 0 ? status : set(kernel, number, args)), ...);
        const size_t local = static_cast<size_t>(threads), global = local * static_cast<size_t>(blocks);
        if (status == 0)
            status = call<Enqueue>("clEnqueueNDRangeKernel", queue, kernel, 1u, static_cast<const size_t*>(nullptr), &global,
                                   &local, 0u, static_cast<const Handle*>(nullptr), static_cast<Handle*>(nullptr));
        pthread_mutex_unlock(&lock_);
        return status;
    }

  private:
    using Create = Handle(Handle, unsigned, const char**, const size_t*, int*);
    using Build = int(Handle, unsigned, const Handle*, const char*, void (*)(Handle, void*), void*);
    using Enqueue = int(Handle, Handle, unsigned, const size_t*, const size_t*, const size_t*, unsigned, const Handle*,
                        Handle*);
    static constexpr int BUILDS = 16, KERNELS = 16;
    struct Built {
        Handle context, device, program;
        const char* names[KERNELS];
        Handle kernels[KERNELS];
    };

    int set(Handle kernel, unsigned& number, const Tensor& t) {
        const int status = put(kernel, number, sizeof t.buffer, &t.buffer);
        return status != 0 ? status : set(kernel, number, static_cast<int64_t>(t.offset));
    }
    int set(Handle kernel, unsigned& number, int64_t size) { return put(kernel, number, sizeof size, &size); }
    static int put(Handle kernel, unsigned& number, size_t bytes, const void* value) {
        return call<int(Handle, unsigned, size_t, const void*)>("clSetKernelArg", kernel, number++, bytes, value);
    }

    int find(Handle& kernel, Handle queue, const char* name, int threads) {
        Handle context = nullptr, device = nullptr;
        int status = ask(context, "clGetCommandQueueInfo", queue, QUEUE_CONTEXT);
        if (status == 0) status = ask(device, "clGetCommandQueueInfo", queue, QUEUE_DEVICE);
        if (status != 0) return status;
        Built* own = nullptr;
        for (int n = 0; n < used_; ++n)
            if (built_[n].context == context && built_[n].device == device) own = &built_[n];
        if (own == nullptr) {
            if (used_ == BUILDS) return failed(UNFIT_DEVICE, "kernels are built for %d contexts at most", BUILDS);
            Handle program = nullptr;
            status = build(program, context, device);
            if (status != 0) return status;
            built_[used_] = {context, device, program, {}, {}};  // it keeps its context: no other has that address
            own = &built_[used_++];
        }
        int place = 0;
        for (; place < KERNELS && own->names[place] != nullptr; ++place)
            if (strcmp(own->names[place], name) == 0) return kernel = own->kernels[place], 0;
        kernel = make<Handle(Handle, const char*, int*)>(status, "clCreateKernel", own->program, name);
        if (status == 0) status = check(kernel, device, static_cast<size_t>(threads));
        if (status == 0 && place < KERNELS) own->names[place] = name, own->kernels[place] = kernel;
        return status;
    }

    int build(Handle& program, Handle context, Handle device) {
        uint64_t doubles = 0, floats = 0;
        if (doubles_ && (ask(doubles, "clGetDeviceInfo", device, DEVICE_DOUBLE) != 0 || doubles == 0))
            return failed(UNFIT_DEVICE, "%s has no numbers of 64 bits (cl_khr_fp64), which this kernel sums in", Name(device).text);
        int status = ask(floats, "clGetDeviceInfo", device, DEVICE_FLOAT);
        if (status != 0) return status;
        program = make<Create>(status, "clCreateProgramWithSource", context, count_, const_cast<const char**>(texts_),
                               static_cast<const size_t*>(nullptr));
        if (status != 0) return status;
        const char* const plain = "-cl-std=CL1.2";
        const char* const options = (floats & ROUNDED_DIVISION) ? "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt" : plain;
        status = call<Build>("clBuildProgram", program, 1u, static_cast<const Handle*>(&device), options,
                             static_cast<void (*)(Handle, void*)>(nullptr), static_cast<void*>(nullptr));
        if (status == 0) return 0;
        size_t bytes = 0;
        if (auto* const log = function<InquiryOfDevice>("clGetProgramBuildInfo")) {
            log(program, device, PROGRAM_LOG, 0, nullptr, &bytes);
            char* const text = static_cast<char*>(std::calloc(bytes + 1, 1));
            if (text != nullptr && log(program, device, PROGRAM_LOG, bytes, text, nullptr) == 0)
                failed(status, "%s does not build the kernels (OpenCL error %d): %.3000s", Name(device).text, status, text);
            std::free(text);
        }
        function<int(Handle)>("clReleaseProgram")(program);
        return status;
    }

    // Whether a device runs groups of so many work-items with the memory that a kernel asks for.
    static int check(Handle kernel, Handle device, size_t threads) {
        size_t most = 0;
        uint64_t local = 0, has = 0;
        int status = ask(has, "clGetDeviceInfo", device, DEVICE_LOCAL_BYTES);
        if (status == 0)
            status = call<InquiryOfDevice>("clGetKernelWorkGroupInfo", kernel, device, unsigned{KERNEL_GROUP}, sizeof most,
                                           static_cast<void*>(&most), static_cast<size_t*>(nullptr));
        if (status == 0)
            status = call<InquiryOfDevice>("clGetKernelWorkGroupInfo", kernel, device, unsigned{KERNEL_LOCAL_BYTES}, sizeof local,
                                           static_cast<void*>(&local), static_cast<size_t*>(nullptr));
        if (status != 0) return status;
        if (most < threads)
            return failed(UNFIT_DEVICE, "%s runs groups of %zu work-items of this kernel, which has %zu", Name(device).text, most, threads);
        if (has < local)
            return failed(UNFIT_DEVICE, "%s has %llu bytes of local memory, this kernel asks for %llu", Name(device).text,
                          static_cast<unsigned long long>(has), static_cast<unsigned long long>(local));
        return 0;
    }

    struct Name {
        char text[256] = "the device";
        explicit Name(Handle device) { function<Inquiry>("clGetDeviceInfo")(device, DEVICE_NAME, 255, text, nullptr); }
    };

    const char* const* texts_;
    unsigned count_;
    bool doubles_;
    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    Built built_[BUILDS] = {};
    int used_ = 0;
};

template <class... A>
int launch(Handle queue, Program& program, const char* name, int64_t blocks, int threads, const A&... args) {
    return program.start(queue, name, blocks, threads, args...);
}
inline Tensor tensor(const void* place) { return place == nullptr ? Tensor{nullptr, 0} : *static_cast<const Tensor*>(place); }
inline Tensor tensor(const Tensor& t) { return t; }
inline Tensor inside(const void* workspace, int64_t behind) {
    const Tensor whole = tensor(workspace);
    return {whole.buffer, whole.offset + static_cast<size_t>(behind)};
}

}  // namespace mirage::opencl
