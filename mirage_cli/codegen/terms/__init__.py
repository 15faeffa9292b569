"""What programs say in terms of the kernel language: numbers, positions, elements, expressions."""
