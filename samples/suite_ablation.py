"""The worth of parts of the optimizer on a GPU: cases of the suite with one thing left out, timed beside the whole.

python -m samples.suite_ablation --gpu 0                     the cases of `ROWS`, a table in Markdown
python -m samples.suite_ablation --gpu 0 'gqa*' --dtype bf16 some of them
python -m samples.suite_ablation --gpu 0 --write             the table goes into docs/reference/measurements.md

The program is changed where a pass of the optimizer is not what is left out: softmax written as exp(s) / sum(exp(s)), so
that no muGraph has a maximum to subtract, and weights stored with the rows that a product sums over side by side.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mirage_cli.errors import MirageError
from mirage_cli.machine import devices
from mirage_cli.optimization import environment
from mirage_cli.options.options import Options, cores
from mirage_cli.processes import isolation
from mirage_cli.search.schedules.architectures import ENGINES
from mirage_cli.suite import build as suite_build
from mirage_cli.suite.cases import DTYPES, Case, Net
from mirage_cli.suite.measure import Measurement, MeasureOptions, opened
from mirage_cli.suite.report import between
from mirage_cli.suite.suites import chosen

DOCS = Path(__file__).resolve().parents[1] / "docs/reference/measurements.md"
BEGIN, END = "<!-- ablation -->", "<!-- end of ablation -->"
ROWS = (
    *("rmsnorm_linear_b8", "gated_mlp_b8", "lora_b8", "gqa_b1", "mha_b1", "qknorm_gqa_b1"),
    *("ntrans_b8", "norm_mlp_down_b1", "prefill_rmsnorm_linear", "prefill_attention"),
)
WHOLE = "all"


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant: the parts that are left out, passes and engines by name, and how the case is changed (None where
    that changes nothing)."""

    name: str
    without: tuple[str, ...] = ()
    changed: Callable[[Case], Case | None] = lambda case: case


class _Plain(Net):
    """Softmax without its maximum, added to the nodes of another net."""

    def __init__(self, net: Net) -> None:
        self.__dict__ = net.__dict__

    def attend(self, scores: str, values: str) -> str:
        """exp(scores) / sum(exp(scores)) values."""
        e = self("Exp", scores)
        share = self("Div", e, self("ReduceSum", e, self.integers(-1), keepdims=1))
        return self("MatMul", share, values)


def unstabilised(case: Case) -> Case | None:
    """The case with softmax as it is defined; scores of the suite are small enough for its exponentials."""

    def graph(net: Net, *names: str) -> str:
        return case.graph(_Plain(net), *names)

    return replace(case, graph=graph) if case.sdpa is not None else None


def turned(case: Case) -> Case | None:
    """The case with its weight matrices stored the other way round."""
    matrices = {t.name for t in case.tensors if t.weight and len(t.shape) == 2}
    if not matrices:
        return None
    tensors = [replace(t, shape=t.shape[::-1]) if t.name in matrices else t for t in case.tensors]

    def graph(net: Net, *names: str) -> str:
        read = [net("Transpose", n, perm=[1, 0]) if n.split("_")[0] in matrices else n for n in names]
        return case.graph(net, *read)

    def torch(module: Any, functional: Any, *given: Any) -> Any:
        read = [g.T if t.name in matrices else g for g, t in zip(given, case.tensors, strict=True)]
        return case.torch(module, functional, *read)

    return replace(case, tensors=tuple(tensors), graph=graph, torch=torch)


VARIANTS = (
    Variant(WHOLE),
    Variant("overlap", ("overlap",)),
    Variant("stabilised softmax", changed=unstabilised),
    Variant("weights as stored", changed=turned),
    Variant("engines", ENGINES),
    *(Variant(f"engines, {p}", (*ENGINES, p)) for p in ("fusion", "layouts", "order", "memory")),
    Variant("tunings", ("tunings",)),
    Variant("siblings", ("siblings",)),
    Variant("stages", ("stages",)),
)


