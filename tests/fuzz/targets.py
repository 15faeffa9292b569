"""Everything that mirage reads from others, as targets: seeds, how they are changed, and what reads them.

A target's `read` may return, or raise MirageError; everything else that comes out of it is a fault. Where what was read can
be written, `read` writes it, reads that again and compares.
"""

from __future__ import annotations

import json
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import onnx

from mirage_cli.errors import MirageError
from mirage_cli.exporters import pictures
from mirage_cli.files import codec
from mirage_cli.files.output import MARK, MUGRAPHS
from mirage_cli.frontends import sizes
from mirage_cli.frontends.torchscript import archive
from mirage_cli.inspection import caches, comparison, fragment_details, summary
from mirage_cli.kernels import call_order
from mirage_cli.lax import extents
from mirage_cli.lax.ir.numbers import number_from_json
from mirage_cli.options import config, settings
from mirage_cli.options.options import Options
from mirage_cli.report import mugraph_file, reader
from mirage_cli.report.report import Report
from mirage_cli.report.stored_plan import plan_from_json
from mirage_cli.search.mugraph.documents import graph_from_json, graph_to_json
from mirage_cli.suite import documents, suite
from mirage_cli.suite.suite import SuiteOptions
from mirage_cli.tuning.cache import FILE, TuningCache
from mirage_cli.verification.output_folder import read_fragment
from tests.fuzz import messages, models, mutations

CORPUS = Path(__file__).parent / "corpus"
SAMPLE = "rmsnorm_linear_fp32"  #: whose output folder the targets `report` and `mugraph` change
Seeds = Callable[["Place"], list[bytes]]


@dataclass(frozen=True)
class Place:
    """Where inputs are written: a folder of this process, with an output folder of `optimize` for some targets."""

    folder: Path
    out: Path | None = None

    def file(self, name: str, data: bytes) -> Path:
        """A file with this content."""
        path = self.folder / name
        path.write_bytes(data)
        return path

    def output(self, name: str) -> Path:
        """A copy of the output folder for one target, of what readers look at only, made on first use."""
        made = self.folder / name
        if not made.exists():
            assert self.out is not None
            shutil.copytree(self.out, made, ignore=shutil.ignore_patterns("*.so", "*.html"))
        return made


@dataclass(frozen=True)
class Target:
    """A reader: its seeds, how inputs are changed, and the reader itself. `share` is its part of a long run."""

    name: str
    seeds: Seeds
    mutate: Callable[[Random, bytes], bytes]
    read: Callable[[bytes, Place], None]
    share: int = 1


