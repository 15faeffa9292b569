"""A fragment's kernel as a function on tensors of PyTorch, cupy or numpy, through the C entry points of a library.

    import mirage_cli as mi

    kernel = mi.load_kernel("out")              # the only fragment of an output folder; else its identifier behind
    y = kernel(x, w)                            # or kernel(inputs=[x, w]), kernel(x, w, out=y)

NumPy arrays and torch tensors in host memory run on the CPU; torch, cupy and, by DLPack, other libraries' tensors in
device memory run on their device, on that library's current stream, and arrays of pyopencl on their queue, without
waiting for it. Nothing is copied or converted. Outputs and scratch memory come from the caller's library for each call,
so that calls on several streams,
from several threads and inside `torch.cuda.graph` do not meet. No gradients are recorded.

All that follows from the shapes is computed once for each combination of shapes, types and device; a call then looks its
tensors over, allocates, and makes one foreign call.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np

from mirage_cli.backends.spec import OperatorSpec, operator_spec
from mirage_cli.errors import InvalidGraph, MirageError, ModelError, Refused, UsageError, WrongTensor
from mirage_cli.files.output import LIBRARY, MARK, MUGRAPHS
from mirage_cli.kernels import tensors, torch_operator
from mirage_cli.kernels.tensors import Description, Framework, Key
from mirage_cli.lax import extents
from mirage_cli.lax.dtypes import packed
from mirage_cli.lax.ir.program import program_from_json
from mirage_cli.report import mugraph_file, naming, reader
from mirage_cli.runtime.sessions import check_library, cuda_failure, element_name, opencl_failure

#: what the names of entry points end with, by places
SUFFIXES = {"cpu": "_cpu", "cuda": "", "opencl": "_opencl"}
DEVICE_ALIGNMENT = 16  #: bytes, of tensors in device memory
MAX_PLANS = 1024  #: combinations of shapes that are remembered


@dataclass(frozen=True, slots=True)
class _Plan:
    """A plan of calling the kernel on tensors of one combination of shapes, types and device."""

    entry: Callable[..., int]
    framework: Framework
    address: Callable[[Any], int]
    stream: Callable[[], int] | None  #: None on the host
    enter: Callable[[], contextlib.AbstractContextManager[Any] | None]
    pack_inputs: Callable[..., bytes]
    pack_outputs: Callable[..., bytes]
    extents: bytes | None
    makers: tuple[Callable[[], Any], ...]
    scratch: Callable[[], Any] | None
    scratch_address: Callable[[Any], int]
    shapes: tuple[tuple[int, ...], ...]  #: of the outputs
    bytes: tuple[int, ...]  #: of inputs and outputs
    where: str
    empty: bool  #: whether no output has elements
    fitting: set[Key]  #: of outputs given by callers that are known to fit


class Kernel:
    """A fragment's kernel in a library. `spec` says what it takes and gives; `constants` are the numbers of inputs that
    are weights of the model: on a GPU the kernel may read these while earlier work on the stream is still running, so
    that work must not be writing them.

    `threads` is how many threads a call on the CPU uses. Several threads may call a kernel at once.
    """

    def __init__(
        self, library: Path, spec: OperatorSpec, threads: int | None = None, constants: frozenset[int] = frozenset()
    ) -> None:
        self.spec, self.constants = spec, constants
        self._library = ctypes.CDLL(str(check_library(library)))
        self._plans: dict[Key, _Plan] = {}
        self._last: tuple[Key, _Plan | None] = (), None
        #: inputs that numpy has with a byte for each element, and kernels with several in one
        self._packed = [k for k, t in enumerate(spec.inputs) if t.dtype.per_byte > 1]
        self._pool = _Pool(threads) if threads is not None and threads > 1 else None

    def __call__(self, *args: Any, inputs: Sequence[Any] | None = None, out: Any = None) -> Any:
        """The output, a tuple when there are several, of tensors given one by one or as `inputs`.

        `out` is what to write to: a tensor, or one for each output. Raises WrongTensor, naming the tensor, what was expected
        and what was found, for one that does not fit, and MirageError when the kernel fails.
        """
        if inputs is not None:
            if args:
                raise UsageError(f"{self.spec.op_type}: tensors are given one by one or as inputs=[...], not both")
            args = tuple(inputs)
        if out is not None and not isinstance(out, (tuple, list)):
            out = (out,)
        results = self.run(args, out)
        return results[0] if len(results) == 1 else results

    def run(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """The same for lists of tensors: a tuple of all outputs."""
        framework = tensors.framework_of(inputs[0]) if inputs else None
        if framework is None:
            inputs, framework = self._foreign(inputs)
        try:
            key, pointers = framework.look(inputs)
        except AttributeError:
            raise self._mixed(inputs) from None
        held = {k: packed(np.asarray(inputs[k]), self.spec.inputs[k].dtype) for k in self._packed}
        for k, stored in held.items():
            pointers[k] = stored.ctypes.data
        last, plan = self._last
        if key != last:  # comparing is quicker than a look-up, and most calls are like the one before
            plan = self._plans.get(key) or self._planned(inputs, framework, key)
            self._last = key, plan
        assert plan is not None
        enter = plan.enter()
        if enter is None:
            return self._call(plan, pointers, out)
        with enter:
            return self._call(plan, pointers, out)

    def has(self, place: str) -> bool:
        """True if the library holds this kernel for `cpu`, `cuda` or `opencl`."""
        return hasattr(self._library, f"mirage_{self.spec.id}{self._suffix(place)}")

    def as_torch_op(self, name: str) -> Any:
        """The kernel as an operator of PyTorch, such as "mirage::norm": see `torch_operator.register`."""
        return torch_operator.register(self, name)

    def __repr__(self) -> str:
        return f"<{self.spec.op_type}({', '.join(map(str, self.spec.inputs))}) -> {', '.join(map(str, self.spec.outputs))}>"

    def _suffix(self, place: str) -> str:
        """What the names of entry points for a place end with; PyTorch on ROCm calls its devices `cuda`."""
        return "_hip" if place == "cuda" and "hip" in self.spec.others else SUFFIXES[place]

    # --- one call -----------------------------------------------------------------------------------------------------
    def _call(self, plan: _Plan, pointers: list[int], out: Sequence[Any] | None) -> tuple[Any, ...]:
        """The call itself; the plan's device is the current one."""
        outputs = tuple([make() for make in plan.makers]) if out is None else self._checked(plan, pointers, out)
        if plan.empty:
            return outputs
        results = [*map(plan.address, outputs)]
        if plan.stream is None:
            last: Any = self._pool.reference if self._pool is not None else None
        else:
            last, bits = plan.stream(), 0
            for p in pointers:
                bits |= p
            for p in results:
                bits |= p
            if bits % DEVICE_ALIGNMENT:
                raise self._unaligned(pointers, results)
        scratch = plan.scratch() if plan.scratch is not None else None
        at = None if scratch is None else plan.scratch_address(scratch)
        code = plan.entry(plan.pack_inputs(*pointers), plan.pack_outputs(*results), at, plan.extents, last)
        if code:
            if plan.where.startswith("opencl"):
                raise opencl_failure(self._library, self.spec.op_type)
            if plan.stream is not None:
                raise cuda_failure(self._library, self.spec.op_type, code)
            raise MirageError(f"{self.spec.op_type}: the kernel ended with error {code}")
        return outputs

    def _checked(self, plan: _Plan, pointers: list[int], out: Sequence[Any]) -> tuple[Any, ...]:
        """The caller's own outputs. Raises WrongTensor where one does not fit, or shares memory with another tensor."""
        try:
            key, results = plan.framework.look(out)
        except AttributeError:
            key, results = (), []
        if key not in plan.fitting:
            self._check_outputs(plan, out)
            plan.fitting.add(key)
        start_of = plan.framework.start
        taken = [(*start_of(p), size) for p, size in zip(pointers, plan.bytes, strict=False)]
        for k, (p, size) in enumerate(zip(results, plan.bytes[len(pointers) :], strict=True)):
            memory, at = start_of(p)
            for other, (where, start, length) in enumerate(taken):
                if memory == where and start < at + size and at < start + length:
                    names = [t.name for t in (*self.spec.inputs, *self.spec.outputs)]
                    raise WrongTensor(
                        f"{self.spec.op_type}: output '{self.spec.outputs[k].name}' shares memory with '{names[other]}'"
                    )
            taken.append((memory, at, size))
        return tuple(out)

    def _check_outputs(self, plan: _Plan, out: Sequence[Any]) -> None:
        name = self.spec.op_type
        if len(out) != len(self.spec.outputs):
            raise WrongTensor(f"{name}: {len(out)} outputs, expected {len(self.spec.outputs)}")
        for tensor, given, shape in zip(self.spec.outputs, out, plan.shapes, strict=True):
            if tensors.framework_of(given) is not plan.framework:
                kind = type(given).__name__
                raise WrongTensor(f"{name}: output '{tensor.name}' is of type {kind}, expected {plan.framework.name}")
            problem = _unfit(plan.framework.describe(given), element_name(tensor.dtype), plan.where, shape)
            if problem is not None:
                raise WrongTensor(f"{name}: output '{tensor.name}' {problem}")

    # --- the first call with some shapes ------------------------------------------------------------------------------
    def _planned(self, inputs: Sequence[Any], framework: Framework, key: Key) -> _Plan:
        """The plan for tensors like these, remembered. Raises WrongTensor where one does not fit."""
        if any(tensors.framework_of(t) is not framework for t in inputs):
            raise self._mixed(inputs)
        plan = self._plan(inputs, framework)
        if len(self._plans) >= MAX_PLANS:
            self._plans = {}
        self._plans[key] = plan
        return plan

    def _plan(self, inputs: Sequence[Any], framework: Framework) -> _Plan:
        spec, described = self.spec, [framework.describe(t) for t in inputs]
        if len({description.place for description in described}) != 1:
            raise self._mixed(inputs)
        symbols = spec.solve([description.shape for description in described])
        for tensor, description in zip(spec.inputs, described, strict=True):
            problem = _unfit(description, element_name(tensor.dtype))
            if problem is not None:
                raise WrongTensor(f"{spec.op_type}: input '{tensor.name}' {problem}")
        like, on_host = inputs[0], described[0].place == "cpu"
        place = framework.place(like)
        shapes = [tuple(extents.value(d, symbols) for d in t.dims) for t in spec.outputs]
        with place.enter() or contextlib.nullcontext():
            makers = [
                framework.maker(like, shape, element_name(t.dtype))
                for t, shape in zip(spec.outputs, shapes, strict=True)
            ]
            values = struct.pack(f"{len(spec.symbols)}q", *(symbols[name] for name in spec.symbols))
            suffix = self._suffix(described[0].place.partition(":")[0])
            entry = self._function(suffix, ctypes.c_int, 5)
            count = self._function(f"_workspace{suffix}", ctypes.c_int64, 1)(values)
        if count < 0:
            raise WrongTensor(f"{spec.op_type}: the kernel refused these shapes")
        scratch, scratch_address = framework.scratch(like, count) if count else (None, place.address)
        dense = [
            *zip(spec.inputs, (description.shape for description in described), strict=True),
            *zip(spec.outputs, shapes, strict=True),
        ]
        return _Plan(
            entry=entry,
            framework=framework,
            address=place.address,
            stream=None if on_host else place.stream,
            enter=place.enter,
            pack_inputs=struct.Struct(f"{len(inputs)}P").pack,
            pack_outputs=struct.Struct(f"{len(shapes)}P").pack,
            extents=values or None,
            makers=tuple(makers),
            scratch=scratch,
            scratch_address=scratch_address,
            shapes=tuple(shapes),
            bytes=tuple(math.prod(shape) * tensor.dtype.bytes for tensor, shape in dense),
            where=described[0].place,
            empty=all(math.prod(shape) == 0 for shape in shapes),
            fitting=set(),
        )

    def _function(self, suffix: str, result: type[Any], pointers: int) -> Callable[..., int]:
        """An entry point that takes that many pointers."""
        try:
            function = getattr(self._library, f"mirage_{self.spec.id}{suffix}")
        except AttributeError:
            where = {"cpu": "CPU", "opencl": "OpenCL", "hip": "HIP"}.get(suffix.rpartition("_")[2], "CUDA")
            raise Refused(f"{self.spec.op_type}: the library holds no {where} kernel of it") from None
        function.restype, function.argtypes = result, [ctypes.c_void_p] * pointers
        return cast(Callable[..., int], function)

    # --- what does not fit --------------------------------------------------------------------------------------------
    def _foreign(self, inputs: Sequence[Any]) -> tuple[list[Any], Framework]:
        """Tensors of libraries that only DLPack makes known, as arrays of one that is."""
        arrays = [tensors.as_known_tensor(t) for t in inputs]
        framework = tensors.framework_of(arrays[0]) if arrays else None
        if framework is None:
            raise self._mixed(())
        return arrays, framework

    def _mixed(self, inputs: Sequence[Any]) -> WrongTensor:
        kinds = [(tensors.framework_of(t), t) for t in inputs]
        where = {f"{type(t).__name__}" if f is None else f"{f.name} on {f.describe(t).place}" for f, t in kinds}
        places = ", ".join(sorted(where)) or "no inputs"
        return WrongTensor(f"{self.spec.op_type}: inputs must share one framework and device, found {places}")

    def _unaligned(self, pointers: Sequence[int], results: Sequence[int]) -> WrongTensor:
        named = [(f"input '{t.name}'", p) for t, p in zip(self.spec.inputs, pointers, strict=True)]
        named += [(f"output '{t.name}'", p) for t, p in zip(self.spec.outputs, results, strict=True)]
        who = next(name for name, p in named if p % DEVICE_ALIGNMENT)
        return WrongTensor(f"{self.spec.op_type}: {who} is not aligned to {DEVICE_ALIGNMENT} bytes; copy it")


