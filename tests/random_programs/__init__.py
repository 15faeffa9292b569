"""Random ONNX models through the whole of `mirage optimize`, compared with numpy in float64.

`drawn` makes a program of random choices, `meaning` says what its operators are in numpy, `batch` optimizes many programs as
one model and judges every output by the accuracy rule; `python -m tests.random_programs` takes as many as one likes.
"""
