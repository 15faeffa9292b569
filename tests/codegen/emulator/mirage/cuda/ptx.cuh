// Stands in for the header of the same name: asynchronous copies and matrix products, as the PTX manual defines them.
#pragma once
#include "mirage/cuda/math.cuh"

namespace mirage {

template <int BYTES>
void copy_async(void* to, const void* from, int valid) {
    if (reinterpret_cast<uintptr_t>(to) % BYTES || reinterpret_cast<uintptr_t>(from) % BYTES)
        emulator::fail("an asynchronous copy is not aligned", BYTES);
    if (valid < 0 || valid > BYTES) emulator::fail("an asynchronous copy of more than it holds", valid);
    const emulator::Copy copy = {to, from, BYTES, valid};
    if (emulator::machine.lazy) emulator::self().open.push_back(copy);
    else copy.run();
}
inline void copy_commit() {
    emulator::self().groups.push_back(std::move(emulator::self().open));
    emulator::self().open.clear();
}
template <int PENDING>
void copy_wait() {
    auto& groups = emulator::self().groups;
    while (groups.size() > PENDING) {
        for (const auto& copy : groups.front()) copy.run();
        groups.erase(groups.begin());
    }
}

inline void launch_dependents() {}
inline void wait_for_earlier() { emulator::wait_for_earlier(); }
inline void fetch_ahead(const void*) {}

// Matrix k, row r lies at the address that lane 8 k + r brings; this lane gets elements 2 c and 2 c + 1 of its row (or,
// transposed, of its column), c = lane % 4.
template <bool TRANSPOSED, int COUNT>
void load_matrices(uint32_t (&r)[COUNT], const void* address) {
    const unsigned lane = emulator::machine.current % emulator::WARP;
    const auto& s = emulator::exchange([&](emulator::Show& to, unsigned l) { to.address[l] = address; }, __LINE__);
    for (unsigned k = 0; k < COUNT; ++k) {
        uint16_t part[2];
        for (unsigned h = 0; h < 2; ++h) {
            const unsigned i = TRANSPOSED ? lane % 4 * 2 + h : lane / 4, j = TRANSPOSED ? lane / 4 : lane % 4 * 2 + h;
            const auto* row = static_cast<const uint16_t*>(s.address[8 * k + i]);
            if (reinterpret_cast<uintptr_t>(row) % 16) emulator::fail("a row of a matrix is not aligned", 16);
            part[h] = row[j];
        }
        r[k] = part[0] | static_cast<uint32_t>(part[1]) << 16;
    }
}

template <class T>
float emulate_element(uint32_t pair, unsigned half) {
    T x;
    x.bits = static_cast<uint16_t>(pair >> (16 * half));
    return to_float(x);
}
// c += a * b, m16n8k16: a[16][16] by rows, b[16][8] by columns, in the register layout of the PTX manual
template <class T>
void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const T*) {
    const unsigned lane = emulator::machine.current % emulator::WARP;
    const auto& s = emulator::exchange(
        [&](emulator::Show& to, unsigned l) {
            std::memcpy(to.a[l], a, sizeof a);
            std::memcpy(to.b[l], b, sizeof b);
        },
        __LINE__);
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; ++k) {
            const uint32_t x = s.a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            const uint32_t y = s.b[col * 4 + k % 8 / 2][k / 8];
            c[i] += emulate_element<T>(x, k % 2) * emulate_element<T>(y, k % 2);
        }
    }
}
// d = a * b + c, m16n8k8: of the operands the upper 19 bits count, and what the sum has beyond 24 bits is cut off
inline void multiply_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4]) {
    const unsigned lane = emulator::machine.current % emulator::WARP;
    const auto& s = emulator::exchange(
        [&](emulator::Show& to, unsigned l) {
            std::memcpy(to.a[l], a, sizeof a);
            std::memcpy(to.b[l], b, sizeof b);
        },
        __LINE__);
    constexpr uint32_t UPPER = 0xffffe000u;
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
        double sum = c[i];
        for (unsigned k = 0; k < 8; ++k) {
            const float x = __uint_as_float(s.a[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2] & UPPER);
            const float y = __uint_as_float(s.b[col * 4 + k % 4][k / 4] & UPPER);
            sum += static_cast<double>(x) * static_cast<double>(y);
        }
        d[i] = static_cast<float>(sum);
        if (std::isfinite(d[i]) && std::fabs(static_cast<double>(d[i])) > std::fabs(sum)) d[i] = std::nextafter(d[i], 0.0f);
    }
}

}  // namespace mirage