def load_kernel(folder: str | PathLike[str], identifier: str | None = None, threads: int | None = None) -> Kernel:
    """The kernel of a fragment of an output folder of `mirage optimize`.

    `identifier` is the fragment's, its beginning, its name, or that of its operator (`norm_linear_0123456789abcdef`);
    it can be left out where the folder has one fragment only. `threads` is how many a call on the CPU uses (one by
    default). Raises UsageError for an identifier that the folder does not have, ModelError for a folder that is none
    of `optimize`, Refused for a library that anybody could have replaced.
    """
    place = Path(folder)
    there = sorted(p.stem for p in (place / MUGRAPHS).glob("*.json"))
    if not there:
        raise ModelError(f"{place}: expected an output folder of mirage optimize, found no {MUGRAPHS}/*.json")
    names = {f["id"]: f["name"] for f in reader.read(place)["fragments"]} if (place / MARK).is_file() else {}
    rows = [{"id": i, "name": names.get(i, "")} for i in there]
    fitting = rows if identifier is None else naming.fitting(rows, identifier)
    if len(fitting) != 1:
        known = [f"{r['name']}_{r['id']}".strip("_") for r in fitting or rows]
        problem = "there are" if identifier is None else f"{identifier!r} fits"
        raise UsageError(
            f"{place}: expected the name or identifier of one fragment, {problem} {len(fitting) or 'none'}",
            f"one of {', '.join(known)}",
        )
    wanted = fitting[0]["id"]
    path = place / MUGRAPHS / f"{wanted}.json"
    data = mugraph_file.read(path)
    try:
        spec = operator_spec(wanted, data["operator"], data["targets"])
        spec.validate()
        constants = program_from_json(data["program"]).constants
    except InvalidGraph as error:
        raise ModelError(f"{path}: {error}") from None
    return Kernel(place / LIBRARY, spec, threads, constants)


