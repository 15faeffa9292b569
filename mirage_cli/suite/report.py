"""The result of `mirage bench --suite`: as text, JSON, and as a Markdown table for a document with markers."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_cli.errors import UsageError
from mirage_cli.suite.cases import DTYPES, Case

METHOD = (
    "Microseconds for one call, medians. Each contestant's calls on sets of inputs with different values, together more "
    "than four times the second-level cache, are captured as one CUDA graph; graphs are replayed in turns, each behind "
    "work that empties the cache, and timed by events. Ours is chained (calls follow each other, dependent launches may "
    "overlap) like the peers; isolated has an ordinary kernel between calls, whose time is subtracted. Before it is timed "
    "and after each timed graph our output is compared with float64 by the accuracy rule, from NaN. floor is the greater "
    "of bytes / read bandwidth and operations / matrix rate, both measured in the run."
)
WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class SuiteRow:
    """A row: its case, the least bytes and operations, what was measured (`measure`), its peers by name, the element
    type; of a published model: which, the kind of layer, how many rows a call has, whether it judges."""

    name: str
    shapes: str
    decode: bool
    bytes: int
    flops: float
    figures: dict[str, Any]
    peers: dict[str, dict[str, Any]]
    dtype: str = "fp16"
    model: str = ""
    kind: str = ""
    rows: int = 0
    part: str = ""

    @property
    def us(self) -> float | None:
        """Ours, chained."""
        return _median(self.figures["mirage"], "us")

    @property
    def isolated_us(self) -> float | None:
        """Ours, isolated."""
        return _median(self.figures["mirage"], "isolated_us")

    @property
    def problem(self) -> str:
        """Why there is no time of ours."""
        return str(self.figures["mirage"].get("problem", ""))

    @property
    def best(self) -> tuple[str, float] | None:
        """The fastest peer."""
        times = [(us, name) for name, p in self.peers.items() if (us := _median(p, "us")) is not None]
        return min(times)[::-1] if times else None

    @property
    def ratio(self) -> float | None:
        """The fastest peer's time over ours."""
        return self.best[1] / self.us if self.best and self.us else None

    def floor(self, limits: dict[str, Any]) -> float:
        """The least time on a device with these limits."""
        return max(self.bytes / float(limits["bandwidth"]), self.flops / float(limits["flops"][self.dtype])) * 1e6

    @property
    def error(self) -> float | None:
        """The error of the model's prediction, as a factor of at least one."""
        predicted = self.figures.get("predicted_us")
        return max(predicted / self.us, self.us / predicted) if predicted and self.us else None

    @property
    def behind_tuned(self) -> float | None:
        """The time of the model's own choice over that of the candidate found by measuring, where one was."""
        tuning = self.figures.get("tuning")
        return tuning["own_us"] / tuning["chosen_us"] if tuning else None

    @property
    def engines(self) -> str:
        """The engines of its kernels."""
        return "+".join(k.get("engine", "block") for k in self.figures.get("kernels", ()))

    def to_json(self, limits: dict[str, Any]) -> dict[str, Any]:
        """One element of `rows`."""
        floor = self.floor(limits)
        return {
            "name": self.name,
            **({n: getattr(self, n) for n in ("model", "kind", "rows", "part")} if self.kind else {}),
            "dtype": self.dtype,
            "tensors": self.shapes,
            "decode": self.decode,
            "bytes": self.bytes,
            "flops": self.flops,
            "floor_us": round(floor, 3),
            **self.figures,
            "peers": self.peers,
            "best_peer": self.best[0] if self.best else None,
            "ratio": rounded(self.ratio),
            "share_of_floor": rounded(floor / self.us if self.us else None),
        }


