"""The report of a run: plain data that becomes report.json, the page report.html and the text in the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated as A
from typing import Any, Final, Literal

import msgspec

from mirage_cli.errors import CheckFailed, UsageError
from mirage_cli.files import codec
from mirage_cli.files.codec import says
from mirage_cli.options.options import Options
from mirage_cli.report import forms
from mirage_cli.report.forms import IDENTIFIER, Amount, Count, Share

SCHEMA_VERSION: Final = 1
REPLACED, KEPT, FAILED = "replaced", "kept", "failed"
KERNEL, ISOLATED = "kernel", "kernel isolated"  #: peers in `measured` that are our own kernel without ONNX Runtime
OWN = (KERNEL, ISOLATED)

# what the parts of a fragment's report are when nothing is known
SEARCH: forms.Search = {"mappings": 0, "values": 0, "muGraphs": 0, "seconds": 0.0}
MUGRAPH: forms.MuGraph = {"file": None, "kernels": 0, "grid": [], "loop": None, "text": []}
FLOAT: forms.Float = {"target": None, "error": None, "original_error": None}
VERIFICATION: forms.Verification = {
    "mode": None,
    "primes": [],
    "degree": None,
    "applications": None,
    "rounds": 0,
    "error_bound": None,
    "seconds": 0.0,
    "float": FLOAT,
}


@dataclass(frozen=True, slots=True)
class FragmentReport:
    """A distinct fragment: equal ones of a model are one entry."""

    id: A[str, says("Hash of what it computes; names files, operators and C functions.", pattern=IDENTIFIER)]
    name: A[str, says("What it is in words, as `norm_linear`.")]
    status: A[
        str,
        says(
            f"`{REPLACED}`; `{KEPT}`: proved, but not faster; `{FAILED}`: see `reason`.",
            pattern=rf"^({REPLACED}|{KEPT}|{FAILED})$(?!\n)",
        ),
    ]
    occurrences: A[Count, says("How often it stands in the model.")]
    nodes: A[list[list[str]], says("The nodes of each place, by name.")]
    program: forms.Program
    search: forms.Search
    mugraph: forms.MuGraph
    verification: forms.Verification
    schedule: A[dict[str, list[forms.Schedule]], says("Schedules of the kernels, by target.")]
    predicted_us: A[Amount, says("The cost model's time for one call, microseconds.")]
    original_us: A[Amount, says("The same model's time of the original operators.")]
    floor_us: A[Amount, says("No kernel reads its inputs, or multiplies, in less.")]
    measured: A[list[forms.Measured], says("Measurements, where there are any.")]
    original: forms.Original
    predictions: A[dict[str, forms.Prediction], says("What the cost model says, by kind of target: `cpu`, `cuda`.")]
    tuning: forms.Tuning = field(default_factory=forms.Tuning)
    reason: A[str, says("Why it was not replaced.")] = ""

    def to_json(self, written: bool = True) -> dict[str, Any]:
        """The contract's form; `mugraph.file` is null for what is not replaced or not `written`."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        if not written or self.status != REPLACED:
            data["mugraph"]["file"] = None
        times = {k: round(data[k], 3) for k in ("predicted_us", "original_us", "floor_us")}
        return {k: v for k, v in (data | times).items() if v or k not in ("tuning", "reason")}


