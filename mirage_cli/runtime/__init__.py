"""onnxruntime: sessions, models too large or of types that it does not compute, and the inputs that models are run with.
Knows no fragments."""
