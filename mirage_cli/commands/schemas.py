"""The forms of what other commands than `optimize` print with --json, and their JSON Schema; docs/reference/json.md is
made from it."""

from __future__ import annotations

from typing import Annotated as A
from typing import Any, NotRequired, TypedDict

from mirage_cli.files import codec
from mirage_cli.files.codec import says
from mirage_cli.inspection.comparison import Regression
from mirage_cli.inspection.doctor import Ability, Item
from mirage_cli.report.forms import Unchanged
from mirage_cli.verification.findings import CHECKS

Version = A[str, says("The version that wrote it.")]
SchemaVersion = A[int, says("Raised when an entry changes its meaning.")]
Object = dict[str, Any]
Identifier = A[str, says("Its identifier.")]
Name = A[str, says("What it is in words.")]
Occurrences = A[int, says("How often it stands in the model.")]
PAIR = says("Old and new.")


class Finding(TypedDict):
    """One check of one thing. Further entries depend on the check."""

    check: A[str, says(f"Which check: {', '.join(f'`{c}`' for c in CHECKS)}.")]
    where: A[str, says("What was checked.")]
    passed: A[bool, says("Whether it holds.")]
    text: NotRequired[A[str, says("What was found.")]]


class Output(TypedDict):
    """An output of the model, compared with a float64 run."""

    output: A[str, says("Its name.")]
    reference: A[str, says("What it was compared with.")]
    passed: A[bool, says("Whether it keeps the accuracy rule.")]
    rmse: A[float | None, says("Root mean square error.")]
    original_rmse: A[float | None, says("The same of the original.")]
    max_error: A[float | None, says("Largest error.")]
    original_max_error: A[float | None, says("The same of the original.")]
    note: A[str, says("What else is to be said.")]


class Verify(TypedDict):
    """Whether everything holds."""

    schema_version: SchemaVersion
    passed: A[bool, says("Whether no difference was found; then the exit code is 0.")]
    culprits: A[list[str], says("A file, fragment or output with a difference, and what bisection found.")]
    findings: list[Finding]
    outputs: list[Output]
    notes: A[list[str], says("What could not be compared, and why.")]
    saved: A[str | None, says("The folder of --save-failing.")]
    seconds: A[float, says("How long it took.")]


class Contestant(TypedDict):
    """The original, mirage, and peers."""

    name: A[str, says("Who.")]
    us: A[Object | None, says("Times of one call, as `speedup` has them; null where it failed.")]
    problem: NotRequired[A[str, says("What went wrong, such as wrong answers.")]]
    relative_error: NotRequired[A[float, says("Largest difference from the original, relative to the largest value.")]]


class Compared(TypedDict):
    """Contestants measured against each other."""

    calls: A[int, says("Calls of the operator in a run of the model that was timed.")]
    cuda_graph: A[bool, says("Whether runs were replays of a CUDA graph.")]
    contestants: list[Contestant]
    speedup: A[
        Object | None,
        says("The original's times divided by ours, round by round: `median`, `q1`, `q3`, `min`, `samples`."),
    ]
    notes: A[list[str], says("What was not done as usual.")]


class BenchFragment(Compared):
    """A distinct fragment."""

    id: Identifier
    name: Name
    occurrences: Occurrences
    inputs: A[list[str], says("As `f32[16, 4096]`.")]
    predicted_us: A[float | None, says("The cost model's time at these sizes; null for another target.")]
    floor_us: A[float | None, says("The least possible, by the same model.")]
    measured: A[list[Object], says("As in report.json.")]


class BenchModel(Compared):
    """The whole model."""

    original: A[str, says("The file on the original's side.")]


class Bench(TypedDict):
    """Times of the original and the patched model, whole and by fragment; microseconds."""

    mirage: Version
    device: A[str, says("What ran them.")]
    settings: A[Object, says("How: provider, versions, threads, seed, shapes of the inputs.")]
    method: A[str, says("How times are taken, in words.")]
    fragments: list[BenchFragment]
    model: BenchModel
    absent_peers: A[dict[str, str], says("Why a peer was not there.")]
    notes: A[list[str], says("What was not done as usual.")]


class Sweep(TypedDict):
    """Times at several sizes."""

    mirage: Version
    sweep: A[list[Object], says("As `mirage bench` prints, each with `dim`: what it says of symbols, as `seq=64`.")]
    notes: A[list[str], says("Where they are plotted.")]


class Speed(TypedDict):
    """A folder."""

    name: A[str, says("`original` or `mirage`.")]
    tokens_per_second: A[
        dict[str, Object | None], says("Of the `prompt` and of the `steps`: `median`, `q1`, `q3`, `min`, `samples`.")
    ]
    tokens: A[list[int], says("What it went on with.")]
    problem: A[str, says("Why there are none, or nothing.")]


class Generation(TypedDict):
    """Tokens a second in onnxruntime-genai."""

    mirage: Version
    device: A[str, says("What ran them.")]
    runtime: A[str, says("onnxruntime-genai and its version.")]
    prompt_tokens: A[int, says("The length of the prompt.")]
    contestants: list[Speed]
    same_tokens: A[int, says("How many tokens are the same, from the first one on.")]
    notes: A[list[str], says("What was not done as usual.")]


