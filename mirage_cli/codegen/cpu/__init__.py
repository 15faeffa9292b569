"""Kernels for CPUs: a block is one thread's, its tiles lie in scratch memory."""
