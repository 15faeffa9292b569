"""The proof of kernels as they are printed: their blocks, run over residues, against the program. Knows no models."""
