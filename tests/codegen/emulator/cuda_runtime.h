// CUDA on a CPU: the threads of a cluster of blocks are fibers that run one after the other from barrier to barrier.
//
// A thread runs until it must wait; a warp until all its threads wait for others; so a read that needs a barrier and has
// none finds what was there before. `backwards` turns the order of blocks, warps and lanes around, `lazy` delays
// asynchronous copies to the last moment that the program allows: together they show what hides in one order.
//
// A dependent launch finds the `hidden` arrays only behind `wait_for_earlier`, and may not touch the `guarded` ones before.
#pragma once
#include <math.h>
#include <stdint.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

using std::isnan;
using std::max;
using std::min;

struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline uint32_t __float_as_uint(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float __uint_as_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

typedef int cudaError_t;
typedef void* cudaStream_t;
constexpr cudaError_t cudaSuccess = 0, cudaErrorInvalidConfiguration = 9;
inline cudaError_t cudaMemsetAsync(void* at, int value, size_t size, cudaStream_t) {
    std::memset(at, value, size);
    return cudaSuccess;
}

namespace emulator {
constexpr unsigned WARP = 32, BARRIERS = 16;
constexpr size_t STACK = 1 << 16;
struct Index {
    unsigned x;
};
enum State { READY, AT_WARP, AT_NAMED, AT_BLOCK, AT_CLUSTER, DONE };

[[noreturn]] inline void fail(const char* what, int line) {
    std::fprintf(stderr, "emulator: %s (line %d)\n", what, line);
    std::abort();
}

#if defined(__x86_64__)
typedef void* Context;
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.weak emulator_switch
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
inline void switch_to(Context& from, Context& to) { emulator_switch(&from, to); }
inline void start(Context& c, char* stack, void (*entry)()) {
    void** top = reinterpret_cast<void**>(stack + STACK) - 3;  // aligned as behind a call
    *--top = reinterpret_cast<void*>(entry);
    top -= 6;
    c = top;
}
#else
typedef ucontext_t Context;
inline void switch_to(Context& from, Context& to) { swapcontext(&from, &to); }
inline void start(Context& c, char* stack, void (*entry)()) {
    getcontext(&c);
    c.uc_stack.ss_sp = stack;
    c.uc_stack.ss_size = STACK;
    c.uc_link = nullptr;
    makecontext(&c, entry, 0);
}
#endif

struct Copy {
    void* to;
    const void* from;
    int bytes, valid;
    void run() const {
        std::memcpy(to, from, static_cast<size_t>(valid));
        std::memset(static_cast<char*>(to) + valid, 0, static_cast<size_t>(bytes - valid));
    }
};
struct Thread {
    Context context;
    std::unique_ptr<char[]> stack{new char[STACK]};
    State state = DONE;
    int line = 0;
    unsigned exchanges = 0;
    unsigned barrier = 0, company = 0;  // the named barrier where it waits, and for how many threads
    unsigned arrived = 0, passed = 0;   // barriers of its cluster that it has come to, and that it has left
    bool sent = false;                  // whether it has written to another block since it arrived at one
    bool waited = false;                // whether it has waited for the work in front of the kernel
    std::vector<Copy> open;
    std::vector<std::vector<Copy>> groups;
};
// What the lanes of a warp show one another; two sets, because a lane may be one exchange ahead.
struct Show {
    float x[WARP];
    const void* address[WARP];
    uint32_t a[WARP][4], b[WARP][2];
};

struct Block {
    unsigned char* memory;
    bool laid_out;
    unsigned needed;  // the barrier of the cluster that has to be behind it when it ends
};
// Memory outside of the kernel, and what it holds.
struct Array {
    void* at;
    size_t size;
    std::vector<char> saved;
    void save() { saved.assign(static_cast<char*>(at), static_cast<char*>(at) + size); }
};

struct Machine {
    bool backwards = false, lazy = false;
    int skipped = -1;  // the number of a statement that is left out, in kernels that number some
    std::vector<Array> hidden, guarded;
    std::vector<Thread> threads;
    std::vector<Show> shows;
    std::vector<Block> blocks;
    std::function<void()> body;
    Context scheduler;
    unsigned count = 0, warps = 0, current = 0;  // threads and warps of a block; the thread that runs
    unsigned first_block = 0;
    size_t size = 0, room = 0;  // of the memory of a block, and up to that of the next one
    bool dependent = false, revealed = true;

    unsigned stride() const { return warps * WARP; }
    Block& block() { return blocks[current / stride()]; }
    // The threads of the cluster's block number k.
    template <class F>
    void each_of(unsigned k, F f) {
        for (unsigned t = 0; t < count; ++t) f(threads[k * stride() + t]);
    }
};
inline Machine machine;
}  // namespace emulator

inline emulator::Index threadIdx, blockIdx;

namespace emulator {
inline Thread& self() { return machine.threads[machine.current]; }

inline void wait(State state, int line) {
    Thread& t = self();
    t.state = state;
    t.line = line;
    switch_to(t.context, machine.scheduler);
}
inline void enter() {
    machine.body();
    const Thread& t = self();
    if (!t.open.empty() || !t.groups.empty()) fail("a thread ends while its copies are on their way", 0);
    if (machine.dependent && !t.waited) fail("a thread ends and has not waited for the work in front of it", 0);
    wait(DONE, 0);
}

inline void resume(unsigned thread) {
    machine.current = thread;
    threadIdx.x = thread % machine.stride();
    blockIdx.x = machine.first_block + thread / machine.stride();
    machine.threads[thread].state = READY;
    switch_to(machine.scheduler, machine.threads[thread].context);
}

// Run a warp until all its threads wait for other warps, or are done.
inline void run_warp(unsigned warp) {
    const unsigned first = warp * WARP, lanes = std::min(WARP, machine.count - warp % machine.warps * WARP);
    for (;;) {
        unsigned waiting = 0;
        for (unsigned k = 0; k < lanes; ++k) {
            const unsigned t = first + (machine.backwards ? lanes - 1 - k : k);
            if (machine.threads[t].state == READY) resume(t);
            waiting += machine.threads[t].state == AT_WARP;
        }
        if (waiting == 0) return;
        if (waiting != lanes) fail("lanes of a warp part before they exchange", machine.threads[first].line);
        for (unsigned k = 0; k < lanes; ++k) {
            if (machine.threads[first + k].line != machine.threads[first].line)
                fail("lanes of a warp exchange at different places", machine.threads[first + k].line);
            machine.threads[first + k].state = READY;
        }
    }
}

// Let the threads of a block go on whose named barrier is complete; whether there are any.
inline bool pass_named(unsigned block) {
    unsigned here[BARRIERS] = {}, company[BARRIERS] = {};
    machine.each_of(block, [&](const Thread& t) {
        if (t.state != AT_NAMED) return;
        if (here[t.barrier]++ > 0 && company[t.barrier] != t.company)
            fail("threads wait for different numbers of threads at a named barrier", t.line);
        company[t.barrier] = t.company;
    });
    bool any = false;
    machine.each_of(block, [&](Thread& t) {
        if (t.state != AT_NAMED || here[t.barrier] < company[t.barrier]) return;
        if (here[t.barrier] > company[t.barrier]) fail("too many threads at a named barrier", t.line);
        t.state = READY;
        any = true;
    });
    return any;
}
// Let the threads of a block go on that all wait for the block; whether they do.
inline bool pass_block(unsigned block) {
    const Thread& first = machine.threads[block * machine.stride()];
    bool all = true, together = true;
    machine.each_of(block, [&](const Thread& t) {
        all = all && t.state == AT_BLOCK;
        together = together && t.line == first.line;
    });
    if (all && !together) fail("threads of a block wait at different barriers", first.line);
    if (all) machine.each_of(block, [](Thread& t) { t.state = READY; });
    return all;
}
// The barrier of the cluster that all its threads have come to.
inline unsigned arrived() {
    unsigned all = ~0u;
    for (unsigned b = 0; b < machine.blocks.size(); ++b)
        machine.each_of(b, [&](const Thread& t) {
            if (t.state != DONE) all = std::min(all, t.arrived);
        });
    return all;
}
// Let the threads go on that wait for the cluster, when all its threads have arrived; whether there are any.
inline bool pass_cluster() {
    const unsigned all = arrived();
    bool any = false;
    for (unsigned b = 0; b < machine.blocks.size(); ++b)
        machine.each_of(b, [&](Thread& t) {
            if (t.state != AT_CLUSTER || t.passed >= all) return;
            ++t.passed;
            t.state = READY;
            any = true;
        });
    return any;
}

inline void run_cluster() {
    const unsigned blocks = static_cast<unsigned>(machine.blocks.size());
    for (unsigned b = 0; b < blocks; ++b)
        machine.each_of(b, [&](Thread& t) {
            start(t.context, t.stack.get(), enter);
            t.state = READY;
            t.exchanges = t.arrived = t.passed = 0;
            t.sent = t.waited = false;
        });
    const unsigned warps = blocks * machine.warps;
    for (;;) {
        for (unsigned k = 0; k < warps; ++k) run_warp(machine.backwards ? warps - 1 - k : k);
        bool done = true, moved = false;
        for (unsigned b = 0; b < blocks; ++b) {
            machine.each_of(b, [&](const Thread& t) { done = done && t.state == DONE; });
            moved = pass_named(b) || moved;
            moved = pass_block(b) || moved;
        }
        if (done) break;
        if (!moved && !pass_cluster()) fail("threads wait at different barriers", machine.threads[0].line);
    }
    for (unsigned b = 0; b < blocks; ++b) {
        unsigned passed = 0;
        machine.each_of(b, [&](const Thread& t) { passed = std::max(passed, t.passed); });
        if (passed < machine.blocks[b].needed) fail("a block may end before others have written to its memory", 0);
    }
}

inline void run_grid(unsigned blocks, unsigned threads, int shared_bytes, unsigned cluster, bool dependent,
                     std::function<void()> body) {
    if (blocks % cluster != 0) fail("blocks are no whole clusters", static_cast<int>(cluster));
    constexpr size_t ALIGNED = 1024;  // what swizzled tiles need
    const size_t stride = (static_cast<size_t>(shared_bytes) + 127) / ALIGNED * ALIGNED + ALIGNED;
    std::vector<unsigned char> memory(stride * cluster + ALIGNED);
    unsigned char* const first = memory.data() + ALIGNED - reinterpret_cast<uintptr_t>(memory.data()) % ALIGNED;
    machine.size = static_cast<size_t>(shared_bytes);
    machine.room = stride;
    machine.count = threads;
    machine.warps = (threads + WARP - 1) / WARP;
    machine.dependent = dependent;
    machine.body = std::move(body);
    if (machine.threads.size() < cluster * machine.stride()) machine.threads.resize(cluster * machine.stride());
    machine.shows.resize(2 * cluster * machine.warps);
    for (Array& a : machine.hidden) a.save();
    for (unsigned k = 0; k < blocks / cluster; ++k) {
        machine.first_block = (machine.backwards ? blocks / cluster - 1 - k : k) * cluster;
        machine.blocks.clear();
        for (unsigned b = 0; b < cluster; ++b) machine.blocks.push_back({first + b * stride, false, 0});
        ASAN_UNPOISON_MEMORY_REGION(memory.data(), memory.size());
        std::memset(memory.data(), 0xff, memory.size());  // what is read before it is written is not a number
        for (const Block& b : machine.blocks) ASAN_POISON_MEMORY_REGION(b.memory + machine.size, stride - machine.size);
        machine.revealed = !dependent;
        if (dependent) {
            for (Array& a : machine.hidden) std::memset(a.at, 0xff, a.size);
            for (Array& a : machine.guarded) a.save();
        }
        run_cluster();
    }
    ASAN_UNPOISON_MEMORY_REGION(memory.data(), memory.size());
}

// The shared memory of the block, of which only the given {offset, bytes} may be touched, if any are given.
inline unsigned char* shared(std::initializer_list<std::pair<int, int>> parts) {
    Block& block = machine.block();
    if (!block.laid_out && parts.size() > 0) {
        block.laid_out = true;
        ASAN_POISON_MEMORY_REGION(block.memory, machine.room);
        for (const auto& part : parts)
            ASAN_UNPOISON_MEMORY_REGION(block.memory + part.first, static_cast<size_t>(part.second));
    }
    return block.memory;
}

// Wait at a barrier of some warps of the block.
inline void wait_named(unsigned barrier, unsigned threads, int line) {
    if (barrier == 0 || barrier >= BARRIERS) fail("there is no such named barrier", static_cast<int>(barrier));
    self().barrier = barrier;
    self().company = threads;
    wait(AT_NAMED, line);
}
// Come to the barrier of the cluster; a `release` shows what the thread has written.
inline void arrive_cluster(bool release, int line) {
    wait(AT_WARP, line);
    Thread& t = self();
    if (t.arrived++ != t.passed) fail("a thread arrives at the cluster's barrier twice", line);
    if (t.sent && !release) fail("a relaxed arrival behind what was written for another block", line);
    t.sent = false;
}
inline void wait_cluster(int line) {
    wait(AT_WARP, line);
    if (self().arrived != self().passed + 1) fail("a thread waits for the cluster and has not arrived", line);
    if (arrived() > self().passed) ++self().passed;
    else wait(AT_CLUSTER, line);
}
// Where a block of the cluster has what lies at `p` in the memory of this one, to write it.
inline void* in_block(const void* p, unsigned rank, int line) {
    Thread& t = self();
    const auto at = static_cast<const unsigned char*>(p) - machine.block().memory;
    if (at < 0 || at >= static_cast<ptrdiff_t>(machine.size)) fail("no address in the block's memory", line);
    if (rank >= machine.blocks.size()) fail("no such block in the cluster", static_cast<int>(rank));
    if (t.passed == 0) fail("a block is written to that may not have begun", line);
    t.sent = true;
    Block& other = machine.blocks[rank];
    other.needed = std::max(other.needed, t.arrived + 1);
    return other.memory + at;
}
// What the work in front of the kernel has written is there.
inline void wait_for_earlier() {
    self().waited = true;
    if (machine.revealed) return;
    machine.revealed = true;
    for (const Array& a : machine.hidden) std::memcpy(a.at, a.saved.data(), a.size);
    for (const Array& a : machine.guarded)
        if (std::memcmp(a.at, a.saved.data(), a.size) != 0) fail("a result is written before earlier work has ended", 0);
}

// Lanes show something (`show` writes it), wait for one another, and look at what the others showed.
template <class F>
const Show& exchange(F show, int line) {
    Show& s = machine.shows[2 * (machine.current / WARP) + self().exchanges++ % 2];
    show(s, machine.current % WARP);
    wait(AT_WARP, line);
    return s;
}
inline float shuffle_xor(float x, unsigned mask, int line) {
    const Show& s = exchange([&](Show& to, unsigned lane) { to.x[lane] = x; }, line);
    return s.x[(machine.current % WARP) ^ mask];
}
inline double shuffle_xor(double x, unsigned mask, int line) {
    const Show& s = exchange([&](Show& to, unsigned lane) { std::memcpy(to.a[lane], &x, sizeof x); }, line);
    double found;
    std::memcpy(&found, s.a[(machine.current % WARP) ^ mask], sizeof found);
    return found;
}
inline float shuffle_from(float x, unsigned lane, int line) {
    const Show& s = exchange([&](Show& to, unsigned own) { to.x[own] = x; }, line);
    return s.x[lane % WARP];
}
inline unsigned largest(unsigned x, int line) {
    const Show& s = exchange([&](Show& to, unsigned lane) { to.a[lane][0] = x; }, line);
    unsigned found = 0;
    for (unsigned lane = 0; lane < WARP; ++lane) found = std::max(found, s.a[lane][0]);
    return found;
}
inline unsigned joined(unsigned x, int line) {
    const Show& s = exchange([&](Show& to, unsigned lane) { to.a[lane][0] = x; }, line);
    unsigned found = 0;
    for (unsigned lane = 0; lane < WARP; ++lane) found |= s.a[lane][0];
    return found;
}
inline unsigned add(unsigned* at, unsigned x) {
    const unsigned before = *at;
    *at += x;
    return before;
}
}  // namespace emulator

#define __syncthreads() emulator::wait(emulator::AT_BLOCK, __LINE__)
#define __syncwarp(...) emulator::wait(emulator::AT_WARP, __LINE__)
#define __shfl_sync(mask, x, lane) emulator::shuffle_from(x, lane, __LINE__)
#define __shfl_xor_sync(mask, x, lanes) emulator::shuffle_xor(x, lanes, __LINE__)
#define __reduce_max_sync(mask, x) emulator::largest(x, __LINE__)
#define __reduce_or_sync(mask, x) emulator::joined(x, __LINE__)
#define __threadfence() ((void)0)
#define atomicAdd(at, x) emulator::add(at, x)
