// Stands in for the header of the same name: barriers of some warps and of clusters, as the PTX manual defines them.
#pragma once
#include "mirage/cuda/math.cuh"

namespace mirage {

template <int THREADS>
void wait_together(int id) {
    if (THREADS == 32) emulator::wait(emulator::AT_WARP, __LINE__);
    else emulator::wait_named(static_cast<unsigned>(id), THREADS, __LINE__);
}
inline float power_of_two(float x) { return exp2f(x); }

inline void cluster_arrive() { emulator::arrive_cluster(true, __LINE__); }
inline void cluster_arrive_relaxed() { emulator::arrive_cluster(false, __LINE__); }
inline void cluster_wait() { emulator::wait_cluster(__LINE__); }

template <class T>
T* in_block(T* p, unsigned rank) {
    return static_cast<T*>(emulator::in_block(p, rank, __LINE__));
}

}  // namespace mirage
