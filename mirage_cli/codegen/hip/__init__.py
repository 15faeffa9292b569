"""HIP: kernels in CUDA's spelling over headers of their own, and the host functions that start them."""