def attempt(target: Target, data: bytes, place: Place) -> bool:
    """Whether an input was read; False after a clean error. Anything else that is raised is a fault."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            target.read(data, place)
        except MirageError as error:
            str(error).encode("utf-8", "backslashreplace")
            assert str(error), "an error without a message"
            return False
    return True


def told(found: Any) -> None:
    """What a command would print of something, as text and as JSON."""
    found.text().encode("utf-8", "backslashreplace")
    json.dumps(found.to_json(), allow_nan=False)


def every(*actions: Callable[[], Any]) -> None:
    """Run all actions, whatever clean errors come; raise the last of these."""
    last: MirageError | None = None
    for action in actions:
        try:
            action()
        except MirageError as error:
            last = error
    if last is not None:
        raise last


# ---- models ----------------------------------------------------------------------------------------------------------


def model_seeds(place: Place) -> list[bytes]:
    """See `models.seeds`."""
    return models.seeds()


def read_model(data: bytes, place: Place) -> None:
    """`mirage inspect MODEL`: the model read, partitioned, described."""
    if not (place.folder / "weights.bin").exists():
        place.file("weights.bin", bytes(1024))
    told(summary.inspect(str(place.file("model.onnx", data)), Options()))


def archive_seeds(place: Place) -> list[bytes]:
    """Zip archives as torch.jit.save, torch.save and torch.export write them, without their tensors."""
    code = b"class M(Module):\n  def forward(self, x: Tensor) -> Tensor:\n    return torch.relu(x)\n"
    script = {"data.pkl": b"\x80\x02.", "constants.pkl": b"\x80\x02.", "code/__torch__.py": code, "version": b"3\n"}
    forms = (
        script,
        {"data.pkl": b"\x80\x02.", "version": b"3\n"},
        {"archive_format": b"pt2", "models/model.json": b"{}"},
    )
    found = []
    for form in forms:
        path = place.folder / "seed.pt"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
            for name, content in form.items():
                made.writestr(f"model/{name}", content)
        found.append(path.read_bytes())
    return [*found, b"\x80\x02.", b"PK"]


def read_archive(data: bytes, place: Place) -> None:
    """The look at a PyTorch file before torch opens it."""
    archive.check(str(place.file("model.pt", data)))


# ---- output folders --------------------------------------------------------------------------------------------------


def report_seeds(place: Place) -> list[bytes]:
    """The report of the output folder."""
    assert place.out is not None
    return [(place.out / MARK).read_bytes()]


def read_report(data: bytes, place: Place) -> None:
    """All commands that read report.json."""
    folder, other = place.output("out"), place.output("other")
    identifier = next((folder / MUGRAPHS).glob("*.json")).stem
    (folder / MARK).write_bytes(data)
    every(
        lambda: told(summary.inspect(str(folder), Options())),
        lambda: told(fragment_details.show(folder, None)),
        lambda: told(fragment_details.show(folder, identifier)),
        lambda: told(comparison.compare(other, folder)),
        lambda: told(comparison.compare(folder, other)),
        lambda: codec.checked(reader.read(folder), Report),
    )


def mugraph_seeds(place: Place) -> list[bytes]:
    """The muGraph files of the output folder."""
    assert place.out is not None
    return [p.read_bytes() for p in sorted((place.out / MUGRAPHS).glob("*.json"))]


def read_mugraph(data: bytes, place: Place) -> None:
    """All that reads mugraphs/ID.json; a muGraph that is accepted is written and read again."""
    folder = place.output("drawn")
    path = next((folder / MUGRAPHS).glob("*.json"))
    path.write_bytes(data)
    operator = f"{_fragment_name(folder)}_{path.stem}"
    every(
        lambda: told(fragment_details.show(folder, path.stem)),
        lambda: read_fragment(folder, path.stem, operator, []),
        lambda: _again(path),
    )


def _fragment_name(folder: Path) -> str:
    name: str = json.loads((folder / MARK).read_bytes())["fragments"][0]["name"]
    return name


def _again(path: Path) -> None:
    data = mugraph_file.read(path)
    stored = plan_from_json(data)
    for way in stored.ways:
        assert graph_from_json(json.loads(json.dumps(graph_to_json(way.graph)))) == way.graph
        way.graph.text()
    for picture in pictures.pictures(data):
        picture.svg.encode("utf-8", "backslashreplace")


def steps_seeds(place: Place) -> list[bytes]:
    """The order of two kernels."""
    tensor = {"name": "x", "dtype": "f32", "dims": [4, "2*batch"]}
    data = {
        "schema_version": 1,
        "id": "graph",
        "op_type": "graph_1",
        "inputs": [tensor],
        "outputs": [{**tensor, "name": "y"}],
        "symbols": ["batch"],
        "cuda": False,
        "calls": [{"id": "a", "inputs": ["x", "w"], "outputs": ["t"]}, {"id": "b", "inputs": ["t"], "outputs": ["y"]}],
        "results": ["y"],
        "weights": ["w"],
    }
    return [json.dumps(data).encode()]


def read_steps(data: bytes, place: Place) -> None:
    """steps.json of a graph made in Python; what is read is written and read again."""
    place.file(call_order.FILE, data)
    found = call_order.read(place.folder)
    place.file(call_order.FILE, found.text().encode("utf-8", "surrogatepass"))
    assert call_order.read(place.folder) == found


# ---- caches and peers ------------------------------------------------------------------------------------------------

TUNING = {
    "program": "0123456789abcdef",
    "extents": {"batch": 4},
    "dtype": "f16",
    "architecture": "sm_90a",
    "device": "NVIDIA H200",
    "driver": "580.1",
    "version": "1",
    "candidate": "c1",
    "description": {"name": "norm_linear", "engine": "strip"},
    "value": {"us": 3.5, "low": 3.4, "high": 3.75, "samples": 20},
}


def tuning_seeds(place: Place) -> list[bytes]:
    """An exported document with a time, a problem, and how thoroughly was tuned."""
    rows = [
        TUNING,
        TUNING | {"candidate": "c2", "value": {"us": None, "problem": "out of memory"}},
        TUNING | {"candidate": "*", "value": {"candidates": 68, "seconds": 90.0}},
    ]
    return [json.dumps({"mirage": "0.1.0", "schema_version": 1, "tunings": rows}).encode()]


def read_tunings(data: bytes, place: Place) -> None:
    """`mirage cache import`; then `list`, `export`, and the export imported again."""
    root = place.folder / "cache"
    shutil.rmtree(root, ignore_errors=True)
    options = Options(cache=str(root))
    told(caches.bring(options, str(place.file("tunings.json", data))))
    told(caches.listed(options))
    document = caches.export(options).to_json()
    again = caches.bring(options, str(place.file("again.json", json.dumps(document).encode()))).to_json()
    assert again["taken"] == 0, "an export says more than the cache"


def database_seeds(place: Place) -> list[bytes]:
    """The cache's own file with three rows."""
    (data,) = tuning_seeds(place)
    read_tunings(data, place)
    return [next((place.folder / "cache").rglob(FILE)).read_bytes()]


