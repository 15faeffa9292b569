"""The Python interface: the commands as functions, and graphs written in Python or taken from PyTorch, made into kernels.
Prints nothing."""
