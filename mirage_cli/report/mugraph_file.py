"""mugraphs/ID.json read back, whoever wrote it: the one reader of all commands.

What it returns is as the form `MuGraphFile` says. Whether it says something is for those who take it apart:
`plan_from_json`, `program_from_json` and `operator_spec`, which raise InvalidGraph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated as A
from typing import Any, NotRequired, TypedDict

from mirage_cli.errors import ModelError
from mirage_cli.files import codec
from mirage_cli.report.forms import IDENTIFIER, Between, Count, Extent, Schedule

MAX_BYTES = 1 << 24  #: of a file; those of large fragments have a hundredth of it
_Slot = tuple[str | None, Extent, int]  #: axis, extent, offset


class _Tensor(TypedDict):
    name: str
    dtype: str
    dims: list[Extent]


class _Source(_Tensor):
    constant: bool
    packed: NotRequired[bool]
    unwritten: NotRequired[bool]
    rounds: NotRequired[bool]
    levels: NotRequired[bool]


class _Input(TypedDict):
    name: str
    source: Count
    access: list[_Slot]


class _Node(TypedDict):
    name: str
    op: str
    inputs: NotRequired[list[str]]
    over: NotRequired[list[str]]
    value: NotRequired[str]
    axis: NotRequired[str]
    dtype: NotRequired[str]


class _Output(_Tensor):
    value: str
    access: list[_Slot]


class _Program(TypedDict):
    axes: dict[str, Extent]
    sources: list[_Source]
    inputs: list[_Input]
    nodes: list[_Node]
    outputs: list[_Output]


class _ThreadNode(TypedDict):
    op: str
    inputs: list[Count]
    value: NotRequired[str]


class _BlockOp(_Node):
    phase: str
    thread: NotRequired[list[_ThreadNode]]


class _Block(TypedDict):
    grid: list[str]
    split: list[str]
    loop: str | None
    ops: list[_BlockOp]
    outputs: list[str]


class _Kernel(TypedDict):
    program: _Program
    block: _Block
    inputs: list[Count]
    outputs: list[Count]


class _Graph(TypedDict):
    sources: Count
    outputs: Count
    tensors: Count
    kernels: list[_Kernel]


class _Made(TypedDict):
    graph: _Graph
    schedules: list[Schedule]


class _Other(_Made):
    when: Between
    target: NotRequired[str]


class _Target(_Made):
    target: str
    shared_bytes: Count
    others: NotRequired[list[_Other]]


class Operator(TypedDict):
    """An operator that the library registers."""

    op_type: str
    inputs: list[_Tensor]
    outputs: list[_Tensor]
    symbols: list[str]


class MuGraphFile(TypedDict):
    """The whole file."""

    id: A[str, codec.says("A hash of what is computed.", pattern=IDENTIFIER)]
    name: str
    program: _Program
    without: list[str]
    targets: dict[str, _Target]
    operator: Operator


def read(path: Path) -> dict[str, Any]:
    """A muGraph file. Raises ModelError, naming the file, what was expected and what was found."""
    try:
        data = codec.read(path, MAX_BYTES)
        codec.checked(data, MuGraphFile)
    except FileNotFoundError:
        raise ModelError(f"{path}: the file is missing") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: expected a muGraph file of mirage, found what cannot be read: {error}") from None
    stored: dict[str, Any] = data
    return stored
