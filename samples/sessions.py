"""A patched model in every kind of onnxruntime session: do all of them give the original's answers?

    python samples/sessions.py ORIGINAL.onnx OUT [--provider cuda] [--dim NAME=N] [--only GLOB]

ORIGINAL is what `mirage optimize --force` made OUT from. Each way of making or calling a session is tried with OUT's library
and a copy of its model whose functions, the fallback without the library, answer with NaN: only kernels can be right. Prints
one line for each way, and ends with exit code 1 when one of them fails.
"""

from __future__ import annotations

import argparse
import ctypes
import fnmatch
import functools
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from samples.inputs import random_inputs

Arrays = Mapping[str, NDArray[Any]]
Level = onnxruntime.GraphOptimizationLevel
DOMAIN = "mirage"
SETS = 3  #: sets of inputs
ROUNDS = 4  #: calls of each thread
#: root mean square of the difference over that of the answer, at most: other kernels around ours round differently
LIMITS = {"float32": 1e-4, "float16": 2e-2}


@dataclass(frozen=True)
class Case:
    """A patched model whose functions are spoiled, its library, inputs, and the original's answers to them."""

    model: Path
    library: Path | None  #: None: sessions without it
    feeds: Sequence[Arrays]
    wanted: Sequence[Arrays]
    folder: Path  #: for files of a way
    provider: str = "cpu"
    dims: Mapping[str, int] = field(default_factory=dict)

    def options(self, **settings: Any) -> onnxruntime.SessionOptions:
        """Session options with the library, if any, and attributes set; `config` holds configuration entries."""
        chosen = onnxruntime.SessionOptions()
        chosen.log_severity_level = 3
        chosen.intra_op_num_threads = 2
        for key, value in settings.pop("config", {}).items():
            chosen.add_session_config_entry(key, value)
        for name, value in settings.items():
            setattr(chosen, name, value)
        if self.library is not None:
            chosen.register_custom_ops_library(str(self.library))
        return chosen

    def session(
        self,
        options: onnxruntime.SessionOptions | None = None,
        model: Path | bytes | None = None,
        cuda: Mapping[str, str] | None = None,
    ) -> onnxruntime.InferenceSession:
        """A session; `cuda` are options of the CUDA provider."""
        providers: list[Any] = ["CPUExecutionProvider"]
        if self.provider == "cuda":
            providers.insert(0, ("CUDAExecutionProvider", {"use_tf32": "0", **(cuda or {})}))
        source = model if isinstance(model, bytes) else str(model or self.model)
        opened = onnxruntime.InferenceSession(source, options or self.options(), providers=providers)
        if self.provider == "cuda" and "CUDAExecutionProvider" not in opened.get_providers():
            raise SystemExit("onnxruntime cannot use CUDA here: it would take the CPU")
        return opened


Way = Callable[[Case], Iterator[tuple[int, Arrays]]]
WAYS: dict[str, Way] = {}
CUDA_WAYS: dict[str, Way] = {}


def answers(session: Any, feeds: Arrays, options: Any = None) -> Arrays:
    """The outputs by name."""
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds), options), strict=True))


def plain(case: Case, session: Any, options: Any = None) -> Iterator[tuple[int, Arrays]]:
    """Call a session with every set of inputs, twice with the first: the second call finds memory in use."""
    for k in (0, *range(len(case.feeds))):
        yield k, answers(session, case.feeds[k], options)


def way(name: str, kind: dict[str, Way] = WAYS) -> Callable[[Way], Way]:
    """Put a way into a table."""

    def put(function: Way) -> Way:
        kind[name] = function
        return function

    return put


def _with(name: str, **settings: Any) -> None:
    """A way that differs from the usual in its session options only."""
    WAYS[name] = lambda case: plain(case, case.session(case.options(**settings)))


