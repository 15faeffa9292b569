"""Tile programs to text: statements for the CPU and for CUDA, and the templates around them."""
