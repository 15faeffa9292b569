"""A report made by hand, in which every kind of fragment is."""

from dataclasses import replace
from typing import Any

from mirage_cli import __version__
from mirage_cli.options.options import Options
from mirage_cli.report.report import FLOAT, MUGRAPH, SCHEMA_VERSION, SEARCH, VERIFICATION, FragmentReport, Report

PROGRAM: dict[str, Any] = {
    "inputs": ["f32[5, 48]", "f32[48, 40]"],
    "outputs": ["f32[5, 40]"],
    "ops": 6,
    "axes": {"a": 5, "b": 40, "c": "2*batch"},
    "text": ["axes a=5 b=40 c=48", "x0 = read f32 #0 [a, c]"],
}
PROOF: dict[str, Any] = {
    "passed": True,
    "mode": "uninterpreted",
    "primes": [2147483647, 2147483629, 2147483587],
    "degree": 3,
    "applications": 49,
    "rounds": 1,
    "log2_bound": -79.77,
    "error_bound": 9.7e-25,
    "extents": "real",
    "seconds": 0.009,
    "reason": "",
    "float": {
        "target": "cpu",
        "passed": True,
        "case": "random",
        "error": 7.27e-07,
        "original_error": 8.34e-07,
        "max_error": 3.7e-06,
        "original_max_error": 3.2e-06,
        "note": "",
    },
}


ORIGINAL: dict[str, Any] = {"inputs": [], "outputs": [], "nodes": []}
PREDICTION = {
    "target": "cpu",
    "predicted_us": 2.472,
    "original_us": 15.768,
    "floor_us": 0.472,
    "bytes": 9440,
    "flops": 19200,
    "bandwidth": 2e10,
    "rate": 2e11,
}


def replaced(name: str = "norm_linear", nodes: tuple[str, ...] = ("pow_0", "matmul_5")) -> FragmentReport:
    """A fragment that was replaced at two places and measured."""
    return FragmentReport(
        "a6660ab85df12c2a",
        name,
        "replaced",
        2,
        [list(nodes), [f"{n}_1" for n in nodes]],
        PROGRAM,
        {"mappings": 4, "values": 95, "muGraphs": 11, "seconds": 0.061},
        {"file": "mugraphs/a6660ab85df12c2a.json", "kernels": 1, "grid": ["a", "b"], "loop": "c", "text": ["grid a b"]},
        PROOF,
        {
            "cpu": [
                {"tiles": {"a": 5, "b": 40}, "loop": 16, "warps": 1, "stages": 1, "threads": 1, "shared_bytes": 8192}
            ]
        },
        2.472,
        15.768,
        0.472,
        [{"device": "NVIDIA H200", "original_us": 21.9, "mirage_us": 13.6, "peers": {"torch.compile": 18.4}}],
        {
            "inputs": [
                {"name": name, "type": "f32[5, 48]", "weight": False},
                {"name": f"w{name}", "type": "f32[48, 40]", "weight": True},
            ],
            "outputs": [{"name": f"y{name}", "type": "f32[5, 40]"}],
            "nodes": [
                {"name": nodes[0], "op": "Pow", "inputs": [name, "two", ""], "outputs": [f"p{name}"]},
                {"name": nodes[-1], "op": "MatMul", "inputs": [f"p{name}", f"w{name}"], "outputs": [f"y{name}"]},
            ],
        },
        {"cpu": PREDICTION},
    )


def kept(reason: str = "not predicted to be faster on cpu: 9.1 us against 8.4 us") -> FragmentReport:
    """A fragment that was proved and not replaced."""
    return FragmentReport(
        "b6660ab85df12c2b",
        "attention",
        "kept",
        24,
        [["softmax_1"]] * 24,
        PROGRAM,
        {"mappings": 4, "values": 95, "muGraphs": 11, "seconds": 0.061},
        {"file": "mugraphs/b6660ab85df12c2b.json", "kernels": 2, "grid": ["a"], "loop": None, "text": ["grid a"]},
        {**PROOF, "float": {**FLOAT, "target": "cpu", "skipped": "too large"}},
        {},
        9.1,
        8.4,
        0.5,
        [],
        ORIGINAL,
        {"cpu": {**PREDICTION, "predicted_us": 9.1, "original_us": 8.4}},
        reason=reason,
    )


def failed(reason: str = "cpu: no muGraph was found") -> FragmentReport:
    """A fragment of which nothing is known but that it failed."""
    return replace(
        kept(reason),
        id="c6660ab85df12c2c",
        name="linear",
        status="failed",
        occurrences=1,
        nodes=[["gemm"]],
        search=SEARCH,
        mugraph=MUGRAPH,
        verification=VERIFICATION,
        predicted_us=0.0,
        original_us=0.0,
        floor_us=0.0,
        predictions={},
    )


def report(*fragments: FragmentReport, path: str = "models/decoder.onnx", **changed: Any) -> Report:
    """The report of a run that found `fragments`."""
    options = Options(target=("cpu",), dim=("batch=1", "seq=1:128:4096"), force=True)
    data: dict[str, Any] = {
        "unchanged": [
            {"nodes": ["embed"], "reason": "embedding lookup: Gather of rows that are chosen at run time"},
            {"nodes": [f"node_Reshape_{k}" for k in range(30)], "reason": "layout only"},
        ],
        "coverage": {"flops": 0.9712, "weight_bytes": 0.92, "nodes": 0.8},
        "seconds": {
            "read": 0.26,
            "search": 0.06,
            "verify": 0.12,
            "tune": 0.0,
            "render": 0.01,
            "compile": 7.13,
            "total": 8.17,
        },
        "toolchain": {},
        "notes": ["converted from opset 11 to opset 13"],
        "operators": {"embed": "Gather", "pow_0": "Pow", "matmul_5": "MatMul", "node_Reshape_0": "Reshape"},
        "files": {"src/a6660ab85df12c2a.cpp": "01", "mugraphs/a6660ab85df12c2a.json": "02", "src/build.sh": "03"},
    }
    model = {
        "path": path,
        "sha256": "69fb30af",
        "external_data": {"w.data": "0123"},
        "format": "onnx",
        "opset": 20,
        "nodes": 137,
    }
    head = {"mirage": __version__, "schema_version": SCHEMA_VERSION, "model": model, "options": options.to_json()}
    return Report(**head, fragments=list(fragments), **{**data, **changed})
