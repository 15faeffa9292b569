/* A tensor of an OpenCL kernel: a buffer (cl_mem) and the bytes in front of the tensor in it. Plain C. */
#ifndef MIRAGE_OPENCL_TENSOR_DEFINED
#define MIRAGE_OPENCL_TENSOR_DEFINED
#include <stddef.h>
typedef struct mirage_opencl_tensor {
    void* buffer;
    size_t offset;
} mirage_opencl_tensor;
#endif
