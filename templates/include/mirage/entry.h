/* What a kernel source defines and what a library of kernels exports. Plain C; needs neither CUDA nor ONNX Runtime.
 *
 * A fragment ID (hexadecimal digits) has a source ID.cpp and, with CUDA, a source ID.cu:
 *
 *   ID.cpp, compiled once for each instruction set with -DMIRAGE_ISA=base|avx2|avx512
 *     extern "C" int MIRAGE_CPU_NAME(ID)(const void* const* in, void* const* out, void* workspace,
 *                                        const int64_t* extents, const mirage_pool* pool);
 *     extern "C" int64_t MIRAGE_CPU_WORKSPACE_NAME(ID)(const int64_t* extents);
 *     extern "C" const mirage_packing* MIRAGE_CPU_PACKINGS_NAME(ID)(void);   where constant inputs may be packed: a table
 *   Behind the inputs `in` then has the packed form of each packing, NULL where there is none.
 *   ID.cu
 *     extern "C" MIRAGE_EXPORT int mirage_ID(const void* const* in, void* const* out, void* workspace,
 *                                            const int64_t* extents, cudaStream_t stream);
 *     extern "C" MIRAGE_EXPORT int64_t mirage_ID_workspace(const int64_t* extents);
 *
 * The library adds and exports mirage_ID_cpu and mirage_ID_workspace_cpu, which take the best instruction set of the
 * processor they run on.
 *
 * What callers promise: `in` and `out` point to dense row-major tensors that do not overlap, aligned to their element
 * (CPU) or to 16 bytes (CUDA); `workspace` holds the bytes asked for, uninitialised, aligned to 64 bytes (CPU) or 256
 * (CUDA), NULL when none were asked for; `extents` holds the values of the fragment's symbols in their order, NULL when
 * there are none. An extent may be 0; a kernel whose outputs are all empty is not called. `pool` NULL: one thread.
 *
 * What kernels promise: no exception leaves them; they return 0, a mirage_status (CPU) or a cudaError_t (CUDA); the
 * workspace functions return bytes, 0 for none, below 0 for refused extents. Several threads may call a kernel at once.
 *
 * Functions that ID.cpp takes from headers belong in `inline namespace MIRAGE_ISA` (or are static): otherwise the
 * linker keeps one copy of an inline function for all instruction sets, and that is the slowest one.
 */
#ifndef MIRAGE_ENTRY_H
#define MIRAGE_ENTRY_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define MIRAGE_EXPORT __declspec(dllexport)
#else
#define MIRAGE_EXPORT __attribute__((visibility("default")))
#endif

#ifndef MIRAGE_ISA
#define MIRAGE_ISA base
#endif

#define MIRAGE_PASTE2(a, b) a##b
#define MIRAGE_PASTE(a, b) MIRAGE_PASTE2(a, b)
#define MIRAGE_CPU_NAME(id) MIRAGE_PASTE(mirage_##id##_cpu_, MIRAGE_ISA)
#define MIRAGE_CPU_WORKSPACE_NAME(id) MIRAGE_PASTE(mirage_##id##_workspace_cpu_, MIRAGE_ISA)
#define MIRAGE_CPU_PACKINGS_NAME(id) MIRAGE_PASTE(mirage_##id##_packings_cpu_, MIRAGE_ISA)

/* Results of a CPU kernel. */
enum mirage_status { MIRAGE_OK = 0, MIRAGE_OUT_OF_MEMORY = 1, MIRAGE_BAD_EXTENT = 2, MIRAGE_FAILED = 3 };

/* How an input of `elements` elements of `bytes` bytes is packed for products: columns lie `row` elements apart, summed positions
 * `depth`; one of the two is 1. Whole numbers of `bits` bits, `turned` the top one of those that have a sign, become words of 4 bytes
 * or one byte each. A table of packings ends with an input below 0. */
typedef struct mirage_packing {
    int input, bytes;
    int64_t row, depth, elements;
    int bits, turned; /* 0 for other elements */
    int split;        /* whether float32 may be split into numbers of bfloat16 (mirage/cpu/split.hpp) */
} mirage_packing;

#ifndef MIRAGE_POOL_DEFINED
#define MIRAGE_POOL_DEFINED
/* Threads lent by the caller: `run` calls task(data, i) once for each i < count, in any order, and returns when all
 * are done. Tasks do not call `run`. */
typedef struct mirage_pool mirage_pool;
struct mirage_pool {
    void (*run)(const mirage_pool* pool, void (*task)(void* data, size_t index), size_t count, void* data);
    void* context;
};
#endif

/* Calls the tasks on the pool's threads, or one after the other when there is no pool. */
static inline void mirage_parallel(const mirage_pool* pool, void (*task)(void* data, size_t index), size_t count,
                                   void* data) {
    if (pool != NULL && count > 1) {
        pool->run(pool, task, count, data);
        return;
    }
    for (size_t i = 0; i < count; ++i) task(data, i);
}

#endif /* MIRAGE_ENTRY_H */