def read_database(data: bytes, place: Place) -> None:
    """The cache's own file; what is damaged counts as empty."""
    root = place.folder / "database"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(mode=0o700)
    (root / FILE).write_bytes(data)
    rows = TuningCache(root).rows()
    TuningCache(root).merge(rows)
    assert len(TuningCache(root).rows()) == len(rows)


def peers_seeds(place: Place) -> list[bytes]:
    """Times of an earlier run of the suite."""
    settings_ = suite.settings_of(SuiteOptions(dtype="fp16"))
    rows = [{"name": "gqa-1", "peers": {"torch": {"us": {"median": 3.0}}}}]
    return [json.dumps({"mirage": "0.1.0", "settings": settings_, "limits": {}, "rows": rows}).encode()]


def read_peers(data: bytes, place: Place) -> None:
    """`mirage bench --peers-from`."""
    documents.read(place.file("peers.json", data), suite.settings_of(SuiteOptions(dtype="fp16")))


# ---- options and texts -----------------------------------------------------------------------------------------------

YAML = b"""# options
shape: {x: 1x128, ids: [2, 4]}
dim:
  - batch=4
  - past=1:16:128
target: [cpu, cuda]
jobs: 2
max-memory: 4G
require-coverage: {flops: 0.95}
only: "*attn*"
keep-going: true
cache: false
budget: 1.5
"""


def config_seeds(place: Place) -> list[bytes]:
    """A configuration with most kinds of values, and what is written for the defaults."""
    return [YAML, config.written(Options(jobs=1)).encode()]


def read_config(data: bytes, place: Place) -> None:
    """`--config`: what is read is written and read again."""
    options = settings.options(config.read(str(place.file("mirage.yaml", data))))
    again = config.read(str(place.file("again.yaml", config.written(options).encode("utf-8", "surrogatepass"))))
    assert settings.options(again) == options


def word_seeds(place: Place) -> list[bytes]:
    """Lines of `--shape`, `--dim` and other options."""
    lines = ("shape=x=2x5x8:f32", "shape=u=3x3", "dim=batch=4", "dim=past=1:16:128", "require-coverage=flops=0.5")
    return [b"shape=x=2x5x8", "\n".join(lines).encode(), b"dim=k=7\ndim=m=7\nmax-memory=512 MiB\ngpu=0\nseed=3"]


def read_words(data: bytes, place: Place) -> None:
    """Options as words, for a model with symbols."""
    given: dict[str, Any] = {}
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        key, _, value = line.partition("=")
        many = key in settings.BY_NAME and settings.BY_NAME[key].many
        given[key] = [*given.get(key, []), value] if many else value
    options = settings.from_keywords(given)
    model = place.folder / "dynamic.onnx"
    if not model.exists():
        onnx.save(models.parsed(models.DYNAMIC), model)
    told(summary.inspect(str(model), options))


def text_seeds(place: Place) -> list[bytes]:
    """Dimensions, extents and numbers as models and muGraph files write them."""
    return [b"past+1", b"2*batch*(past+1)", b"min[past,7]+1", b"-3*N*N+4*M-1", b"3/8", b"inf", b"2*batch"]


def read_text(data: bytes, place: Place) -> None:
    """A text as a dimension, an extent and a number: what it means comes back from what is written."""
    text = data.decode("utf-8", "surrogateescape")
    size = sizes.parse(text)
    assert sizes.parse(str(size)) == size, f"{text!r} is {size}, read again {sizes.parse(str(size))}"
    try:
        extent = sizes.to_extent(size)
    except ValueError:
        extent = 0
        size = 0
    assert sizes.from_extent(extent) == size, f"{size} as extent {extent} is {sizes.from_extent(extent)}"
    assert extents.from_json(extents.to_json(extent)) == extent, f"extent {extent}"
    try:
        extents.from_json(text)
        number_from_json(text)
    except ValueError:  # what readers of files turn into a clean error
        return


TARGETS: Sequence[Target] = (
    Target("onnx", model_seeds, messages.model, read_model, share=16),
    Target("archive", archive_seeds, mutations.archive, read_archive),
    Target("report", report_seeds, mutations.document, read_report, share=3),
    Target("mugraph", mugraph_seeds, mutations.document, read_mugraph, share=4),
    Target("steps", steps_seeds, mutations.document, read_steps),
    Target("tunings", tuning_seeds, mutations.document, read_tunings),
    Target("database", database_seeds, mutations.raw, read_database),
    Target("peers", peers_seeds, mutations.document, read_peers),
    Target("config", config_seeds, mutations.text_bytes, read_config, share=2),
    Target("words", word_seeds, mutations.text_bytes, read_words, share=2),
    Target("text", text_seeds, mutations.text_bytes, read_text),
)
BY_NAME = {t.name: t for t in TARGETS}


def kept(target: Target) -> Iterator[Path]:
    """The inputs that once showed a fault."""
    yield from sorted((CORPUS / target.name).glob("*"))
