"""Graphs built in Python, or taken from a module of PyTorch, and made into kernels."""
