"""What floating-point numbers do: the accuracy rule, inputs at the edges of types, rounding, overflow, NaN and infinities.
Knows programs and muGraphs, no built kernels."""
