"""The model of a run as it is read, and the sizes at which it runs."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path

from mirage_cli import frontends
from mirage_cli.errors import UsageError
from mirage_cli.frontends import sizes as polynomials
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir import graph as g
from mirage_cli.optimization.task import Work
from mirage_cli.options import dims, patterns
from mirage_cli.options.options import Options
from mirage_cli.planning import ranges
from mirage_cli.runtime import example, inner_tensors, running_sizes

MOST_TRIED = 1 << 30  #: bytes of a model and its data up to which it is tried at the sizes of a run


def read_model(path: str, options: Options) -> Imported:
    """The model at `path` ("-": standard input). Raises ModelError where it cannot be read, UsageError for sizes and
    patterns of names that do not fit it."""
    if options.data is not None and path != frontends.STANDARD_INPUT:
        raise UsageError(f"--data {options.data}: a model on standard input has such a folder, found {path}")
    imported = frontends.load(path, frontend_options(options))
    dims.check_known({n: r for n, r in dims.parse(options.dim).items() if not r.fixed}, symbols_of(imported))
    patterns.check("--only", options.only, [n.name or "" for n in imported.model.graph], "node of the model")
    declare_unwritten(imported, options.unwritten)
    return imported


def declare_unwritten(imported: Imported, globs: Sequence[str]) -> None:
    """Take inputs of a model for what no kernel writes. Raises UsageError for a pattern that fits none."""
    weights = imported.model.graph.initializers
    names = [v.name or "" for v in imported.model.graph.inputs if v.name not in weights]
    patterns.check("--unwritten", globs, names, "input of the model")
    imported.graph.declare_unwritten({n for n in names if any(fnmatch.fnmatch(n, g) for g in globs)})


def running_ranges(imported: Imported, options: Options) -> tuple[dict[str, dims.Range], dict[str, int]]:
    """The ranges of symbols: those given, those of batches that no name tells and of positions behind caches, and for others
    that the model does not run at their usual size what it does; and the typical sizes of all symbols of its inputs. Raises
    UsageError where it does not run at a size that was asked for."""
    graph, said = imported.graph, dims.parse(options.dim)
    inputs = {v: graph.dims(v) for v in inputs_of(imported)}
    batches = ranges.batches((own, graph.dtype(v).kind == "int") for v, own in inputs.items())
    new = ranges.new_positions(inputs.values(), map(graph.dims, graph.outputs))
    asked = dict.fromkeys(batches, ranges.BATCH) | dict.fromkeys(new, ranges.NEW) | said
    original = imported.original
    names = ranges.bases(symbols_of(imported))
    if original is None:
        return asked, {}
    fixed = example.sizes_of(original.proto(), options.dim, dims.parse_shapes(options.shape))
    unnamed = {f"{v.name}.{k}" for v in imported.model.graph.inputs for k in range(len(v.shape or ()))}
    symbols = {n: k for n, k in fixed.items() if n not in unnamed and polynomials.names(polynomials.parse(n)) == [n]}
    sizes = {n: ranges.range_of(n, asked).typical for n in names} | symbols
    if not sizes or _large(imported):
        return asked, imported.of_original(sizes)
    folder = str(Path(original.files.path).parent)
    found = running_sizes.running(original.data, folder, sizes, options.max_memory, imported.same, fixed)
    if len(found.names) > 1 and not fixed.keys().isdisjoint(found.names):
        return asked, imported.of_original(sizes)  # of several which one is to blame nobody knows
    for name in fixed.keys() & found.names:
        option = f"--dim {name}={said[name]}" if name in said else "--shape"
        others = ", ".join(f"{n}={k}" for n, k in sorted(sizes.items()) if n not in fixed and k > 1)
        raise UsageError(
            f"{option}: the model does not run at {name} {sizes[name]}: {found.problem.splitlines()[0]}",
            f"the largest that runs is {name}={found.sizes[name]}"
            + (f", where nothing is said of {others}: --dim gives these too" if others else ""),
        )
    return asked | {n: dims.Range(1, found.sizes[n], found.sizes[n]) for n in found.names}, imported.of_original(
        found.sizes
    )


def inner_sizes(imported: Imported, work: Sequence[Work], sizes: Mapping[str, int], options: Options) -> dict[str, int]:
    """What symbols of fragments that no input of the model has are at these `sizes`; the cost model's usual size where a run
    does not tell."""
    symbols = set(ranges.bases({s for w in work if not w.failed for s in w.program.symbols})) - sizes.keys()
    places = {
        s: (t.name, k)
        for w in work
        for t in w.inputs
        for k, d in enumerate(t.dims)
        for s in symbols & set(ex.names(d))
        if d == ex.symbol(s)
    }
    original, found = imported.original, dict[str, int]()
    if places and original is not None and not _large(imported):
        folder = str(Path(original.files.path).parent)
        found = inner_tensors.sizes(original.data, folder, imported.of_original(sizes), places, options.max_memory)
    return {s: found.get(s) or ranges.OTHER.typical for s in sorted(symbols)}


def _large(imported: Imported) -> bool:
    """True if a model is not run for its sizes alone."""
    own = 0 if imported.original is None else len(imported.original.data)
    return own + sum(f.size for f in imported.files) > MOST_TRIED


def frontend_options(options: Options) -> frontends.Options:
    """The part of the options that concerns reading. Raises UsageError for malformed shapes and dimensions."""
    numbers = dims.numbers(dims.parse(options.dim))
    shapes, types = dims.parse_shapes(options.shape), dims.parse_types(options.shape)
    return frontends.Options(shapes, numbers, types, max_memory=options.max_memory, data=options.data)


def symbols_of(imported: Imported) -> set[str]:
    """The symbols in the dimensions of a model's inputs."""
    return {name for v in inputs_of(imported) for d in imported.graph.dims(v) for name in ex.names(d)}


def inputs_of(imported: Imported) -> list[int]:
    """The values that are inputs of a model."""
    return [v for v, s in enumerate(imported.graph.steps) if isinstance(s, g.Input) and not s.constant]
