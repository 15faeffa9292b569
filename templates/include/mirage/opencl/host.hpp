// An operator's OpenCL kernel for tensors in host memory: what ONNX Runtime's CPU provider has. A device that shares the
// host's memory works in the tensors themselves; for others inputs are copied there and outputs back, and that is counted.
#pragma once
#include <ctime>

#include "mirage/opencl/launch.hpp"
#include "mirage/ort_shapes.hpp"

namespace mirage::opencl {

// What all calls of this library's kernels did: calls, bytes copied to and from the device, bytes shared with it.
struct Counts {
    uint64_t calls, to, from, shared;
};
inline Counts& counts() {
    static Counts total = {};
    return total;
}

// The device that $MIRAGE_OPENCL names as PLATFORM:DEVICE, else the first one. `off`: none.
struct Device {
    Handle context, queue;
    bool shares;  // the host's memory
    bool named;

    static const Device* get() {
        static const Device only = find();
        return only.queue != nullptr || only.named ? &only : nullptr;
    }

  private:
    static Device find() {
        const char* const wanted = std::getenv("MIRAGE_OPENCL");
        int platform = 0, device = 0;
        if (wanted != nullptr && std::strcmp(wanted, "off") == 0) return {};
        const Device none = {nullptr, nullptr, false, wanted != nullptr};  // a named one has to be there
        if (wanted != nullptr && std::sscanf(wanted, "%d:%d", &platform, &device) != 2) return none;
        if (platform < 0 || device < 0 || platform > 63 || device > 63) return none;
        using Platforms = int(unsigned, Handle*, unsigned*);
        using Devices = int(Handle, uint64_t, unsigned, Handle*, unsigned*);
        using Context = Handle(const intptr_t*, unsigned, const Handle*, void (*)(const char*, const void*, size_t, void*),
                               void*, int*);
        using Queue = Handle(Handle, Handle, uint64_t, int*);
        constexpr Info UNIFIED = Info(0x1035);
        Handle platforms[64], devices[64];
        unsigned count = 0, shares = 0;
        if (call<Platforms>("clGetPlatformIDs", 64u, platforms, &count) != 0 || unsigned(platform) >= count) return none;
        if (call<Devices>("clGetDeviceIDs", platforms[platform], uint64_t{0xFFFFFFFF}, 64u, devices, &count) != 0) return none;
        if (unsigned(device) >= count) return none;
        int status = 0;
        Device found = {};
        found.context = make<Context>(status, "clCreateContext", static_cast<const intptr_t*>(nullptr), 1u,
                                      static_cast<const Handle*>(&devices[device]), nullptr, nullptr);
        if (status == 0) found.queue = make<Queue>(status, "clCreateCommandQueue", found.context, devices[device], uint64_t{0});
        if (status != 0) return none;
        found.shares = ask(shares, "clGetDeviceInfo", devices[device], UNIFIED) == 0 && shares != 0;
        found.named = wanted != nullptr;
        return found;
    }
};

inline size_t bytes_of(const mirage::Tensor& tensor, const int64_t* symbols) {
    int64_t count = 1, extent = 0;
    for (int d = 0; d < tensor.rank; ++d)
        if (evaluate(tensor.dims[d], symbols, -1, &extent) == Known::yes) count *= extent;
    switch (tensor.element) {
        case ort::Element::u2:
        case ort::Element::i2: return size_t((count + 3) / 4);
        case ort::Element::u4:
        case ort::Element::e2m1:
        case ort::Element::i4: return size_t((count + 1) / 2);
        case ort::Element::u8:
        case ort::Element::i8:
        case ort::Element::boolean:
        case ort::Element::e4m3:
        case ort::Element::e5m2: return size_t(count);
        case ort::Element::u16:
        case ort::Element::i16:
        case ort::Element::f16:
        case ort::Element::bf16: return size_t(2 * count);
        case ort::Element::i64:
        case ort::Element::u64:
        case ort::Element::f64: return size_t(8 * count);
        default: return size_t(4 * count);
    }
}

// The tensors of one call as buffers.
class Buffers {
  public:
    explicit Buffers(const Device& device) : device_(device) {}
    ~Buffers() {
        for (int n = 0; n < used_; ++n)
            if (tensors_[n].buffer != nullptr) function<int(Handle)>("clReleaseMemObject")(tensors_[n].buffer);
    }
    // A buffer for `data` of so many bytes (nullptr: memory of the device's own).
    int add(void* data, size_t bytes, bool output) {
        const bool in_place = data != nullptr && device_.shares && reinterpret_cast<uintptr_t>(data) % 16 == 0;
        const uint64_t use = data == nullptr ? READ_WRITE : in_place ? READ_WRITE | USE_HOST : output ? READ_WRITE : READ | COPY_HOST;
        void* const host = (use & (USE_HOST | COPY_HOST)) != 0 ? data : nullptr;
        int status = 0;
        Handle buffer = nullptr;
        if (bytes > 0) buffer = make<Create>(status, "clCreateBuffer", device_.context, use, bytes, host);
        tensors_[used_] = {buffer, 0};
        places_[used_++] = {data, bytes, in_place};
        if (data != nullptr && in_place) __atomic_fetch_add(&counts().shared, bytes, __ATOMIC_RELAXED);
        if (data != nullptr && !in_place && !output) __atomic_fetch_add(&counts().to, bytes, __ATOMIC_RELAXED);
        return status;
    }
    // Makes an output seen by the host, when the kernels have ended.
    int back(int n) {
        const Place& p = places_[n];
        if (p.bytes == 0) return 0;
        int status = 0;
        if (p.in_place) {
            void* const seen = make<Map>(status, "clEnqueueMapBuffer", device_.queue, tensors_[n].buffer, 1u, MAP_READ, size_t{0},
                                         p.bytes, 0u, static_cast<const Handle*>(nullptr), static_cast<Handle*>(nullptr));
            if (status == 0)
                status = call<Unmap>("clEnqueueUnmapMemObject", device_.queue, tensors_[n].buffer, seen, 0u,
                                     static_cast<const Handle*>(nullptr), static_cast<Handle*>(nullptr));
            return status;
        }
        __atomic_fetch_add(&counts().from, p.bytes, __ATOMIC_RELAXED);
        return call<Read>("clEnqueueReadBuffer", device_.queue, tensors_[n].buffer, 1u, size_t{0}, p.bytes, p.data, 0u,
                          static_cast<const Handle*>(nullptr), static_cast<Handle*>(nullptr));
    }
    const void* at(int n) const { return &tensors_[n]; }

