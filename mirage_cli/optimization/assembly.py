"""The output of a run: the patched model, muGraph files, the report."""

from __future__ import annotations

import fnmatch
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx

from mirage_cli import __version__
from mirage_cli.backends import cpu
from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.exporters import html, slots
from mirage_cli.exporters.pictures import Picture, pictures
from mirage_cli.files import result_store
from mirage_cli.files.datafile import Piece
from mirage_cli.files.output import MARK, MODEL, MUGRAPHS, PAGE, SCRIPT, claimed, digests, renewed, write_text
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax import extents as ex
from mirage_cli.lax.fragments.lax_fragment import Partition
from mirage_cli.lax.ir.parts import input_sources
from mirage_cli.optimization import coverage
from mirage_cli.optimization import fragment_report as fragment_details
from mirage_cli.optimization.task import Work
from mirage_cli.options import dims
from mirage_cli.options.options import Options
from mirage_cli.patching import patch, saving, script_patch
from mirage_cli.planning import ranges
from mirage_cli.planning.plan import FragmentPlan, TargetPlan
from mirage_cli.report import forms, mugraph_file, reader
from mirage_cli.report import report as reports
from mirage_cli.report.report import FragmentReport, Report, as_text, sealed
from mirage_cli.search.schedules.target import Target


def compilations(work: Work, tools: Toolchain) -> int:
    """Number of compilations that a fragment takes."""
    assert work.plan is not None
    kinds = set(work.plan.plans)
    cuda = "cuda" in kinds and tools.nvcc is not None
    return len(cpu.isas()) * ("cpu" in kinds) + cuda + len(kinds - {"cpu", "cuda"})


def clear(draft: Path) -> None:
    """Empty a draft before it is built again."""
    for item in draft.iterdir():
        shutil.rmtree(item) if item.is_dir() else item.unlink()


def write(imported: Imported, work: Sequence[Work], draft: Path) -> list[str]:
    """Write what is beside the patched model, the library and the reports into the draft; what is worth telling of it."""
    chosen = [w for w in work if w.replace]
    if chosen:
        folder = draft / MUGRAPHS
        folder.mkdir()
        for w in chosen:
            assert w.plan is not None
            text = json.dumps(w.plan.to_json() | {"operator": w.spec().to_json()}, indent=1, ensure_ascii=False)
            write_text(folder / f"{w.id}.json", text + "\n")
    notes: list[str] = []
    if imported.script is not None:
        notes = script_patch.write(imported, script_calls(chosen), draft / SCRIPT)
    return notes


def write_model(imported: Imported, chosen: Sequence[Work], draft: Path, pieces: list[Piece] | None = None) -> None:
    """Write the patched model, or the original's bytes where nothing is replaced, with its data files. Raises InvalidGraph and
    Refused for fragments that cannot be put into it. `pieces` takes down what the file of weights is made of."""
    assert imported.original is not None
    if not chosen:
        saving.copy(imported.original, draft / MODEL, pieces)
        return
    saving.save(patched(imported, chosen), imported.original.files, draft / MODEL, pieces)


def patched(imported: Imported, chosen: Sequence[Work]) -> onnx.ModelProto:
    """The model with fragments replaced. Raises InvalidGraph and Refused."""
    replacements = [patch.Replacement(w.op_type, o.region) for w in chosen for o in w.occurrences]
    return patch.patched(imported, replacements, metadata(chosen))


def script_calls(work: Sequence[Work]) -> list[script_patch.Call]:
    """The places of fragments, by the names of their tensors in the model before it is patched."""
    return [
        script_patch.Call(w.spec(), *(tuple(v.name or "" for v in vs) for vs in (o.region.inputs, o.region.outputs)))
        for w in work
        for o in w.occurrences
    ]


