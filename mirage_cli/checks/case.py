"""One case of a float check: inputs, what the original made of them, what is right, and how results are held against that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.checks import threshold_inputs
from mirage_cli.checks.random_inputs import PLAIN
from mirage_cli.lax.ir.parts import in_parts
from mirage_cli.lax.ir.program import Program
from mirage_cli.numerics import windows
from mirage_cli.numerics.accuracy import ILL_CONDITIONED, Accuracy, Sample, identical, judged, remembered
from mirage_cli.numerics.edges import ENDS, HUGE, NOT_FINITE, SPIKES, TINY

Runner = Callable[[Sequence[NDArray[Any]], Mapping[str, int]], Sequence[NDArray[Any]]]
#: kinds of inputs on which sums overflow in one order or another
MIXED = (HUGE, SPIKES, TINY, ENDS, *threshold_inputs.KINDS)


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs of a program in the order of its sources, what its symbols are, and for each output what the original made
    of them and the float64 result: of the whole program, or of its `windows` one after the other. `number` is the place among
    the draws of a check; `again` makes more draws of the same case. `others` give results that are right as well
    (`Reference.others`), `parted` is the node at which the original parts from them."""

    name: str
    arrays: tuple[NDArray[Any], ...]
    symbols: Mapping[str, int]
    original: tuple[NDArray[Any], ...]
    wanted: tuple[NDArray[Any], ...]
    windows: tuple[Program, ...] = ()
    number: int = 0
    again: Callable[[], Iterable[Case]] | None = None
    others: tuple[Callable[[], tuple[NDArray[Any], ...] | None], ...] = ()
    parted: str = ""

    def compared(self, program: Program, results: Sequence[Any], kernel: Runner | None = None) -> Accuracy:
        """The first accuracy that does not pass, else the one with the largest error beside the original's. With the kernel
        that made the results, outputs that do not pass are judged over more draws, and against the other right results. Behind
        the outputs there may be sources in parts that a kernel stored whole: these have to be as they are."""
        accuracy = self._held_to_all(program, results, None)
        return accuracy if accuracy.passed or kernel is None else self._held_to_all(program, results, kernel)

    def _held_to_all(self, program: Program, results: Sequence[Any], kernel: Runner | None) -> Accuracy:
        """The accuracy beside what is right, and where that does not pass beside the other right results."""
        accuracy = self._compared(program, results, kernel)
        for k, other in enumerate(self.others):
            wanted = None if accuracy.passed else other()
            if wanted is not None:
                again = partial(self._others, k)
                beside = replace(self, wanted=wanted, again=again)._compared(program, results, kernel)
                accuracy = beside if beside.passed else accuracy
        return accuracy

    def _others(self, k: int) -> Iterator[Case]:
        """More draws, with their other results number k."""
        for c in self.again() if self.again is not None else ():
            wanted = c.others[k]()
            if wanted is not None:
                yield replace(c, wanted=wanted)

    def _compared(self, program: Program, results: Sequence[Any], kernel: Runner | None) -> Accuracy:
        own = [self.sample(program, results, k) for k in range(len(self.wanted))]
        factor = None if self.name in PLAIN else ILL_CONDITIONED
        again = () if kernel is None or self.again is None else self.again()
        drawn = remembered((c, list(kernel(c.arrays, c.symbols))) for c in again if kernel is not None)
        accuracies = [
            judged(
                sample,
                program.outputs[k % len(program.outputs)].dtype,
                lambda k=k: (c.sample(program, results_of_draw, k) for c, results_of_draw in drawn()),  # type: ignore[misc]
                factor,
                self.name in MIXED,
                self.name == NOT_FINITE,
            )
            for k, sample in enumerate(own)
        ]
        wholes = zip(in_parts(program), results[len(program.outputs) :], strict=False)
        accuracies += [identical(np.asarray(whole), self.arrays[k]) for k, whole in wholes]
        return max(accuracies, key=lambda a: (not a.passed, a.rmse / (a.original_rmse + 1e-30)))

    def sample(self, program: Program, results: Sequence[Any], k: int) -> Sample:
        """The sample that is compared with `wanted` number k."""
        count = len(program.outputs)
        result, own = np.asarray(results[k % count]), self.original[k % count]
        if self.windows:
            part = self.windows[k // count]
            view = part.outputs[k % count]
            result, own = (windows.shown_by_window(part, view, a, self.symbols) for a in (result, own))
        if (
            result.size == self.wanted[k].size == 0
        ):  # no numbers: what a Reshape to -1 makes of 0 of 0 is no matter of ours
            return self.wanted[k], self.wanted[k], self.wanted[k]
        if own.size == 0 != self.wanted[k].size:  # onnxruntime's greatest numbers of nothing
            own = self.wanted[k]
        return result, own, self.wanted[k]
