"""Requests for code, and the kernels that answer them."""
