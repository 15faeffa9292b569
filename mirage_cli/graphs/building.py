"""From a graph to its kernels, through `mirage optimize`: a model file, its output folder, the kernels in it.

The folder is kept in the cache under a name that everything which can change it is part of: the model, the options, the
compilers and this program. A folder is written beside its place and renamed, so several processes may build at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_cli import environment, kept, patch, pipeline, settings, steps
from mirage_cli.backends import cpu
from mirage_cli.backends import toolchain as toolchains
from mirage_cli.errors import UsageError
from mirage_cli.graph_kernel import GraphKernel
from mirage_cli.options import Options
from mirage_cli.pipeline import Progress

if TYPE_CHECKING:
    from mirage_cli.graphs.recording import Recording

GRAPHS = environment.GRAPHS
MODEL, OUT = "original.onnx", "out"
OUTSIDE_BYTES = 2**28  #: weights of more than this are stored in a file of their own
PART = slice(16)  #: of a digest: what names a graph


def superoptimize(graph: Recording, progress: Progress | None, options: Mapping[str, Any]) -> GraphKernel:
    """The kernels of a graph; see `KernelGraph.superoptimize`."""
    made = _options(options)
    cache = environment.cache_folder(made)
    if cache is None:
        own = tempfile.mkdtemp(prefix="mirage-graph-")
        try:
            kernel = GraphKernel(_built(graph, Path(own), made, progress))
        except BaseException:
            shutil.rmtree(own, ignore_errors=True)
            raise
        weakref.finalize(kernel, shutil.rmtree, own, ignore_errors=True)
        return kernel
    folder = cache / GRAPHS
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    return GraphKernel(_built(graph, folder, made, progress))


def _options(given: Mapping[str, Any]) -> Options:
    """The options of a run: everything is replaced, and what fails is an error. Raises UsageError for options that say
    otherwise."""
    made = settings.from_keywords({"force": True, "strict": True} | dict(given))
    for name, wanted in (("force", True), ("strict", True), ("dry_run", False), ("only", ()), ("skip", ())):
        if getattr(made, name) != wanted:
            raise UsageError(f"{name}: a graph's kernels compute all of it, so {name} cannot be {getattr(made, name)}")
    return made


def _built(graph: Recording, folder: Path, options: Options, progress: Progress | None) -> Path:
    """The output folder of a graph, found or made."""
    model = graph.model()
    with tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=folder) as name:
        draft = Path(name)
        patch.save(model, draft / MODEL, patch.weight_bytes(model) > OUTSIDE_BYTES)
        key = _key(draft, options)
        place = folder / key
        if (place / OUT / steps.FILE).exists():
            return place / OUT
        place.mkdir(exist_ok=True)
        for path in draft.iterdir():
            os.replace(path, place / path.name)
        made = place / f"{OUT}.{os.getpid()}"
        try:
            pipeline.optimize(str(place / MODEL), made, replace(options, strict=True), progress, key)
            if not (place / OUT / steps.FILE).exists():
                shutil.rmtree(place / OUT, ignore_errors=True)
                os.rename(made, place / OUT)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return place / OUT


def _key(draft: Path, options: Options) -> str:
    """What names the kernels of a model file: a digest of all that they depend on."""
    digest = hashlib.sha256()
    for path in sorted(draft.iterdir()):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    said = [options.to_json(), environment.archs(options), cpu.isas(), toolchains.candidates(), kept.version()]
    digest.update(json.dumps(said).encode())
    return digest.hexdigest()[PART]
