"""From a graph to its kernels, through `mirage optimize`: a model file, its output folder, the kernels in it.

The folder is kept in the cache, under the hash of everything that can change it: the model, the options, the compilers,
this version of mirage. Of several processes that want the same one builds it and the others wait; what the kernels are
made of carries digests in the cache's own results, so a folder that was changed is built again.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_cli.backends import cpu
from mirage_cli.backends import toolchain as toolchains
from mirage_cli.errors import UsageError
from mirage_cli.files import result_store as results
from mirage_cli.files import staging
from mirage_cli.files.output import LIBRARY, MARK, MUGRAPHS, digest
from mirage_cli.files.result_store import Kept
from mirage_cli.files.staging import Scratch
from mirage_cli.kernels import call_order
from mirage_cli.kernels.graph_kernel import GraphKernel
from mirage_cli.machine import devices
from mirage_cli.optimization import environment, story
from mirage_cli.options import settings
from mirage_cli.options.options import Options
from mirage_cli.patching import saving
from mirage_cli.report.stages import Progress

if TYPE_CHECKING:
    from mirage_cli.python.recording import Recording

MODEL, OUT = "original.onnx", "out"
OUTSIDE_BYTES = 2**28  #: weights of more than this are stored in a file of their own
NAME = slice(16)  #: of a hash: what names a graph
TRUSTED = (call_order.FILE, MARK, LIBRARY, "model.onnx*", f"{MUGRAPHS}/*.json")  #: what kernels are made of


def superoptimize(graph: Recording, progress: Progress | None, options: Mapping[str, Any]) -> GraphKernel:
    """The kernels of a graph; see `KernelGraph.superoptimize`."""
    settings_of_run = _options(options)
    store, cache = environment.store(settings_of_run), environment.cache_folder(settings_of_run)
    if cache is not None and store is not None and store.usable:
        folder = cache / environment.GRAPHS
        folder.mkdir(parents=True, exist_ok=True)
        return GraphKernel(_built(graph, folder, store, settings_of_run, progress))
    own = Scratch("mirage-graph-")
    try:
        kernel = GraphKernel(_built(graph, own.path, None, settings_of_run, progress))
    except BaseException:
        own.close()
        raise
    weakref.finalize(kernel, own.close)
    return kernel


def _options(given: Mapping[str, Any]) -> Options:
    """The options of a run: everything is replaced, and what fails is an error. Raises UsageError for options that say
    otherwise."""
    chosen = settings.from_keywords({"force": True, "strict": True} | dict(given))
    for name, wanted in (("force", True), ("strict", True), ("dry_run", False), ("only", ()), ("skip", ())):
        if getattr(chosen, name) != wanted:
            raise UsageError(
                f"{name}: a graph's kernels compute all of it, so {name} cannot be {getattr(chosen, name)}"
            )
    return chosen


def _built(graph: Recording, folder: Path, store: Kept | None, options: Options, progress: Progress | None) -> Path:
    """The output folder of a graph, found or made."""
    model = graph.model()
    with Scratch(".", folder) as draft:
        saving.save_ir(model, draft / MODEL, saving.weight_bytes(model) > OUTSIDE_BYTES)
        key = _key(draft, options, store)
        place = folder / key[NAME]
        if store is not None and _is_kept(place / OUT, key, store):
            return place / OUT
        place.mkdir(exist_ok=True)
        with staging.waited(place):
            if store is not None and _is_kept(place / OUT, key, store):
                return place / OUT  # another process has built it meanwhile
            for path in draft.iterdir():
                os.replace(path, place / path.name)
            story.optimize(str(place / MODEL), place / OUT, options, progress, key[NAME])
            if store is not None:
                store.put(key, _digests(place / OUT))
    return place / OUT


def _key(draft: Path, options: Options, store: Kept | None) -> str:
    """The hash of all that the kernels of a model file depend on."""
    model = {p.name: digest(p) for p in draft.iterdir()}
    said = [environment.archs(options), cpu.isas(), toolchains.candidates()]
    said += [[devices.name("cuda", options.gpu)]] if options.gpu is not None else []
    if options.tuned and store is not None:
        said.append([digest(p) for p in sorted((store.root.parent / environment.TUNINGS).glob("*"))])
    return results.key("graph", model, options.to_json(), *said)


def _is_kept(out: Path, key: str, store: Kept) -> bool:
    """True if a folder is there and as it was when it was kept."""
    digests = store.get(key)
    return digests is not None and digests == _digests(out)


def _digests(out: Path) -> dict[str, str]:
    """The digest of each file that kernels are made of."""
    return {p.relative_to(out).as_posix(): digest(p) for pattern in TRUSTED for p in sorted(out.glob(pattern))}
