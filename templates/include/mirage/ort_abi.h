// The part of ONNX Runtime's C interface that custom operators need, declared by ourselves: the generated library
// compiles without ONNX Runtime's headers and loads in every version that knows API version 17 (1.20 and newer).
//
// ONNX Runtime hands out its functions as one table that only ever grows at its end; an entry is named here by its
// position and its type.
#ifndef MIRAGE_ORT_ABI_H
#define MIRAGE_ORT_ABI_H

#include <cstddef>
#include <cstdint>

namespace mirage::ort {

// The lowest version whose custom operators infer shapes; a higher number would lock older runtimes out.
constexpr uint32_t api_version = 17;

struct Domain;
struct KernelContext;
struct KernelInfo;
struct SessionOptions;
struct ShapeContext;
struct Status;  // nullptr means success
struct TensorInfo;
struct Value;
struct Api;  // the table of functions

struct ApiBase {
    const Api* (*get_api)(uint32_t version);
    const char* (*get_version)();
};

enum ErrorCode : int { fail = 1, invalid_argument = 2, runtime_exception = 6 };

enum class Element : int {
    f32 = 1,
    u8 = 2,
    i8 = 3,
    u16 = 4,
    i16 = 5,
    i32 = 6,
    i64 = 7,
    boolean = 9,
    f16 = 10,
    f64 = 11,
    u32 = 12,
    u64 = 13,
    bf16 = 16,
    e4m3 = 17,
    e5m2 = 19,
    u4 = 21,
    i4 = 22,
    e2m1 = 23,
    u2 = 24,  // its own numbers from here on, not those of ONNX
    i2 = 25,
};

// One entry of the table.
template <size_t position, class Signature>
struct Function;

template <size_t position, class Result, class... Parameters>
struct Function<position, Result(Parameters...)> {
    static Result call(const Api* api, Parameters... arguments) {
        using Pointer = Result (*)(Parameters...);
        return reinterpret_cast<const Pointer*>(api)[position](arguments...);
    }
};

using CreateStatus = Function<0, Status*(int code, const char* message)>;
using CreateCustomOpDomain = Function<26, Status*(const char* name, Domain**)>;
using CustomOpDomainAdd = Function<27, Status*(Domain*, const struct CustomOp*)>;
using AddCustomOpDomain = Function<28, Status*(SessionOptions*, Domain*)>;
using GetTensorMutableData = Function<51, Status*(Value*, void**)>;
using CreateTensorInfo = Function<57, Status*(TensorInfo**)>;
using SetElementType = Function<58, Status*(TensorInfo*, int type)>;
using SetDimensions = Function<59, Status*(TensorInfo*, const int64_t* dims, size_t rank)>;
using GetDimensionCount = Function<61, Status*(const TensorInfo*, size_t*)>;
using GetDimensions = Function<62, Status*(const TensorInfo*, int64_t* dims, size_t rank)>;
using GetSymbolicDimensions = Function<63, Status*(const TensorInfo*, const char** names, size_t rank)>;
using GetTensorInfo = Function<65, Status*(const Value*, TensorInfo**)>;
using GetInput = Function<90, Status*(const KernelContext*, size_t index, const Value**)>;
using GetOutput = Function<91, Status*(KernelContext*, size_t index, const int64_t* dims, size_t rank, Value**)>;
using ReleaseStatus = Function<93, void(Status*)>;
using ReleaseTensorInfo = Function<99, void(TensorInfo*)>;
using GetGpuStream = Function<193, Status*(const KernelContext*, void**)>;
using GetNodeName = Function<244, Status*(const KernelInfo*, char* text, size_t* bytes)>;
using GetConstantInput = Function<249, Status*(const KernelInfo*, size_t index, int* is_constant, const Value**)>;
using GetInferenceInput = Function<268, Status*(const ShapeContext*, size_t index, TensorInfo**)>;
using SetInferenceOutput = Function<270, Status*(const ShapeContext*, size_t index, const TensorInfo*)>;
using SetSymbolicDimensions = Function<271, Status*(TensorInfo*, const char* names[], size_t rank)>;
using ParallelFor = Function<274, Status*(const KernelContext*, void (*task)(void*, size_t), size_t count,
                                          size_t batches, void* data)>;
// From onnxruntime 1.24 on; the dimensions are the value's own.
using GetShapeReference = Function<414, Status*(const Value*, int* element, const int64_t** dims, size_t* rank)>;

// A custom operator as ONNX Runtime calls it: `OrtCustomOp` of version 17, member by member.
struct CustomOp {
    uint32_t version;
    void* (*create_kernel)(const CustomOp*, const Api*, const KernelInfo*);
    const char* (*name)(const CustomOp*);
    const char* (*provider)(const CustomOp*);
    int (*input_type)(const CustomOp*, size_t);
    size_t (*input_count)(const CustomOp*);
    int (*output_type)(const CustomOp*, size_t);
    size_t (*output_count)(const CustomOp*);
    void (*compute)(void* kernel, KernelContext*);
    void (*destroy_kernel)(void* kernel);
    int (*input_characteristic)(const CustomOp*, size_t);
    int (*output_characteristic)(const CustomOp*, size_t);
    int (*input_memory_type)(const CustomOp*, size_t);
    int (*variadic_input_min_arity)(const CustomOp*);
    int (*variadic_input_homogeneity)(const CustomOp*);
    int (*variadic_output_min_arity)(const CustomOp*);
    int (*variadic_output_homogeneity)(const CustomOp*);
    Status* (*create_kernel_v2)(const CustomOp*, const Api*, const KernelInfo*, void** kernel);
    Status* (*compute_v2)(void* kernel, KernelContext*);
    Status* (*infer_output_shapes)(const CustomOp*, ShapeContext*);
    int (*start_version)(const CustomOp*);
    int (*end_version)(const CustomOp*);
    // Members of later versions, never read at version 17.
    size_t (*may_inplace)(int** inputs, int** outputs);
    void (*release_may_inplace)(int* inputs, int* outputs);
    size_t (*alias_map)(int** inputs, int** outputs);
    void (*release_alias_map)(int* inputs, int* outputs);
};

}  // namespace mirage::ort

#endif  // MIRAGE_ORT_ABI_H
