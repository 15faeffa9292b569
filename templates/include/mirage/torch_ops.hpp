// Operators of PyTorch over the C entry points of libmirage.so: a generated library lists its operators in constant
// tables and everything else happens here, when the library is loaded.
//
// At every call the symbols' values are recovered from the inputs' dimensions, every dimension, type and device is
// checked, inputs that are not dense get dense copies, and the kernel runs on PyTorch's threads or its current stream.
#ifndef MIRAGE_TORCH_OPS_HPP
#define MIRAGE_TORCH_OPS_HPP

#include <dlfcn.h>

#include "mirage/ort_ops.hpp"
#include "mirage/torch_abi.h"

namespace mirage::torch {

inline Api api{};

// An operator, its schema and names of its functions in libmirage.so (null: it has no kernel there).
struct Entry {
    const Operator* op;
    const char* schema;
    const char* cpu;
    const char* cpu_workspace;
    const char* cuda;
    const char* cuda_workspace;
    Boxed* call_cpu;
    Boxed* call_cuda;
};

// Kernels of one operator, found when the library is loaded.
struct Kernels {
    CpuKernel* cpu;
    WorkspaceSize* cpu_workspace;
    CudaKernel* cuda;
    WorkspaceSize* cuda_workspace;
    void (*cuda_error)(int code, char* text, size_t bytes);
};

// ---- loading -------------------------------------------------------------------------------------------------------

// A function of a library that the process has loaded; of any library when that one has another name.
inline void* find(const char* library, const char* name) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    void* found = handle != nullptr ? dlsym(handle, name) : nullptr;
    if (handle != nullptr) dlclose(handle);
    return found != nullptr ? found : dlsym(RTLD_DEFAULT, name);
}

template <class F>
bool get(F** function, const char* name, const char* library = "libtorch_cpu.so") {
    *function = reinterpret_cast<F*>(find(library, name));
    return *function != nullptr;
}

// Fills the table; the name of a function that is needed and missing, else null.
inline const char* connect(Api* table) {
    const char* missing = nullptr;
    const auto need = [&](auto** function, const char* name) {
        if (!get(function, name) && missing == nullptr) missing = name;
    };
    need(&table->library_init_fragment, "aoti_torch_library_init_fragment");
    need(&table->library_init_impl, "aoti_torch_library_init_impl");
    need(&table->library_def, "aoti_torch_library_def");
    need(&table->library_impl, "aoti_torch_library_impl");
    need(&table->get_dim, "aoti_torch_get_dim");
    need(&table->get_sizes, "aoti_torch_get_sizes");
    need(&table->get_strides, "aoti_torch_get_strides");
    need(&table->get_dtype, "aoti_torch_get_dtype");
    need(&table->get_device_type, "aoti_torch_get_device_type");
    need(&table->get_device_index, "aoti_torch_get_device_index");
    need(&table->get_data_ptr, "aoti_torch_get_data_ptr");
    need(&table->empty_strided, "aoti_torch_empty_strided");
    need(&table->copy, "aoti_torch_copy_");
    need(&table->delete_tensor, "aoti_torch_delete_tensor_object");
    need(&table->device_type_cpu, "aoti_torch_device_type_cpu");
    need(&table->device_type_cuda, "aoti_torch_device_type_cuda");
    need(&table->dtype_uint8, "aoti_torch_dtype_uint8");
    need(&table->check, "aoti_torch_check");
    get(&table->parallel_for, "torch_parallel_for");
    get(&table->current_cuda_stream, "aoti_torch_get_current_cuda_stream", "libtorch_cuda.so");
    get(&table->create_cuda_guard, "aoti_torch_create_cuda_guard", "libtorch_cuda.so");
    get(&table->delete_cuda_guard, "aoti_torch_delete_cuda_guard", "libtorch_cuda.so");
    return missing;
}

