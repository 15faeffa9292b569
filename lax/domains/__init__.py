"""The domains that primitives are interpreted in: float64, residues of primes, abstract expressions."""
