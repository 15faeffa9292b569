"""onnxruntime as tests ask it for answers: with one thread, since the workers of a test run share the processors, and waiting
threads would take them from each other."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime


def session(
    model: onnx.ModelProto | Path, options: onnxruntime.SessionOptions | None = None
) -> onnxruntime.InferenceSession:
    """A session of a model on the CPU, without any library unless the options name one."""
    options = options or onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