// libmirage.so in the folder of this library, with whatever name the process has loaded others of ours.
inline void* open_kernels(Message* problem) {
    Dl_info self{};
    char path[4096];
    const int found = dladdr(reinterpret_cast<void*>(&open_kernels), &self);
    const char* slash = found != 0 ? strrchr(self.dli_fname, '/') : nullptr;
    const int length = slash != nullptr ? int(slash - self.dli_fname) : 1;
    const char* folder = slash != nullptr ? self.dli_fname : ".";
    if (snprintf(path, sizeof path, "%.*s/libmirage.so", length, folder) >= int(sizeof path)) {
        problem->add("its path is too long");
        return nullptr;
    }
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) problem->add("%s", dlerror());
    return handle;
}

// Registers the operators. What goes wrong is told on standard error: an exception would end the process here.
inline void load(const Entry* entries, Kernels* kernels, int count) {
    Message problem;
    if (const char* missing = connect(&api)) {
        fprintf(stderr, "mirage: torch 2.9 or newer must be imported first (there is no %s)\n", missing);
        return;
    }
    void* handle = open_kernels(&problem);
    Library *fragment = nullptr, *cpu = nullptr, *cuda = nullptr;  // live as long as the process
    if (handle == nullptr || api.library_init_fragment("mirage", __FILE__, __LINE__, &fragment) != 0 ||
        api.library_init_impl("mirage", "CPU", __FILE__, __LINE__, &cpu) != 0 ||
        api.library_init_impl("mirage", "CUDA", __FILE__, __LINE__, &cuda) != 0) {
        fprintf(stderr, "mirage: operators are not registered: %s\n", problem.text);
        return;
    }
    const auto symbol = [&](auto** function, const char* name) {
        using F = std::remove_pointer_t<std::remove_pointer_t<decltype(function)>>;
        *function = name != nullptr ? reinterpret_cast<F*>(dlsym(handle, name)) : nullptr;
    };
    for (int i = 0; i < count; ++i) {
        const Entry& entry = entries[i];
        symbol(&kernels[i].cpu, entry.cpu);
        symbol(&kernels[i].cpu_workspace, entry.cpu_workspace);
        symbol(&kernels[i].cuda, entry.cuda);
        symbol(&kernels[i].cuda_workspace, entry.cuda_workspace);
        symbol(&kernels[i].cuda_error, "mirage_cuda_error");
        if (api.library_def(fragment, entry.schema) != 0) continue;  // another folder's library has the same fragment
        if (kernels[i].cpu != nullptr) api.library_impl(cpu, entry.op->name, entry.call_cpu);
        if (kernels[i].cuda != nullptr) api.library_impl(cuda, entry.op->name, entry.call_cuda);
    }
}

// ---- one call ------------------------------------------------------------------------------------------------------

// PyTorch's threads as a mirage_pool.
struct Threads {
    void (*task)(void*, size_t);
    void* data;

    static void range(int64_t begin, int64_t end, void* self) {
        const auto* t = static_cast<const Threads*>(self);
        for (int64_t i = begin; i < end; ++i) t->task(t->data, size_t(i));
    }

    static void run(const mirage_pool*, void (*task)(void*, size_t), size_t count, void* data) {
        Threads t = {task, data};
        if (api.parallel_for == nullptr || api.parallel_for(0, int64_t(count), 1, range, &t) != 0) {
            range(0, int64_t(count), &t);
        }
    }
};

// The number by which torch knows a type of elements.
inline int32_t dtype_number(ort::Element element) {
    int32_t (*number)() = nullptr;
    switch (element) {
        case ort::Element::f32: get(&number, "aoti_torch_dtype_float32"); break;
        case ort::Element::f16: get(&number, "aoti_torch_dtype_float16"); break;
        case ort::Element::bf16: get(&number, "aoti_torch_dtype_bfloat16"); break;
        case ort::Element::f64: get(&number, "aoti_torch_dtype_float64"); break;
        case ort::Element::i8: get(&number, "aoti_torch_dtype_int8"); break;
        case ort::Element::u8: get(&number, "aoti_torch_dtype_uint8"); break;
        case ort::Element::i16: get(&number, "aoti_torch_dtype_int16"); break;
        case ort::Element::i32: get(&number, "aoti_torch_dtype_int32"); break;
        case ort::Element::i64: get(&number, "aoti_torch_dtype_int64"); break;
        case ort::Element::boolean: get(&number, "aoti_torch_dtype_bool"); break;
        default: break;
    }
    return number != nullptr ? number() : -1;
}

