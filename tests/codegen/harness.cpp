// Runs one kernel on arrays from standard input and writes its outputs to standard output. In the mode `e` every array ends
// at a page that nobody may touch, in the mode `s` it starts behind one. HARNESS_DEVICE: on a GPU.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <malloc.h>
#include <sys/mman.h>
#if defined(HARNESS_DEVICE)
#include "cuda_runtime.h"
#endif

#if defined(HARNESS_DEVICE)
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
static char mode = 0;
static const size_t page = 4096;
static void* guarded(size_t size, size_t alignment) {
    const size_t own = (size + page - 1) / page * page;
    char* const all = static_cast<char*>(
        mmap(nullptr, own + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (all == MAP_FAILED || mprotect(all, page, PROT_NONE) || mprotect(all + page + own, page, PROT_NONE)) std::abort();
    return mode == 's' ? all + page : all + page + (own - size) / alignment * alignment;
}
static void* memory(int64_t size, size_t alignment, int fill) {
    void* at = nullptr;
    if (mode) {
        at = guarded(static_cast<size_t>(size), alignment == 16 ? 1 : alignment);
        std::memset(at, fill, static_cast<size_t>(size));
        return at;
    }
    if (posix_memalign(&at, alignment, static_cast<size_t>(size)) != 0) std::abort();
    std::memset(at, fill, static_cast<size_t>(size));
    return at;
}

#if defined(HARNESS_DEVICE)
static void check(cudaError_t status) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
    std::exit(4);
}
static void* on_device(const void* from, int64_t size) {
    void* at = nullptr;
    check(cudaMalloc(&at, static_cast<size_t>(size)));
    if (from) check(cudaMemcpy(at, from, static_cast<size_t>(size), cudaMemcpyHostToDevice));
    return at;
}
static int on_gpu(Run* run, std::vector<void*> in, std::vector<void*>& out, const std::vector<int64_t>& inputs,
                  const std::vector<int64_t>& outputs, int64_t workspace, const int64_t* extents) {
    std::vector<void*> to;
    for (size_t k = 0; k < in.size(); ++k) in[k] = on_device(in[k], inputs[k]);
    for (size_t k = 0; k < out.size(); ++k) to.push_back(on_device(nullptr, outputs[k]));
    void* const scratch = workspace > 0 ? on_device(nullptr, workspace) : nullptr;
    const int status = run(in.data(), to.data(), scratch, extents, nullptr);
    check(cudaDeviceSynchronize());
    for (size_t k = 0; k < out.size(); ++k)
        check(cudaMemcpy(out[k], to[k], static_cast<size_t>(outputs[k]), cudaMemcpyDeviceToHost));
    for (void* at : in) check(cudaFree(at));
    for (void* at : to) check(cudaFree(at));
    check(cudaFree(scratch));
    return status;
}
#endif

int main(int count, char** arguments) {
    if (count != 3) return 2;
#if defined(M_PERTURB)
    mallopt(M_PERTURB, 0x100);  // memory from malloc holds ones, no zeros
#endif
    if (std::strpbrk(arguments[2], "es")) mode = *std::strpbrk(arguments[2], "es");
    for (const auto& kernel : kernels) {
        if (std::strcmp(kernel.name, arguments[1]) != 0) continue;
        const std::vector<int64_t> extents = numbers(), inputs = numbers(), outputs = numbers();
        std::vector<void*> in, out;
        for (int64_t size : inputs) {
            in.push_back(memory(size, 16, 0));
            read(in.back(), static_cast<size_t>(size));
        }
        for (int64_t size : outputs) out.push_back(memory(size, 16, 0xff));
        const int64_t size = kernel.size(extents.data());
#if defined(HARNESS_DEVICE)
        const int status = on_gpu(kernel.run, in, out, inputs, outputs, size, extents.data());
        void* const workspace = nullptr;
#else
        void* const workspace = size > 0 ? memory(size, 256, 0xff) : nullptr;
        std::vector<void*> given = in;
        given.resize(64 + 32, nullptr);  // behind the most inputs, no packed forms of weights
        const int status = kernel.run(given.data(), out.data(), workspace, extents.data(), nullptr);
#endif
        for (size_t k = 0; k < out.size(); ++k)
            std::fwrite(out[k], 1, static_cast<size_t>(outputs[k]), stdout);
        if (mode) return status;
        for (void* at : in) std::free(at);
        for (void* at : out) std::free(at);
        std::free(workspace);
        return status;
    }
    return 3;
}
