"""Summary of a model for `mirage inspect`: its fragments, and why the rest is left alone.

Reads and partitions only: nothing is searched, proved or compiled, so it says which fragments would be searched, not
whether they would be faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mirage_cli import __version__
from mirage_cli.exporters import text, wording
from mirage_cli.exporters.drawing.labels import counted, paragraph, percent, short, table
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax import extents as ex
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.fragments.lax_fragment import LaxFragment
from mirage_cli.optimization import assembly, coverage, pipeline, reading
from mirage_cli.optimization import task as works
from mirage_cli.options.options import Options
from mirage_cli.report.report import SCHEMA_VERSION, finite

SHOWN = 24  #: names of nodes that the text lists for one reason
ENDS = 4  #: places that the text names for one fragment


def inspect(path: str, options: Options) -> tuple[dict[str, Any], list[str]]:
    """The document of a model file ("-": standard input), and what a terminal shows. Raises ModelError and UsageError."""
    imported = reading.read_model(path, options)
    symbols = reading.symbols_of(imported)
    parts = partition(imported.graph, works.tensor_names(imported))
    work = works.group_fragments(parts.fragments, imported)
    chosen = works.group_fragments(parts.fragments, imported, lambda names: pipeline.selected(names, options))
    for w in chosen:
        w.replace = not w.failed  # the question is what is left when everything that can be replaced is
    report = assembly.report(path, imported, parts, chosen, options, {}).to_json()
    searched = {o.fragment.outputs for w in chosen if w.replace for o in w.occurrences}
    total = coverage.total_flops(imported)
    document = {
        "mirage": __version__,
        "schema_version": SCHEMA_VERSION,
        "kind": "model",
        "model": report["model"],
        "inputs": _tensors([v.name or "" for v in imported.model.graph.inputs], imported),
        "outputs": _tensors([v.name or "" for v in imported.model.graph.outputs], imported),
        "symbols": sorted(symbols),
        "fragments": [_fragment(w, searched, total, imported) for w in work],
        "coverage": report["coverage"],
        "unchanged": report["unchanged"],
        "notes": report["notes"],
    }
    return finite(document), _model_lines(document)


def _tensors(names: Sequence[str], imported: Imported) -> list[dict[str, Any]]:
    """Name, element type and dimensions of tensors; the two are null where the reader does not know them."""
    rows = []
    for name in names:
        known = imported.graph.tensors[imported.values[name]] if name in imported.values else None
        rows.append(
            {
                "name": name,
                "dtype": known.dtype.name if known else None,
                "dims": [ex.to_json(d) for d in known.dims] if known else None,
            }
        )
    return rows


def _fragment(w: works.Work, searched: set[tuple[int, ...]], total: int, imported: Imported) -> dict[str, Any]:
    """A distinct fragment: where it is, its program, its share of the model's work, at how many places it would be
    searched (`--only` and `--skip` leave out the others)."""
    told = assembly.fragment_report(w).to_json()
    work = sum(work_of(o.fragment, imported) for o in w.occurrences)
    return {
        **{k: told[k] for k in ("id", "name", "occurrences", "nodes", "program")},
        "searched": sum(o.fragment.outputs in searched for o in w.occurrences),
        "flops": round(work / total, 4) if total else 0.0,
    }


def work_of(fragment: LaxFragment, imported: Imported) -> int:
    """The multiply-adds of a fragment's matrix products."""
    return sum(coverage.flops_of(imported.graph, v) for v in fragment.steps)


def _model_lines(d: Mapping[str, Any]) -> list[str]:
    lines = [text.model(d["model"])]
    for label in ("inputs", "outputs"):
        lines += _hanging(label, ", ".join(map(_tensor, d[label])) or "none")
    lines += [*_hanging("symbols", ", ".join(d["symbols"]) or "none"), ""]
    places = sum(f["occurrences"] for f in d["fragments"])
    lines.append(f"{counted(len(d['fragments']), 'distinct fragment')} at {counted(places, 'place')}")
    lines += _fragment_table(d["fragments"])
    lines += ["", "Coverage if all of them are replaced", *(f"  {line}" for line in wording.covered(d["coverage"]))]
    for block in (_left_alone(d["unchanged"]), text.notes(d["notes"])):
        lines += ["", *block] if block else []
    return lines


def _tensor(t: Mapping[str, Any]) -> str:
    shape = f"{t['dtype']}[{', '.join(map(str, t['dims']))}]" if t["dtype"] else "(of unknown type)"
    return f"{short(t['name'], text.NAME)} {shape}"


def _hanging(label: str, content: str) -> list[str]:
    first, *rest = paragraph(content, text.WIDTH, " " * 9)
    return [f"{label:9}{first.lstrip()}", *rest]


def _fragment_table(fragments: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row for each distinct fragment; below it what it reads and computes, and the last node of each place."""
    if not fragments:
        return []
    rows = [("", "Fragment", "places", "operators", "work", "status")]
    for f in fragments:
        skipped = f["occurrences"] - f["searched"]
        status = f"skipped at {counted(skipped, 'place')}" if skipped else "searched"
        name, ops = short(f["name"], text.NAME), str(f["program"]["ops"])
        rows.append(("", name, str(f["occurrences"]), ops, percent(f["flops"]), status))
    lines = table(rows, right=(2, 3, 4))
    lines_of_fragments = lines[:1]
    for f, line in zip(fragments, lines[1:], strict=True):
        p, ends = f["program"], [names[-1] for names in f["nodes"] if names]
        more = f" and {len(ends) - ENDS} more" if len(ends) > ENDS else ""
        lines_of_fragments.append(line)
        lines_of_fragments += paragraph(f"{', '.join(p['inputs'])} -> {', '.join(p['outputs'])}", text.WIDTH, "      ")
        lines_of_fragments += paragraph(
            f"up to {', '.join(short(n, 60) for n in ends[:ENDS])}{more}", text.WIDTH, "      "
        )
    return lines_of_fragments


def _left_alone(unchanged: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every reason with the names of its nodes."""
    if not unchanged:
        return [f"{text.LEFT}: nothing"]
    lines = [f"{text.LEFT}: {counted(sum(len(u['nodes']) for u in unchanged), 'node')}"]
    for u in unchanged:
        lines += paragraph(f"{u['reason']}:", text.WIDTH, "  ")
        names = ", ".join(short(n, 60) for n in u["nodes"][:SHOWN])
        more = f", and {len(u['nodes']) - SHOWN} more (--json has all)" if len(u["nodes"]) > SHOWN else ""
        lines += paragraph(names + more, text.WIDTH, "    ")
    return lines
