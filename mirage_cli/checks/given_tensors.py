"""The inputs of fragments where a model is given inputs (`given`): computed by the original, run once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from mirage_cli.checks.kernel_check import CheckJob
from mirage_cli.checks.model_runs import Job, run_job
from mirage_cli.errors import UsageError
from mirage_cli.frontends.onnx.original import Original
from mirage_cli.processes import isolation
from mirage_cli.runtime.given import Arrays


def tensors_of(original: Original, inputs: Arrays, names: Sequence[str], max_memory: int = 0) -> Arrays:
    """Tensors of the main graph by name, as far as it has them. Raises UsageError for inputs that the original refuses."""
    model = original.proto()
    computed = dict.fromkeys(o for n in model.graph.node for o in n.output if o)
    wanted = [n for n in dict.fromkeys(names) if n in computed]
    if not wanted:
        return dict(inputs)
    job = Job(_showing(model, wanted), inputs, None, _folder(original), optimize=False)
    ((_, tensors),) = isolation.each(run_job, [(job,)], 1, max_memory, apart=True)
    if isinstance(tensors, isolation.Lost):
        raise UsageError(f"--inputs: the model does not run with them: {tensors.reason}")
    return {**tensors, **inputs}


def _showing(model: onnx.ModelProto, names: Sequence[str]) -> bytes:
    """A model with these tensors as its outputs."""
    del model.graph.output[:]
    model.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in names)
    data: bytes = model.SerializeToString()
    return data


def _folder(original: Original) -> Path | None:
    """Where the model's data files lie."""
    return None if original.files.path == "-" else Path(original.files.path).parent


def checked_with(job: CheckJob, tensors: Mapping[str, np.ndarray]) -> CheckJob:
    """The job with a further case: the tensors that its nodes read, where all of them are known."""
    rest = dict(enumerate(job.extra, len(job.program.sources)))
    arrays = []
    for k, name in enumerate(job.names):
        fixed = job.constants.get(k, rest.get(k))
        array = fixed if isinstance(fixed, np.ndarray) else tensors.get(name)
        if array is None:
            return job
        arrays.append(array)
    return replace(job, given=(*job.given, tuple(arrays)))