def build(name: str, variant: int, dtype: str, folder: Path, arch: str) -> str:
    """Optimize a variant of a case into a folder; why there is nothing to time, or nothing."""
    (case,) = chosen("paper", [name])
    changed = VARIANTS[variant].changed(case)
    if changed is None:
        return "-"
    options = Options(target=("cuda",), arch=(arch,), force=True, jobs=1, without=VARIANTS[variant].without)
    suite_build.make(changed, dtype, folder, options)
    return suite_build.reasons_left(folder)


def times(asked: MeasureOptions, name: str, dtype: str, rows: Sequence[suite_build.Row]) -> dict[str, Any]:
    """Microseconds of each variant of a case, or why there are none; all variants take turns."""
    timer, backend = opened(asked)
    (case,) = chosen("paper", [name])
    us: dict[str, Any] = {}
    calls = {}
    for variant, row in zip(VARIANTS, rows, strict=True):
        try:
            if row.problem:
                raise MirageError(row.problem)
            changed = variant.changed(case)
            assert changed is not None
            subject = Measurement(changed, DTYPES[dtype], timer, backend, asked)
            judged = subject.ours(suite_build.read(row))
            judged.poison()
            timer.run(judged.call, subject.sets)
            verdict = judged.verdict()
            if not verdict.passed:
                raise MirageError("wrong")
            calls[variant.name] = (judged, subject.sets)
        except MirageError as e:
            us[variant.name] = str(e)
    if calls:
        sets = {s for _, s in calls.values()}.pop()
        measured = timer.times({n: j.call for n, (j, _) in calls.items()}, sets, asked.effort)
        us |= {n: m.median for n, m in measured.items()}
    return us


def table(us_of: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The lines of the table: microseconds with everything, then how many times as long without each part."""
    yield f"| without | {' | '.join(v.name for v in VARIANTS[1:])} | us with all |"
    yield "|" + "---|" * (len(VARIANTS) + 1)
    for name, row in us_of.items():
        whole = row.get(WHOLE)
        cells = [_ratio(row.get(v.name), whole) for v in VARIANTS[1:]]
        yield f"| {name} | {' | '.join(cells)} | {whole if isinstance(whole, str) else f'{whole:.2f}'} |"


def _ratio(value: Any, whole: Any) -> str:
    if isinstance(value, float) and isinstance(whole, float):
        return f"{value / whole:.2f}"
    return str(value)[:60] if value is not None else "-"


def main(arguments: Sequence[str] | None = None) -> None:
    """Build, time, print; write with `--write`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="GLOB", help=f"cases of the suite ({', '.join(ROWS)})")
    parser.add_argument("--gpu", type=int, default=0, metavar="N")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="fp16")
    parser.add_argument("--write", action="store_true", help=f"put the table into {DOCS.name}")
    given = parser.parse_args(arguments)
    names = [c.name for c in chosen("paper", given.cases or ROWS)]
    arch = environment.architecture_of(devices.device(given.gpu))
    with TemporaryDirectory(prefix="mirage-ablation-") as temporary:
        places = [(n, k, Path(temporary) / f"{n}-{k}") for n in names for k in range(len(VARIANTS))]
        rows: dict[str, list[suite_build.Row]] = {n: [] for n in names}
        jobs = [(n, k, given.dtype, folder, arch) for n, k, folder in places]
        built = dict(isolation.each(build, jobs, cores()))
        for job, (n, _, folder) in enumerate(places):
            outcome = built[job]
            problem = outcome.reason if isinstance(outcome, isolation.Lost) else outcome
            rows[n].append(suite_build.Row(n, given.dtype, folder, problem))
        asked = MeasureOptions(given.gpu, (), seconds=2.0)
        us_of = {}
        timing = [(asked, n, given.dtype, rows[n]) for n in names]
        for k, result in isolation.each(times, timing, 1, apart=True):
            us_of[names[k]] = {WHOLE: result.reason} if isinstance(result, isolation.Lost) else result
    text = "\n".join(table(us_of))
    print(text)
    if given.write:
        DOCS.write_text(between(DOCS.read_text(), BEGIN, END, text))


if __name__ == "__main__":
    main()
