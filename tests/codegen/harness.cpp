// Runs one kernel on arrays from standard input and writes its outputs to standard output.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#if defined(HARNESS_CUDA)
#include "cuda_runtime.h"
#endif

#if defined(HARNESS_CUDA)
#define RUN(id) mirage_##id
#define SIZE(id) mirage_##id##_workspace
#else
#define RUN(id) mirage_##id##_cpu_base
#define SIZE(id) mirage_##id##_workspace_cpu_base
#endif
typedef int Run(const void* const*, void* const*, void*, const int64_t*, const void*);
typedef int64_t Size(const int64_t*);
#define KERNEL(id)              \
    extern "C" Run RUN(id);     \
    extern "C" Size SIZE(id);
#include "table.inc"
#undef KERNEL
#define KERNEL(id) {#id, RUN(id), SIZE(id)},
static const struct {
    const char* name;
    Run* run;
    Size* size;
} kernels[] = {
#include "table.inc"
};

static void read(void* to, size_t size) {
    if (std::fread(to, 1, size, stdin) != size) std::abort();
}
static std::vector<int64_t> numbers() {
    int64_t count;
    read(&count, sizeof count);
    std::vector<int64_t> found(static_cast<size_t>(count));
    read(found.data(), found.size() * sizeof(int64_t));
    return found;
}
static void* memory(int64_t size, size_t alignment, int fill) {
    void* at = nullptr;
    if (posix_memalign(&at, alignment, static_cast<size_t>(size)) != 0) std::abort();
    std::memset(at, fill, static_cast<size_t>(size));
    return at;
}

int main(int count, char** arguments) {
    if (count != 3) return 2;
#if defined(HARNESS_CUDA)
    emulator::machine.backwards = std::strchr(arguments[2], 'b') != nullptr;
    emulator::machine.lazy = std::strchr(arguments[2], 'l') != nullptr;
    if (const char* number = std::strpbrk(arguments[2], "0123456789")) emulator::machine.skipped = std::atoi(number);
#endif
    for (const auto& kernel : kernels) {
        if (std::strcmp(kernel.name, arguments[1]) != 0) continue;
        const std::vector<int64_t> extents = numbers(), inputs = numbers(), outputs = numbers();
        [[maybe_unused]] const std::vector<int64_t> constants = numbers();
        std::vector<void*> in, out;
        for (int64_t size : inputs) {
            in.push_back(memory(size, 16, 0));
            read(in.back(), static_cast<size_t>(size));
        }
        for (int64_t size : outputs) out.push_back(memory(size, 16, 0xff));
#if defined(HARNESS_CUDA)
        for (size_t k = 0; k < in.size(); ++k)
            if (!constants[k]) emulator::machine.hidden.push_back({in[k], static_cast<size_t>(inputs[k]), {}});
        for (size_t k = 0; k < out.size(); ++k)
            emulator::machine.guarded.push_back({out[k], static_cast<size_t>(outputs[k]), {}});
#endif
        const int64_t size = kernel.size(extents.data());
        void* const workspace = size > 0 ? memory(size, 256, 0xff) : nullptr;
        const int status = kernel.run(in.data(), out.data(), workspace, extents.data(), nullptr);
        for (size_t k = 0; k < out.size(); ++k)
            std::fwrite(out[k], 1, static_cast<size_t>(outputs[k]), stdout);
        for (void* at : in) std::free(at);
        for (void* at : out) std::free(at);
        std::free(workspace);
        return status;
    }
    return 3;
}
