"""Tile programs: kernels with every decision made, and the passes that decide layouts, order, memory and barriers."""
