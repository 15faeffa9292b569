"""report.html: one page that needs nothing but itself, light and dark. Every text in it is escaped by the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mirage_cli.codegen.render import render
from mirage_cli.exporters import wording
from mirage_cli.exporters.labels import counted, microseconds, percent, short, visible

_NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'  #: only a file of its own needs it
_LOAD = """\
import onnxruntime as ort

options = ort.SessionOptions()
options.register_custom_ops_library("libmirage.so")
session = ort.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])"""


@dataclass(frozen=True, slots=True)
class Card:
    """What the page tells of one fragment."""

    anchor: str
    id: str
    name: str
    status: str
    reason: str
    places: int
    gain: str
    bound: str
    accuracy: str
    facts: list[tuple[str, str]]
    drawing: Markup
    folds: list[tuple[str, str]]
    proof: list[str]
    rounding: str
    schedule_head: tuple[str, ...]
    schedule: list[tuple[str, ...]]
    measured_head: tuple[str, ...]
    measured: list[tuple[str, ...]]


def page(report: Mapping[str, Any], mugraphs: Mapping[str, Mapping[str, Any]], drawings: Mapping[str, str]) -> str:
    """The page of a report (`report.json`), given the muGraph files and the drawings (see `svg.drawing`) by fragment."""
    shown = clean(report)
    cards = [card(f, clean(mugraphs.get(f["id"], {})), drawings.get(f["id"], "")) for f in shown["fragments"]]
    return render(
        "report.html.j2",
        title=f"mirage: {short(report['model']['path'], 80)}",
        outcome=wording.outcome(shown),
        tiles=_tiles(shown),
        facts=_facts(shown),
        fragments=cards,
        unchanged=[(u["reason"], counted(len(u["nodes"]), "node"), "\n".join(u["nodes"])) for u in shown["unchanged"]],
        notes=shown["notes"],
        seconds=[(k, f"{v:.2f} s") for k, v in shown["seconds"].items()],
        commands=_commands(report),
        version=shown["mirage"],
    )


def clean(data: Any) -> Any:
    """The same JSON document with every text made visible on one line; `<` and the like are the template's business."""
    if isinstance(data, Mapping):
        return {visible(k): clean(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [clean(v) for v in data]
    return visible(data) if isinstance(data, str) else data


def _tiles(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    replaced = [f for f in report["fragments"] if f["status"] == "replaced"]
    found = [(f"{len(replaced)} of {len(report['fragments'])}", "distinct fragments replaced")]
    found.append((str(sum(f["occurrences"] for f in replaced)), "places in the model"))
    names = {"flops": "multiply-adds covered", "weight_bytes": "weight bytes covered", "nodes": "nodes covered"}
    found += [(percent(report["coverage"][k]), name) for k, name in names.items() if k in report["coverage"]]
    if "total" in report["seconds"]:
        found.append((f"{report['seconds']['total']:.1f} s", "of work"))
    return found


def _facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    m = report["model"]
    found = [
        ("model", f"{m['path']} ({m['format']}, opset {m['opset']}, {counted(m['nodes'], 'node')})"),
        ("sha256", m["sha256"]),
    ]
    found += [(f"data {name}", digest) for name, digest in m["external_data"].items()]
    options = wording.settings(report["options"])
    found.append(("options", wording.command(options) if options else "defaults"))
    return found + [(str(name), str(version)) for name, version in report.get("toolchain", {}).items()]


def _commands(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Commands to paste, in the folder of the page but for the first."""
    return [
        ("Make this folder again:", wording.optimize_command(report, "DIR")),
        ("Prove the fragments again and compare the models in ONNX Runtime (in this folder):", "mirage verify ."),
        ("Time both models (in this folder):", "mirage bench . --cpu"),
        ("Use the model:", _LOAD),
    ]


def card(f: Mapping[str, Any], mugraph: Mapping[str, Any], drawing: str) -> Card:
    """What is told of one fragment, its muGraph file (empty when there is none) and its drawing."""
    return Card(
        anchor=f"fragment-{f['id']}",
        id=f["id"],
        name=f["name"],
        status=f["status"],
        reason=f.get("reason", ""),
        places=f["occurrences"],
        gain=wording.gain(f),
        bound=wording.bound(f["verification"]),
        accuracy=wording.accuracy(f["verification"]["float"]),
        facts=_fragment_facts(f),
        drawing=Markup(drawing.replace(_NAMESPACE, "", 1)),  # our own, its texts are escaped
        folds=_folds(f, mugraph),
        proof=wording.proof(f["verification"]),
        rounding=_rounding(f["verification"]["float"]),
        schedule_head=("target", "kernel", "tiles", "loop step", "warps", "stages"),
        schedule=_schedules(f["schedule"]),
        measured_head=("device", "original", "mirage", "others"),
        measured=[_measured(m) for m in f["measured"]],
    )


def _fragment_facts(f: Mapping[str, Any]) -> list[tuple[str, str]]:
    p, s = f["program"], f["search"]
    found = [
        ("places", str(f["occurrences"])),
        ("inputs", ", ".join(p["inputs"])),
        ("outputs", ", ".join(p["outputs"])),
        ("axes", ", ".join(f"{name} = {extent}" for name, extent in p["axes"].items())),
        ("operators", str(p["ops"])),
        (
            "search",
            f"{s['muGraphs']} muGraphs from {s['mappings']} mappings and {s['values']} values, {s['seconds']} s",
        ),
    ]
    if f["predicted_us"]:
        found.append(("predicted", microseconds(f["predicted_us"])))
        found.append(("original", f"{microseconds(f['original_us'])}, predicted by the same model"))
        found.append(("floor", f"{microseconds(f['floor_us'])}: no kernel reads its inputs or multiplies faster"))
    return found


def _folds(f: Mapping[str, Any], mugraph: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Folded texts: muGraphs, the program, the names of the nodes."""
    found = [(f"muGraph for {t['target']} as text", "\n".join(t["text"])) for t in mugraph.get("targets", {}).values()]
    if not found and f["mugraph"]["text"]:
        found.append(("muGraph as text", "\n".join(f["mugraph"]["text"])))
    found.append(("Program", "\n".join(f["program"].get("text", []))))
    places = ["\n".join(names) for names in f["nodes"]]
    total = counted(sum(map(len, f["nodes"])), "node")
    found.append((f"Nodes of the model ({total} in {wording.places(f)})", "\n\n".join(places)))
    return [(title, text) for title, text in found if text]


def _rounding(check: Mapping[str, Any]) -> str:
    if not wording.accuracy(check):
        return f"Not compared with float64: {check.get('skipped') or 'no kernel was built'}."
    text = (
        f"Against a float64 run, the {check['target']} kernel has a root mean square error of {check['error']:.2e} where "
        f"the original operators have {check['original_error']:.2e}"
    )
    if check.get("max_error") is not None and check.get("original_max_error") is not None:
        text += f" (largest: {check['max_error']:.2e} and {check['original_max_error']:.2e})"
    return text + f", on {check.get('case', 'random')} inputs." + (f" {check['note']}." if check.get("note") else "")


def _schedules(schedule: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for target, kernels in schedule.items():
        for n, s in enumerate(kernels):
            tiles = ", ".join(f"{axis} {size}" for axis, size in s["tiles"].items()) or "–"
            where = target + "".join(f", {extent} {_between(*limits)}" for extent, limits in s.get("when", {}).items())
            rows.append((where, str(n), tiles, str(s["loop"] or "–"), str(s["warps"]), str(s["stages"])))
    return rows


def _between(least: int, most: int | None) -> str:
    return f"at least {least}" if most is None else f"at most {most}" if not least else f"{least} to {most}"


def _measured(m: Mapping[str, Any]) -> tuple[str, ...]:
    peers = ", ".join(f"{name} {microseconds(us)}" for name, us in m.get("peers", {}).items())
    return (m["device"], microseconds(m["original_us"]), microseconds(m["mirage_us"]), peers or "–")
