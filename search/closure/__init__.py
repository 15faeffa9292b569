"""The values that a block can compute: forms, mappings, the closure under one mapping, and block graphs taken from
it."""
