// Tensor maps, boxes copied by the copy engine, and the barriers in shared memory that count their bytes (sm_90a).
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "mirage/cuda/ptx.cuh"

namespace mirage {

// --- host -----------------------------------------------------------------------------------------------------------
// A stored tensor of `RANK` dimensions, innermost first: positions, bytes between neighbours (none for the innermost
// one), positions of a box.
template <int RANK>
struct Boxes {
    const void* base;
    uint64_t extents[RANK];
    uint64_t strides[RANK];
    uint32_t box[RANK + RANK % 2];  // whole words, so that maps are compared as bytes
};

typedef CUresult (*EncodeTiled)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function that makes tensor maps; none where there is no driver.
inline EncodeTiled encode_tiled() {
    static const EncodeTiled found = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
        const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                                    cudaEnableDefault, &result);
#else
        const cudaError_t status =
            cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
        const bool known = status == cudaSuccess && result == cudaDriverEntryPointSuccess;
        return known ? reinterpret_cast<EncodeTiled>(function) : nullptr;
    }();
    return found;
}

// The map of a tensor whose boxes are swizzled over 128 bytes and are zero outside the tensor. The last map made through
// a `TensorMap` is kept, so that a call with the same tensor costs a comparison.
template <int RANK>
struct TensorMap {
    Boxes<RANK> known = {};
    CUtensorMap map;

    cudaError_t make(CUtensorMap& to, CUtensorMapDataType type, const Boxes<RANK>& wanted) {
        if (std::memcmp(&known, &wanted, sizeof wanted) != 0) {
            const EncodeTiled encode = encode_tiled();
            if (encode == nullptr) return cudaErrorNotSupported;
            uint32_t steps[RANK];
            for (int k = 0; k < RANK; ++k) steps[k] = 1;
            const CUresult made =
                encode(&map, type, RANK, const_cast<void*>(wanted.base), wanted.extents, wanted.strides + 1, wanted.box,
                       steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                       CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
            if (made != CUDA_SUCCESS) return cudaErrorInvalidValue;
            known = wanted;
        }
        to = map;
        return cudaSuccess;
    }
};

// How many blocks a grid has that walks `units` pieces of work of `cluster` blocks each, `resident` on a multiprocessor.
inline int64_t walking_blocks(int64_t units, int cluster, int resident) {
    int device = 0, count = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return 0;
    if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 0;
    const int64_t most = int64_t{count} * resident / cluster;
    return (units < most ? units : most) * cluster;
}

// --- barriers in shared memory ----------------------------------------------------------------------------------------
struct Barrier {
    uint64_t word;

    MIRAGE_DEVICE void start(int arrivals) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
    }
    MIRAGE_DEVICE void expect(int bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                     : "memory");
    }
    MIRAGE_DEVICE void arrive() {
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
    }
    // The barrier at the same place in block `rank` of the cluster; orders nothing but what the copy engine and matrix
    // products do.
    MIRAGE_DEVICE void arrive_at(int rank) {
        asm volatile(
            "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(this)),
            "r"(rank)
            : "memory");
    }
    // The same, after everything that this thread has seen is visible to who waits with `wait_cluster`.
    MIRAGE_DEVICE void publish_at(int rank) {
        asm volatile(
            "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(this)),
            "r"(rank)
            : "memory");
    }
    MIRAGE_DEVICE void wait(uint32_t parity) {
        asm volatile(
            "{\n.reg .pred done;\nAGAIN_%=:\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 0x989680;\n"
            "@done bra.uni END_%=;\nbra.uni AGAIN_%=;\nEND_%=:\n}" ::"r"(shared_address(this)),
            "r"(parity)
            : "memory");
    }
    // The same, and see what threads of other blocks of the cluster have published.
    MIRAGE_DEVICE void wait_cluster(uint32_t parity) {
        asm volatile(
            "{\n.reg .pred done;\nAGAIN_%=:\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1, 0x989680;\n"
            "@done bra.uni END_%=;\nbra.uni AGAIN_%=;\nEND_%=:\n}" ::"r"(shared_address(this)),
            "r"(parity)
            : "memory");
    }
};

MIRAGE_DEVICE void barriers_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Where a ring of STAGES slots stands: the slot, and the parity that its barriers show once it is filled.
template <int STAGES>
struct Place {
    int slot = 0;
    uint32_t parity = 0;

    MIRAGE_DEVICE void next() {
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// --- boxes ------------------------------------------------------------------------------------------------------------
MIRAGE_DEVICE void prefetch_map(const CUtensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Copy the box whose first position is `at` (innermost first) to `to`; `full` counts its bytes. With a mask of more than one
// block of the cluster it goes to the same place in all of them, counted by their barriers.
#define MIRAGE_BOX(RANK, PLACES, ...)                                                                                 \
    if constexpr (SHARED) {                                                                                           \
        asm volatile("cp.async.bulk.tensor." #RANK                                                                    \
                     "d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {" PLACES   \
                     "}], [%2], %3;" ::"r"(to),                                                                       \
                     "l"(&map), "r"(shared_address(&full)), "h"(mask), __VA_ARGS__                                    \
                     : "memory");                                                                                     \
    } else {                                                                                                          \
        asm volatile("cp.async.bulk.tensor." #RANK                                                                    \
                     "d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {" PLACES "}], [%2];" ::"r"(to), \
                     "l"(&map), "r"(shared_address(&full)), "h"(mask), __VA_ARGS__                                    \
                     : "memory");                                                                                     \
    }
template <int RANK, bool SHARED = false>
MIRAGE_DEVICE void load_box(uint32_t to, const CUtensorMap& map, Barrier& full, const int (&at)[RANK],
                            uint16_t mask = 0) {
    static_assert(RANK >= 2 && RANK <= 5, "boxes have two to five dimensions");
    if constexpr (RANK == 2) {
        MIRAGE_BOX(2, "%4, %5", "r"(at[0]), "r"(at[1]))
    } else if constexpr (RANK == 3) {
        MIRAGE_BOX(3, "%4, %5, %6", "r"(at[0]), "r"(at[1]), "r"(at[2]))
    } else if constexpr (RANK == 4) {
        MIRAGE_BOX(4, "%4, %5, %6, %7", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]))
    } else {
        MIRAGE_BOX(5, "%4, %5, %6, %7, %8", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]))
    }
}
#undef MIRAGE_BOX

}  // namespace mirage
