"""report.html: one page that needs nothing but itself, light and dark. Every text in it is escaped by the template.

The page runs no script, so that no name in a model can: its colour scheme is chosen by style rules alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mirage_cli.codegen.render import render
from mirage_cli.exporters import cards, modelmap, slots, wording
from mirage_cli.exporters.drawing import canvas
from mirage_cli.exporters.drawing.labels import clean, counted, percent, short
from mirage_cli.exporters.pictures import Picture
from mirage_cli.exporters.plots import roofline, sizes

PATH = 240  #: columns of the model's path
SHOWN = 2000  #: names of nodes that are listed for one reason
_LOAD = """\
import onnxruntime as ort

options = ort.SessionOptions()
options.register_custom_ops_library("libmirage.so")
session = ort.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])"""


@dataclass(frozen=True, slots=True)
class Left:
    """Nodes that stay for one reason: how many, their share of all nodes that stay, their names."""

    anchor: str
    reason: str
    count: str
    share: int
    names: str


def page(
    report: Mapping[str, Any],
    mugraphs: Mapping[str, Mapping[str, Any]],
    pictures: Mapping[str, Sequence[Picture]],
    folder: str = "DIR",
) -> str:
    """The page of a report (`report.json`), given the muGraph files and their drawings by fragment; `folder` is where the
    output is written, for the command that makes it again."""
    return slots.filled(frame(report, mugraphs, pictures), report["seconds"], folder)


def frame(
    report: Mapping[str, Any],
    mugraphs: Mapping[str, Mapping[str, Any]],
    pictures: Mapping[str, Sequence[Picture]],
) -> str:
    """The page with slots for times and for the folder: the same text for each run with the same outcome."""
    shown = clean(report)
    fragments = [
        cards.card(n, f, clean(mugraphs.get(f["id"], {})), pictures.get(f["id"], ()), _files(shown, f["id"]))
        for n, f in enumerate(shown["fragments"], 1)
    ]
    return render(
        "report.html.j2",
        title=short(report["model"]["path"], 80),
        lead=wording.outcomes(shown),
        tiles=_tiles(shown),
        facts=_facts(shown),
        map=modelmap.model_map(shown),
        plots=[(p, Markup(canvas.inline(roofline.drawing(p)))) for p in roofline.plots(shown["fragments"])],
        sweeps=[(p, Markup(canvas.inline(sizes.drawing(p)))) for p in sizes.plots(shown.get("sweeps", ()))],
        fragments=fragments,
        schedule_head=cards.SCHEDULE_HEAD,
        proof_head=cards.PROOF_HEAD,
        unchanged=_left_alone(shown["unchanged"]),
        notes=shown["notes"],
        seconds=[(stage, f"{slots.seconds(k, 2)} s") for k, stage in enumerate(shown["seconds"])],
        commands=_commands(report),
        files=[name for name in ("src/build.sh",) if name in shown.get("files", {})],
        version=shown["mirage"],
        light=canvas.variables(False),
        dark=canvas.variables(True),
        drawing_rules=canvas.rules_of_variables(),
    )


def _tiles(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    replaced = [f for f in report["fragments"] if f["status"] == "replaced"]
    tiles = [
        (
            f"{wording.factor(original / ours)} ×",
            f"predicted speed of what was replaced{f', {target}' if target else ''}",
        )
        for target, (ours, original) in wording.totals(report).items()
    ]
    tiles.append((f"{len(replaced)} of {len(report['fragments'])}", "distinct fragments replaced"))
    tiles.append((str(sum(f["occurrences"] for f in replaced)), "places in the model"))
    tiles += [(percent(report["coverage"][k]), of) for k, of in wording.SHARES.items() if k in report["coverage"]]
    if "total" in report["seconds"]:
        tiles.append((f"{slots.seconds(list(report['seconds']).index('total'), 1)} s", "of work"))
    return tiles


def _facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    m = report["model"]
    rows = [
        ("model", f"{short(m['path'], PATH)} ({m['format']}, opset {m['opset']}, {counted(m['nodes'], 'node')})"),
        ("sha256", m["sha256"]),
    ]
    rows += [(f"data {short(name, 80)}", digest) for name, digest in m["external_data"].items()]
    rows.append(("options", wording.command(wording.settings(report["options"]))))
    return rows + [(str(name), str(version)) for name, version in report.get("toolchain", {}).items()]


def _files(report: Mapping[str, Any], identifier: str) -> list[str]:
    """The files of the output folder that belong to a fragment, by their paths there."""
    own = [
        name for name in report.get("files", {}) if name.startswith((f"src/{identifier}.", f"mugraphs/{identifier}."))
    ]
    return own + [name.removesuffix(".json") + ".svg" for name in own if name.startswith("mugraphs/")]


def _left_alone(unchanged: Iterable[Mapping[str, Any]]) -> list[Left]:
    """The reasons for which nodes stay, those of most nodes first."""
    groups = sorted(enumerate(unchanged), key=lambda item: (-len(item[1]["nodes"]), item[0]))
    total = sum(len(u["nodes"]) for _, u in groups)
    groups_left = []
    for k, u in groups:
        names = u["nodes"][:SHOWN]
        more = [f"... and {len(u['nodes']) - SHOWN} more"] if len(u["nodes"]) > SHOWN else []
        count, share = counted(len(u["nodes"]), "node"), max(1, round(100 * len(u["nodes"]) / total)) if total else 0
        groups_left.append(Left(modelmap.left_anchor(k), u["reason"], count, share, "\n".join([*names, *more])))
    return groups_left


def _commands(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Commands to paste, in the folder of the page but for the first."""
    commands = [("Make this folder again (where the model was read):", wording.optimize_command(report, slots.FOLDER))]
    if report["options"].get("dry_run"):
        return commands
    return [
        *commands,
        ("Prove the fragments again and compare the models in ONNX Runtime (in this folder):", "mirage verify ."),
        ("Time both models (in this folder):", "mirage bench . --cpu"),
        ("Show a fragment in the terminal (in this folder):", "mirage show ."),
        ("Use the model (Python, in this folder):", _LOAD),
    ]
