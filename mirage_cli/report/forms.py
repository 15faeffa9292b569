"""Forms of the parts of report.json: reports are read with them, and docs/reference/report.md is made from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict
from typing import Annotated as A

from msgspec import Meta

from mirage_cli.files.codec import says
from mirage_cli.options.options import Options

IDENTIFIER = r"^[0-9A-Za-z_]{1,64}$(?!\n)"
INSIDE = r"^(?!/)(?!([^/]*/)*\.\.(/|$))[^\x00\\]+$"  #: relative, without a step upwards

Count = A[int, Meta(ge=0)]
Amount = A[float, Meta(ge=0)]
Share = A[float, Meta(ge=0, le=1)]
Extent = A[int | str, says("A number, or symbols such as `batch*(past+1)`.")]
Lines = A[list[str], says("Text, line by line.")]
Target = A[str, says("`cpu`, or an architecture such as `sm_90a`.")]
On = A[str, says("The architecture of the GPUs that take it, where others take another one.")]
Between = A[
    dict[str, A[list[int | None], Meta(min_length=2, max_length=2)]],
    says("For which extents it is taken, as `[least, most]`; most is null without an end."),
]
Files = dict[A[str, says("The path of a file below its folder.", pattern=INSIDE)], str]
Others = A[list["Proof"], says("Those of muGraphs for other extents or architectures.")]
MODE = says("`uninterpreted`: exponentials are arbitrary functions; `homomorphic`: exp(a) exp(b) = exp(a + b) is used.")
PRIMES, ROUNDS = says("The prime fields of the proof."), says("Random points in each field.")
DEGREE, APPLICATIONS = says("Degree of the polynomials that are compared."), says("How often functions are applied.")
BOUND, TOOK = says("The proof is wrong with at most this probability."), says("How long the proof took.")


if TYPE_CHECKING:
    Given: TypeAlias = dict[str, Any]
else:

    def _option(name: str, default: Any) -> Any:
        """The type of an option of `optimize`, by its default; of those without one the GPU is a whole number."""
        kinds: dict[type, Any] = {list: list[str], bool: bool, int: int, float: float}
        kind = kinds.get(type(default), int | None if name == "gpu" else str | None)
        told = A[kind, says(f"`--{name.replace('_', '-')}`.")]
        return told if name in ("dim", "shape") else NotRequired[told]

    Given = TypedDict("Given", {name: _option(name, value) for name, value in Options().to_json().items()})
    Given.__doc__ = (
        "The options that can change the output, by their names in Python ([commands](commands.md#mirage-optimize))."
    )


class Model(TypedDict):
    """The model that was read."""

    path: A[str, says("As it was given.")]
    sha256: A[str, says("Hash of the file.")]
    external_data: A[Files, says("Hash of each file with weights.")]
    format: A[str, says("`onnx` or `torchscript`.")]
    opset: A[int | None, says("Version of ONNX's operators.")]
    nodes: A[Count, says("Nodes of its main graph.")]


class FarmWorker(TypedDict):
    """What a worker did."""

    jobs: A[Count, says("Jobs that it made.")]
    seconds: A[Amount, says("Seconds that they took.")]


class Farm(TypedDict, total=False):
    """The farm of a run with `scheduler`."""

    scheduler: A[str, says("Its address.")]
    workers: A[dict[str, FarmWorker], says("Its workers that made anything, by name.")]
    here: A[Count, says("Jobs that were made on this machine, since no worker did.")]
    problems: A[list[str], says("Workers that were not used, answers that were not taken.")]


class Rates(TypedDict, total=False):
    """The CPU and the GPU that plans went by."""

    origin: A[str, says("What said so: `this machine`, or the file of `target_file`.")]
    changes: A[dict[str, Any], says("Keys of the CPU's target file with their values.")]
    card: A[dict[str, Any], says("The same of the GPU, where it is not the one that its architecture's file is of.")]


class Unchanged(TypedDict):
    """A group of nodes."""

    nodes: A[list[str], says("By name.")]
    reason: A[str, says("Why they stay.")]


class Program(TypedDict):
    """The program of a fragment, on named axes."""

    inputs: A[list[str], says("As `f32[16, 4096]`.")]
    outputs: A[list[str], says("The same for outputs.")]
    ops: A[Count, says("Operators.")]
    axes: A[dict[str, Extent], says("The extent of each axis.")]
    text: Lines


class Search(TypedDict):
    """Numbers of a fragment's search."""

    mappings: A[Count, says("Ways to split axes over blocks and loops that were looked into.")]
    values: A[Count, says("Distinct values that blocks can compute.")]
    muGraphs: A[Count, says("muGraphs found.")]
    seconds: A[Amount, says("How long it took.")]
    cached: NotRequired[A[bool, says("There where search, proof and rendering are those of an earlier run.")]]


class MuGraph(TypedDict):
    """The chosen muGraph."""

    file: A[str | None, says("Its file, null where nothing was written.")]
    kernels: A[Count, says("How many kernels it has.")]
    grid: A[list[str], says("Axes that are split over blocks.")]
    loop: A[str | None, says("The axis that a block walks along.")]
    text: Lines


