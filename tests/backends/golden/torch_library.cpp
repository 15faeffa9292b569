// The operators of libmirage.so for PyTorch as constant tables; what is done with them is in mirage/torch_ops.hpp.
#include "mirage/torch_ops.hpp"

namespace op_a0 {  // affine_a0
constexpr mirage::Extent dims[] = {
    {1, 1, {0}},
    {4, 0, {}},
    {1, 1, {0}},
    {4, 0, {}},
    {1, 0, {}}};
constexpr mirage::Tensor tensors[] = {
    {"x", mirage::ort::Element::f32, 2, dims + 0},
    {"y", mirage::ort::Element::f32, 2, dims + 2},
};
constexpr const char* symbols[] = {"batch", ""};
constexpr mirage::Recovery recoveries[] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
constexpr mirage::Operator op = {
    "affine_a0", 1, 1, 1,
    tensors, tensors + 1, symbols, recoveries, {-1, -1, -1, -1},
    nullptr, 0,
    nullptr, nullptr, nullptr, nullptr};
}

namespace op_b1 {  // negate_b1
constexpr mirage::Extent dims[] = {
    {1, 1, {0}},
    {4, 0, {}},
    {1, 1, {0}},
    {4, 0, {}},
    {1, 0, {}}};
constexpr mirage::Tensor tensors[] = {
    {"x\042); abort(); //\134\012*/ \042%s%n\042 \303\251\077\077/", mirage::ort::Element::f16, 2, dims + 0},
    {"y", mirage::ort::Element::f16, 2, dims + 2},
};
constexpr const char* symbols[] = {"x\042); abort(); //\134\012*/ \042%s%n\042 \303\251\077\077/", ""};
constexpr mirage::Recovery recoveries[] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
constexpr mirage::Operator op = {
    "negate_b1", 1, 1, 1,
    tensors, tensors + 1, symbols, recoveries, {-1, -1, -1, -1},
    nullptr, 0,
    nullptr, nullptr, nullptr, nullptr};
}

static mirage::torch::Kernels kernels[2];

static void call_cpu_a0(uint64_t* stack, uint64_t, uint64_t) {
    mirage::torch::Call(op_a0::op, kernels[0], stack, false).run();
}
static void call_cuda_a0(uint64_t* stack, uint64_t, uint64_t) {
    mirage::torch::Call(op_a0::op, kernels[0], stack, true).run();
}

static void call_cpu_b1(uint64_t* stack, uint64_t, uint64_t) {
    mirage::torch::Call(op_b1::op, kernels[1], stack, false).run();
}
static void call_cuda_b1(uint64_t* stack, uint64_t, uint64_t) {
    mirage::torch::Call(op_b1::op, kernels[1], stack, true).run();
}

static constexpr mirage::torch::Entry entries[] = {
    {&op_a0::op, "affine_a0(Tensor in0) -> Tensor",
     "mirage_a0_cpu", "mirage_a0_workspace_cpu",
     "mirage_a0", "mirage_a0_workspace",
     call_cpu_a0, call_cuda_a0},
    {&op_b1::op, "negate_b1(Tensor in0) -> Tensor",
     "mirage_b1_cpu", "mirage_b1_workspace_cpu",
     nullptr, nullptr,
     call_cpu_b1, call_cuda_b1},
};

__attribute__((constructor)) static void load() {
    mirage::torch::load(entries, kernels, 2);
}
