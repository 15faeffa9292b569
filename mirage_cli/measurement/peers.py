"""Peers on a GPU: the same computation by PyTorch and by onnxruntime, captured as graphs for `gpu.GpuTimer`.

A peer is made of what it needs and says why it cannot run (a MirageError) when it is prepared; that costs only the peer.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mirage_cli.errors import MirageError, UsageError
from mirage_cli.measurement.gpu import DEFAULT, Call, GpuTimer, Prepared
from mirage_cli.measurement.gpu_backends import TorchBackend
from mirage_cli.measurement.timing import Effort
from mirage_cli.runtime import sessions

#: what `--peers` names, in the order of the columns, with the columns that each gives
GROUPS: dict[str, tuple[str, ...]] = {
    "eager": ("torch eager", "torch int4", "torch dequantised"),
    "compile": ("torch.compile",),
    "sdpa": ("sdpa flash", "sdpa cudnn", "sdpa efficient"),
    "ort": ("onnxruntime",),
}
COMPILE_MODE = "max-autotune-no-cudagraphs"
_SDPA = {"sdpa flash": "FLASH_ATTENTION", "sdpa cudnn": "CUDNN_ATTENTION", "sdpa efficient": "EFFICIENT_ATTENTION"}
_MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
MAX_COPIES = 128  #: of a graph in one onnxruntime model
Arguments = Sequence[Sequence[Any]]  #: for each set, the tensors that a function takes


def groups(text: str) -> tuple[str, ...]:
    """The groups that `--peers` names, separated by commas. Raises UsageError for an unknown one."""
    asked = [name.strip() for name in text.split(",") if name.strip()]
    for name in asked:
        if name not in GROUPS:
            raise UsageError(f"--peers {name}: there is no such peer", f"peers are {', '.join(GROUPS)}")
    return tuple(name for name in GROUPS if name in asked)


def cycling_call(function: Callable[..., Any], arguments: Arguments) -> Call:
    """A call of a torch function on the tensors of a set; torch's current stream is the one to be timed."""
    return lambda number, stream: function(*arguments[number])


def compiled(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by torch.compile, tuned as far as it can be, without CUDA graphs of its own."""
    torch._dynamo.reset()
    tuned: Callable[..., Any] = torch.compile(function, mode=COMPILE_MODE, dynamic=False)
    return tuned


def fused(torch: Any, column: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with torch's fused attention, by one of its implementations only."""
    attention = importlib.import_module("torch.nn.attention")
    backend = getattr(attention.SDPBackend, _SDPA[column])

    def call(*tensors: Any) -> Any:
        with attention.sdpa_kernel(backend):
            return function(*tensors)

    return call


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Warnings of frameworks about what they cannot do are not shown: the error that follows is reported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class OrtGraph:
    """A model in onnxruntime on the timer's stream, captured by onnxruntime as a CUDA graph of its own.

    Inputs and outputs are tensors of torch by name. The time of a replay includes what onnxruntime does on the host as far
    as the GPU waits for it.
    """

    def __init__(
        self, backend: TorchBackend, model: bytes, tensors: dict[str, Any], outputs: dict[str, Any], exact: bool
    ) -> None:
        """Raises MirageError where onnxruntime cannot load, run or capture the model."""
        import onnxruntime  # noqa: PLC0415

        index = int(backend.device.index)
        with backend.stream() as stream:
            self._session = sessions.session(model, None, "cuda", device=index, exact=exact, graph=True, stream=stream)
        self._binding = self._session.io_binding()
        self._options = onnxruntime.RunOptions()
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        kinds = {"float16": 10, "bfloat16": 16, "float32": 1, "uint8": 2}  # of onnx.TensorProto
        for bind, named in ((self._binding.bind_input, tensors), (self._binding.bind_output, outputs)):
            for name, t in named.items():
                kind = kinds[str(t.dtype).removeprefix("torch.")]
                bind(name, "cuda", index, kind, tuple(t.shape), t.data_ptr())
        self._kept = (tensors, outputs)

    def replay(self) -> None:
        """Run the model once, all its copies."""
        try:
            self._session.run_with_iobinding(self._binding, self._options)
        except Exception as e:  # onnxruntime's exceptions have no common base
            raise MirageError(f"onnxruntime failed: {str(e).splitlines()[0]}") from e


def prepared_ort(timer: GpuTimer, graph: OrtGraph, copies: int) -> Prepared:
    """An onnxruntime graph as a contestant: one replay makes `copies` calls."""
    prepared = Prepared((graph, None), copies)
    for _ in range(3):  # loads, captures, replays
        timer.backend.sample(prepared.graph)
    return prepared


def prepare(timer: GpuTimer, makers: dict[str, Callable[[], Prepared]]) -> tuple[dict[str, Prepared], dict[str, str]]:
    """(contestants that can run, why the others cannot), by name."""
    ready: dict[str, Prepared] = {}
    problems: dict[str, str] = {}
    for name, make in makers.items():
        try:
            with quiet():
                ready[name] = make()
        except MirageError as e:
            problems[name] = f"failed: {e}"
    return ready, problems


def torch_maker(
    timer: GpuTimer,
    make: Callable[[], Callable[..., Any]],
    arguments: Arguments,
    right: Any,
    effort: Effort = DEFAULT,
) -> Callable[[], Prepared]:
    """A function that prepares a torch function (made first) on the sets of arguments. Raises MirageError, also where
    its first answer is far from the `right` one."""

    def prepared() -> Prepared:
        function = make()
        answers: list[Any] = []
        timer.backend.run(lambda stream: answers.append(function(*arguments[0])))
        check_close(answers[0], right)
        return timer.prepare(cycling_call(function, arguments), len(arguments), effort)

    return prepared


def check_close(answer: Any, right: Any) -> None:
    """Raise MirageError when a tensor, or one of several, is not the `right` one (float64) but for rounding: half of the
    type's digits."""
    several = isinstance(answer, tuple)
    for own, expected in zip(answer if several else (answer,), right if several else (right,), strict=True):
        if own.shape != expected.shape:
            raise MirageError(f"wrong: shape {tuple(own.shape)} instead of {tuple(expected.shape)}")
        if not own.dtype.is_floating_point:
            continue
        finite = expected.isfinite()
        wide, exact = own.double()[finite], expected[finite]
        error, size = float((wide - exact).norm()), float(exact.norm())
        unit = 2.0 ** -_MANTISSA[str(own.dtype).removeprefix("torch.")]
        if not error <= unit**0.5 * size + unit:
            raise MirageError(f"wrong: relative error {error / size if size else error:.1e}")