# --- proofs and checks ------------------------------------------------------------------------------------------------
class Kernels(TypedDict):
    """The outcome of running the kernels that are printed for a muGraph, thread by thread, over residues."""

    passed: A[bool, says("Whether they compute the program.")]
    reason: A[str, says("Why not, or why nothing was run.")]
    extents: A[str, says("`real`, or `stand-in`: the same schedules on shorter axes.")]
    compared: A[Count, says("Elements of outputs that were compared.")]
    fields: A[Count, says("Prime fields at once.")]
    seconds: A[Amount, says("How long it took.")]


class _Told(TypedDict, total=False):
    """Entries of a proof beside those that every fragment has."""

    passed: A[bool, says("Whether the muGraph computes the program.")]
    argument_degree: A[Count, says("Degree of the arguments of functions.")]
    coefficient_bits: A[Amount, says("Size of the largest coefficient, in bits.")]
    log2_bound: A[float, says("The bound as a power of two.", le=0)]
    entropy: A[str, says("What random points come from, beside program, muGraph and seed.")]
    candidates: A[Count, says("MuGraphs that were tried until one was accepted; the bound is that of all of them.")]
    extents: A[str, says("`real`: compared at the real extents; else at smaller ones that the theorem allows.")]
    reason: A[str, says("Why it did not pass.")]
    kernels: Kernels
    terms: A[Count, says("Of a homomorphic proof: exponentials behind an entry.")]
    exponent_degree: A[Count, says("Of a homomorphic proof: degree of a difference of their exponents.")]
    paper_log2_bound: A[float, says("Of a homomorphic proof: the bound by the paper's own theorem, as a power of two.")]


class Proof(_Told):
    """One proof."""

    mode: A[str, MODE]
    primes: A[list[int], PRIMES]
    degree: A[int, DEGREE]
    applications: A[int, APPLICATIONS]
    rounds: A[Count, ROUNDS]
    error_bound: NotRequired[A[Share | None, BOUND]]
    seconds: NotRequired[A[Amount, TOOK]]
    when: NotRequired[Between]
    target: NotRequired[On]


class TargetProof(Proof):
    """One proof."""

    others: NotRequired[Others]


class Statement(TypedDict):
    """The proof that the fragment's program is what the nodes of the file mean."""

    passed: A[bool, says("Whether it is.")]
    error_bound: A[Share, BOUND]
    assumptions: A[list[str], says("What the proofs take for granted.")]
    primes: A[list[int], says("The prime fields.")]
    seconds: A[Amount, says("How long it took.")]
    reason: NotRequired[A[str, says("Why not.")]]


class Edges(TypedDict):
    """The float checks on inputs at the edges of numbers, where the rule's factor is 10."""

    kinds: A[list[str], says("The kinds that were tried.")]
    worst: A[str, says("The one that used most of the error that is allowed.")]
    error: A[float | None, says("Root mean square error of the kernel on it.")]
    original_error: A[float | None, says("The same of the original operators.")]
    better: A[list[str], says("Kinds where the original overflows and the kernel does not.")]


class Float(TypedDict):
    """The kernel on real inputs against a float64 run, beside what the original operators make of them."""

    target: A[str | None, says("Where it ran.")]
    error: A[float | None, says("Root mean square error of the kernel.")]
    original_error: A[float | None, says("The same of the original operators.")]
    passed: NotRequired[A[bool, says("Whether it keeps the accuracy rule.")]]
    case: NotRequired[
        A[str, says("The inputs of the figures: the worst random ones; if it failed, the kind that did.")]
    ]
    max_error: NotRequired[A[float | None, says("Largest error of the kernel.")]]
    original_max_error: NotRequired[A[float | None, says("The same of the original operators.")]]
    note: NotRequired[A[str, says("For instance that the original overflows and the kernel does not.")]]
    skipped: NotRequired[A[str, says("Why nothing was run.")]]
    edges: NotRequired[Edges]


class Verification(_Told):
    """The proof and the comparison with float64."""

    mode: A[str | None, MODE]
    primes: A[list[int], PRIMES]
    degree: A[int | None, DEGREE]
    applications: A[int | None, APPLICATIONS]
    rounds: A[Count, ROUNDS]
    error_bound: A[Share | None, BOUND]
    seconds: A[Amount, TOOK]
    float: Float
    targets: NotRequired[A[dict[str, TargetProof], says("The proof of each target's muGraph.")]]
    others: NotRequired[Others]
    statement: NotRequired[Statement]