def _with_cuda(name: str, **settings: str) -> None:
    """The same with options of the CUDA provider."""
    CUDA_WAYS[name] = lambda case: plain(case, case.session(cuda=settings))


# ---- options of a session --------------------------------------------------------------------------------------------

for _level in sorted(Level.__members__):
    _with(f"optimization level {_level}", graph_optimization_level=Level.__members__[_level])
for _threads in (1, 2, 5):
    _with(f"{_threads} threads in an operator", intra_op_num_threads=_threads)
_parallel = {"execution_mode": onnxruntime.ExecutionMode.ORT_PARALLEL, "inter_op_num_threads": 2}
_with("parallel execution of operators", **_parallel)
_with("without the arena", enable_cpu_mem_arena=False)
_with("without memory patterns", enable_mem_pattern=False)
_with("without reuse of memory", enable_mem_reuse=False)
_with("priority based order", execution_order=onnxruntime.ExecutionOrder.PRIORITY_BASED)
_with("deterministic", use_deterministic_compute=True)
_with("without prepacking", config={"session.disable_prepacking": "1"})
_with("threads that do not spin", config={"session.intra_op.allow_spinning": "0"})
_with("denormals are zero", config={"session.set_denormal_as_zero": "1"})
_with("functions inlined late", config={"session.disable_aot_function_inlining": "1"})
_with("initializers from the device's allocator", config={"session.use_device_allocator_for_initializers": "1"})


@way("profiling")
def _profiled(case: Case) -> Iterator[tuple[int, Arrays]]:
    options = case.options(enable_profiling=True, profile_file_prefix=str(case.folder / "profile"))
    session = case.session(options)
    yield from plain(case, session)
    ran = Path(session.end_profiling()).read_text()
    operators = {n.op_type for n in onnx.load(case.model, load_external_data=False).graph.node if n.domain == DOMAIN}
    missing = [name for name in sorted(operators) if f'"op_name" : "{name}"' not in ran]
    if missing:
        raise AssertionError(f"the profile has no call of {missing[0]}")


@way("free dimensions fixed")
def _fixed(case: Case) -> Iterator[tuple[int, Arrays]]:
    options = case.options()
    for name, size in case.dims.items():
        options.add_free_dimension_override_by_name(name, size)
    yield from plain(case, case.session(options))


# ---- forms of the model ----------------------------------------------------------------------------------------------


@way("from bytes")
def _bytes(case: Case) -> Iterator[tuple[int, Arrays]]:
    model = onnx.load(case.model)  # external data with it
    yield from plain(case, case.session(model=model.SerializeToString()))


@way("from bytes beside its data")
def _bytes_beside(case: Case) -> Iterator[tuple[int, Arrays]]:
    config = {"session.model_external_initializers_file_folder_path": str(case.model.parent)}
    model = onnx.load(case.model, load_external_data=False)
    yield from plain(case, case.session(case.options(config=config), model.SerializeToString()))


def _saved(level: str, form: str, case: Case) -> Iterator[tuple[int, Arrays]]:
    """Let a session write the optimized model, and load that; optimized further as the second session likes."""
    path = case.folder / f"{level}.{form}"
    first = case.options(optimized_model_filepath=str(path), graph_optimization_level=Level.__members__[level])
    case.session(first)
    yield from plain(case, case.session(model=path))
    yield from plain(case, case.session(case.options(graph_optimization_level=Level.ORT_DISABLE_ALL), path))


for _level in ("ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"):
    for _form in ("onnx", "ort"):
        WAYS[f"saved by a session at {_level} as .{_form}"] = functools.partial(_saved, _level, _form)


# ---- ways of calling -------------------------------------------------------------------------------------------------


@way("run options")
def _run_options(case: Case) -> Iterator[tuple[int, Arrays]]:
    session = case.session()
    options = onnxruntime.RunOptions()
    options.log_severity_level = 3
    options.logid = "some call"
    options.only_execute_path_to_fetches = True
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    yield from plain(case, session, options)
    for name in [o.name for o in session.get_outputs()]:  # one output only
        yield 1, dict(zip([name], session.run([name], dict(case.feeds[1]), options), strict=True))