def _unfit(described: Description, element: str, where: str | None = None, shape: tuple[int, ...] = ()) -> str | None:
    """The reason for which a tensor is no input of elements of that type, or None; with `where` that for which it is
    no output there, of that shape."""
    if described.element != element:
        return f"has elements {described.element}, expected {element}"
    if not described.dense:
        return "is not dense and row-major; make it contiguous"
    if where is None:
        return None
    if described.shape != shape:
        return f"has shape {list(described.shape)}, expected {list(shape)}"
    if described.place != where:
        return f"is on {described.place}, expected {where}"
    return None if described.writable else "cannot be written"


class _Pool:
    """`mirage_pool` of entry.h on threads of Python's."""

    def __init__(self, threads: int) -> None:
        self._executor, self._threads = ThreadPoolExecutor(threads), threads
        self._run = _RUN(self._tasks)  # kept, as is the structure: ctypes does not own callbacks
        self._structure = _Structure(self._run, None)
        self.reference = ctypes.byref(self._structure)

    def _tasks(self, _pool: int, task: int, count: int, data: int) -> None:
        call = _TASK(task)

        def work(first: int) -> None:
            for i in range(first, count, self._threads):
                call(data, i)

        list(self._executor.map(work, range(min(self._threads, count))))


class _Structure(ctypes.Structure):
    """The C structure."""


_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_Structure._fields_ = [("run", _RUN), ("context", ctypes.c_void_p)]
