"""Operators of several steps, taken apart before models are read."""
