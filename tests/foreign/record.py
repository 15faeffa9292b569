"""What became of models: a JSON line each, and tables of them."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, APART = "passed", "failed", "apart"  #: apart: no model of onnxruntime's


@dataclass(slots=True)
class Record:
    """What became of one model. `failures` are pairs of a kind and a text; `left` counts nodes by the reason for which they
    were left alone, `lost` places of fragments that failed by their reasons; `doubts` say where a float64 run is not what
    the original computes, which is no fault of the patched model."""

    model: str
    digest: str = ""
    status: str = PASSED
    failures: list[tuple[str, str]] = field(default_factory=list)
    apart: str = ""
    code: int | None = None
    refusal: str = ""
    replaced: int = 0
    kept: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    draws: list[str] = field(default_factory=list)
    exact: int = 0
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def fail(self, kind: str, text: str) -> None:
        """Take down a fault; of each kind the first three texts are kept."""
        self.status = FAILED
        if sum(k == kind for k, _ in self.failures) < 3:
            self.failures.append((kind, " ".join(text.split())[:600]))


def write(path: Path, record: Record) -> None:
    """Append a line."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")


def read(path: Path) -> dict[str, Record]:
    """The records by model: the last of each; a line that was cut short is none."""
    return {r.model: r for r in _lines(path)} if path.exists() else {}


def _lines(path: Path) -> Iterator[Record]:
    for line in path.read_text().splitlines():
        try:
            data: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        data["failures"] = [(k, t) for k, t in data["failures"]]
        yield Record(**data)


def table(records: Iterable[Record], most: int = 25) -> str:
    """How many passed, failures by kind, refusals and reasons, the most frequent first."""
    every = list(records)
    status = Counter(r.status for r in every)
    ours = [r for r in every if r.status != APART]
    lines = [
        f"{len(every)} models, {status[APART]} of them not models of onnxruntime",
        f"{status[PASSED]} of {len(ours)} passed, {status[FAILED]} failed",
        f"{sum(r.replaced > 0 for r in ours)} with fragments replaced ({sum(r.replaced for r in ours)} places), "
        f"{sum(bool(r.draws) for r in ours)} compared on {sum(len(r.draws) for r in ours)} draws "
        f"({sum(r.exact for r in ours)} with a float64 run), {sum(sum(r.seconds.values()) for r in every):.0f} s",
    ]
    kinds = Counter(kind for r in ours for kind in {k for k, _ in r.failures})
    lines += _ranked("failed by kind (models)", kinds, most)
    texts = Counter(f"{k}: {general(t)}" for r in ours for k, t in dict(reversed(r.failures)).items())
    lines += _ranked("failures, in general words (models)", texts, most)
    lines += _ranked("refusals (models)", Counter(general(r.refusal) for r in ours if r.refusal), most)
    lines += _ranked("float64 runs that are not what the original computes (models)", doubted(ours), most)
    none = Counter(general(n) for r in ours for n in r.notes if n.startswith("no float64 run"))
    lines += _ranked("why there was no float64 run (models)", none, most)
    lost, left = Counter[str](), Counter[str]()
    for r in ours:
        for counted, found in ((lost, r.lost), (left, r.left)):
            for reason, n in found.items():
                counted[general(reason)] += n
    lines += _ranked("why fragments failed (places)", lost, most)
    lines += _ranked("why nodes were left alone (nodes)", left, most)
    return "\n".join(lines)


def _ranked(title: str, counted: Counter[str], most: int) -> list[str]:
    if not counted:
        return []
    rest = sum(n for _, n in counted.most_common()[most:])
    more = [f"{rest:7}  others"] if rest else []
    return ["", f"{title}:", *(f"{n:7}  {text[:220]}" for text, n in counted.most_common(most)), *more]


def doubted(records: Iterable[Record]) -> Counter[str]:
    """Doubts in general words."""
    return Counter(general(r.doubts[0].split(": ", 1)[1]) for r in records if r.doubts)


def general(text: str) -> str:
    """A text without the names and numbers of one model."""
    text = re.sub(r"(/[\w.+-]+){2,}", "PATH", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", text)
    return re.sub(r"(?<![A-Za-z_\d.])-?\d[\d.]*(e[-+]?\d+)?", "N", text)


def told(record: Record) -> str:
    """A record in a line."""
    text = "; ".join(f"{k}: {t[:160]}" for k, t in record.failures[:3]) or record.apart[:120]
    took = sum(record.seconds.values())
    return f"{record.status:6} {took:5.1f} s {record.replaced:3} replaced  {record.model}  {text}"


def main(paths: list[str]) -> int:
    """Print the table of files of results: `python -m tests.foreign.record FILE ...`."""
    print(table([r for p in paths for r in read(Path(p)).values()], 60))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