class Models(TypedDict):
    """A folder with several models."""

    mirage: Version
    models: A[dict[str, Object], says("What `mirage bench` prints, by the folder of each model.")]


class Tensor(TypedDict):
    """A tensor."""

    name: A[str, says("Its name.")]
    dtype: A[str | None, says("As `f32`.")]
    dims: A[list[int | str] | None, says("Extents.")]


class Fragment(TypedDict):
    """A distinct fragment. For a folder: entries of report.json."""

    id: Identifier
    name: Name
    occurrences: Occurrences
    nodes: NotRequired[A[list[list[str]], says("The nodes of each place, by name.")]]
    program: NotRequired[A[Object, says("As in report.json.")]]
    searched: NotRequired[A[int, says("At how many places it would be searched.")]]
    flops: NotRequired[A[float, says("Its share of the model's multiply-adds.")]]


class Inspect(TypedDict):
    """For a model file; for an output folder `kind` is `folder`, and entries are those of report.json in short."""

    mirage: Version
    schema_version: SchemaVersion
    kind: A[str, says("`model` or `folder`.")]
    model: A[Object, says("As in report.json.")]
    inputs: NotRequired[A[list[Tensor], says("What goes in.")]]
    outputs: NotRequired[A[list[Tensor], says("What comes out.")]]
    symbols: NotRequired[A[list[str], says("A symbolic dimension.")]]
    files: NotRequired[A[list[str], says("A file of the folder.")]]
    seconds: NotRequired[A[dict[str, float], says("Where the time went.")]]
    fragments: list[Fragment]
    coverage: A[dict[str, float], says("Share of `flops`, `weight_bytes`, `nodes`.")]
    unchanged: list[Unchanged]
    notes: A[
        list[str],
        says("What was done to the model on the way in, and which patterns of --skip fit no node."),
    ]


class Inspections(TypedDict):
    """A folder of onnxruntime-genai or transformers.js with several models; of one alone its own document."""

    mirage: Version
    schema_version: SchemaVersion
    kind: A[str, says("`models`.")]
    folder: A[str, says("Its path.")]
    models: A[dict[str, Object], says("What `mirage inspect` prints, by the file of each model.")]
    notes: A[list[str], says("Which models stay as they are, and why.")]


class Side(TypedDict):
    """A folder."""

    folder: A[str, says("Its path.")]


class Change(TypedDict):
    """A fragment of one or both."""

    id: Identifier
    name: Name
    change: A[str, says("`new`, `gone`, `changed` or `same`.")]
    differs: A[list[str], says("What is different, such as `schedule`.")]


class Compare(TypedDict):
    """What changed. Lists of two are: old and new."""

    mirage: Version
    schema_version: SchemaVersion
    old: Side
    new: Side
    same_model: A[bool, says("Whether both were made of the same file.")]
    options: A[dict[str, list[Any]], PAIR]
    replaced: A[list[int], says("Fragments replaced. Old and new.")]
    places: A[list[int], says("Places in the model. Old and new.")]
    predicted_us: A[
        Object, says("By target the times that the cost model predicts, added up. Old and new; null without.")
    ]
    measured_us: A[dict[str, list[Any]], says("Measured times by device. Old and new.")]
    coverage: A[dict[str, list[Any]], PAIR]
    bytes: A[dict[str, list[Any]], says("Sizes of the library and the model. Old and new.")]
    seconds: A[list[float | None], says("How long each run took. Old and new.")]
    fragments: list[Change]
    tolerance_percent: A[float, says("How much worse something may be.")]
    regressions: list[Regression]


class Doctor(TypedDict):
    """What this machine has."""

    mirage: Version
    ok: A[bool, says("Whether models can be optimized here.")]
    found: list[Item]
    possible: list[Ability]


class Error(TypedDict):
    """The error."""

    code: A[str, says("Stable; see the guide, [When something goes wrong](../guide.md#when-something-goes-wrong).")]
    message: A[str, says("What was expected and what was found.")]
    hint: A[str, says("What to do; may be empty.")]


class Optimized(TypedDict):
    """What became of a model: its report, or an error."""

    model: A[str, says("Its path.")]
    output: A[str, says("The folder that it was to be written to.")]
    report: NotRequired[A[Object, says("Its [report.json](report.md).")]]
    error: NotRequired[Error]


class Several(TypedDict):
    """Several models, and lists of them (`mirage farm run`)."""

    models: A[list[Optimized], says("In the order in which they were named.")]


class Errors(TypedDict):
    """What any command prints in place of its document when it fails; the exit code says it too."""

    error: Error


FORMS = {
    "mirage optimize, several models": Several,
    "mirage verify": Verify,
    "mirage bench": Bench,
    "mirage bench, several sizes": Sweep,
    "mirage bench, several models": Models,
    "mirage bench --generate": Generation,
    "mirage inspect": Inspect,
    "mirage inspect, several models": Inspections,
    "mirage compare": Compare,
    "mirage doctor": Doctor,
    "errors": Errors,
}
OPEN = ("Finding", "Output", "BenchFragment", "BenchModel", "Fragment", "Side", "Change")  #: with further entries
#: command -> JSON Schema
SCHEMAS = {command: codec.schema(form, globals(), command, OPEN) for command, form in FORMS.items()}
