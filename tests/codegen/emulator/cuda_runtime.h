// CUDA on a CPU: the threads of a block are fibers that run one after the other from barrier to barrier.
//
// A thread runs until it must wait; a warp until all its threads wait for the block; so a read that needs a barrier and has
// none finds what was there before. `order` turns the order of blocks, warps and lanes around, `lazy` delays asynchronous
// copies to the last moment that the program allows: together they show what hides in one order.
#pragma once
#include <math.h>
#include <stdint.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
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
#define __launch_bounds__(threads)
#define __align__(bytes) alignas(bytes)

using std::isnan;
using std::max;
using std::min;

typedef int cudaError_t;
typedef void* cudaStream_t;
constexpr cudaError_t cudaSuccess = 0, cudaErrorInvalidConfiguration = 9;
inline cudaError_t cudaMemsetAsync(void* at, int value, size_t size, cudaStream_t) {
    std::memset(at, value, size);
    return cudaSuccess;
}

namespace emulator {
constexpr unsigned WARP = 32;
constexpr size_t STACK = 1 << 16;
struct Index {
    unsigned x;
};
enum State { READY, AT_WARP, AT_BLOCK, DONE };

[[noreturn]] inline void fail(const char* what, int line) {
    std::fprintf(stderr, "emulator: %s (line %d)\n", what, line);
    std::abort();
}

#if defined(__x86_64__)
typedef void* Context;
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
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
    std::vector<char> stack = std::vector<char>(STACK);
    State state = DONE;
    int line = 0;
    unsigned exchanges = 0;
    std::vector<Copy> open;
    std::vector<std::vector<Copy>> groups;
};
// What the lanes of a warp show one another; two sets, because a lane may be one exchange ahead.
struct Show {
    float x[WARP];
    const void* address[WARP];
    uint32_t a[WARP][4], b[WARP][2];
};

struct Machine {
    bool backwards = false, lazy = false;
    std::vector<Thread> threads;
    std::vector<Show> shows;
    std::function<void()> body;
    Context scheduler;
    unsigned count = 0, current = 0;
    unsigned char* memory = nullptr;
    size_t size = 0;
    bool laid_out = false;
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
    if (!self().open.empty() || !self().groups.empty()) fail("a thread ends while its copies are on their way", 0);
    wait(DONE, 0);
}

inline void resume(unsigned thread) {
    machine.current = thread;
    threadIdx.x = thread;
    machine.threads[thread].state = READY;
    switch_to(machine.scheduler, machine.threads[thread].context);
}

// Run a warp until all its threads wait for the block, or are done.
inline void run_warp(unsigned warp) {
    const unsigned first = warp * WARP, lanes = std::min(WARP, machine.count - first);
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

inline void run_block(unsigned threads) {
    machine.count = threads;
    if (machine.threads.size() < threads) machine.threads.resize(threads);
    machine.shows.resize(2 * ((threads + WARP - 1) / WARP));
    for (unsigned t = 0; t < threads; ++t) {
        start(machine.threads[t].context, machine.threads[t].stack.data(), enter);
        machine.threads[t].state = READY;
        machine.threads[t].exchanges = 0;
    }
    const unsigned warps = (threads + WARP - 1) / WARP;
    for (;;) {
        for (unsigned k = 0; k < warps; ++k) run_warp(machine.backwards ? warps - 1 - k : k);
        const Thread& first = machine.threads[0];
        for (unsigned t = 1; t < threads; ++t)
            if (machine.threads[t].state != first.state || machine.threads[t].line != first.line)
                fail("threads of a block wait at different barriers", machine.threads[t].line);
        if (first.state == DONE) return;
        for (unsigned t = 0; t < threads; ++t) machine.threads[t].state = READY;
    }
}

inline void run_grid(unsigned blocks, unsigned threads, int shared_bytes, std::function<void()> body) {
    std::vector<unsigned char> memory(static_cast<size_t>(shared_bytes) + 128);
    machine.memory = memory.data() + 128 - reinterpret_cast<uintptr_t>(memory.data()) % 128;
    machine.size = static_cast<size_t>(shared_bytes);
    machine.body = std::move(body);
    for (unsigned k = 0; k < blocks; ++k) {
        blockIdx.x = machine.backwards ? blocks - 1 - k : k;
        machine.laid_out = false;
        ASAN_UNPOISON_MEMORY_REGION(memory.data(), memory.size());
        std::memset(memory.data(), 0xff, memory.size());  // what is read before it is written is not a number
        run_block(threads);
    }
    ASAN_UNPOISON_MEMORY_REGION(memory.data(), memory.size());
}

// The shared memory of the block, of which only the given {offset, bytes} may be touched.
inline unsigned char* shared(std::initializer_list<std::pair<int, int>> parts) {
    if (!machine.laid_out) {
        machine.laid_out = true;
        ASAN_POISON_MEMORY_REGION(machine.memory, machine.size);
        for (const auto& part : parts) ASAN_UNPOISON_MEMORY_REGION(machine.memory + part.first, part.second);
    }
    return machine.memory;
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
inline unsigned add(unsigned* at, unsigned x) {
    const unsigned before = *at;
    *at += x;
    return before;
}
}  // namespace emulator

#define __syncthreads() emulator::wait(emulator::AT_BLOCK, __LINE__)
#define __shfl_xor_sync(mask, x, lanes) emulator::shuffle_xor(x, lanes, __LINE__)
#define __threadfence() ((void)0)
#define atomicAdd(at, x) emulator::add(at, x)