@way("calls that do not wait")
def _asynchronous(case: Case) -> Iterator[tuple[int, Arrays]]:
    session = case.session()
    names = [o.name for o in session.get_outputs()]
    results: dict[int, Any] = {}
    done = threading.Semaphore(0)

    def finished(result: Any, number: int, error: str) -> None:
        results[number] = error or [np.array(r) for r in result]
        done.release()

    for k in range(len(case.feeds)):
        session.run_async(names, dict(case.feeds[k]), finished, k)
    for _ in case.feeds:
        if not done.acquire(timeout=60):
            raise AssertionError("a call has not come to its end")
    for k, result in results.items():
        if isinstance(result, str):
            raise AssertionError(result)
        yield k, dict(zip(names, result, strict=True))


def _place(case: Case) -> tuple[str, int]:
    return ("cuda", 0) if case.provider == "cuda" else ("cpu", 0)


def bound(case: Case, session: Any, feeds: Arrays, wanted: Arrays) -> tuple[Any, dict[str, Any]]:
    """A binding whose inputs and outputs lie in memory of the provider; outputs hold NaN."""
    binding, values = session.io_binding(), {}
    for name, array in feeds.items():
        values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array, *_place(case))
        binding.bind_ortvalue_input(name, values[name])
    for name, array in wanted.items():
        spoiled = np.full(array.shape, np.nan if array.dtype.kind == "f" else 85, array.dtype)
        values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(spoiled, *_place(case))
        binding.bind_ortvalue_output(name, values[name])
    return binding, values


def _fetched(values: Mapping[str, Any], wanted: Arrays) -> Arrays:
    return {name: np.array(values[name].numpy()) for name in wanted}


@way("bound inputs and outputs")
def _bound(case: Case) -> Iterator[tuple[int, Arrays]]:
    session = case.session()
    ready = [bound(case, session, f, w) for f, w in zip(case.feeds, case.wanted, strict=True)]
    for _ in range(2):
        for k, (binding, values) in enumerate(ready):
            session.run_with_iobinding(binding)
            yield k, _fetched(values, case.wanted[k])


@way("bound inputs, outputs that onnxruntime allocates")
def _half_bound(case: Case) -> Iterator[tuple[int, Arrays]]:
    session = case.session()
    for k, feeds in enumerate(case.feeds):
        binding = session.io_binding()
        for name, array in feeds.items():  # from the host: onnxruntime copies
            binding.bind_cpu_input(name, array)
        for name in case.wanted[k]:
            binding.bind_output(name, *_place(case))
        session.run_with_iobinding(binding)
        yield k, dict(zip(case.wanted[k], binding.copy_outputs_to_cpu(), strict=True))


@way("one session, many threads")
def _many_threads(case: Case) -> Iterator[tuple[int, Arrays]]:
    yield from _in_threads(case, [case.session()] * 6)


@way("many sessions, many threads")
def _many_sessions(case: Case) -> Iterator[tuple[int, Arrays]]:
    yield from _in_threads(case, [case.session() for _ in range(4)])


@way("one parallel session, many threads")
def _parallel_threads(case: Case) -> Iterator[tuple[int, Arrays]]:
    yield from _in_threads(case, [case.session(case.options(**_parallel))] * 4)


@way("sessions made by many threads")
def _made_in_threads(case: Case) -> Iterator[tuple[int, Arrays]]:
    with ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(lambda _: case.session(), range(4)))
    for k, session in enumerate(sessions):
        yield k % len(case.feeds), answers(session, case.feeds[k % len(case.feeds)])