  private:
    using Create = Handle(Handle, uint64_t, size_t, void*, int*);
    using Map = void*(Handle, Handle, unsigned, uint64_t, size_t, size_t, unsigned, const Handle*, Handle*, int*);
    using Unmap = int(Handle, Handle, void*, unsigned, const Handle*, Handle*);
    using Read = int(Handle, Handle, unsigned, size_t, size_t, void*, unsigned, const Handle*, Handle*);
    static constexpr uint64_t READ_WRITE = 1, READ = 4, USE_HOST = 8, COPY_HOST = 32, MAP_READ = 1;
    struct Place {
        void* data;
        size_t bytes;
        bool in_place;
    };
    const Device& device_;
    Tensor tensors_[2 * max_tensors + 1];
    Place places_[2 * max_tensors + 1];
    int used_ = 0;
};

// Runs an operator's kernel and waits for it: 0, or an error that `message()` explains.
inline int run(const Device& device, const Operator& op, const void* const* in, void* const* out, const int64_t* symbols) {
    if (device.queue == nullptr)
        return failed(NO_LIBRARY, "there is no device %.100s (PLATFORM:DEVICE) as $MIRAGE_OPENCL says", std::getenv("MIRAGE_OPENCL"));
    const int64_t scratch = op.opencl_workspace(symbols);
    if (scratch < 0) return failed(UNFIT_DEVICE, "the kernel refused these shapes");
    Buffers buffers(device);
    int status = 0;
    for (int i = 0; i < op.input_count && status == 0; ++i)
        status = buffers.add(const_cast<void*>(in[i]), bytes_of(op.inputs[i], symbols), false);
    for (int i = 0; i < op.output_count && status == 0; ++i)
        status = buffers.add(out[i], bytes_of(op.outputs[i], symbols), true);
    if (status == 0) status = buffers.add(nullptr, size_t(scratch), false);
    if (status != 0) return status;
    const void* inputs[max_tensors];
    void* outputs[max_tensors];
    for (int i = 0; i < op.input_count; ++i) inputs[i] = buffers.at(i);
    for (int i = 0; i < op.output_count; ++i) outputs[i] = const_cast<void*>(buffers.at(op.input_count + i));
    const void* const workspace = buffers.at(op.input_count + op.output_count);
    status = op.opencl(inputs, outputs, const_cast<void*>(workspace), symbols, device.queue);
    for (int i = 0; i < op.output_count && status == 0; ++i) status = buffers.back(op.input_count + i);
    const int ended = call<int(Handle)>("clFinish", device.queue);  // before the buffers go
    __atomic_fetch_add(&counts().calls, 1, __ATOMIC_RELAXED);
    return status != 0 ? status : ended;
}

// Which of two ways a node takes: the first call tries OpenCL, the second and third time both, and the faster one is kept.
struct Trial {
    int calls, choice;  // choice: 0 not yet known, 1 OpenCL, -1 the CPU's own kernel
    uint64_t own, other;

    static uint64_t now() {
        timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
    }
};

}  // namespace mirage::opencl
