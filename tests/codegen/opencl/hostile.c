/* An OpenCL platform that answers as $HOSTILE says, for what kernels do with such a device. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is(const char* what) { return strcmp(getenv("HOSTILE"), what) == 0; }
static int give(uint64_t number, size_t bytes, void* to, size_t* size) {
    if (to) memcpy(to, &number, bytes < sizeof number ? bytes : sizeof number);
    if (size) *size = bytes;
    return 0;
}
int clGetCommandQueueInfo(void* queue, unsigned what, size_t bytes, void* to, size_t* size) {
    (void)what;
    return is("bad queue") ? -36 : give((uint64_t)(uintptr_t)queue, bytes, to, size);
}
int clGetDeviceInfo(void* device, unsigned what, size_t bytes, void* to, size_t* size) {
    (void)device;
    if (what == 0x102B) return strncpy(to, "a hostile device", bytes), 0;
    if (what == 0x1023) return give(is("little memory") ? 512 : 65536, bytes, to, size);
    return give(is("no double") && what == 0x1032 ? 0 : 63, bytes, to, size);
}
void* clCreateProgramWithSource(void* context, unsigned count, const char** texts, const size_t* sizes, int* status) {
    (void)count, (void)texts, (void)sizes;
    *status = is("no program") ? -6 : 0;
    return context;
}
int clBuildProgram(void* program, unsigned n, void** devices, const char* options, void* f, void* data) {
    (void)program, (void)n, (void)devices, (void)f, (void)data;
    return is("no build") || strncmp(options, "-cl-std=CL1.2", 13) != 0 ? -11 : 0;
}
int clGetProgramBuildInfo(void* program, void* device, unsigned what, size_t bytes, void* to, size_t* size) {
    static const char log[] = "error: line 7: no such thing";
    (void)program, (void)device, (void)what;
    if (to && bytes >= sizeof log) memcpy(to, log, sizeof log);
    if (size) *size = sizeof log;
    return 0;
}
int clReleaseProgram(void* program) { return program == NULL; }
void* clCreateKernel(void* program, const char* name, int* status) {
    (void)name;
    *status = is("no kernel") ? -46 : 0;
    return program;
}
int clGetKernelWorkGroupInfo(void* kernel, void* device, unsigned what, size_t bytes, void* to, size_t* size) {
    (void)kernel, (void)device;
    return give(what == 0x11B0 ? (is("small groups") ? 8 : 1024) : 4096, bytes, to, size);
}
int clSetKernelArg(void* kernel, unsigned n, size_t bytes, const void* value) {
    (void)kernel, (void)n, (void)bytes, (void)value;
    return is("no argument") ? -51 : 0;
}
#ifndef WITHOUT_ENQUEUE
int clEnqueueNDRangeKernel(void* q, void* k, unsigned d, const size_t* o, const size_t* g, const size_t* l, unsigned n, const void* e, void* f) {
    (void)q, (void)k, (void)d, (void)o, (void)g, (void)l, (void)n, (void)e, (void)f;
    return is("no resources") ? -5 : 0;
}
#endif
