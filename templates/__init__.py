"""Data only: Jinja templates and the CUDA / C++ headers that they use."""
