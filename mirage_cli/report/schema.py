"""What report.json holds, as JSON Schema (draft 2020-12): for programs that read reports, for the tests, and for
docs/reference/report.md, which is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from mirage_cli.options.options import Options
from mirage_cli.report.report import FAILED, KEPT, REPLACED, SCHEMA_VERSION

Schema: TypeAlias = dict[str, Any]
IDENTIFIER = "^[0-9A-Za-z_]{1,64}$"
INSIDE = r"^(?!/)(?!([^/]*/)*\.\.(/|$))[^\x00\\]+$"  #: relative, without a step upwards


def _of(kind: str | list[str], description: str, **more: Any) -> Schema:
    return {"type": kind, "description": description, **more}


def _object(description: str, needed: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with these entries and no others."""
    entries = {**needed, **(optional or {})}
    more = {"properties": entries, "required": list(needed), "additionalProperties": False}
    return _of("object", description, **more)


def _map(description: str, values: Schema) -> Schema:
    return _of("object", description, additionalProperties=values)


def _list(description: str, items: Schema) -> Schema:
    return _of("array", description, items=items)


def _text(description: str) -> Schema:
    return _of("string", description)


def _number(description: str, least: float | None = 0) -> Schema:
    return _of("number", description, **({} if least is None else {"minimum": least}))


def _maybe(description: str, **more: Any) -> Schema:
    return _of(["number", "null"], description, **more)


def _count(description: str) -> Schema:
    return _of("integer", description, minimum=0)


def _files(description: str) -> Schema:
    """A map from paths that stay in their folder."""
    names = {"pattern": INSIDE, "description": "The path of a file below its folder."}
    return {**_map(description, {"type": "string"}), "propertyNames": names}


def _option(name: str, default: Any) -> Schema:
    """What an option of `optimize` is, by its default; of those that are not given by default the GPU is a whole number."""
    said = f"`--{name.replace('_', '-')}`."
    if isinstance(default, list):
        return _list(said, {"type": "string"})
    kinds: dict[type, str | list[str]] = {bool: "boolean", int: "integer", float: "number"}
    return _of(kinds.get(type(default), ["integer" if name == "gpu" else "string", "null"]), said)


_EXTENT: Schema = {"type": ["integer", "string"], "description": "A number, or symbols such as `batch*(past+1)`."}
_LINES = _list("Text, line by line.", {"type": "string"})
_TARGET = _text("`cpu`, or an architecture such as `sm_90a`.")
_BETWEEN = _map(
    "For which extents it is taken, as `[least, most]`; most is null without an end.",
    {"type": "array", "items": {"type": ["integer", "null"]}, "minItems": 2, "maxItems": 2},
)

_VERDICT = {
    "passed": _of("boolean", "Whether the muGraph computes the program."),
    "mode": _of(
        ["string", "null"],
        "`uninterpreted`: exponentials are arbitrary functions; `homomorphic`: exp(a) exp(b) = exp(a + b) is used.",
    ),
    "primes": _list("The prime fields of the proof.", {"type": "integer"}),
    "degree": _of(["integer", "null"], "Degree of the polynomials that are compared."),
    "argument_degree": _count("Degree of the arguments of functions."),
    "coefficient_bits": _number("Size of the largest coefficient, in bits."),
    "applications": _of(["integer", "null"], "How often functions are applied."),
    "rounds": _count("Random points in each field."),
    "log2_bound": _of("number", "The bound as a power of two.", maximum=0),
    "entropy": _text("What random points come from, beside program, muGraph and seed."),
    "candidates": _count("MuGraphs that were tried until one was accepted; the bound is that of all of them."),
    "extents": _text("`real`: compared at the real extents; else at smaller ones that the theorem allows."),
    "seconds": _number("How long the proof took."),
    "reason": _text("Why it did not pass."),
    "error_bound": _maybe("The proof is wrong with at most this probability.", minimum=0, maximum=1),
}
_STATEMENT = _object(
    "The proof that the fragment's program is what the nodes of the file mean.",
    {
        "passed": _of("boolean", "Whether it is."),
        "error_bound": _of("number", "The proof is wrong with at most this probability.", minimum=0, maximum=1),
        "assumptions": _list("What the proofs take for granted.", {"type": "string"}),
        "primes": _list("The prime fields.", {"type": "integer"}),
        "seconds": _number("How long it took."),
    },
    {"reason": _text("Why not.")},
)
_ON = _text("The architecture of the GPUs that take it, where others take another one.")
#: of a proof that there is: those of a fragment are null where there is none
_PROVED = _VERDICT | {k: {**_VERDICT[k], "type": _VERDICT[k]["type"][0]} for k in ("mode", "degree", "applications")}
_NEEDED = {k: _PROVED[k] for k in ("mode", "primes", "degree", "applications", "rounds")}
_PROOF = _object("One proof.", _NEEDED, {**_PROVED, "when": _BETWEEN, "target": _ON})
_OTHERS = _list("Those of muGraphs for other extents or architectures.", _PROOF)

