"""From source text to a library that ONNX Runtime and C programs load: specifications, compilers, linking. Knows no
muGraphs and no models."""
