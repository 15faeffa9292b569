"""Callable kernels: a built library's operators as functions on tensors of PyTorch, cupy and numpy, and graphs of them."""
