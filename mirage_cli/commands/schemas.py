"""JSON Schema of what other commands than `optimize` print with --json; docs/reference/json.md is made from it.

The documents are written in short: "type: what it says" for an entry, a mapping for an object, a list of one element for a
list, the key "*" for maps with any keys. Entries whose name ends with "?" may be absent; "..." allows further ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from mirage_cli.report.schema import Schema
from mirage_cli.verification.findings import CHECKS

Short: TypeAlias = Any

_VERSION = {"mirage": "string: The version that wrote it."}
_SCHEMA = {"schema_version": "integer: Raised when an entry changes its meaning."}
_MEASURED: Short = {
    "calls": "integer: Calls of the operator in a run of the model that was timed.",
    "cuda_graph": "boolean: Whether runs were replays of a CUDA graph.",
    "contestants": [
        {
            "": "The original, mirage, and peers.",
            "name": "string: Who.",
            "us": "object|null: Times of one call, as `speedup` has them; null where it failed.",
            "problem?": "string: What went wrong, such as wrong answers.",
            "relative_error?": "number: Largest difference from the original, relative to the largest value.",
        }
    ],
    "speedup": "object|null: The original's times divided by ours, round by round: `median`, `q1`, `q3`, `min`, `samples`.",
    "notes": ["string: What was not done as usual."],
}
_MODEL: Short = {"": "As in report.json.", "...": ""}
_PAIR = "Old and new."

#: command -> its document
SHORT: dict[str, Short] = {
    "mirage verify": {
        "": "Whether everything holds.",
        **_SCHEMA,
        "passed": "boolean: Whether no difference was found; then the exit code is 0.",
        "culprits": ["string: A file, fragment or output with a difference, and what bisection found."],
        "findings": [
            {
                "": "One check of one thing. Further entries depend on the check.",
                "check": f"string: Which check: {', '.join(f'`{c}`' for c in CHECKS)}.",
                "where": "string: What was checked.",
                "passed": "boolean: Whether it holds.",
                "text?": "string: What was found.",
                "...": "",
            }
        ],
        "outputs": [
            {
                "": "An output of the model, compared with a float64 run.",
                "output": "string: Its name.",
                "reference": "string: What it was compared with.",
                "passed": "boolean: Whether it keeps the accuracy rule.",
                "rmse": "number|null: Root mean square error.",
                "original_rmse": "number|null: The same of the original.",
                "max_error": "number|null: Largest error.",
                "original_max_error": "number|null: The same of the original.",
                "note": "string: What else is to be said.",
                "...": "",
            }
        ],
        "notes": ["string: What could not be compared, and why."],
        "saved": "string|null: The folder of --save-failing.",
        "seconds": "number: How long it took.",
    },
    "mirage bench": {
        "": "Times of the original and the patched model, whole and by fragment; microseconds.",
        **_VERSION,
        "device": "string: What ran them.",
        "settings": {"": "How: provider, versions, threads, seed, shapes of the inputs.", "...": ""},
        "method": "string: How times are taken, in words.",
        "fragments": [
            {
                "": "A distinct fragment.",
                "id": "string: Its identifier.",
                "name": "string: What it is in words.",
                "occurrences": "integer: How often it stands in the model.",
                "inputs": ["string: As `f32[16, 4096]`."],
                "predicted_us": "number: The cost model's time.",
                "floor_us": "number: The least possible, by the same model.",
                **_MEASURED,
                "measured": [{"": "As in report.json.", "...": ""}],
                "...": "",
            }
        ],
        "model": {
            "": "The whole model.",
            "original": "string: The file on the original's side.",
            **_MEASURED,
            "...": "",
        },
        "absent_peers": {"*": "string: Why a peer was not there."},
        "notes": ["string: What was not done as usual."],
    },
    "mirage inspect": {
        "": "For a model file; for an output folder `kind` is `folder`, and entries are those of report.json in short.",
        **_VERSION,
        **_SCHEMA,
        "kind": "string: `model` or `folder`.",
        "model": _MODEL,
        "inputs?": [
            {
                "": "An input.",
                "name": "string: Its name.",
                "dtype": "string|null: As `f32`.",
                "dims": "array|null: Extents.",
            }
        ],
        "outputs?": [
            {
                "": "An output.",
                "name": "string: Its name.",
                "dtype": "string|null: As `f32`.",
                "dims": "array|null: Extents.",
            }
        ],
        "symbols?": ["string: A symbolic dimension."],
        "files?": ["string: A file of the folder."],
        "seconds?": {"*": "number: Where the time went."},
        "fragments": [
            {
                "": "A distinct fragment. For a folder: entries of report.json.",
                "id": "string: Its identifier.",
                "name": "string: What it is in words.",
                "occurrences": "integer: How often it stands in the model.",
                "nodes?": "array: The nodes of each place, by name.",
                "program?": "object: As in report.json.",
                "searched?": "integer: At how many places it would be searched.",
                "flops?": "number: Its share of the model's multiply-adds.",
                "...": "",
            }
        ],
        "coverage": {"*": "number: Share of `flops`, `weight_bytes`, `nodes`."},
        "unchanged": [{"": "Nodes that stay.", "nodes": ["string: A name."], "reason": "string: Why."}],
        "notes": [
            "string: What was done to the model on the way in, and which patterns of --only and --skip fit no node."
        ],
    },
    "mirage compare": {
        "": f"What changed. Lists of two are: {_PAIR.lower()}",
        **_VERSION,
        **_SCHEMA,
        "old": {"": "The first folder.", "folder": "string: Its path.", "...": ""},
        "new": {"": "The second folder.", "folder": "string: Its path.", "...": ""},
        "same_model": "boolean: Whether both were made of the same file.",
        "options": {"*": f"array: {_PAIR}"},
        "replaced": [f"integer: Fragments replaced. {_PAIR}"],
        "places": [f"integer: Places in the model. {_PAIR}"],
        "predicted_us": [f"number: Times that the cost model predicts, added up. {_PAIR}"],
        "measured_us": {"*": f"array: Measured times by device. {_PAIR}"},
        "coverage": {"*": f"array: {_PAIR}"},
        "bytes": {"*": f"array: Sizes of the library and the model. {_PAIR}"},
        "seconds": [f"number|null: How long each run took. {_PAIR}"],
        "fragments": [
            {
                "": "A fragment of one or both.",
                "id": "string: Its identifier.",
                "name": "string: What it is in words.",
                "change": "string: `new`, `gone`, `changed` or `same`.",
                "differs": ["string: What is different, such as `schedule`."],
                "...": "",
            }
        ],
        "tolerance_percent": "number: How much worse something may be.",
        "regressions": [
            {
                "": "What got worse by more.",
                "what": "string: What.",
                "old": "number: From.",
                "new": "number: To.",
                "percent": "number|null: How much worse; null where something is gone.",
            }
        ],
    },
    "mirage doctor": {
        "": "What this machine has.",
        **_VERSION,
        "ok": "boolean: Whether models can be optimized here.",
        "found": [
            {
                "": "A tool.",
                "name": "string: What.",
                "ok": "boolean: Whether it is there.",
                "found": "string: Its version, or what is wrong.",
                "command": "string: What installs it.",
                "...": "",
            }
        ],
        "possible": [
            {
                "": "Something to do.",
                "name": "string: What.",
                "possible": "boolean: Whether it can be done here.",
                "missing": ["string: What is missing for it."],
            }
        ],
    },
    "errors": {
        "": "What any command prints in place of its document when it fails; the exit code says it too.",
        "error": {
            "": "The error.",
            "code": "string: Stable; see the guide, [When something goes wrong](../guide.md#when-something-goes-wrong).",
            "message": "string: What was expected and what was found.",
            "hint": "string: What to do; may be empty.",
        },
    },
}


def schema(short: Short) -> Schema:
    """The JSON Schema of a document, or a part of one, that is written in short."""
    if isinstance(short, str):
        kinds, _, description = short.partition(": ")
        names = kinds.split("|")
        return {"type": names[0] if len(names) == 1 else names, "description": description}
    if isinstance(short, list):
        return {"type": "array", "description": schema(short[0])["description"], "items": schema(short[0])}
    return _object(short)


def _object(short: Mapping[str, Short]) -> Schema:
    entries = {k.removesuffix("?"): schema(v) for k, v in short.items() if k not in ("", "*", "...")}
    if "*" in short:
        values = schema(short["*"])
        return {"type": "object", "description": values["description"], "additionalProperties": values}
    return {
        "type": "object",
        "description": short[""],
        "properties": entries,
        "required": [k for k in short if k not in ("", "...") and not k.endswith("?")],
        "additionalProperties": "..." in short,
    }


#: command -> JSON Schema
SCHEMAS = {command: schema(short) for command, short in SHORT.items()}
