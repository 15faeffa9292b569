"""The meaning of operators that are layers of networks, made of those on tensors."""