_FLOAT = _object(
    "The kernel on real inputs against a float64 run, beside what the original operators make of them.",
    {
        "target": _of(["string", "null"], "Where it ran."),
        "error": _maybe("Root mean square error of the kernel."),
        "original_error": _maybe("The same of the original operators."),
    },
    {
        "passed": _of("boolean", "Whether it keeps the accuracy rule."),
        "case": _text(
            "The inputs that the figures are of: the worst of the random ones; where it failed, the kind that did."
        ),
        "max_error": _maybe("Largest error of the kernel."),
        "original_max_error": _maybe("The same of the original operators."),
        "note": _text("For instance that the original overflows and the kernel does not."),
        "skipped": _text("Why nothing was run."),
        "edges": _object(
            "What was found on inputs at the edges of numbers, where the rule's factor is 10.",
            {
                "kinds": _list("The kinds that were tried.", {"type": "string"}),
                "worst": _text("The one that used most of the error that is allowed."),
                "error": _maybe("Root mean square error of the kernel on it."),
                "original_error": _maybe("The same of the original operators."),
                "better": _list("Kinds where the original overflows and the kernel does not.", {"type": "string"}),
            },
        ),
    },
)

_SCHEDULE = _object(
    "How one kernel runs.",
    {
        "tiles": _map("Positions of each grid axis in a block.", {"type": "integer"}),
        "loop": _of("integer", "Positions of the loop axis in an iteration; 0 without a loop.", minimum=0),
        "warps": _count("Warps of a block."),
        "stages": _count("Iterations whose loads are on their way at the same time."),
    },
    {
        "when": _BETWEEN,
        "target": _ON,
        "threads": _count("Threads of a block."),
        "shared_bytes": _count("Bytes of shared memory that a block asks for; on a CPU, of a thread's own memory."),
    },
)
#: choices of single engines come and go, so a schedule may hold more than is listed
_SCHEDULE["additionalProperties"] = True

_TRIAL: Schema = {
    "type": "object",
    "description": "A candidate: its key, its engines and schedules, `predicted_us`, `measured_us` (null when it failed, "
    "then with `problem`), `low` and `high` of its samples, whether its time was `cached`.",
}
_TUNING = _object(
    "Candidates that were measured, with `--gpu` or `--tuned`.",
    {},
    {
        "device": _text("The GPU."),
        "driver": _text("Its driver."),
        "extents": _map("The sizes at which candidates were measured.", {"type": "integer"}),
        "seconds": _number("How long it took."),
        "complete": _of("boolean", "Whether there was time for all."),
        "tried": _count("Candidates that were measured."),
        "refused": _count("Candidates that no kernel could be made of."),
        "own": _of(["string", "null"], "The cost model's choice."),
        "chosen": _of(["string", "null"], "The fastest one that is proved: what was taken."),
        "own_us": _maybe("Its measured time, microseconds."),
        "chosen_us": _maybe("Its measured time, microseconds."),
        "candidates": _list("All of them.", _TRIAL),
        "passed_over": _of(["integer", "array", "object"], "Faster ones that were not proved."),
        "problem": _text("Why there is no choice."),
    },
)

_MEASURED = _object(
    "The whole operator against the original nodes, on one device.",
    {
        "device": _text("The device."),
        "original_us": _maybe("Microseconds of the original nodes, median."),
        "mirage_us": _maybe("Microseconds of the operator, median."),
        "peers": _map(
            "Microseconds of others, by name; `kernel` and `kernel isolated` are our C function without ONNX Runtime.",
            {"type": ["number", "null"]},
        ),
    },
    {
        "target": _of("string", "The kind of the device; `cuda` where nothing is said.", enum=["cpu", "cuda"]),
        "inputs": _list(
            "Types and sizes that `bench` measured; the typical ones where nothing is said.", {"type": "string"}
        ),
        "problems": {"description": "What went wrong."},
    },
)

_TENSOR = {"name": _text("In the model."), "type": _text("As `f32[16, 4096]`.")}
_WEIGHT = {"weight": _of("boolean", "Whether the model holds its elements.")}
_ORIGINAL = _object(
    "The nodes of the first place. A node's input that is neither listed nor made by one of them is a constant or a shape.",
    {
        "inputs": _list("What goes in.", _object("A tensor.", {**_TENSOR, **_WEIGHT})),
        "outputs": _list("What comes out.", _object("A tensor.", _TENSOR)),
        "nodes": _list(
            "In the order of the model.",
            _object(
                "A node.",
                {
                    "name": _text("In the model."),
                    "op": _text("Its operator, with the domain where that is not ONNX's own."),
                    "inputs": _list("Tensors by name.", {"type": "string"}),
                    "outputs": _list("Tensors by name.", {"type": "string"}),
                },
            ),
        ),
    },
)
_PREDICTION = _object(
    "Times of the cost model in microseconds, and what bounds them.",
    {
        "target": _TARGET,
        "predicted_us": _number("One call."),
        "original_us": _number("The original operators."),
        "floor_us": _number("No kernel reads its inputs, or multiplies, in less."),
        "bytes": _count("Bytes of inputs and outputs, each once."),
        "flops": _count("Operations of matrix products (elementwise ones where there is none)."),
        "bandwidth": _number("Bytes a second of the target."),
        "rate": _number("Operations a second of the target, for this fragment's element types."),
    },
)