def metadata(work: Sequence[Work]) -> dict[str, str]:
    """The metadata of the patched model."""
    entries = {"mirage.version": __version__}
    for w in work:
        assert w.plan is not None
        for kind, p in sorted(w.plan.plans.items()):
            entries[f"mirage.{w.op_type}.{kind}"] = json.dumps(
                {
                    "schedules": fragment_details.chosen(p),
                    "log2_error_bound": round(max(v.log2_bound for v in p.verdicts), 2),
                },
                sort_keys=True,
            )
    return entries


def finished(summary: Report, draft: Path) -> Report:
    """The report with the hashes of all files of a draft and their seal."""
    files = digests(draft)
    return replace(summary, files=files, seal=result_store.seal(sealed(files, summary.model)))


def write_report(summary: Report, draft: Path, folder: str = "DIR") -> str:
    """report.json, report.html and the drawing of every muGraph file in the draft; `folder` is what the draft will be. The
    result is the page without what differs from run to run (`exporters/slots.py`)."""
    frame, drawn = _written(summary.to_json(), draft, draft, folder)
    for identifier, own in drawn.items():
        write_text(draft / MUGRAPHS / f"{identifier}.svg", own[0].svg)
    return frame


def add_times(folder: Path, device: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Put what was measured on a device, as elements of `measured` by the fragments' ids, into report.json and report.html
    of an output folder, in place of what that device measured before; files that others put there stay. Raises Busy when a
    run writes the folder."""
    with _changed(folder) as data:
        for f in data["fragments"]:
            if f["id"] in rows:
                f["measured"] = [*(m for m in f["measured"] if m["device"] != device), dict(rows[f["id"]])]


def add_sweeps(folder: Path, sweeps: Sequence[forms.Sweep]) -> None:
    """The same for times at several sizes, in place of what their devices measured of the same."""
    new = {(s["device"], s["what"]) for s in sweeps}
    with _changed(folder) as data:
        data["sweeps"] = [*(s for s in data.get("sweeps", ()) if (s["device"], s["what"]) not in new), *sweeps]


@contextmanager
def _changed(folder: Path) -> Iterator[dict[str, Any]]:
    """The report of an output folder, which is written again, page and all, when the block ends well."""
    with claimed(folder, replacing=False):
        data = reader.read(folder)
        yield data
        with renewed(folder) as draft:
            _written(data, folder, draft, str(folder))


def _written(data: Mapping[str, Any], folder: Path, draft: Path, called: str) -> tuple[str, dict[str, list[Picture]]]:
    """report.json and report.html in the draft, of the muGraph files of a folder that will be `called` so; the page with
    its slots, and the drawings."""
    graphs: dict[str, dict[str, Any]] = {}
    ours = [name for name in data["files"] if name.startswith(f"{MUGRAPHS}/") and name.endswith(".json")]
    for name in sorted(ours):
        stored = mugraph_file.read(folder / name)
        graphs[stored["id"]] = stored
    drawn = {identifier: pictures(stored) for identifier, stored in graphs.items()}
    write_text(draft / MARK, as_text(data))
    frame = html.frame(data, graphs, drawn)
    write_text(draft / PAGE, slots.filled(frame, data["seconds"], called))
    return frame, drawn


def report(
    model: str,
    imported: Imported,
    parts: Partition,
    work: Sequence[Work],
    options: Options,
    seconds: dict[str, float],
    given: Mapping[str, dims.Range] = MappingProxyType({}),
    own: Sequence[Target] = (),
) -> Report:
    """The report of what was found and chosen; `given` is what is known of symbolic dimensions, `own` the targets that
    plans went by, where they are not those of the files."""
    chosen = [w for w in work if w.replace]
    covered = coverage.measure(imported, [o for w in chosen for o in w.occurrences])
    return Report(
        __version__,
        reports.SCHEMA_VERSION,
        {
            "path": model,
            "sha256": imported.sha256,
            "external_data": imported.external,
            "format": imported.format,
            "opset": imported.opset,
            "nodes": imported.node_count,
        },
        options.to_json(),
        dict(seconds),
        [fragment_report(w, given, own) for w in work],
        coverage.unchanged(imported, parts, work),
        covered,
        [*imported.notes, *_unmatched_patterns(imported, options), *_untuned(work)],
        {},
        {n.name or "": n.op_type for n in imported.model.graph},
        {},
    )


def _untuned(work: Sequence[Work]) -> list[str]:
    """The reasons for which candidates were not measured."""
    return [f"{w.name}: not tuned: {w.tuning['problem']}" for w in work if w.tuning.get("problem")]


def _unmatched_patterns(imported: Imported, options: Options) -> list[str]:
    """The patterns of `--skip` that fit no node at all, which may be misspelt."""
    names = [n.name or "" for n in imported.model.graph]
    return [
        f"--skip {pattern!r}: no node of the model has such a name"
        for pattern in options.skip
        if not any(fnmatch.fnmatch(name, pattern) for name in names)
    ]


def fragment_report(
    w: Work, given: Mapping[str, dims.Range] = MappingProxyType({}), own: Sequence[Target] = ()
) -> FragmentReport:
    """A distinct fragment's part of the report; `given` is what is said of symbolic dimensions, `own` as in `report`."""
    p = w.program
    plans = w.plan.plans if w.plan is not None else {}
    main = next((plans[kind] for kind in ("cuda", "hip", "opencl", "cpu") if kind in plans), None)
    return FragmentReport(
        w.id,
        w.name,
        reports.REPLACED if w.replace else reports.FAILED if w.failed else reports.KEPT,
        len(w.occurrences),
        [o.region.node_names for o in w.occurrences],
        {
            "inputs": [f"{s.dtype}[{', '.join(map(str, s.dims))}]" for s in input_sources(p)],
            "outputs": [f"{o.dtype}[{', '.join(map(str, o.dims))}]" for o in w.outputs],
            "ops": len([n for n in p.nodes if n.op != "const"]),
            "axes": {a.name: ex.to_json(a.extent) for a in p.axes},
            "text": str(p).splitlines(),
        },
        reports.SEARCH if w.plan is None else _search(w.plan),
        reports.MUGRAPH if main is None else _mugraph(w, main),
        reports.VERIFICATION if main is None else _verification(w, main),
        {k: fragment_details.schedules(p) for k, p in sorted(plans.items())},
        *((0.0, 0.0, 0.0) if main is None else (main.predicted_us, main.original_us, main.floor_us)),
        w.measured,
        fragment_details.original(w),
        fragment_details.predictions(plans, p, ranges.typical(p.symbols, given), own),
        w.tuning,
        w.reason,
    )


def _search(plan: FragmentPlan) -> Any:
    return plan.statistics.to_json() | ({"cached": True} if plan.kept else {})


def _mugraph(w: Work, main: TargetPlan) -> forms.MuGraph:
    block = main.graph.kernels[-1].block
    return {
        "file": f"{MUGRAPHS}/{w.id}.json",
        "kernels": len(main.graph.kernels),
        "grid": list(block.grid),
        "loop": block.loop,
        "text": main.graph.text().splitlines(),
    }


def _verification(w: Work, main: TargetPlan) -> Any:
    entries = {**reports.VERIFICATION, **main.verdict.to_json()}
    del entries["float"]  # the last entry, as it always was
    assert w.plan is not None
    entries["targets"] = {k: _verdicts(p) for k, p in sorted(w.plan.plans.items())}
    if w.statement is not None:
        entries["statement"] = w.statement.to_json()
    return entries | {"float": {**reports.FLOAT, **(w.float_check.to_json() if w.float_check is not None else {})}}


def _verdicts(plan: TargetPlan) -> dict[str, Any]:
    """The verdict of a plan's own muGraph, with those for other sizes."""
    others = [o.verdict.to_json() | o.alternative.where_to_json() for o in plan.others]
    return plan.verdict.to_json() | ({"others": others} if others else {})
