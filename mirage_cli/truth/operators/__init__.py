"""The meaning of operators on tensors, family by family."""
