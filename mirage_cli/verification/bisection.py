"""Finding the operator that makes a patched model differ, and keeping what shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from mirage_cli.checks import whole_model
from mirage_cli.checks.model_runs import Arrays, Job, ScriptJob
from mirage_cli.checks.sequences import unboxed
from mirage_cli.errors import MirageError, UsageError
from mirage_cli.frontends import Imported
from mirage_cli.frontends.onnx.external import DataFiles
from mirage_cli.frontends.onnx.traversal import all_nodes
from mirage_cli.patching import patch
from mirage_cli.runtime.given import entry

Runner = Callable[[Job], Arrays]  #: runs a model, in a process of its own; raises MirageError


@dataclass(frozen=True, slots=True)
class Case:
    """A patched model (its external data not loaded), its file and library, inputs, the original's outputs and those of
    a float64 run; `redraw` makes the inputs and outputs of further draws, from 1 on; a run has `seconds` (0: no limit);
    `stated` is the model that the float64 run is of, `usual` runs the original as onnxruntime optimizes it."""

    model: onnx.ModelProto
    path: Path
    library: Path
    inputs: Arrays
    original: Arrays
    exact: Arrays | None
    redraw: Callable[[int], tuple[Arrays, Arrays, Arrays | None]] | None = None
    seconds: float = 0
    stated: whole_model.Stated | None = None
    usual: Callable[[Arrays], Arrays] | None = None

    def compared(self, found: Arrays, run: Callable[[Arrays], Arrays]) -> list[whole_model.Compared]:
        """Outputs by the accuracy rule; `run` makes those for the inputs of another draw. What does not pass beside the
        original as its nodes stand is held against it as onnxruntime optimizes it, which the patched model is too: where
        numbers are rounded to steps, that alone moves some by a step."""
        own = self._compared(found, run)
        if self.usual is None or self.exact is None or all(c.accuracy.passed for c in own):
            return own
        usual, redraw = self.usual, self.redraw

        def drawn(k: int) -> tuple[Arrays, Arrays, Arrays | None]:
            assert redraw is not None
            inputs, _, exact = redraw(k)
            return inputs, usual(inputs), exact

        try:
            beside = replace(self, original=usual(self.inputs), redraw=redraw and drawn)._compared(found, run)
        except MirageError:
            return own
        return [a if a.accuracy.passed else b for a, b in zip(own, beside, strict=True)]

    def _compared(self, found: Arrays, run: Callable[[Arrays], Arrays]) -> list[whole_model.Compared]:
        redraw = self.redraw

        def again(k: int) -> whole_model.Draw:
            assert redraw is not None
            inputs, original, exact = redraw(k)
            return run(inputs), original, exact

        more = None if redraw is None else again
        return whole_model.compare_outputs(found, self.original, self.exact, more, self.rounded, self.unrounded)

    def rounded(self) -> Arrays | None:
        """The outputs of a run that rounds every tensor to its type; none where that makes no difference."""
        return None if self.stated is None else whole_model.rounded_run(self.stated, self.inputs, self.seconds)

    def unrounded(self) -> Arrays | None:
        """The outputs of a run without the roundings of casts; none where there are none."""
        return None if self.stated is None else whole_model.unrounded_run(self.stated, self.inputs, self.seconds)

    def operators(self) -> list[onnx.NodeProto]:
        """The nodes that the library computes."""
        return [n for n in all_nodes(self.model.graph.node) if n.domain == patch.DOMAIN]

    def differs(self, kept: Sequence[str], run: Runner) -> bool:
        """True if the outputs differ when the library computes only the nodes called `kept`."""
        variant = whole_model.with_kernels_of(self.model, kept, patch.DOMAIN).SerializeToString()

        def outputs(inputs: Arrays) -> Arrays:
            return run(Job(variant, inputs, self.library, self.path.parent))

        try:
            return not all(c.accuracy.passed for c in self.compared(outputs(self.inputs), outputs))
        except MirageError:
            return True


def original_job(original: Imported, inputs: Arrays, seconds: float = 0) -> Job | ScriptJob:
    """A run of the original, in the program that it was made for; by onnxruntime as its nodes stand there, without its
    optimizations, in `seconds` at most (0: no limit)."""
    if original.script is None:
        return Job(original.path, inputs, seconds=seconds, optimize=False)
    return ScriptJob(original.path, inputs, output_names(original))


def output_names(imported: Imported) -> tuple[str, ...]:
    """The outputs of a model in order."""
    return tuple(v.name or "" for v in imported.model.graph.outputs)


def bisect(case: Case, run: Runner) -> list[onnx.NodeProto]:
    """The operators that make outputs differ: first which fragments do, by halves, then one place of each of them.

    Fragments that differ only together are all returned.
    """
    names: dict[str, list[onnx.NodeProto]] = {}
    for n in case.operators():
        names.setdefault(n.op_type, []).append(n)

    def some(kinds: Sequence[str]) -> bool:
        return case.differs([n.name for k in kinds for n in names[k]], run)

    culprits: list[onnx.NodeProto] = []
    for kind in _smallest(list(names), some):
        places = [n.name for n in names[kind]]
        left = places
        while len(left) > 1:
            half = left[: len(left) // 2]
            left = half if case.differs(half, run) else left[len(half) :]
        culprits += [n for n in names[kind] if n.name == left[0]]
    return culprits


def _smallest(items: list[str], differs: Callable[[Sequence[str]], bool]) -> list[str]:
    """The items that differ by themselves; all of them when they do so only together."""
    if not items or not differs(items):
        return []
    if len(items) == 1:
        return items
    middle = len(items) // 2
    return _smallest(items[:middle], differs) + _smallest(items[middle:], differs) or items


# --- keeping what failed ----------------------------------------------------------------------------------------------
def save(case: Case, node: onnx.NodeProto | None, shown: Arrays, folder: Path, run: Runner) -> list[str]:
    """Write the model's inputs and outputs, and the model of the failing operator with its own; the files' names.

    `shown` are inputs of the operator that are known to show the difference; others are those that it has in the model.

    Raises UsageError for a folder that cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = {"inputs.npz": case.inputs, "original.npz": case.original}
        written |= _outputs("patched.npz", Job(str(case.path), case.inputs, case.library), run)
        if node is not None:
            written |= _operator(case, node, shown, folder, run)
        for name, arrays in written.items():
            np.savez(folder / name, allow_pickle=False, **{entry(key): a for key, a in unboxed(arrays)[0].items()})
    except OSError as error:
        raise UsageError(f"--save-failing {folder}: {error.strerror or error}") from None
    return sorted(p.name for p in folder.iterdir())


