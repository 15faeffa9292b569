"""Tiny hand-written kernels that follow templates/include/mirage/entry.h, with their specifications."""

from dataclasses import replace

from mirage_cli.backends.spec import KernelSource, OperatorSpec, TensorSpec
from mirage_cli.lax.dtypes import BF16, F16, F32, I64
from mirage_cli.lax.extents import product, symbol

BATCH, SEQ = symbol("batch"), symbol("seq + past")
NASTY = 'x"); abort(); //\\\n*/ "%s%n" é??/'

_CPU = """#include "mirage/entry.h"
%(before)s
extern "C" int MIRAGE_CPU_NAME(%(id)s)(const void* const* in, void* const* out, void* workspace,
                                       const int64_t* extents, const mirage_pool* pool) {
    (void)in, (void)out, (void)workspace, (void)extents, (void)pool;
%(body)s
    return MIRAGE_OK;
}

extern "C" int64_t MIRAGE_CPU_WORKSPACE_NAME(%(id)s)(const int64_t* extents) {
    (void)extents;
    return %(bytes)s;
}
"""

_CUDA = """#include <cuda_runtime.h>
#include "mirage/entry.h"

static __global__ void kernel(const float* x, float* y, float* scratch, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    scratch[i] = 2.0f * x[i];
    y[i] = scratch[i] + 1.0f;
}

extern "C" MIRAGE_EXPORT int64_t mirage_%(id)s_workspace(const int64_t* extents) { return extents[0] * 16; }

extern "C" MIRAGE_EXPORT int mirage_%(id)s(const void* const* in, void* const* out, void* workspace,
                                         const int64_t* extents, cudaStream_t stream) {
    const long long n = extents[0] * 4;
    kernel<<<(n + 255) / 256, 256, 0, stream>>>(static_cast<const float*>(in[0]), static_cast<float*>(out[0]),
                                                static_cast<float*>(workspace), n);
    return int(cudaGetLastError());
}
"""


def cpu_source(id: str, body: str, bytes: str = "0", before: str = "") -> str:
    """A CPU kernel around the statements `body`."""
    return _CPU % {"id": id, "body": body, "bytes": bytes, "before": before}


def cuda_source(id: str) -> str:
    """y = 2 x + 1 on [batch, 4], by way of a workspace."""
    return _CUDA % {"id": id}


def elementwise(type_: str, expression: str) -> str:
    """The loop of an elementwise kernel on [batch, 4]."""
    return f"""    const auto* x = static_cast<const {type_}*>(in[0]);
    auto* y = static_cast<{type_}*>(out[0]);
    for (int64_t i = 0; i < extents[0] * 4; ++i) y[i] = {expression};"""


#: y = 2 x + 1 on [batch, 4]
AFFINE = OperatorSpec(
    "a0", "affine_a0", (TensorSpec("x", F32, (BATCH, 4)),), (TensorSpec("y", F32, (BATCH, 4)),), ("batch",)
)
#: y = -x in half precision, with names that attack the source text
NEGATE = OperatorSpec(
    "b1",
    "negate_b1",
    (TensorSpec(NASTY, F16, (symbol(NASTY), 4)),),
    (TensorSpec("y", F16, (symbol(NASTY), 4)),),
    (NASTY,),
)
#: y = -x in bfloat16
NEGATE_BF16 = OperatorSpec(
    "b2", "negate_b2", (TensorSpec("x", BF16, (BATCH, 4)),), (TensorSpec("y", BF16, (BATCH, 4)),), ("batch",)
)
#: Rows in reverse order, by way of the workspace and on the pool's threads; one symbol is known only by a product.
REVERSE = OperatorSpec(
    "c2",
    "reverse_c2",
    (TensorSpec("x", F32, (product([2, BATCH, SEQ]), 3)), TensorSpec("w", I64, (BATCH, 5))),
    (TensorSpec("y", F32, (product([BATCH, SEQ]), 6)), TensorSpec("total", I64, ())),
    ("batch", "seq + past"),
)
#: Returns an error for more than 8 rows.
PICKY = OperatorSpec("d3", "picky_d3", (TensorSpec("x", F32, (BATCH,)),), (TensorSpec("y", F32, (BATCH,)),), ("batch",))
#: The instruction set that ran, and the one of the inline function that the linker kept.
WHICH = OperatorSpec("e4", "which_e4", (TensorSpec("x", F32, (1,)),), (TensorSpec("y", F32, (2,)),))

SPECS = (AFFINE, NEGATE, NEGATE_BF16, REVERSE, PICKY, WHICH)
AFFINE_CUDA = replace(AFFINE, has_cuda=True)

_REVERSE_BEFORE = """struct Job { const float* x; float* scratch; float* y; int64_t rows; };
static void fill(void* data, size_t i) {
    auto* job = static_cast<Job*>(data);
    for (int d = 0; d < 3; ++d) job->scratch[3 * i + d] = job->x[3 * (job->rows - 1 - i) + d];
}
static void copy(void* data, size_t i) {
    auto* job = static_cast<Job*>(data);
    for (int d = 0; d < 3; ++d) job->y[3 * i + d] = job->scratch[3 * i + d];
}"""
_REVERSE_BODY = """    const int64_t rows = 2 * extents[0] * extents[1];
    *static_cast<int64_t*>(out[1]) = rows;
    if (reinterpret_cast<uintptr_t>(workspace) % 64 != 0) return MIRAGE_FAILED;
    Job job = {static_cast<const float*>(in[0]), static_cast<float*>(workspace), static_cast<float*>(out[0]), rows};
    mirage_parallel(pool, fill, rows, &job);
    mirage_parallel(pool, copy, rows, &job);"""
_WHICH_BEFORE = """#define IS_base 0
#define IS_avx2 1
#define IS_avx512 2
__attribute__((noinline)) inline int kept() { return MIRAGE_PASTE(IS_, MIRAGE_ISA); }"""
_WHICH_BODY = """    static_cast<float*>(out[0])[0] = float(MIRAGE_PASTE(IS_, MIRAGE_ISA));
    static_cast<float*>(out[0])[1] = float(kept());"""

SOURCES = {
    source.id: source
    for source in (
        KernelSource("a0", cpu_source("a0", elementwise("float", "2 * x[i] + 1")), cuda_source("a0")),
        KernelSource("b1", cpu_source("b1", elementwise("uint16_t", "uint16_t(x[i] ^ 0x8000)"))),
        KernelSource("b2", cpu_source("b2", elementwise("uint16_t", "uint16_t(x[i] ^ 0x8000)"))),
        KernelSource("c2", cpu_source("c2", _REVERSE_BODY, "24 * extents[0] * extents[1]", _REVERSE_BEFORE)),
        KernelSource("d3", cpu_source("d3", "    if (extents[0] > 8) return MIRAGE_BAD_EXTENT;")),
        KernelSource("e4", cpu_source("e4", _WHICH_BODY, before=_WHICH_BEFORE)),
    )
}
