"""Tune the cases of `mirage bench --suite paper` on a GPU: the cost model's own choices against the fastest candidates.

python -m samples.tuning --gpu 0                      all cases, a table in Markdown
python -m samples.tuning --gpu 0 'gqa*' --dtype bf16  some of them
python -m samples.tuning --gpu 0 --write              the table goes into docs/reference/measurements.md
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.frontends.imported import Imported
from mirage_cli.frontends.imported import Options as Reading
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.machine.devices import device
from mirage_cli.optimization import environment, tuning_stage
from mirage_cli.optimization import task as works
from mirage_cli.optimization.pipeline import plan_options
from mirage_cli.optimization.task import Work
from mirage_cli.options.options import Options, cores
from mirage_cli.planning.plan import PlanOptions, plan_fragment
from mirage_cli.processes import isolation
from mirage_cli.suite.cases import DTYPES, Case
from mirage_cli.suite.report import between
from mirage_cli.suite.suites import chosen
from mirage_cli.tuning.candidates import model_error

DOCS = Path(__file__).resolve().parents[1] / "docs/reference/measurements.md"
BEGIN, END = "<!-- tuning -->", "<!-- end of tuning -->"
HEADER = ("case", "tried", "wrong", "seconds", "predicted", "own choice", "tuned", "ratio", "engine")


@dataclass(frozen=True, slots=True)
class Row:
    """A fragment of a case: its name, seconds of tuning, and the `tuning` of its report."""

    name: str
    seconds: float
    tuning: Mapping[str, Any]

    @property
    def ratio(self) -> float | None:
        """The time of the model's own choice over that of the tuned one."""
        own, best = self.tuning.get("own_us"), self.tuning.get("chosen_us")
        return own / best if own and best else None

    def cells(self) -> list[str]:
        """The cells of the table."""
        if "candidates" not in self.tuning:
            return [self.name, *[""] * (len(HEADER) - 2), self.tuning.get("problem", "nothing to tune")]
        tuning = self.tuning
        named = {c["candidate"]: c for c in tuning["candidates"]}
        own, best = named.get(tuning["own"], {}), named.get(tuning["chosen"], {})
        wrong = sum("problem" in c for c in tuning["candidates"]) - tuning["refused"]
        return [
            self.name,
            str(tuning["tried"]),
            str(wrong),
            f"{self.seconds:.0f}",
            _us(own.get("predicted_us")),
            _us(tuning["own_us"]),
            _us(tuning["chosen_us"]),
            "" if self.ratio is None else f"{self.ratio:.2f}",
            ", ".join(best.get("engines", [])),
        ]


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def planned(case: Case, dtype: str, plans: PlanOptions, seed: int) -> tuple[Imported, list[Work]]:
    """A case's model and its fragments with the candidates of their plans."""
    imported = from_proto(case.model(DTYPES[dtype], seed), Reading(), case.name)
    parts = partition(imported.graph, works.tensor_names(imported))
    work = works.group_fragments(parts.fragments, imported)
    jobs = [(w.id, w.name, w.program, w.operators, plans) for w in work]
    for k, plan in isolation.each(plan_fragment, jobs, 1):
        if isinstance(plan, isolation.Lost):
            work[k].fail(plan.reason)
        else:
            work[k].plan = plan
    return imported, work


def tuned(case: Case, dtype: str, options: Options, tools: Toolchain) -> Iterator[Row]:
    """Tune the fragments of a case."""
    gpu = device(options.gpu or 0)
    plans = plan_options(options, tools, (), {}, gpu)
    imported, work = planned(case, dtype, plans, options.seed)
    cache = environment.tuning_cache(options)
    stage = tuning_stage.Stage(
        options,
        plans,
        tools,
        imported,
        {},
        lambda symbols: {},
        cache,
        gpu,
        environment.crew(options),
    )
    for w in work:
        start = time.perf_counter()
        if w.plan is not None and w.plan.pool:
            tuning_stage.choose([w], stage, lambda text: None)
        reason = w.reason or "; ".join((w.plan.reasons if w.plan else {}).values())
        name = case.name if len(work) == 1 else f"{case.name}: {w.name}"
        yield Row(name, time.perf_counter() - start, w.tuning or {"problem": reason})


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of the Markdown table, and the model's error."""
    yield f"| {' | '.join(HEADER)} |"
    yield "|" + "---|" * len(HEADER)
    for row in rows:
        yield f"| {' | '.join(row.cells())} |"
    timed = [r for r in rows if r.ratio is not None]
    error = model_error([r.tuning["own_us"] for r in timed], [r.tuning["chosen_us"] for r in timed])
    yield ""
    said = f"The model's own choice takes {error:.2f} times what the tuned one takes"
    yield f"{said} (geometric mean of {len(timed)} fragments)."


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune, print the table, write it into the document with `--write`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="GLOB", help="cases of the suite (all)")
    parser.add_argument("--gpu", type=int, default=0, metavar="N")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="fp16")
    parser.add_argument("--candidates", type=int, default=Options().tune_candidates, metavar="N")
    parser.add_argument("--seconds", type=float, default=Options().tune_budget, help="for each fragment")
    parser.add_argument("--cache", metavar="DIR", help="folder of the tunings (the user's)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep everything that was tried")
    parser.add_argument("--write", action="store_true", help=f"put the table into {DOCS.name}")
    given = parser.parse_args(arguments)
    options = Options(
        target=("cuda",),
        gpu=given.gpu,
        jobs=cores(),
        cache=given.cache,
        tune_candidates=given.candidates,
        tune_budget=given.seconds,
    )
    tools = environment.toolchain(options)
    rows: list[Row] = []
    for case in chosen("paper", given.cases):
        for row in tuned(case, given.dtype, options, tools):
            print(" | ".join(row.cells()), flush=True)
            rows.append(row)
    if given.json:
        given.json.write_text(json.dumps([{"name": r.name, "tuning": r.tuning} for r in rows], indent=1))
    text = "\n".join(table(rows))
    if given.write:
        DOCS.write_text(between(DOCS.read_text(), BEGIN, END, text))
    else:
        print(text)


if __name__ == "__main__":
    main()
