"""Clocks: contestants timed in turns, on the CPU and on a GPU, and the peers of a kernel. Knows nothing of fragments and
folders."""
