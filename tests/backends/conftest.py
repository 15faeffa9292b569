"""One library of all the small kernels, made once for each test process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from mirage_cli.backends import toolchain
from mirage_cli.backends.library import BuildResult, build_library
from mirage_cli.backends.spec import OperatorSpec
from mirage_cli.lax import extents
from mirage_cli.lax.dtypes import DType

from .kernels import SOURCES, SPECS

ONNX_TYPES = {
    "f32": onnx.TensorProto.FLOAT,
    "f16": onnx.TensorProto.FLOAT16,
    "bf16": onnx.TensorProto.BFLOAT16,
    "i64": onnx.TensorProto.INT64,
}
Model = Callable[..., bytes]


@pytest.fixture(scope="session")
def built(cxx: toolchain.Toolchain, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    return build_library(SPECS, SOURCES, tmp_path_factory.mktemp("library"), cxx)


@pytest.fixture(scope="session")
def library(built: BuildResult) -> Path:
    assert not built.failed
    assert built.library is not None
    return built.library


@pytest.fixture(scope="session")
def model() -> Model:
    return make_model


def make_model(
    op: OperatorSpec,
    dims: list[list[Any]] | None = None,
    functions: tuple[onnx.FunctionProto, ...] = (),
    types: dict[str, DType] | None = None,
) -> bytes:
    """A model with one node of `op`; `dims` replaces the shapes of its inputs."""

    def info(i: int, kind: str) -> onnx.ValueInfoProto:
        tensor = (op.inputs if kind == "in" else op.outputs)[i]
        dtype = (types or {}).get(tensor.name, tensor.dtype)
        shape: list[Any] | None = [d if isinstance(d, int) else f"s{extents.names(d)}" for d in tensor.dims]
        if dims is not None:
            shape = dims[i] if kind == "in" else None
        return helper.make_tensor_value_info(f"{kind}{i}", ONNX_TYPES[dtype.name], shape)

    inputs = [info(i, "in") for i in range(len(op.inputs))]
    outputs = [info(i, "out") for i in range(len(op.outputs))]
    names = ([value.name for value in inputs], [value.name for value in outputs])
    node = helper.make_node(op.op_type, *names, domain="mirage", name="the_node")
    graph = helper.make_graph([node], "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mirage", 1)]
    made = helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)
    return bytes(made.SerializeToString())


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