def _outputs(name: str, job: Job, run: Runner) -> dict[str, Arrays]:
    try:
        return {name: run(job)}
    except MirageError:
        return {}


def _operator(case: Case, node: onnx.NodeProto, shown: Arrays, folder: Path, run: Runner) -> dict[str, Arrays]:
    """The operator as a model of its own, with the tensors that it gets in the whole one or that are `shown`."""
    values = tensors(case, [*node.input, *node.output], run) | shown
    model = whole_model.single_operator(case.model, node, values)
    onnx.save(model, folder / "operator.onnx")
    read = {n: values[n] for n in node.input if n}
    arrays = {"operator_inputs.npz": read}
    arrays |= _outputs("operator_original.npz", Job(model.SerializeToString(), read), run)
    return arrays | _outputs("operator_patched.npz", Job(model.SerializeToString(), read, case.library), run)


def tensors(case: Case, names: Sequence[str], run: Runner) -> Arrays:
    """Tensors inside the patched model, computed by the functions. Raises MirageError."""
    stored = {t.name: t for t in case.model.graph.initializer}
    files = DataFiles(str(case.path), hashed=False)
    known = {n: files.array(stored[n]) for n in names if n in stored}
    known |= {n: case.inputs[n] for n in names if n in case.inputs}
    wanted = [n for n in dict.fromkeys(names) if n and n not in known]
    probe = onnx.ModelProto()
    probe.CopyFrom(case.model)
    there = {o.name for o in probe.graph.output}
    probe.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in wanted if n not in there)
    computed = run(Job(probe.SerializeToString(), case.inputs, None, case.path.parent, case.seconds))
    return known | {n: computed[n] for n in wanted}
