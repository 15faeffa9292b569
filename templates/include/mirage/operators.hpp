// Tables that describe operators, and what a library's table of them calls in mirage/runtime.cpp, which is the same in every
// library.
#ifndef MIRAGE_OPERATORS_HPP
#define MIRAGE_OPERATORS_HPP

#include "mirage/entry.h"
#include "mirage/ort_abi.h"

namespace mirage {

using CpuKernel = int(const void* const*, void* const*, void*, const int64_t*, const mirage_pool*);
using CudaKernel = int(const void* const*, void* const*, void*, const int64_t*, void* stream);
using WorkspaceSize = int64_t(const int64_t*);

constexpr int max_tensors = 64, max_rank = 16, max_symbols = 32, max_factors = 6;  // as in backends/spec.py
constexpr int max_packings = 32;  // of an operator: further weights are not packed

// `factor` times the product of `count` symbols.
struct Extent {
    int64_t factor;
    int count;
    int8_t symbols[max_factors];
};

struct Tensor {
    const char* name;
    ort::Element element;
    int rank;
    const Extent* dims;
};

// Symbol `symbol` is dimension `dim` of input `input`, divided by the rest of that dimension's extent; or that dimension and `more`.
struct Recovery {
    int symbol, input, dim;
    int64_t more;
};

// Symbol `symbol` is the number in input `input`, which lies in the host's memory, or symbol `least` where that is more; or, with
// no input, the sum of symbols `least` and `more`.
struct Room {
    int symbol, least, input, more;  // -1: there is none
};

// Kernels read `number` positions of a dimension of `extent`.
struct Least {
    Extent extent;
    int64_t number;
};

struct Operator {
    const char* name;
    int input_count, output_count, symbol_count;
    const Tensor* inputs;
    const Tensor* outputs;
    const char* const* symbols;
    const Recovery* recoveries;  // one for each symbol, in an order in which they can be computed; nothing for that of `room`
    Room room;
    const Least* least;  // dimensions of which some positions are read
    int least_count;
    CpuKernel* cpu;  // its inputs have the packed forms of weights behind them
    WorkspaceSize* cpu_workspace;
    const mirage_packing* (*packings)();  // nullptr: no weights that may be packed
    CudaKernel* cuda;
    WorkspaceSize* cuda_workspace;
    CudaKernel* opencl;  // for the CPU's provider too, as are the two of the processor
    WorkspaceSize* opencl_workspace;
};

// An operator of one of ONNX Runtime's execution providers, CUDA's or the CPU's.
struct Registered {
    const Operator* op;
    bool cuda;
};

// The best instruction set of the processor that kernels may use: 0 base, 1 avx2, 2 avx512.
int isa_level();

// The body of RegisterCustomOps.
ort::Status* register_operators(ort::SessionOptions* options, const ort::ApiBase* base, const Registered* ops, size_t count);

// The variant of a function for this processor; variants are listed from the lowest instruction set up.
template <class F, int count>
F* best(F* const (&variants)[count]) {
    const int level = isa_level();
    return variants[level < count ? level : count - 1];
}

// Inputs as they are, with no packed forms behind them: these stand behind the most inputs that an operator has.
inline const void* const* unpacked(const void* const* in, int count, const void** all) {
    for (int i = 0; i < count; ++i) all[i] = in[i];
    for (int i = 0; i < max_packings; ++i) all[max_tensors + i] = nullptr;
    return all;
}

}  // namespace mirage

#endif  // MIRAGE_OPERATORS_HPP
