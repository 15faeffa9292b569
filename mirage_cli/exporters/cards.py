"""Cards of the page, one for each fragment: texts and tables that its template prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mirage_cli.exporters import original, wording
from mirage_cli.exporters.drawing import canvas
from mirage_cli.exporters.drawing.labels import amount, byte_count, counted, microseconds
from mirage_cli.exporters.modelmap import fragment_anchor
from mirage_cli.exporters.pictures import Picture
from mirage_cli.report.report import OWN

SCHEDULE_HEAD = ("target", "kernel", "engine", "tiles", "loop step", "warps", "stages", "memory of a block")
PROOF_HEAD = ("target", "mode", "primes", "rounds", "degree", "applications", "error at most")


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing on the page, its caption, and how much room it asks for (pixels)."""

    caption: str
    svg: Markup
    width: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A time: what it is, the time in words, its share of the longest one, the colour's role."""

    what: str
    told: str
    share: int
    css: str


@dataclass(frozen=True, slots=True)
class Card:
    """The card of one fragment on the page."""

    number: int
    anchor: str
    id: str
    name: str
    status: str
    reason: str
    places: int
    gain: str
    bound: str
    accuracy: str
    lead: str
    facts: list[tuple[str, str]]
    drawings: list[Drawing]
    more: list[Drawing]
    folds: list[tuple[str, str]]
    proved: str
    proof: list[str]
    verdicts: list[tuple[str, ...]]
    rounding: str
    schedule: list[tuple[str, ...]]
    bars: list[tuple[str, list[Bar]]]
    files: list[str]


def card(
    number: int,
    fragment: Mapping[str, Any],
    mugraph: Mapping[str, Any],
    pictures: Sequence[Picture],
    files: Sequence[str],
) -> Card:
    """The card of one fragment, from its muGraph file (empty when there is none), its drawings and the files of the
    output folder that belong to it. All texts in `f` and `mugraph` are visible on one line."""
    v = fragment["verification"]
    before = original.drawing(fragment.get("original", {}))
    first = f" at the first of {wording.places(fragment)}" if fragment["occurrences"] > 1 else ""
    drawn = [_drawing(f"The model's operators{first}", before)] if before else []
    drawn += [_drawing(p.caption, p.svg) for p in pictures[:1]]
    return Card(
        number=number,
        anchor=fragment_anchor(fragment["id"]),
        id=fragment["id"],
        name=fragment["name"],
        status=fragment["status"],
        reason=fragment.get("reason", ""),
        places=fragment["occurrences"],
        gain=wording.gain(fragment),
        bound=wording.bound(v),
        accuracy=wording.accuracy(v["float"]),
        lead=wording.lead(fragment),
        facts=_facts(fragment),
        drawings=drawn,
        more=[_drawing(p.caption, p.svg) for p in pictures[1:]],
        folds=_folds(fragment, mugraph),
        proved=wording.proved(v),
        proof=wording.proof(v),
        verdicts=verdicts(v),
        rounding=wording.rounding(v["float"]),
        schedule=schedules(fragment["schedule"]),
        bars=_bars(fragment),
        files=list(files),
    )


def _drawing(caption: str, document: str) -> Drawing:
    width = document.split('width="', 1)[1].split('"', 1)[0]
    return Drawing(caption, Markup(canvas.inline(document)), round(float(width)))  # our own, its texts are escaped


def _facts(f: Mapping[str, Any]) -> list[tuple[str, str]]:
    p, s = f["program"], f["search"]
    rows = [
        ("inputs", ", ".join(p["inputs"])),
        ("outputs", ", ".join(p["outputs"])),
        ("axes", ", ".join(f"{name} = {extent}" for name, extent in p["axes"].items())),
        ("search", wording.searched(s)),
    ]
    if told := wording.tuned(f.get("tuning", {})):
        rows.append(("tuning", told))
    for work in list(f.get("predictions", {}).values())[:1]:  # the same for every target
        told = f"{byte_count(work['bytes'])} read and written once, {amount(work['flops'])} operations"
        rows.append(("work", told))
    return rows


