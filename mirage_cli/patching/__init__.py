"""Fragments put into a model: their original nodes, the operators in their place, all else as it was, and models written
to disk."""
