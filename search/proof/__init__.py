"""The proof: a program computes what its nodes state, and a muGraph equals its program. Imports nothing of the search."""
