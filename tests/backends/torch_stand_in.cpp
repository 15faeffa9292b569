// Stands in for libtorch_cpu.so: the functions that libmirage_torch.so looks up, over tensors in host memory, and a few
// more with which a test registers nothing itself but calls what was registered.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

struct Tensor {
    int64_t rank, sizes[8], strides[8];
    int32_t dtype, device_type;
    void* data;
    bool owned;
};
using Boxed = void(uint64_t*, uint64_t, uint64_t);
static std::map<std::string, Boxed*> operators;  // by "CPU:name"
static std::string schemas;
static int live = 0;

static int64_t elements(const Tensor* t) {
    int64_t n = 1;
    for (int64_t d = 0; d < t->rank; ++d) n *= t->sizes[d];
    return n;
}

extern "C" {
int aoti_torch_library_init_fragment(const char*, const char*, uint32_t, std::string** out) { return *out = new std::string, 0; }
int aoti_torch_library_init_impl(const char*, const char* key, const char*, uint32_t, std::string** out) {
    return *out = new std::string(key), 0;
}
int aoti_torch_library_def(std::string*, const char* schema) { return schemas += std::string(schema) + "\n", 0; }
int aoti_torch_library_impl(std::string* key, const char* name, Boxed* function) {
    return operators[*key + ":" + name] = function, 0;
}
int aoti_torch_get_dim(Tensor* t, int64_t* out) { return *out = t->rank, 0; }
int aoti_torch_get_sizes(Tensor* t, int64_t** out) { return *out = t->sizes, 0; }
int aoti_torch_get_strides(Tensor* t, int64_t** out) { return *out = t->strides, 0; }
int aoti_torch_get_dtype(Tensor* t, int32_t* out) { return *out = t->dtype, 0; }
int aoti_torch_get_device_type(Tensor* t, int32_t* out) { return *out = t->device_type, 0; }
int aoti_torch_get_device_index(Tensor*, int32_t* out) { return *out = -1, 0; }
int aoti_torch_get_data_ptr(Tensor* t, void** out) { return *out = t->data, 0; }
int aoti_torch_empty_strided(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device,
                             int32_t, Tensor** out) {
    auto* t = new Tensor{rank, {}, {}, dtype, device, nullptr, true};
    memcpy(t->sizes, sizes, size_t(rank) * 8);
    memcpy(t->strides, strides, size_t(rank) * 8);
    t->data = calloc(size_t(elements(t)) + 1, 8);
    ++live;
    return *out = t, 0;
}
int aoti_torch_copy_(Tensor* to, Tensor* from, int32_t) {  // of float32
    for (int64_t i = 0; i < elements(to); ++i) {
        int64_t rest = i, at = 0;
        for (int64_t d = to->rank - 1; d >= 0; --d) {
            at += rest % to->sizes[d] * from->strides[d];
            rest /= to->sizes[d];
        }
        static_cast<float*>(to->data)[i] = static_cast<float*>(from->data)[at];
    }
    return 0;
}
int aoti_torch_delete_tensor_object(Tensor* t) {
    if (t->owned) free(t->data);
    delete t;
    return --live, 0;
}
int32_t aoti_torch_device_type_cpu() { return 0; }
int32_t aoti_torch_device_type_cuda() { return 1; }
int32_t aoti_torch_dtype_uint8() { return 0; }
int32_t aoti_torch_dtype_float32() { return 6; }
int32_t aoti_torch_dtype_float16() { return 5; }
int32_t aoti_torch_dtype_bfloat16() { return 15; }
int32_t aoti_torch_dtype_int64() { return 4; }
void aoti_torch_check(bool condition, const char*, const char*, uint32_t, const char* message) {
    if (!condition) throw std::runtime_error(message);
}

// A tensor of the test's own memory.
Tensor* stand_in_tensor(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device, void* data) {
    auto* t = new Tensor{rank, {}, {}, dtype, device, data, false};
    memcpy(t->sizes, sizes, size_t(rank) * 8);
    memcpy(t->strides, strides, size_t(rank) * 8);
    ++live;
    return t;
}
// Calls an operator as the dispatcher does: it gives its tensors away and takes those on the stack.
int stand_in_call(const char* name, uint64_t* stack, uint64_t inputs, uint64_t outputs, char* message, size_t size) {
    const auto found = operators.find(name);
    if (found == operators.end()) {
        for (uint64_t i = 0; i < inputs; ++i) aoti_torch_delete_tensor_object(reinterpret_cast<Tensor*>(stack[i]));
        return snprintf(message, size, "no %s", name), 2;
    }
    try {
        found->second(stack, inputs, outputs);
        return 0;
    } catch (const std::exception& error) {
        return snprintf(message, size, "%s", error.what()), 1;
    }
}
const char* stand_in_schemas() { return schemas.c_str(); }
int stand_in_live() { return live; }
}
