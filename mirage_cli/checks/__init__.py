"""Results held against what the file means in float64: programs against nodes, kernels against programs, whole models
against their originals."""
