"""The behaviour of floating-point numbers: the accuracy rule, inputs at the edges of types, rounding, overflow, NaN
and infinities. Knows programs and muGraphs, no built kernels."""
