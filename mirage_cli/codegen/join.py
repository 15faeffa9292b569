"""The kernel that stores sources in parts whole, in front of kernels that read them so: all of them in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.codegen.requests.request import Kernel, Launch, Parameter
from mirage_cli.codegen.terms.expressions import CPU_TYPES, CUDA_TYPES, positions_in_parts, times
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.parts import Joint, joint
from mirage_cli.lax.ir.program import Source
from mirage_cli.search.schedules.target import Target

KINDS = ("cpu", "cuda")  #: of targets with such a kernel
THREADS = 256
CHUNK = 16  #: bytes that a thread copies at once
EACH = 4  #: chunks of a thread, so that several are on their way
MOST_BLOCKS = 1024  #: on a GPU; its threads copy more each where there is more
ROWS = 64  #: tasks on a CPU, at most


@dataclass(frozen=True, slots=True)
class Joining:
    """Sources that are stored whole, with their joints."""

    joints: tuple[Joint, ...]

    def text(self) -> str:
        """A line for each."""
        return "\n".join(
            f"join {j.outer} times {j.whole} positions of {j.inner}, {j.second} apart" for j in self.joints
        )


def joining(sources: Sequence[Source], symbols: Sequence[str], target: Target, number: int) -> Kernel:
    """The kernel that stores `sources`, whose parts are its inputs one after the other. Raises Refused."""
    joints = tuple(j for s in sources if (j := joint(s)) is not None and isinstance(j.inner, int))
    if len(joints) < len(sources) or target.kind not in KINDS:
        raise Refused(f"tensors in parts whose positions have an unknown number of elements, or on {target.kind}")
    names = CUDA_TYPES | (CPU_TYPES if target.kind == "cpu" else {})
    types = [names[s.dtype.name] for s in sources]
    inputs, outputs = list[Parameter](), list[Parameter]()
    for n, type_ in enumerate(types):
        inputs += [Parameter(f"x{n}_{part}", type_, n, part=part) for part in (1, 2)]
        outputs.append(Parameter(f"y{n}", type_))
    used = tuple(sorted({symbols.index(name) for j in joints for e in (j.outer, j.whole) for name in ex.names(e)}))
    on_gpu = target.kind == "cuda"
    blocks = _blocks(joints, sources) if on_gpu else ROWS
    threads = THREADS if on_gpu else 1
    dependent = on_gpu and target.features.dependent_launch
    launch = Launch(tuple(inputs), tuple(outputs), used, (ir.lift(blocks),), threads, dependent=dependent)
    of = k.name("parameters")

    def size(e: Extent) -> ir.Expression:
        if isinstance(e, int):
            return ir.lift(e)
        return k.product(
            [*([e.factor] if e.factor != 1 else []), *(of.member(f"s_{symbols.index(n)}") for n in e.names)]
        )

    at: ir.Expression = k.name("block")
    if on_gpu:
        at = k.cast("int64_t", k.name("blockIdx").member("x")) * THREADS + k.name("threadIdx").member("x")
    copies = [
        k.run(
            "join_chunks" if on_gpu else "join_rows",
            *(of.member(name) for name in (f"y{n}", f"x{n}_1", f"x{n}_2")),
            k.cast("int64_t", size(j.outer)),
            *(k.cast("int64_t", times(n, _known(j.inner))) for n in positions_in_parts(j, size)),
            k.cast("int64_t", at),
            k.cast("int64_t", blocks * threads),
        )
        for n, j in enumerate(joints)
    ]
    if on_gpu:
        first = (k.run("launch_dependents"), k.run("wait_for_earlier"))
        kernel = ir.Kernel(f"kernel{number}", "parameters", launch.fields(), (THREADS, 1), (*first, *copies))
        return Kernel(Joining(joints), kernel, launch, ("join.cuh",))
    struct = f"Parameters{number}"
    given = k.declare(
        k.of_type(struct, const=True, reference=True),
        "parameters",
        ir.Unary("*", k.cast(k.of_type(f"{struct}*", const=True), "data")),
    )
    fields = launch.fields(ir.Field(k.of_type("int"), "failed"))
    return Kernel(
        Joining(joints), ir.Kernel(f"kernel{number}", "data", fields, (), (given, *copies)), launch, ("join.hpp",)
    )


def _blocks(joints: Sequence[Joint], sources: Sequence[Source]) -> int:
    """Blocks of a GPU: each thread copies a few chunks of the largest tensor."""
    bytes_ = [ex.product([j.outer, j.whole, j.inner, s.dtype.bytes]) for j, s in zip(joints, sources, strict=True)]
    known = [-(-b // (CHUNK * EACH * THREADS)) for b in bytes_ if isinstance(b, int)]
    return max(1, min(MOST_BLOCKS, max(known))) if len(known) == len(bytes_) else MOST_BLOCKS


def _known(e: Extent) -> int:
    assert isinstance(e, int)
    return e
