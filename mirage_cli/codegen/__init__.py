"""From muGraphs to source text: which engine makes a kernel, and the sources of a whole kernel graph. Knows no compilers
and no models."""
