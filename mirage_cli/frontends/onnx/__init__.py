"""The ONNX front end: from bytes over a checked model with its functions inlined to a graph of primitive operators."""
