"""OpenCL C 1.2: the printer of kernels of the engine `block`, and the host functions that start them."""
