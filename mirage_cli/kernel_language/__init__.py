"""The kernel language: what a CUDA or C++ kernel of ours does, as data; its text and back. Knows nothing but numbers and
names."""