inline void dense_strides(const int64_t* sizes, int rank, int64_t* strides) {
    int64_t step = 1;
    for (int d = rank - 1; d >= 0; --d) {
        strides[d] = step;
        step *= sizes[d] > 0 ? sizes[d] : 1;
    }
}

// A call in progress: what it owns is given back when it ends.
class Call {
public:
    Call(const Operator& op, const Kernels& kernels, uint64_t* stack, bool cuda)
        : op(op), kernels(kernels), stack(stack), cuda(cuda) {
        for (int i = 0; i < op.input_count; ++i) in[i] = reinterpret_cast<Tensor*>(stack[i]);
        message.add("mirage::%s: ", op.name);
    }

    // Leaves the outputs on the stack in the place of the inputs; raises what went wrong as PyTorch's exception.
    void run() {
        const bool done = prepare() && compute();
        for (int i = 0; i < op.input_count; ++i) api.delete_tensor(in[i]);
        if (workspace != nullptr) api.delete_tensor(workspace);
        if (guard != nullptr) api.delete_cuda_guard(guard);
        for (int i = 0; i < op.output_count; ++i) {
            if (done) stack[i] = reinterpret_cast<uint64_t>(out[i]);
            if (!done && out[i] != nullptr) api.delete_tensor(out[i]);
        }
        api.check(done, op.name, "libmirage_torch.so", 0, message.text);
    }

private:
    const Operator& op;
    const Kernels& kernels;
    uint64_t* stack;
    bool cuda;
    Message message;
    Tensor* in[max_tensors] = {};
    Tensor* out[max_tensors] = {};
    const void* in_data[max_tensors];
    void* out_data[max_tensors];
    int64_t symbols[max_symbols];
    Tensor* workspace = nullptr;
    Guard* guard = nullptr;
    int32_t device_type = 0, device = -1;
    bool empty = true;

    bool prepare() {
        Shape shapes[max_tensors];
        device_type = cuda ? api.device_type_cuda() : api.device_type_cpu();
        for (int i = 0; i < op.input_count; ++i) {
            if (!read(i, &shapes[i])) return false;
        }
        if (!solve(op, shapes, symbols, &message) || !check(op, shapes, symbols, &message)) return false;
        if (cuda && (api.current_cuda_stream == nullptr || api.create_cuda_guard(device, &guard) != 0)) {
            message.add("this torch has no CUDA");
            return false;
        }
        for (int i = 0; i < op.input_count; ++i) {
            if (!make_dense(i, shapes[i])) return false;
        }
        for (int i = 0; i < op.output_count; ++i) {
            if (!make_output(i)) return false;
        }
        return true;
    }

    bool read(int i, Shape* shape) {
        int64_t rank = 0, *sizes = nullptr;
        int32_t type = 0, place = 0, dtype = 0;
        if (api.get_dim(in[i], &rank) != 0 || api.get_sizes(in[i], &sizes) != 0 || api.get_dtype(in[i], &dtype) != 0 ||
            api.get_device_type(in[i], &type) != 0 || api.get_device_index(in[i], &place) != 0) {
            message.add("input %d cannot be read", i);
            return false;
        }
        if (rank > max_rank || dtype != dtype_number(op.inputs[i].element)) {
            message.add("input %d '%s' has another type than the model's", i, op.inputs[i].name);
            return false;
        }
        if (i == 0) device = place;
        if (type != device_type || place != device) {
            message.add("input %d '%s' is on another device than input 0", i, op.inputs[i].name);
            return false;
        }
        shape->rank = int(rank);
        for (int d = 0; d < shape->rank; ++d) shape->dims[d] = sizes[d];
        return true;
    }

