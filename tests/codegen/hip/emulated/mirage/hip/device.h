// The device in threads of the host: each is a lane, and an instruction that several lanes make together waits for all of a
// wave. What matrix instructions do is written down from AMD's guides to its instruction sets, lane by lane.
#pragma once
#include <pthread.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __forceinline__ inline
#define __shared__ static

using __half = _Float16;
struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __device__ explicit __nv_bfloat16(float x) {
        const uint32_t of = __builtin_bit_cast(uint32_t, x);
        bits = static_cast<uint16_t>(x != x ? 0x7fffu : (of + 0x7fffu + (of >> 16 & 1u)) >> 16);
    }
};
struct Thread {
    int x;
};
inline thread_local Thread threadIdx;
constexpr int MOST = 256;
inline int waves_of;  //!< lanes of a wave
inline pthread_barrier_t block_barrier, wave_barriers[MOST / 32];
inline double shown[MOST];
inline float operands[2][MOST][16];

inline void __syncthreads() { pthread_barrier_wait(&block_barrier); }
inline void __threadfence() {}
inline void wave_meets() { pthread_barrier_wait(&wave_barriers[threadIdx.x / waves_of]); }
template <class T>
T exchanged(T x, int mask) {
    const int first = threadIdx.x / waves_of * waves_of;
    shown[threadIdx.x] = x;
    wave_meets();
    const T other = static_cast<T>(shown[first + ((threadIdx.x - first) ^ mask)]);
    wave_meets();
    return other;
}
template <class T>
T min(T x, T y) {
    return y < x ? y : x;
}
inline float value(__half x) { return static_cast<float>(x); }
inline float value(short x) {
    const uint32_t bits = static_cast<uint32_t>(static_cast<uint16_t>(x)) << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}
template <int EACH, class V>
void show(V a, V b) {
    for (int j = 0; j < EACH; ++j) operands[0][threadIdx.x][j] = value(a[j]), operands[1][threadIdx.x][j] = value(b[j]);
    wave_meets();
}
// v_mfma_f32_16x16x16: lane l has numbers 4 (l / 16) + j of row l % 16 of A and of column l % 16 of B, and of the result rows
// 4 (l / 16) + i of column l % 16.
template <class V, class C>
C mfma(V a, V b, C c, int, int, int) {
    const int first = threadIdx.x / 64 * 64, lane = threadIdx.x % 64;
    show<4>(a, b);
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k)
            c[i] += operands[0][first + k / 4 * 16 + lane / 16 * 4 + i][k % 4] * operands[1][first + k / 4 * 16 + lane % 16][k % 4];
    wave_meets();
    return c;
}
// v_wmma_f32_16x16x16: lane l has row l % 16 of A and column l % 16 of B, and of the result rows 2 i + l / 16 of column l % 16.
template <class V, class C>
C wmma(V a, V b, C c) {
    const int first = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;
    show<16>(a, b);
    for (int i = 0; i < 8; ++i)
        for (int k = 0; k < 16; ++k) c[i] += operands[0][first + 2 * i + lane / 16][k] * operands[1][first + lane % 16][k];
    wave_meets();
    return c;
}
#define __builtin_amdgcn_mfma_f32_16x16x16f16 mfma
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k mfma
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32 wmma
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32 wmma
#define __hip_atomic_fetch_add(to, value, order, scope) __atomic_fetch_add(to, value, order)
