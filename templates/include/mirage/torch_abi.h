// The part of PyTorch's stable C interface that a library of operators needs, by name: torch/csrc/inductor/aoti_torch/c/
// shim.h and torch/csrc/stable/c/shim.h of torch 2.9 and newer. Nothing of PyTorch is needed to compile or to link: the
// functions are looked up in the libraries of the process that loads us.
#ifndef MIRAGE_TORCH_ABI_H
#define MIRAGE_TORCH_ABI_H

#include <cstdint>

namespace mirage::torch {

struct Tensor;   // an at::Tensor on the heap
struct Library;  // a torch::Library
struct Guard;    // makes a device the current one

using Boxed = void(uint64_t* stack, uint64_t inputs, uint64_t outputs);  // tensors on the stack are owned by their reader

// Functions return 0, or an error code after having told what is wrong on standard error.
struct Api {
    int (*library_init_fragment)(const char* domain, const char* file, uint32_t line, Library** library);
    int (*library_init_impl)(const char* domain, const char* key, const char* file, uint32_t line, Library** library);
    int (*library_def)(Library*, const char* schema);
    int (*library_impl)(Library*, const char* name, Boxed*);
    int (*get_dim)(Tensor*, int64_t*);
    int (*get_sizes)(Tensor*, int64_t**);
    int (*get_strides)(Tensor*, int64_t**);
    int (*get_dtype)(Tensor*, int32_t*);
    int (*get_device_type)(Tensor*, int32_t*);
    int (*get_device_index)(Tensor*, int32_t*);
    int (*get_data_ptr)(Tensor*, void**);
    int (*empty_strided)(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,
                         int32_t device_index, Tensor**);
    int (*copy)(Tensor* to, Tensor* from, int32_t non_blocking);
    int (*delete_tensor)(Tensor*);
    int32_t (*device_type_cpu)();
    int32_t (*device_type_cuda)();
    int32_t (*dtype_uint8)();
    // Raises an exception with the message when the condition does not hold.
    void (*check)(bool condition, const char* function, const char* file, uint32_t line, const char* message);
    // Below: null where the process has no CUDA, or torch is older than 2.10.
    int (*current_cuda_stream)(int32_t device_index, void** stream);
    int (*create_cuda_guard)(int32_t device_index, Guard**);
    int (*delete_cuda_guard)(Guard*);
    int (*parallel_for)(int64_t begin, int64_t end, int64_t grain, void (*task)(int64_t, int64_t, void*), void* data);
};

}  // namespace mirage::torch

#endif  // MIRAGE_TORCH_ABI_H