def _in_threads(case: Case, sessions: Sequence[Any]) -> Iterator[tuple[int, Arrays]]:
    """Call sessions, one thread for each, all at once."""

    def work(k: int) -> list[tuple[int, Arrays]]:
        numbers = [(k + n) % len(case.feeds) for n in range(ROUNDS)]
        return [(n, answers(sessions[k], case.feeds[n])) for n in numbers]

    with ThreadPoolExecutor(len(sessions)) as pool:
        for results in pool.map(work, range(len(sessions))):
            yield from results


# ---- the CUDA provider -----------------------------------------------------------------------------------------------


@way("a CUDA graph", CUDA_WAYS)
def _cuda_graph(case: Case) -> Iterator[tuple[int, Arrays]]:
    session = case.session(cuda={"enable_cuda_graph": "1"})
    binding, values = bound(case, session, case.feeds[0], case.wanted[0])
    for k in (0, *range(len(case.feeds)), 0):  # the first call captures, further ones replay with what is written here
        for name, array in case.feeds[k].items():
            values[name].update_inplace(array)
        session.run_with_iobinding(binding)
        yield k, _fetched(values, case.wanted[k])


@way("several CUDA graphs of one session", CUDA_WAYS)
def _cuda_graphs(case: Case) -> Iterator[tuple[int, Arrays]]:
    session = case.session(cuda={"enable_cuda_graph": "1"})
    ready = [bound(case, session, f, w) for f, w in zip(case.feeds, case.wanted, strict=True)]
    for _ in range(3):
        for k, (binding, values) in enumerate(ready):
            options = onnxruntime.RunOptions()
            options.add_run_config_entry("gpu_graph_id", str(k + 1))
            session.run_with_iobinding(binding, options)
            yield k, _fetched(values, case.wanted[k])


@way("the caller's CUDA stream", CUDA_WAYS)
def _stream(case: Case) -> Iterator[tuple[int, Arrays]]:
    stream = new_stream()
    session = case.session(cuda={"user_compute_stream": str(stream)})
    yield from plain(case, session)
    binding, values = bound(case, session, case.feeds[0], case.wanted[0])
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    session.run_with_iobinding(binding, options)
    check_cuda(cuda_runtime().cudaStreamSynchronize(ctypes.c_void_p(stream)))
    yield 0, _fetched(values, case.wanted[0])


@way("two streams at once", CUDA_WAYS)
def _streams(case: Case) -> Iterator[tuple[int, Arrays]]:
    streams = [new_stream() for _ in range(2)]
    yield from _in_threads(case, [case.session(cuda={"user_compute_stream": str(s)}) for s in streams])


_with_cuda("an arena that grows as requested", arena_extend_strategy="kSameAsRequested")
_with_cuda("copies on a stream of their own", do_copy_in_default_stream="0")
_with_cuda("channels last preferred", prefer_nhwc="1")


@way("the CPU provider in front of CUDA", CUDA_WAYS)
def _cpu_first(case: Case) -> Iterator[tuple[int, Arrays]]:
    providers = ["CPUExecutionProvider", "CUDAExecutionProvider"]
    yield from plain(case, onnxruntime.InferenceSession(str(case.model), case.options(), providers=providers))


@functools.lru_cache(maxsize=1)
def cuda_runtime() -> Any:
    """CUDA's run time library, that of the installed packages."""
    return ctypes.CDLL(next(p for p in ("libcudart.so.13", "libcudart.so.12") if _loads(p)))


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def new_stream() -> int:
    """A CUDA stream that does not wait for the default one."""
    stream = ctypes.c_void_p()
    check_cuda(cuda_runtime().cudaStreamCreateWithFlags(ctypes.byref(stream), 1))
    assert stream.value is not None
    return stream.value


def check_cuda(status: int) -> None:
    """Raise AssertionError for an error of CUDA."""
    if status:
        raise AssertionError(f"CUDA error {status}")


# ---- cases and verdicts ----------------------------------------------------------------------------------------------