def _folds(f: Mapping[str, Any], mugraph: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Folded texts: muGraphs, the program, the names of the nodes."""
    folds = [(f"muGraph for {t['target']} as text", "\n".join(t["text"])) for t in mugraph.get("targets", {}).values()]
    if not folds and f["mugraph"]["text"]:
        folds.append(("muGraph as text", "\n".join(f["mugraph"]["text"])))
    folds.append(("Program on named axes", "\n".join(f["program"].get("text", []))))
    places = ["\n".join(names) for names in f["nodes"]]
    total = counted(sum(map(len, f["nodes"])), "node")
    folds.append((f"Nodes of the model ({total} in {wording.places(f)})", "\n\n".join(places)))
    return [(title, text) for title, text in folds if text]


def verdicts(v: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for the proof of each muGraph, see `PROOF_HEAD`."""
    rows: list[tuple[str, ...]] = []
    for kind, own in v.get("targets", {}).items():
        for verdict in (own, *own.get("others", ())):
            numbers = (str(verdict[k]) for k in ("rounds", "degree", "applications"))
            primes = ", ".join(map(str, verdict["primes"]))
            rows.append((kind + _when(verdict), verdict["mode"], primes, *numbers, wording.bound(verdict)))
    return rows


def schedules(schedule: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, ...]]:
    """A row for the schedule of each kernel, see `SCHEDULE_HEAD`."""
    rows: list[tuple[str, ...]] = []
    for target, kernels in schedule.items():
        numbered: dict[str, int] = {}
        for kernel in kernels:
            place = target + _when(kernel)
            n = numbered.get(place, 0)
            numbered[place] = n + 1
            tiles = ", ".join(f"{axis} {size}" for axis, size in kernel["tiles"].items()) or "–"
            engine = kernel.get("engine", "block") if target != "cpu" else "loops"
            memory = byte_count(kernel["shared_bytes"]) if "shared_bytes" in kernel else "–"
            numbers = (
                str(kernel["loop"] or "–"),
                str(kernel["warps"]),
                str(kernel["stages"]),
                memory,
            )
            rows.append((place, str(n), engine, tiles, *numbers))
    return rows


def _when(item: Mapping[str, Any]) -> str:
    """Where one of several muGraphs of a target is taken: on which architecture, for which extents."""
    return (f" on {item['target']}" if "target" in item else "") + "".join(
        f", {extent} {_between(*limits)}" for extent, limits in item.get("when", {}).items()
    )


def _between(least: int, most: int | None) -> str:
    return f"at least {least}" if most is None else f"at most {most}" if not least else f"{least} to {most}"


def _bars(f: Mapping[str, Any]) -> list[tuple[str, list[Bar]]]:
    """Times by the target or device: predicted ones, and measured ones."""
    groups: list[tuple[str, list[tuple[str, float, str]]]] = []
    for kind, p in f.get("predictions", {}).items():
        rows = [("original", p["original_us"], "was"), ("mirage", p["predicted_us"], "ours")]
        groups.append(
            (f"predicted for {p['target'] if kind == 'cuda' else kind}", [*rows, ("floor", p["floor_us"], "roof")])
        )
    for m in f["measured"]:
        rows = [("original", m["original_us"], "was"), ("mirage", m["mirage_us"], "ours")]
        rows += [(name, us, "ours" if name in OWN else "peer") for name, us in m.get("peers", {}).items()]
        stated = f["program"]["inputs"]
        sizes = m.get("inputs", stated)[: len(stated)]
        groups.append((f"measured on {m['device']}{'' if sizes == stated else ': ' + ', '.join(sizes)}", rows))
    groups_of_bars = []
    for title, times in groups:
        known = [(what, us, css) for what, us, css in times if us]
        longest = max((us for _, us, _ in known), default=1.0)
        bars = [Bar(what, microseconds(us), max(1, round(100 * us / longest)), css) for what, us, css in known]
        groups_of_bars += [(title, bars)] if bars else []
    return groups_of_bars