def row_of(case: Case, dtype: str, figures: dict[str, Any], peers: dict[str, dict[str, Any]]) -> SuiteRow:
    """The row of a case at an element type."""
    known = (case.name, case.shapes, case.decode, case.bytes(DTYPES[dtype]), case.flops, figures, peers)
    return SuiteRow(*known, dtype, case.model_name, case.kind, case.rows, case.part)


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """All rows of a run, how it was made and what the device can do; those that it had when it was `interrupted`."""

    version: str
    settings: dict[str, Any]
    limits: dict[str, Any]
    rows: tuple[SuiteRow, ...]
    interrupted: bool = False

    @property
    def wrong(self) -> bool:
        """True if a kernel gave wrong answers."""
        return any(r.problem.startswith(WRONG) for r in self.rows)

    @property
    def population(self) -> bool:
        """True if its rows are of kinds and sizes that a distribution is made of."""
        return any(r.kind for r in self.rows)

    @property
    def means(self) -> dict[str, float | None]:
        """Geometric means of the ratio to the fastest peer and of the share of the floor; of rows that have one."""
        means = {}
        for name, rows in (
            ("all", self.rows),
            ("decode", [r for r in self.rows if r.decode]),
            ("prefill", [r for r in self.rows if not r.decode]),
        ):
            means[f"ratio_{name}"] = geometric([r.ratio for r in rows])
            means[f"share_of_floor_{name}"] = geometric([r.floor(self.limits) / r.us if r.us else None for r in rows])
            means[f"prediction_{name}"] = geometric([r.error for r in rows])
        return means

    def to_json(self) -> dict[str, Any]:
        """The JSON document; times in microseconds."""
        return {
            "mirage": self.version,
            "settings": self.settings,
            "method": METHOD,
            "limits": self.limits,
            "rows": [r.to_json(self.limits) for r in self.rows],
            "means": {name: rounded(value) for name, value in self.means.items()},
        }

    # --- tables -----------------------------------------------------------------------------------------------------------
    def header(self) -> list[str]:
        """The setting in which the table was made, in lines."""
        state, limits = self.limits["gpu_state"], self.limits
        products = ", ".join(f"{rate / 1e12:.0f} TFLOP/s {dtype}" for dtype, rate in limits["flops"].items())
        rates = f"{limits['bandwidth'] / 1e12:.2f} TB/s read, {products}"
        return [
            f"{state.get('device', 'GPU')}, driver {state.get('driver', '?')}, SM clock {state.get('clocks.sm', '?')}, "
            f"throttle reasons {state.get('clocks_throttle_reasons.active', '?')}, {state.get('timed_with', '')}",
            f"{rates}, launch in a graph {limits['launch_us']:.2f} us"
            + ("; float32 products may be TF32" if self.settings["allow_tf32"] else "")
            + ("; candidates measured" if self.settings["tuned"] else "; candidates chosen by the cost model"),
        ]

    def table(self) -> list[list[str]]:
        """Head and rows."""
        names = list(dict.fromkeys(n for row in self.rows for n in row.peers))
        head = ["us for one call", "floor", "mirage", "isolated", "x best", "floor/us", "predicted", "engine", *names]
        rows = [head]
        for row in self.rows:
            ours = "WRONG" if row.problem.startswith(WRONG) else "-" if row.us is None else micros(row.us)
            share = row.floor(self.limits) / row.us if row.us else None
            known = [micros(row.floor(self.limits)), ours, micros(row.isolated_us), times(row.ratio), percent(share)]
            predicted = row.figures.get("predicted_us")
            rows.append([row.name, *known, micros(predicted), row.engines, *(self._peer(row, n) for n in names)])
        return rows

    def _peer(self, r: SuiteRow, name: str) -> str:
        us = _median(r.peers.get(name, {}), "us")
        text = micros(us)
        if r.best and r.best[0] == name:
            text = f"*{text}"
        return f"{text}'" if us is not None and r.peers[name].get("earlier") else text

    def summary(self) -> list[str]:
        """Means, marks and what went wrong with ours, in lines."""
        m = self.means
        means = [
            f"{name} rows: {times(m[f'ratio_{name}'])} x the best peer, "
            f"{percent(m[f'share_of_floor_{name}'])} of the floor, "
            f"the model's prediction off by {times(m[f'prediction_{name}'])} x"
            for name in ("decode", "prefill", "all")
            if m[f"ratio_{name}"] or m[f"share_of_floor_{name}"]
        ]
        lines = [f"geometric means, {text}" for text in means]
        if any(p.get("earlier") for r in self.rows for p in r.peers.values()):
            lines.append(f"' taken from {self.settings['peers_from']}, not measured in this run")
        return lines + [f"{r.name}: {r.problem}" for r in self.rows if r.problem]

    def absent(self) -> list[str]:
        """Why peers have no time, in lines."""
        return [f"{r.name}, {n}: {p['problem']}" for r in self.rows for n, p in r.peers.items() if "problem" in p]

    def text(self) -> str:
        """The table for a terminal; `*` marks the fastest peer."""
        return "\n".join([*self.header(), "", *aligned(self.table()), "", *self.summary(), *self.absent()]) + "\n"

    def markdown(self) -> str:
        """The table for a document."""
        lines = (f"{line}  " for line in self.header())
        return "\n".join([*lines, "", *marked(self.table()), "", *(f"- {line}" for line in self.summary())])


def write_markdown(report: SuiteReport, markdown: str, path: Path) -> None:
    """Put a report's Markdown between the markers `<!-- suite NAME DTYPE -->` and `<!-- end of suite NAME DTYPE -->` of
    a document, without a type where rows have their own.

    Raises UsageError where the document lacks them.
    """
    name = " ".join(filter(None, (report.settings["suite"], report.settings["dtype"])))
    start, end = f"<!-- suite {name} -->", f"<!-- end of suite {name} -->"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--markdown {path}: {error}") from None
    if not re.search(f"{re.escape(start)}.*{re.escape(end)}", text, re.DOTALL):
        raise UsageError(f"--markdown {path}: expected the lines {start} and {end} in it")
    path.write_text(between(text, start, end, markdown), encoding="utf-8")


def between(page: str, start: str, end: str, text: str) -> str:
    """A page with `text` in the place of what stands between the lines `start` and `end`."""
    before, _, rest = page.partition(start)
    return f"{before}{start}\n\n{text}\n\n{end}{rest.partition(end)[2]}"


def _median(entry: dict[str, Any], key: str) -> float | None:
    distribution = entry.get(key)
    return None if distribution is None else float(distribution["median"])


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """A table for a terminal; columns `left`, by their numbers, begin together, others end together."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            c.ljust(w) if k in left else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def marked(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table for a document; the first row is its head."""
    head, *others = ("| " + " | ".join(row) + " |" for row in rows)
    return [head, "|" + "---|" * len(rows[0]), *others]


def geometric(values: Sequence[float | None]) -> float | None:
    """The geometric mean of the values that are known; None where none is."""
    known = [v for v in values if v is not None]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def rounded(value: float | None) -> float | None:
    """A figure of a document."""
    return None if value is None else round(value, 4)


def micros(us: float | None) -> str:
    """Microseconds in about three digits; - where there is no time."""
    if us is None:
        return "-"
    return f"{us:.2f}" if us < 100 else f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def times(value: float | None) -> str:
    """A factor."""
    return "-" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """A share in hundredths."""
    return "-" if value is None else f"{100 * value:.0f}%"