def spoil(model: onnx.ModelProto) -> None:
    """Let all functions of the domain `mirage` answer with NaN (their integer outputs stay)."""
    for function in model.functions:
        if function.domain != DOMAIN:
            continue
        for k, name in enumerate(function.output):
            for node in function.node:
                node.output[:] = [f"{name}/right" if o == name else o for o in node.output]
                node.input[:] = [f"{name}/right" if i == name else i for i in node.input]
            nan = numpy_helper.from_array(np.array(np.nan, np.float32))
            function.node.extend(
                [
                    helper.make_node("Constant", [], [f"nan_{k}"], value=nan),
                    helper.make_node("CastLike", [f"nan_{k}", f"{name}/right"], [f"nan_cast_{k}"]),
                    helper.make_node("Add", [f"{name}/right", f"nan_cast_{k}"], [name]),
                ]
            )


def case_of(
    original: Path, out: Path, folder: Path, provider: str = "cpu", dims: Mapping[str, int] | None = None
) -> Case:
    """The case of an output folder; the original's answers are onnxruntime's on the CPU, unoptimized."""
    spoiled = onnx.load(out / "model.onnx", load_external_data=False)
    spoil(spoiled)
    data = out / "model.onnx.data"
    if data.exists():
        (folder / data.name).symlink_to(data.resolve())
    path = folder / "model.onnx"
    path.write_bytes(spoiled.SerializeToString())
    source = onnx.load(original, load_external_data=False)
    feeds = [random_inputs(source, seed, dims) for seed in range(SETS)]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = Level.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(original), options, providers=["CPUExecutionProvider"])
    return Case(
        path, out / "libmirage.so", feeds, [answers(session, f) for f in feeds], folder, provider, dict(dims or {})
    )


def difference(answered: Arrays, wanted: Arrays) -> str:
    """The fault in answers, or nothing; an output that was not asked for is not missed."""
    for name, array in answered.items():
        right = wanted[name]
        if array.shape != right.shape or array.dtype != right.dtype:
            return f"{name}: {array.dtype}{list(array.shape)}, expected {right.dtype}{list(right.shape)}"
        if right.dtype.kind != "f":
            if not np.array_equal(array, right):
                return f"{name}: integers differ"
            continue
        exact = right.astype(np.float64)
        error = float(np.sqrt(np.mean((array - exact) ** 2)) / np.sqrt(np.mean(exact**2)))
        if not error <= LIMITS[right.dtype.name]:  # NaN is wrong too
            return f"{name}: relative error {error:.1e}"
    return "" if answered else "no outputs"


def verdict(case: Case, function: Way) -> str:
    """The fault of a way, or nothing."""
    for count, (k, answered) in enumerate(function(case)):
        problem = difference(answered, case.wanted[k])
        if problem:
            return f"call {count}, input set {k}: {problem}"
    return ""


def ways(provider: str) -> dict[str, Way]:
    """All ways that a provider has."""
    return WAYS | (CUDA_WAYS if provider == "cuda" else {})


def main() -> int:
    """Try all ways; 1 when one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--provider", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="a symbolic dimension's size")
    parser.add_argument("--only", default="*", metavar="GLOB", help="ways by their names")
    given = parser.parse_args()
    dims = {name: int(size) for name, _, size in (text.partition("=") for text in given.dim)}
    failed = 0
    if given.provider == "cuda" and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        case = case_of(given.original, given.out, Path(folder), given.provider, dims)
        for name, function in ways(given.provider).items():
            if not fnmatch.fnmatch(name, given.only):
                continue
            try:
                problem = verdict(case, function)
            except Exception as error:  # whatever a session raises is the finding
                problem = f"{type(error).__name__}: {error}"
            failed += bool(problem)
            print(f"{'FAILED' if problem else 'ok    '} {name}{': ' if problem else ''}{problem}", flush=True)
    print(f"{failed} failed, onnxruntime {onnxruntime.__version__}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