# --- kernels and their times ------------------------------------------------------------------------------------------
class Schedule(TypedDict):
    """The schedule of one kernel."""

    tiles: A[dict[str, int], says("Positions of each grid axis in a block.")]
    loop: A[Count, says("Positions of the loop axis in an iteration; 0 without a loop.")]
    warps: A[Count, says("Warps of a block.")]
    stages: A[Count, says("Iterations whose loads are on their way at the same time.")]
    engine: NotRequired[A[str, says("What makes the kernel; `block` where nothing is said.")]]
    numbers: NotRequired[A[dict[str, int], says("The engine's own choices.")]]
    when: NotRequired[Between]
    target: NotRequired[On]
    threads: NotRequired[A[Count, says("Threads of a block.")]]
    shared_bytes: NotRequired[A[Count, says("Bytes of shared memory of a block; on a CPU, of a thread's own memory.")]]


class Tuning(TypedDict, total=False):
    """Candidates that were measured, with `--gpu` or `--tuned`."""

    device: A[str, says("The GPU.")]
    driver: A[str, says("Its driver.")]
    extents: A[dict[str, int], says("The sizes at which candidates were measured.")]
    seconds: A[Amount, says("How long it took.")]
    complete: A[bool, says("Whether there was time for all.")]
    tried: A[Count, says("Candidates that were measured.")]
    refused: A[Count, says("Candidates that no kernel could be made of.")]
    own: A[str | None, says("The cost model's choice.")]
    chosen: A[str | None, says("The fastest one that is proved: what was taken.")]
    own_us: A[float | None, says("Its measured time, microseconds.")]
    chosen_us: A[float | None, says("Its measured time, microseconds.")]
    candidates: A[
        list[dict[str, Any]],
        says(
            "All of them: key, engines and schedules, `predicted_us`, `measured_us` (null when it failed, then with "
            "`problem`), `low` and `high` of its samples, whether its time was `cached`."
        ),
    ]
    passed_over: A[int | list[Any] | dict[str, Any], says("Faster ones that were not proved.")]
    problem: A[str, says("Why there is no choice.")]


class Measured(TypedDict):
    """The whole operator against the original nodes, on one device."""

    device: A[str, says("The device.")]
    original_us: A[float | None, says("Microseconds of the original nodes, median.")]
    mirage_us: A[float | None, says("Microseconds of the operator, median.")]
    peers: A[
        dict[str, float | None],
        says(
            "Microseconds of others, by name; `kernel` and `kernel isolated` are our C function without ONNX Runtime."
        ),
    ]
    target: NotRequired[
        A[str, says("The kind of the device; `cuda` where nothing is said.", pattern=r"^(cpu|cuda)$(?!\n)")]
    ]
    inputs: NotRequired[
        A[list[str], says("Types and sizes that `bench` measured; the typical ones where nothing is said.")]
    ]
    problems: NotRequired[A[Any, says("What went wrong.")]]


class SizedTimes(TypedDict):
    """Times at some sizes, in microseconds."""

    sizes: A[dict[str, Count], says("The sizes of symbols that were asked for.")]
    original_us: A[Amount | None, says("The original, median.")]
    mirage_us: A[Amount | None, says("The patched model, or the operator, median.")]
    predicted_us: A[
        Amount | None,
        says("What the cost model says of it; of the whole model, with what the original takes beside the fragments."),
    ]


class Sweep(TypedDict):
    """Times of the whole model or of one fragment, on one device."""

    device: A[str, says("The device.")]
    what: A[str, says("`whole model`, or a fragment's name and identifier.")]
    points: list[SizedTimes]


class Tensor(TypedDict):
    """A tensor."""

    name: A[str, says("In the model.")]
    type: A[str, says("As `f32[16, 4096]`.")]


class Operand(Tensor):
    """A tensor."""

    weight: A[bool, says("Whether the model holds its elements.")]


class Node(TypedDict):
    """A node."""

    name: A[str, says("In the model.")]
    op: A[str, says("Its operator, with the domain where that is not ONNX's own.")]
    inputs: A[list[str], says("Tensors by name.")]
    outputs: A[list[str], says("Tensors by name.")]


class Original(TypedDict):
    """The nodes of the first place. A node's input that is neither listed nor made by one of them is a constant or a shape."""

    inputs: A[list[Operand], says("What goes in.")]
    outputs: A[list[Tensor], says("What comes out.")]
    nodes: A[list[Node], says("In the order of the model.")]


class Times(TypedDict):
    """Times of the cost model in microseconds."""

    predicted_us: A[Amount, says("One call.")]
    original_us: A[Amount, says("The original operators.")]


class Prediction(TypedDict):
    """Times of the cost model in microseconds, and what bounds them."""

    target: Target
    predicted_us: A[Amount, says("One call.")]
    original_us: A[Amount, says("The original operators.")]
    floor_us: A[Amount, says("No kernel reads its inputs, or multiplies, in less.")]
    bytes: A[Count, says("Bytes of inputs and outputs, each once.")]
    flops: A[Count, says("Operations of matrix products (elementwise ones where there is none).")]
    bandwidth: A[Amount, says("Bytes a second of the target.")]
    rate: A[Amount, says("Operations a second of the target, for this fragment's element types.")]
    one_thread: NotRequired[A[Times, says("The same times on one thread, on a CPU that has several.")]]