    // Kernels read dense row-major tensors; on a GPU, 16 bytes at a time.
    bool make_dense(int i, const Shape& shape) {
        int64_t *strides = nullptr, dense[max_rank];
        void* data = nullptr;
        dense_strides(shape.dims, shape.rank, dense);
        if (api.get_strides(in[i], &strides) != 0 || api.get_data_ptr(in[i], &data) != 0) return false;
        bool fits = !cuda || reinterpret_cast<uintptr_t>(data) % 16 == 0;
        for (int d = 0; d < shape.rank; ++d) fits = fits && (shape.dims[d] == 1 || strides[d] == dense[d]);
        if (!fits) {
            int32_t dtype = 0;
            Tensor* made = nullptr;
            if (api.get_dtype(in[i], &dtype) != 0 ||
                api.empty_strided(shape.rank, shape.dims, dense, dtype, device_type, device, &made) != 0) {
                return false;
            }
            const int failed = api.copy(made, in[i], 0);
            api.delete_tensor(in[i]);
            in[i] = made;
            if (failed != 0 || api.get_data_ptr(made, &data) != 0) return false;
        }
        in_data[i] = data;
        return true;
    }

    bool make_output(int i) {
        const mirage::Tensor& tensor = op.outputs[i];
        int64_t sizes[max_rank], dense[max_rank];
        bool holds_nothing = false;
        for (int d = 0; d < tensor.rank; ++d) {
            if (evaluate(tensor.dims[d], symbols, -1, &sizes[d]) != Known::yes) {
                message.add("dimension %d of output '%s' is too large", d, tensor.name);
                return false;
            }
            holds_nothing = holds_nothing || sizes[d] == 0;
        }
        dense_strides(sizes, tensor.rank, dense);
        empty = empty && holds_nothing;
        const int32_t dtype = dtype_number(tensor.element);
        return api.empty_strided(tensor.rank, sizes, dense, dtype, device_type, device, &out[i]) == 0 &&
               api.get_data_ptr(out[i], &out_data[i]) == 0;
    }

    bool compute() {
        if (empty) return true;
        const int64_t* extents = op.symbol_count > 0 ? symbols : nullptr;
        return cuda ? compute_cuda(extents) : compute_cpu(extents);
    }

    bool compute_cpu(const int64_t* extents) {
        const int64_t bytes = kernels.cpu_workspace(extents);
        void* memory = bytes > 0 ? WorkspaceCache::take(size_t(bytes)) : nullptr;
        if (bytes < 0 || (bytes > 0 && memory == nullptr)) {
            message.add("no memory for a workspace of %lld bytes", static_cast<long long>(bytes));
            return false;
        }
        const mirage_pool pool = {Threads::run, nullptr};
        const int code = kernels.cpu(in_data, out_data, memory, extents, &pool);
        WorkspaceCache::give(memory);
        if (code != 0) message.add("the CPU kernel returned error %d", code);
        return code == 0;
    }

    bool compute_cuda(const int64_t* extents) {
        const int64_t bytes = kernels.cuda_workspace(extents), step = 1;
        void *stream = nullptr, *memory = nullptr;
        if (bytes < 0 || api.current_cuda_stream(device, &stream) != 0) {
            message.add(bytes < 0 ? "the kernel refused these shapes" : "there is no current stream");
            return false;
        }
        if (bytes > 0 && (api.empty_strided(1, &bytes, &step, api.dtype_uint8(), device_type, device, &workspace) != 0 ||
                          api.get_data_ptr(workspace, &memory) != 0)) {
            message.add("no memory for a workspace of %lld bytes", static_cast<long long>(bytes));
            return false;
        }
        const int code = kernels.cuda(in_data, out_data, memory, extents, stream);
        if (code == 0) return true;
        char text[512];
        snprintf(text, sizeof text, "CUDA error %d", code);
        if (kernels.cuda_error != nullptr) kernels.cuda_error(code, text, sizeof text);
        message.add("%s", text);
        return false;
    }
};

}  // namespace mirage::torch

#endif  // MIRAGE_TORCH_OPS_HPP
