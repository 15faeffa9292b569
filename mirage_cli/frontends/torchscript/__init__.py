"""The TorchScript front end: PyTorch's own exporter makes an ONNX model, which is then read like any other."""
