// Custom operators of ONNX Runtime over compiled kernels: a generated library lists its operators in constant tables
// (mirage/operators.hpp) and everything else happens here, in one of its sources. No exceptions, no static constructors; the
// C++ run-time library is not needed.
//
// At every call the symbols' values are recovered from the inputs' dimensions, every dimension is checked, the outputs
// are allocated, and the kernel runs on ONNX Runtime's own threads or CUDA stream.
#ifndef MIRAGE_ORT_OPS_HPP
#define MIRAGE_ORT_OPS_HPP

#include <atomic>
#include <cstdlib>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "mirage/ort_shapes.hpp"
#include "mirage/pack.hpp"
#if defined(MIRAGE_WITH_CUDA)
#include "mirage/cuda_error.hpp"
#endif
#if defined(MIRAGE_WITH_OPENCL)
#include "mirage/opencl/host.hpp"
#endif

namespace mirage {

// ---- processors ----------------------------------------------------------------------------------------------------

// The best instruction set that the processor has and the system saves: 0 base, 1 avx2, 2 avx512. Asked of the
// processor itself, as not every compiler brings __builtin_cpu_supports. MIRAGE_MAX_ISA=base|avx2 in the environment
// lowers it.
inline int detect_isa() {
    int level = 0;
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c1 = 0, b7 = 0, c = 0, d = 0, saved = 0;
    const bool basic = __get_cpuid(1, &a, &b, &c1, &d) != 0;
    const bool extended = __get_cpuid_count(7, 0, &a, &b7, &c, &d) != 0;
    if (basic && extended && (c1 >> 27 & 1)) __asm__ volatile("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
    const bool ymm = (saved & 0x06) == 0x06, zmm = (saved & 0xe6) == 0xe6;
    const bool fma = c1 >> 12 & 1, f16c = c1 >> 29 & 1, avx2 = b7 >> 5 & 1;
    const bool avx512 = (b7 >> 16 & 1) && (b7 >> 17 & 1) && (b7 >> 30 & 1) && (b7 >> 31 & 1);  // f, dq, bw, vl
    if (ymm && fma && f16c && avx2) level = zmm && avx512 ? 2 : 1;
#endif
    const char* limit = getenv("MIRAGE_MAX_ISA");
    if (limit != nullptr && strcmp(limit, "base") == 0) return 0;
    if (limit != nullptr && strcmp(limit, "avx2") == 0 && level > 1) return 1;
    return level;
}

int isa_level() {
    static std::atomic<int> isa{-1};
    int level = isa.load(std::memory_order_relaxed);
    if (level < 0) {
        level = detect_isa();
        isa.store(level, std::memory_order_relaxed);
    }
    return level;
}

// ---- packed weights ------------------------------------------------------------------------------------------------

// Buffers for the workspace of CPU kernels, shared by the whole library: as many live as kernels ever ran at once.
class WorkspaceCache {
public:
    static void* take(size_t bytes) {
        for (std::atomic<Block*>& slot : slots) {
            Block* block = slot.exchange(nullptr, std::memory_order_acq_rel);
            if (block != nullptr && block->bytes >= bytes) return block + 1;
            free(block);
        }
        const size_t rounded = (bytes / sizeof(Block) + 1) * sizeof(Block);
        auto* block = static_cast<Block*>(aligned_alloc(alignof(Block), sizeof(Block) + rounded));
        if (block == nullptr) return nullptr;
        block->bytes = rounded;
        return block + 1;
    }

    static void give(void* workspace) {
        if (workspace == nullptr) return;
        Block* block = static_cast<Block*>(workspace) - 1;
        for (std::atomic<Block*>& slot : slots) {
            Block* empty = nullptr;
            if (slot.compare_exchange_strong(empty, block, std::memory_order_acq_rel)) return;
        }
        free(block);
    }

    static void clear() {
        for (std::atomic<Block*>& slot : slots) free(slot.exchange(nullptr, std::memory_order_acq_rel));
    }

private:
    struct alignas(64) Block {
        size_t bytes;
    };
    static inline std::atomic<Block*> slots[16] = {};
};

// When the library is unloaded.
__attribute__((destructor)) inline void clear_workspaces() { WorkspaceCache::clear(); }

// ---- kernels -------------------------------------------------------------------------------------------------------

#if defined(MIRAGE_WITH_CUDA)
// The CUDA run-time library is linked statically; these are its C entry points (cudaError_t as int).
extern "C" {
int cudaMallocAsync(void** pointer, size_t bytes, void* stream);
int cudaFreeAsync(void* pointer, void* stream);
int cudaDeviceGetDefaultMemPool(void** pool, int device);
int cudaMemPoolGetAttribute(void* pool, int attribute, void* value);
int cudaMemPoolSetAttribute(void* pool, int attribute, void* value);
int cudaGetLastError(void);
}

// Lets the device's memory pool keep what workspaces need between synchronisations; otherwise every run asks the driver
// for its workspace again (on an H200 a run of a small operator took 128 us instead of 21).
inline void keep_workspace_memory() {
    constexpr int release_threshold = 4;  // cudaMemPoolAttrReleaseThreshold
    int device = 0;
    void* pool = nullptr;
    uint64_t bytes = 0, wanted = uint64_t(256) << 20;
    if (cudaGetDevice(&device) != 0 || cudaDeviceGetDefaultMemPool(&pool, device) != 0 ||
        cudaMemPoolGetAttribute(pool, release_threshold, &bytes) != 0 ||
        (bytes < wanted && cudaMemPoolSetAttribute(pool, release_threshold, &wanted) != 0)) {
        cudaGetLastError();  // only speed is lost: forget the error
    }
}
#endif

// ONNX Runtime's own threads as a mirage_pool.
struct Pool {
    const ort::Api* api;
    const ort::KernelContext* context;
    ort::Status* status;  // the first failure

    static void run(const mirage_pool* pool, void (*task)(void*, size_t), size_t count, void* data) {
        auto* self = static_cast<Pool*>(pool->context);
        ort::Status* status = ort::ParallelFor::call(self->api, self->context, task, count, 0, data);
        if (self->status == nullptr) {
            self->status = status;
        } else if (status != nullptr) {
            ort::ReleaseStatus::call(self->api, status);
        }
    }
};

// An operator with its execution provider, as ONNX Runtime sees it.
struct CustomOp : ort::CustomOp {
    const Operator* op;
    bool cuda;
};

inline const Operator& described(const ort::CustomOp* custom) { return *static_cast<const CustomOp*>(custom)->op; }

// The newest table of functions that has `GetShapeReference`.
inline std::atomic<const ort::Api*> api_with_references{nullptr};

// A constant input.
struct Held {
    const void* data;
    Shape shape;
};

// One node of a session.
class Kernel {
public:
    static ort::Status* create(const ort::CustomOp* custom, const ort::Api* api, const ort::KernelInfo* info,
                               void** out) {
        const auto* self = static_cast<const CustomOp*>(custom);
        auto* kernel = static_cast<Kernel*>(calloc(1, sizeof(Kernel)));
        if (kernel == nullptr) return ort::CreateStatus::call(api, ort::fail, "mirage: out of memory");
        kernel->api = api;
        kernel->op = self->op;
        kernel->cuda = self->cuda;
        kernel->references = api == api_with_references.load(std::memory_order_acquire);
        kernel->held = static_cast<Held*>(calloc(size_t(self->op->input_count) + 1, sizeof(Held)));
        size_t bytes = sizeof kernel->node;
        if (ort::Status* status = ort::GetNodeName::call(api, info, kernel->node, &bytes)) {
            ort::ReleaseStatus::call(api, status);  // too long a name: messages go without it
            kernel->node[0] = '\0';
        }
#if defined(MIRAGE_WITH_CUDA)
        if (kernel->cuda) keep_workspace_memory();
#endif
        ort::Status* status = nullptr;
        if (kernel->held == nullptr) {
            status = ort::CreateStatus::call(api, ort::fail, "mirage: out of memory");
        } else if (!kernel->cuda) {
            status = kernel->hold_constants(info);
            kernel->pack_weights();
        }
        *out = kernel;
        if (status != nullptr) destroy(kernel);
        return status;
    }

    static void destroy(void* kernel) {
        static_cast<Kernel*>(kernel)->forget_packed();
        free(static_cast<Kernel*>(kernel)->held);
        free(kernel);
    }

    static ort::Status* compute(void* kernel, ort::KernelContext* context) {
        const auto* self = static_cast<const Kernel*>(kernel);
        const void* in[max_tensors + max_packings];
        void* out[max_tensors];
        int64_t extents[max_symbols];
        bool empty = true;
        MIRAGE_TRY(self->bind(context, in, out, extents, &empty));
        if (empty) return nullptr;
        const int64_t* symbols = self->op->symbol_count > 0 ? extents : nullptr;
        if (self->cuda) return self->run_cuda(context, in, out, symbols);
        for (int i = 0; i < max_packings; ++i) in[max_tensors + i] = self->packed[i] == nullptr ? nullptr : self->packed[i]->form.data;
#if defined(MIRAGE_WITH_OPENCL)
        const opencl::Device* const device = self->op->opencl != nullptr ? opencl::Device::get() : nullptr;
        if (device != nullptr) return self->run_opencl(*device, context, in, out, symbols);
#endif
        return self->run_cpu(context, in, out, symbols);
    }

private:
    const ort::Api* api;
    const Operator* op;
    bool cuda;
    bool references;  // shapes can be read where they are
    char node[512];
    Held* held;                  // for each input; no data: it is asked for at every call
    SharedForm* packed[max_packings];
#if defined(MIRAGE_WITH_OPENCL)
    mutable opencl::Trial trial;

    // On a device that is named always there; else where it was faster, copies and all, and on the processor where it fails.
    ort::Status* run_opencl(const opencl::Device& device, const ort::KernelContext* context, const void* const* in,
                            void* const* out, const int64_t* symbols) const {
        using opencl::Trial;
        const int choice = device.named ? 1 : __atomic_load_n(&trial.choice, __ATOMIC_ACQUIRE);
        if (choice < 0) return run_cpu(context, in, out, symbols);
        const uint64_t first = Trial::now();
        const int code = opencl::run(device, *op, in, out, symbols);
        if (device.named && code != 0) return error(ort::fail, "OpenCL: %.900s", opencl::message());
        if (choice > 0 && code == 0) return nullptr;
        const uint64_t second = Trial::now();
        ort::Status* const status = run_cpu(context, in, out, symbols);
        const uint64_t last = Trial::now();
        if (__atomic_fetch_add(&trial.calls, 1, __ATOMIC_ACQ_REL) > 0) {  // the first call builds kernels
            __atomic_fetch_add(&trial.other, second - first, __ATOMIC_ACQ_REL);
            __atomic_fetch_add(&trial.own, last - second, __ATOMIC_ACQ_REL);
        }
        if (code != 0 || __atomic_load_n(&trial.calls, __ATOMIC_ACQUIRE) > 2) {
            const bool wins = code == 0 && __atomic_load_n(&trial.other, __ATOMIC_ACQUIRE) < __atomic_load_n(&trial.own, __ATOMIC_ACQUIRE);
            __atomic_store_n(&trial.choice, wins ? 1 : -1, __ATOMIC_RELEASE);
        }
        return status;
    }
#endif

    // Remembers where constant inputs lie and their shapes: a session's weights stay where they are.
    ort::Status* hold_constants(const ort::KernelInfo* info) {
        for (int i = 0; i < op->input_count; ++i) {
            const ort::Value* value = nullptr;
            int constant = 0;
            ort::Status* status = ort::GetConstantInput::call(api, info, size_t(i), &constant, &value);
            if (status != nullptr) {
                ort::ReleaseStatus::call(api, status);  // the input is no constant
            } else if (constant != 0 && value != nullptr) {
                MIRAGE_TRY(read_tensor(value, &held[i].data, &held[i].shape));
            }
        }
        return nullptr;
    }

    // Whether a tensor has the elements of a packing, of which several may share one of its bytes.
    static bool holds(const Shape& shape, const mirage_packing& p) {
        const int64_t count = elements(shape);
        return count == p.elements || (p.bits != 0 && count * 8 == p.elements * p.bits);
    }

    // Packs constant weights. MIRAGE_PACK=0 in the environment leaves them: what is packed takes its memory a second time.
    void pack_weights() {
        const char* wanted = getenv("MIRAGE_PACK");
        if (op->packings == nullptr || (wanted != nullptr && strcmp(wanted, "0") == 0)) return;
        const mirage_packing* p = op->packings();
        for (int i = 0; i < max_packings && p[i].input >= 0; ++i) {
            const Held& weight = held[p[i].input];
            if (weight.data == nullptr || !holds(weight.shape, p[i])) continue;
            packed[i] = shared_form(p[i], weight.data, isa_level() == 2 && multiplies_matrices());
        }
    }

    void forget_packed() {
        for (SharedForm* const form : packed) forget(form);
    }

    // A status that begins with the operator and its node.
    __attribute__((format(printf, 3, 4))) ort::Status* error(int code, const char* format, ...) const {
        Message message;
        message.add("mirage.%s", op->name);
        if (node[0] != '\0') message.add(" (node '%.400s')", node);
        message.add(": ");
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(message.text + message.used, sizeof message.text - message.used, format, arguments);
        va_end(arguments);
        return ort::CreateStatus::call(api, code, message.text);
    }

    // Reads the inputs, solves and checks their shapes, allocates the outputs.
    ort::Status* bind(ort::KernelContext* context, const void** in, void** out, int64_t* symbols, bool* empty) const {
        Shape shapes[max_tensors];
        for (int i = 0; i < op->input_count; ++i) {
            in[i] = held[i].data;
            shapes[i] = held[i].shape;
            if (in[i] == nullptr) MIRAGE_TRY(read_input(context, i, &in[i], &shapes[i]));
        }
        Message message;
        if (!solve(*op, shapes, symbols, &message) || !check(*op, shapes, symbols, &message)) {
            return error(ort::invalid_argument, "%s", message.text);
        }
        if (op->room.input >= 0) {
            const int64_t least = symbols[op->room.least], number = *static_cast<const int32_t*>(in[op->room.input]);
            symbols[op->room.symbol] = number > least ? number : least;
        } else if (op->room.symbol >= 0) {
            symbols[op->room.symbol] = symbols[op->room.least] + symbols[op->room.more];
        }
        for (int i = 0; i < op->output_count; ++i) {
            const Tensor& tensor = op->outputs[i];
            int64_t dims[max_rank];
            bool holds_nothing = false;
            for (int d = 0; d < tensor.rank; ++d) {
                if (evaluate(tensor.dims[d], symbols, -1, &dims[d]) != Known::yes) {
                    return error(ort::invalid_argument, "dimension %d of output '%s' is too large", d, tensor.name);
                }
                holds_nothing = holds_nothing || dims[d] == 0;
            }
            ort::Value* value = nullptr;
            MIRAGE_TRY(ort::GetOutput::call(api, context, size_t(i), dims, size_t(tensor.rank), &value));
            MIRAGE_TRY(ort::GetTensorMutableData::call(api, value, &out[i]));
            MIRAGE_TRY(check_alignment(out[i], "output", tensor));
            *empty = *empty && holds_nothing;
        }
        return nullptr;
    }

    ort::Status* read_input(const ort::KernelContext* context, int index, const void** data, Shape* shape) const {
        const ort::Value* value = nullptr;
        MIRAGE_TRY(ort::GetInput::call(api, context, size_t(index), &value));
        if (value == nullptr) return error(ort::invalid_argument, "input %d is missing", index);
        MIRAGE_TRY(read_tensor(value, data, shape));
        return index == op->room.input ? nullptr : check_alignment(*data, "input", op->inputs[index]);
    }

    ort::Status* read_tensor(const ort::Value* value, const void** data, Shape* shape) const {
        if (references) {
            const int64_t* dims = nullptr;
            size_t rank = 0;
            int element = 0;
            MIRAGE_TRY(ort::GetShapeReference::call(api, value, &element, &dims, &rank));
            MIRAGE_TRY(set_rank(api, rank, shape));
            for (size_t d = 0; d < rank; ++d) shape->dims[d] = dims[d];
        } else {
            ort::TensorInfo* info = nullptr;
            MIRAGE_TRY(ort::GetTensorInfo::call(api, value, &info));
            ort::Status* status = read_shape(api, info, shape);
            ort::ReleaseTensorInfo::call(api, info);
            MIRAGE_TRY(status);
        }
        void* pointer = nullptr;
        MIRAGE_TRY(ort::GetTensorMutableData::call(api, const_cast<ort::Value*>(value), &pointer));
        *data = pointer;
        return nullptr;
    }

    // CUDA kernels copy 16 bytes at a time; only views that a user binds can begin elsewhere.
    ort::Status* check_alignment(const void* pointer, const char* kind, const Tensor& tensor) const {
        if (!cuda || reinterpret_cast<uintptr_t>(pointer) % 16 == 0) return nullptr;
        return error(ort::invalid_argument, "%s '%s' is not aligned to 16 bytes", kind, tensor.name);
    }

    ort::Status* run_cpu(const ort::KernelContext* context, const void* const* in, void* const* out,
                         const int64_t* symbols) const {
        const int64_t bytes = op->cpu_workspace(symbols);
        if (bytes < 0) return error(ort::fail, "the kernel refused these shapes");
        void* workspace = bytes > 0 ? WorkspaceCache::take(size_t(bytes)) : nullptr;
        if (bytes > 0 && workspace == nullptr) {
            return error(ort::fail, "no memory for a workspace of %lld bytes", static_cast<long long>(bytes));
        }
        Pool threads = {api, context, nullptr};
        const mirage_pool pool = {Pool::run, &threads};
        const int code = op->cpu(in, out, workspace, symbols, &pool);
        WorkspaceCache::give(workspace);
        MIRAGE_TRY(threads.status);
        if (code == MIRAGE_OK) return nullptr;
        if (code == MIRAGE_OUT_OF_MEMORY) return error(ort::fail, "the CPU kernel ran out of memory");
        if (code == MIRAGE_BAD_EXTENT) return error(ort::fail, "the CPU kernel refused these shapes");
        return error(ort::fail, "the CPU kernel returned error %d", code);
    }

#if defined(MIRAGE_WITH_CUDA)
    ort::Status* run_cuda(const ort::KernelContext* context, const void* const* in, void* const* out,
                          const int64_t* symbols) const {
        void* stream = nullptr;
        MIRAGE_TRY(ort::GetGpuStream::call(api, context, &stream));
        const int64_t bytes = op->cuda_workspace(symbols);
        if (bytes < 0) return error(ort::fail, "the kernel refused these shapes");
        void* workspace = nullptr;
        int code = bytes > 0 ? cudaMallocAsync(&workspace, size_t(bytes), stream) : 0;
        if (code == 0) code = op->cuda(in, out, workspace, symbols, stream);
        const int freed = workspace != nullptr ? cudaFreeAsync(workspace, stream) : 0;
        if (code == 0) code = freed;
        if (code == 0) return nullptr;
        Message message;
        add_cuda_error(message, code);
        return error(ort::fail, "%s", message.text);
    }
#else
    ort::Status* run_cuda(const ort::KernelContext*, const void* const*, void* const*, const int64_t*) const {
        return error(ort::fail, "this library was built without CUDA");
    }
#endif
};

// ---- registration --------------------------------------------------------------------------------------------------

// What ONNX Runtime's shape inference, which is given no table, uses: the table of the last registration.
inline std::atomic<const ort::Api*> current_api{nullptr};

// Sets the shape of one output where all its dimensions are known, or are a symbol that the model itself names. An
// unknown dimension must not be given a value or an invented name: ONNX Runtime takes equal ones for equal sizes and
// shares buffers by that.
inline ort::Status* infer_output(const ort::Api* api, const ort::ShapeContext* context, const Operator& op, int output,
                                 const int64_t* symbols, const char* const* names) {
    const Tensor& tensor = op.outputs[output];
    int64_t dims[max_rank];
    const char* dim_names[max_rank];
    for (int d = 0; d < tensor.rank; ++d) {
        const Extent& extent = tensor.dims[d];
        const bool plain = extent.factor == 1 && extent.count == 1;
        const bool known = evaluate(extent, symbols, -1, &dims[d]) == Known::yes;
        dim_names[d] = known ? "" : plain ? names[extent.symbols[0]] : "";
        if (!known && dim_names[d][0] == '\0') return nullptr;
        if (!known) dims[d] = -1;
    }
    ort::TensorInfo* info = nullptr;
    MIRAGE_TRY(ort::CreateTensorInfo::call(api, &info));
    ort::Status* status = ort::SetElementType::call(api, info, int(tensor.element));
    if (status == nullptr) status = ort::SetDimensions::call(api, info, dims, size_t(tensor.rank));
    if (status == nullptr) status = ort::SetSymbolicDimensions::call(api, info, dim_names, size_t(tensor.rank));
    if (status == nullptr) status = ort::SetInferenceOutput::call(api, context, size_t(output), info);
    ort::ReleaseTensorInfo::call(api, info);
    return status;
}

inline ort::Status* infer_output_shapes(const ort::CustomOp* custom, ort::ShapeContext* context) {
    const Operator& op = described(custom);
    const ort::Api* api = current_api.load(std::memory_order_acquire);
    Shape shapes[max_tensors];
    const char* input_names[max_tensors][max_rank];
    for (int i = 0; i < op.input_count; ++i) {
        ort::TensorInfo* info = nullptr;  // the context's
        MIRAGE_TRY(ort::GetInferenceInput::call(api, context, size_t(i), &info));
        MIRAGE_TRY(read_shape(api, info, &shapes[i]));
        MIRAGE_TRY(ort::GetSymbolicDimensions::call(api, info, input_names[i], size_t(shapes[i].rank)));
    }
    int64_t symbols[max_symbols];
    Message ignored;  // a mismatch is reported when the node runs, with the shapes it then has
    if (!solve(op, shapes, symbols, &ignored)) return nullptr;
    const char* names[max_symbols];
    for (int s = 0; s < op.symbol_count; ++s) {
        const Recovery& step = op.recoveries[s];
        if (step.symbol == op.room.symbol) {
            names[step.symbol] = "";
            continue;
        }
        const Extent& extent = op.inputs[step.input].dims[step.dim];
        const bool alone = extent.factor == 1 && extent.count == 1 && step.more == 0;
        names[step.symbol] = alone ? input_names[step.input][step.dim] : "";
    }
    for (int i = 0; i < op.output_count; ++i) MIRAGE_TRY(infer_output(api, context, op, i, symbols, names));
    return nullptr;
}

// The operator as ONNX Runtime calls it.
inline CustomOp custom_op(const Registered& registered) {
    using Self = ort::CustomOp;
    CustomOp result{};
    result.op = registered.op;
    result.cuda = registered.cuda;
    result.version = ort::api_version;
    result.name = [](const Self* self) { return described(self).name; };
    result.provider = [](const Self* self) -> const char* {
        return static_cast<const CustomOp*>(self)->cuda ? "CUDAExecutionProvider" : "CPUExecutionProvider";
    };
    result.input_type = [](const Self* self, size_t i) { return int(described(self).inputs[i].element); };
    result.input_count = [](const Self* self) { return size_t(described(self).input_count); };
    result.output_type = [](const Self* self, size_t i) { return int(described(self).outputs[i].element); };
    result.output_count = [](const Self* self) { return size_t(described(self).output_count); };
    result.destroy_kernel = Kernel::destroy;
    result.input_characteristic = [](const Self*, size_t) { return 0; };   // required
    result.output_characteristic = [](const Self*, size_t) { return 0; };  // required
    result.input_memory_type = [](const Self* self, size_t i) {  // the host's (OrtMemTypeCPUInput) or the provider's
        return int(i) == described(self).room.input ? -2 : 0;
    };
    result.variadic_input_min_arity = [](const Self*) { return 0; };
    result.variadic_input_homogeneity = [](const Self*) { return 1; };
    result.variadic_output_min_arity = [](const Self*) { return 0; };
    result.variadic_output_homogeneity = [](const Self*) { return 1; };
    result.create_kernel_v2 = Kernel::create;
    result.compute_v2 = Kernel::compute;
    result.infer_output_shapes = infer_output_shapes;
    result.start_version = [](const Self*) { return 1; };
    result.end_version = [](const Self*) { return 0x7fffffff; };
    return result;
}

// A domain with all operators. It is made once and never released: sessions point to it for as long as they live.
struct Registration {
    const ort::Api* api;
    ort::Domain* domain;
    CustomOp ops[1];  // as many as there are

    ort::Status* make(const Registered* registered, size_t count) {
        MIRAGE_TRY(ort::CreateCustomOpDomain::call(api, "mirage", &domain));
        for (size_t i = 0; i < count; ++i) {
            ops[i] = custom_op(registered[i]);
            MIRAGE_TRY(ort::CustomOpDomainAdd::call(api, domain, &ops[i]));
        }
        return nullptr;
    }
};

// The second number of a version; 0 where there is none.
inline int minor_version(const char* version) {
    const char* const dot = strchr(version, '.');
    return dot == nullptr ? 0 : atoi(dot + 1);
}

// The body of RegisterCustomOps. Several sessions share one domain; a process may hold two copies of ONNX Runtime.
ort::Status* register_operators(ort::SessionOptions* options, const ort::ApiBase* base, const Registered* ops, size_t count) {
    static std::atomic<Registration*> shared{nullptr};
    const ort::Api* api = base->get_api(ort::api_version);
    if (api == nullptr) {
        Message message;
        message.add("mirage: onnxruntime %s is too old, 1.20 or newer is needed", base->get_version());
        return ort::CreateStatus::call(base->get_api(1), ort::fail, message.text);
    }
    current_api.store(api, std::memory_order_release);
    if (minor_version(base->get_version()) >= 24) api_with_references.store(api, std::memory_order_release);
    Registration* known = shared.load(std::memory_order_acquire);
    if (known != nullptr && known->api == api) return ort::AddCustomOpDomain::call(api, options, known->domain);
    auto* made = static_cast<Registration*>(malloc(sizeof(Registration) + count * sizeof(CustomOp)));
    if (made == nullptr) return ort::CreateStatus::call(api, ort::fail, "mirage: out of memory");
    made->api = api;
    MIRAGE_TRY(made->make(ops, count));
    shared.compare_exchange_strong(known, made, std::memory_order_acq_rel);
    return ort::AddCustomOpDomain::call(api, options, made->domain);
}

}  // namespace mirage

#endif  // MIRAGE_ORT_OPS_HPP
