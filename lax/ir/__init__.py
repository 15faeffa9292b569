"""Graphs on positional dimensions, programs on named axes, and their evaluation in any domain."""