@dataclass(frozen=True, slots=True)
class Report:
    """The record of a run: the fragments found, searched, proved and chosen, and the nodes left."""

    mirage: A[str, says("The version that wrote it.")]
    schema_version: A[Literal[1], says("Raised when an entry changes its meaning.")]
    model: forms.Model
    options: forms.Given
    seconds: A[dict[str, float], says("Where the time went, by stage; `total` is the wall clock.")]
    fragments: A[list[FragmentReport], says("One entry for each distinct fragment.")]
    unchanged: A[list[forms.Unchanged], says("Nodes that stay.")]
    coverage: A[
        dict[str, Share], says("Shares of `flops`, `weight_bytes` and `nodes` that the replaced fragments have.")
    ]
    notes: A[list[str], says("What was done to the model on the way in; patterns of `skip` that fit no node.")]
    toolchain: A[dict[str, str], says("Compilers whose version changes what is written.")]
    operators: A[dict[str, str], says("The operator of each node by the node's name, in the order of the model.")]
    files: A[forms.Files, says("Hash of every file that was written, but for the reports.")]
    sizes: A[dict[str, int], says("Sizes of symbolic dimensions that times are for.")] = field(default_factory=dict)
    whole: A[forms.Measured | None, says("Times of the whole model with `measure`; null without.")] = None
    sweeps: A[list[forms.Sweep], says("What `bench` measured at several sizes; left out without.")] = field(
        default_factory=list
    )
    farm: A[forms.Farm, says("Who did what, with `scheduler`; left out without.")] = field(default_factory=forms.Farm)
    rates: A[
        forms.Rates, says("How fast the CPU is, where not as in the file of its target; left out where it is.")
    ] = field(default_factory=forms.Rates)
    seal: A[
        str, says("Of `files` and the model, made with a secret of who wrote them: `verify` loads its user's own.")
    ] = ""

    def to_json(self) -> dict[str, Any]:
        """The contract's `report.json`; numbers that JSON lacks (an infinite error) are null."""
        data: dict[str, Any] = finite(
            msgspec.to_builtins(self)
            | {
                "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
                "fragments": [f.to_json(not self.options.get("dry_run")) for f in self.fragments],
                "coverage": {k: round(v, 4) for k, v in self.coverage.items()},
            }
        )
        return {k: v for k, v in data.items() if v or k not in ("farm", "rates", "sweeps")}

    def text(self) -> str:
        """report.json."""
        return as_text(self.to_json())

    def __repr__(self) -> str:
        places = sum(f.occurrences for f in self.replaced)
        return (
            f"<report of {self.model['path']}: {len(self.replaced)} of {len(self.fragments)} fragments replaced, "
            f"at {places} place{'s' * (places != 1)}>"
        )

    @property
    def replaced(self) -> list[FragmentReport]:
        """The fragments that the patched model has as operators."""
        return [f for f in self.fragments if f.status == REPLACED]


def schema() -> dict[str, Any]:
    """The JSON Schema of report.json."""
    kinds = vars(forms) | {"Report": Report, "FragmentReport": FragmentReport}
    return codec.schema(Report, kinds, "report.json of mirage optimize")


def sealed(files: Mapping[str, str], model: Mapping[str, Any]) -> list[Any]:
    """The content that a report's seal covers: the hashes of all files that were written, and of the model that was read."""
    return [dict(files), model["sha256"]]


def enforce(report: Report, options: Options) -> None:
    """Raise CheckFailed when a required coverage is missed or, with `strict`, when a fragment failed."""
    for text in options.require_coverage:
        kind, _, share = text.partition("=")
        try:
            wanted = float(share)
        except ValueError:
            raise UsageError(f"--require-coverage {text}: expected KIND=SHARE, such as flops=0.95") from None
        if kind not in report.coverage:
            raise UsageError(f"--require-coverage {text}: kinds are {', '.join(sorted(report.coverage))}")
        if report.coverage[kind] < wanted:
            raise CheckFailed(f"coverage of {kind} is {report.coverage[kind]:.3f}, below {wanted:g}")
    failed: list[FragmentReport] = [f for f in report.fragments if f.status == "failed"]
    if options.strict and failed:
        raise CheckFailed(f"{len(failed)} fragments failed; the first: {failed[0].name} ({failed[0].reason})")


def finite(data: Any) -> Any:
    """The same JSON document with None in the place of infinities and NaNs."""
    if isinstance(data, dict):
        return {k: finite(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [finite(v) for v in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def as_text(data: Mapping[str, Any]) -> str:
    """A report as text that is valid UTF-8, whatever the names in it."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate becomes its JSON escape