FRAGMENT = _object(
    "A distinct fragment: equal ones of a model are one entry.",
    {
        "id": _of("string", "Hash of what it computes; names files, operators and C functions.", pattern=IDENTIFIER),
        "name": _text("What it is in words, as `norm_linear`."),
        "status": _of(
            "string",
            f"`{REPLACED}`; `{KEPT}`: proved, but not faster; `{FAILED}`: see `reason`.",
            enum=[REPLACED, KEPT, FAILED],
        ),
        "occurrences": _count("How often it stands in the model."),
        "nodes": _list("The nodes of each place, by name.", {"type": "array", "items": {"type": "string"}}),
        "program": _object(
            "What is computed, on named axes.",
            {
                "inputs": _list("As `f32[16, 4096]`.", {"type": "string"}),
                "outputs": _list("The same for outputs.", {"type": "string"}),
                "ops": _count("Operators."),
                "axes": _map("The extent of each axis.", _EXTENT),
                "text": _LINES,
            },
        ),
        "search": _object(
            "What the search did.",
            {
                "mappings": _count("Ways to split axes over blocks and loops that were looked into."),
                "values": _count("Distinct values that blocks can compute."),
                "muGraphs": _count("muGraphs found."),
                "seconds": _number("How long it took."),
            },
            {"cached": _of("boolean", "There where search, proof and rendering are those of an earlier run.")},
        ),
        "mugraph": _object(
            "The chosen muGraph.",
            {
                "file": _of(["string", "null"], "Its file, null where nothing was written."),
                "kernels": _count("How many kernels it has."),
                "grid": _list("Axes that are split over blocks.", {"type": "string"}),
                "loop": _of(["string", "null"], "The axis that a block walks along."),
                "text": _LINES,
            },
        ),
        "verification": _object(
            "The proof and the comparison with float64.",
            {k: _VERDICT[k] for k in ("mode", "primes", "degree", "applications", "rounds", "error_bound", "seconds")}
            | {"float": _FLOAT},
            _VERDICT
            | {
                "targets": _map(
                    "The proof of each target's muGraph.",
                    _object("One proof.", _NEEDED, {**_PROVED, "when": _BETWEEN, "others": _OTHERS}),
                ),
                "others": _OTHERS,
                "statement": _STATEMENT,
            },
        ),
        "schedule": _map("Schedules of the kernels, by target.", _list("One for each kernel.", _SCHEDULE)),
        "predicted_us": _number("The cost model's time for one call, microseconds."),
        "original_us": _number("The same model's time of the original operators."),
        "floor_us": _number("No kernel reads its inputs, or multiplies, in less."),
        "measured": _list("Measurements, where there are any.", _MEASURED),
        "original": _ORIGINAL,
        "predictions": _map("What the cost model says, by kind of target: `cpu`, `cuda`.", _PREDICTION),
    },
    {"tuning": _TUNING, "reason": _text("Why it was not replaced.")},
)

SCHEMA: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "report.json of mirage optimize",
    **_object(
        "What was found, searched, proved, chosen and left.",
        {
            "mirage": _text("The version that wrote it."),
            "schema_version": _of("integer", "Raised when an entry changes its meaning.", const=SCHEMA_VERSION),
            "model": _object(
                "What was read.",
                {
                    "path": _text("As it was given."),
                    "sha256": _text("Hash of the file."),
                    "external_data": _files("Hash of each file with weights."),
                    "format": _of("string", "`onnx` or `torchscript`."),
                    "opset": _of(["integer", "null"], "Version of ONNX's operators."),
                    "nodes": _count("Nodes of its main graph."),
                },
            ),
            "options": _of(
                "object",
                "The options that can change the output, by their names in Python ([commands](commands.md#mirage-optimize)).",
                properties={name: _option(name, value) for name, value in Options().to_json().items()},
                required=["dim", "shape"],
            ),
            "seconds": _map("Where the time went, by stage; `total` is the wall clock.", {"type": "number"}),
            "fragments": _list("One entry for each distinct fragment.", FRAGMENT),
            "unchanged": _list(
                "Nodes that stay.",
                _object(
                    "A group of nodes.",
                    {"nodes": _list("By name.", {"type": "string"}), "reason": _text("Why they stay.")},
                ),
            ),
            "coverage": _map(
                "Shares of `flops`, `weight_bytes` and `nodes` that the replaced fragments have.",
                {"type": "number", "minimum": 0, "maximum": 1},
            ),
            "notes": _list(
                "What was done to the model on the way in; patterns of `only` and `skip` that fit no node.",
                {"type": "string"},
            ),
            "toolchain": _map("Compilers whose version changes what is written.", {"type": "string"}),
            "operators": _map(
                "The operator of each node by the node's name, in the order of the model.", {"type": "string"}
            ),
            "files": _files("Hash of every file that was written, but for the reports."),
        },
        {
            "seal": _text(
                "Of `files` and the model's hash, made with a secret of who wrote them: `verify` loads what its user built."
            )
        },
    ),
}
