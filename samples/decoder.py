"""A published decoder, one step behind a long cache or a prompt: what a patched model gains end to end.

    python samples/decoder.py export FOLDER [--config NAME]   the graph without its weights (needs torch and transformers)
    python samples/decoder.py fill FOLDER                     random fp16 weights for it, and for a patched model in FOLDER/out
    python samples/decoder.py measure FOLDER [--gpu N]        optimize it into FOLDER/out if that is not there, then time the
                                                              original, the patched model and torch in one process

Answers of the original and of the patched model are held against the same graph in float32 (`far`: by what relative RMS logits
or hidden states are off, and caches at worst).

`--config` names one of `samples/decoders.yaml` or a file `config.json` of any published model that `transformers` knows. The
graph is what `torch.onnx.export` writes: token ids, positions and caches go in, logits and grown caches come out; with
`--bare` hidden states go in and come out, without embedding and LM head. Where torch is, the same module runs beside it (with
weights of its own), as it is and under torch.compile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MODEL, WIDE, STEP, OUT = "decoder.onnx", "wide.onnx", "step.json", "out"
CONFIGS = Path(__file__).with_name("decoders.yaml")
OPSET = 20
STORED = 1 << 16  #: bytes of a weight from which on it is in a file of its own
SCALES = "scales"  #: how the names of weights end that are scales
BLOCK = 1 << 22  #: random numbers that are drawn; larger weights repeat them, each from another place on
READ = 1 << 32  #: bytes that are read to know the bandwidth


@dataclass(frozen=True)
class Step:
    """A call of a decoder: its configuration (a name or a file), layers (0: all), sequences, positions in the cache, new
    tokens, and whether it is without embedding and LM head."""

    config: str = "llama-3-8b"
    layers: int = 0
    batch: int = 1
    cached: int = 4096
    tokens: int = 1
    bare: bool = False

    def configuration(self) -> dict[str, Any]:
        """The configuration as `transformers` takes it."""
        path = Path(self.config)
        told = json.loads(path.read_text()) if path.is_file() else yaml.safe_load(CONFIGS.read_text())[self.config]
        return told | ({"num_hidden_layers": self.layers} if self.layers else {}) | {"use_cache": True}


# ---- exporting -------------------------------------------------------------------------------------------------------


def module(step: Step, device: str) -> tuple[Any, list[Any]]:
    """The step as a module of torch on a device, with random fp16 weights, and its arguments: token ids or hidden states,
    positions, the flat caches (key and value of each layer in turn; none where nothing is cached)."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    told = step.configuration()
    config = transformers.AutoConfig.for_model(told.pop("model_type"), **told)
    with torch.device(device):
        make = partial(transformers.AutoModelForCausalLM.from_config, config, dtype=torch.float16)
        try:
            causal = make(attn_implementation="sdpa").eval()
        except ValueError:  # scores that torch's function has no place for
            causal = make(attn_implementation="eager").eval()
    generator = torch.Generator(device).manual_seed(0)
    for p in causal.parameters():  # all different: the exporter stores equal ones once
        if p.ndim == 1:
            p.data += 0.1 * torch.randn(p.shape, generator=generator, device=device).to(p.dtype)
    model = causal.base_model if step.bare else causal

    class Call(torch.nn.Module):
        """Token ids or hidden states of new tokens and flat caches to logits or hidden states and grown caches."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, given: Any, position: Any, past: list[Any]) -> tuple[Any, ...]:
            """Keys and values of each layer in turn."""
            cache = transformers.DynamicCache(config=self.model.config)
            for layer in range(len(past) // 2):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            name = "inputs_embeds" if step.bare else "input_ids"
            out = self.model(**{name: given}, position_ids=position, past_key_values=cache, use_cache=True)
            grown = out.past_key_values.layers
            return (out.last_hidden_state if step.bare else out.logits, *(t for x in grown for t in (x.keys, x.values)))

    half = {"dtype": torch.float16, "device": device}
    first = (
        torch.randn(step.batch, step.tokens, config.hidden_size, generator=generator, device=device).half()
        if step.bare
        else torch.randint(config.vocab_size, (step.batch, step.tokens), generator=generator, device=device)
    )
    position = torch.arange(step.cached, step.cached + step.tokens, device=device).repeat(step.batch, 1)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    depth = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = (step.batch, heads, step.cached, depth)
    count = 2 * config.num_hidden_layers if step.cached else 0
    return Call().eval(), [first, position, [torch.randn(shape, generator=generator, **half) for _ in range(count)]]


def export(step: Step, folder: Path) -> Path:
    """Write the graph of a call, its large weights named but not stored, and what it is of beside it."""
    import torch  # noqa: PLC0415

    call, inputs = module(step, "cpu")
    parts = [f"{layer}.{part}" for layer in range(call.model.config.num_hidden_layers) for part in ("key", "value")]
    with torch.no_grad():
        exported = torch.onnx.export(
            call,
            tuple(inputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
            input_names=[
                "hidden" if step.bare else "input_ids",
                "position",
                *(f"past.{n}" for n in parts if step.cached),
            ],
            output_names=["output", *(f"present.{n}" for n in parts)],
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STEP).write_text(json.dumps(asdict(step)) + "\n")
    return without_weights(exported.model_proto, folder / MODEL)


def without_weights(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model whose large weights are external data that is not there yet."""
    offset = 0
    for tensor in model.graph.initializer:
        size = len(tensor.raw_data)
        if size >= STORED and tensor.data_type == TensorProto.FLOAT16:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", f"{path.name}.data"), ("offset", str(offset)), ("length", str(size))):
                tensor.external_data.add(key=key, value=value)
            offset += -(-size // 4096) * 4096
    for message in (model, model.graph, *model.graph.node, *model.graph.value_info):
        message.ClearField("metadata_props")
        message.ClearField("doc_string")
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


# ---- weights ---------------------------------------------------------------------------------------------------------


def fill(path: Path, original: Path | None = None) -> int:
    """Write the external data of a model: weights that the `original` file holds itself as they are there, others as random
    numbers by their names; the number of bytes."""
    model = onnx.load(path, load_external_data=False)
    given = {}
    if original is not None:
        stored = onnx.load(original, load_external_data=False).graph.initializer
        given = {t.name: t for t in stored if t.data_location != TensorProto.EXTERNAL}
    block = np.random.default_rng(0).standard_normal(BLOCK, np.float32)
    written = 0
    with contextlib.ExitStack() as opened:
        files: dict[str, Any] = {}
        for tensor in model.graph.initializer:
            if tensor.data_location != TensorProto.EXTERNAL:
                continue
            told = {e.key: e.value for e in tensor.external_data}
            name = told["location"]
            if name not in files:
                place = path.parent / name
                files[name] = opened.enter_context(place.open("r+b" if place.exists() else "w+b"))
            files[name].seek(int(told.get("offset", 0)))
            if tensor.name in given:
                written += files[name].write(numpy_helper.to_array(given[tensor.name]).tobytes())
            else:
                written += _draw(tensor, block, files[name])
    return written


def _draw(tensor: onnx.TensorProto, block: NDArray[np.float32], file: Any) -> int:
    """Write a weight of random numbers, of whole ones all that a byte holds, as scales of which positive numbers serve; the
    number of bytes."""
    shift = zlib.crc32(tensor.name.encode()) % BLOCK
    drawn = np.roll(block, shift)
    if tensor.data_type == TensorProto.UINT8:
        scaled: NDArray[Any] = (drawn * 64).astype(np.int64).astype(np.uint8)
    elif tensor.data_type == TensorProto.FLOAT16:
        scaled = (drawn / math.sqrt(tensor.dims[0])).astype(np.float16)
        if tensor.name.endswith(SCALES):  # of blocks of numbers of 4 bits
            scaled = (np.abs(drawn) / (26 * math.sqrt(tensor.dims[-1]))).astype(np.float16)
    else:
        raise SystemExit(f"weight {tensor.name} is not of type float16 or uint8")
    size = left = math.prod(tensor.dims)
    while left > 0:
        file.write(scaled[:left].tobytes())
        left -= BLOCK
    return scaled.itemsize * size


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(folder: Path, gpu: int | None, tune: bool, compiled: str, seconds: float) -> dict[str, Any]:
    """Time the original, the patched model and torch in turn; microseconds of one call."""
    from mirage_cli.errors import MirageError  # noqa: PLC0415
    from mirage_cli.files.output import LIBRARY  # noqa: PLC0415
    from mirage_cli.measurement import timing  # noqa: PLC0415
    from mirage_cli.measurement.contestant import OrtContestant, Place, agreement  # noqa: PLC0415
    from mirage_cli.optimization import story  # noqa: PLC0415
    from mirage_cli.options.options import Options  # noqa: PLC0415

    step = Step(**json.loads((folder / STEP).read_text()))
    out = folder / OUT
    kind = "cpu" if gpu is None else "cuda"
    if not out.exists():
        options = Options(
            target=(kind,), gpu=gpu if tune else None, arch=() if gpu is None else ("native",), force=gpu is None
        )
        story.optimize(str(folder / MODEL), out, options)
    report = json.loads((out / "report.json").read_text())
    model = onnx.load(folder / MODEL, load_external_data=False)
    inputs = drawn(model, step.configuration()["vocab_size"])
    replaced: Counter[str] = Counter()
    for f in report["fragments"]:
        replaced[f["name"]] += f["occurrences"] if f["status"] == "replaced" else 0
    result: dict[str, Any] = {
        "step": asdict(step),
        "replaced": dict(replaced),
        "left": {f["name"]: f.get("reason", "") for f in report["fragments"] if f["status"] != "replaced"},
        "read_bytes": read_bytes(model),
        "predicted_us": sum(
            f["predicted_us"] * f["occurrences"] for f in report["fragments"] if f["status"] == "replaced"
        ),
    }
    exact = reference(folder, inputs, Place(kind, gpu or 0))
    for graph in (True, False) if gpu is not None else (False,):  # without graphs where one of them cannot be captured
        place = Place(kind, gpu or 0)
        try:
            original = OrtContestant(folder / MODEL, None, [inputs], place, graph)
            patched = OrtContestant(out / "model.onnx", out / LIBRARY, [inputs], place, graph)
            answers = {"original": original.answers()[0], "mirage": patched.answers()[0]}
            same = agreement([answers["mirage"]], [answers["original"]])
        except MirageError as error:
            result["graph" if graph else "plain"] = str(error)
            continue
        calls = {"original": original.call, "mirage": patched.call}
        if gpu is not None:
            result["floor_us"] = result["read_bytes"] / bandwidth(gpu) * 1e6
            peers, result["peers_left"] = torch_calls(step, gpu, compiled, graph)
            calls |= peers
        times = timing.paired(calls, timing.Effort(seconds=seconds))
        result["graph" if graph else "plain"] = {
            "relative_error": same.error,
            "problem": same.problem,
            "far": {name: far(own, exact) for name, own in answers.items()},
            "us": {name: d.to_json() for name, d in times.items()},
            "gain": timing.ratio(times["original"], times["mirage"]).median,
        }
        break
    return result


def reference(folder: Path, inputs: dict[str, Any], place: Any) -> dict[str, NDArray[Any]]:
    """The outputs of a call in float32, from the weights that the model has."""
    from mirage_cli.measurement.contestant import OrtContestant  # noqa: PLC0415

    path = folder / WIDE
    path.write_bytes(in_float32(onnx.load(folder / MODEL, load_external_data=False)).SerializeToString())
    given = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in inputs.items()}
    return dict(OrtContestant(path, None, [given], place).answers()[0])


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph of float16 as one of float32; weights stay where they are, and are converted as they are read."""
    graph, half, single = model.graph, TensorProto.FLOAT16, TensorProto.FLOAT
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == half:
            value.type.tensor_type.elem_type = single
    for node in graph.node:
        for a in node.attribute:
            if node.op_type == "Cast" and a.name == "to" and a.i == half:
                a.i = single
    converted = []
    for tensor in graph.initializer:
        if tensor.data_type == half:
            name, tensor.name = tensor.name, f"{tensor.name}/half"
            converted.append(helper.make_node("Cast", [tensor.name], [name], to=single))
    nodes = [*converted, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def far(answers: Mapping[str, NDArray[Any]], exact: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """The relative RMS by which the first output is off, and the largest of the others'."""
    errors = [
        float(np.linalg.norm(answers[n].astype(np.float64) - e) / np.linalg.norm(e.astype(np.float64)))
        for n, e in exact.items()
    ]
    return {"output": errors[0], "caches": max(errors[1:], default=0.0)}


def drawn(model: onnx.ModelProto, vocabulary: int) -> dict[str, Any]:
    """Random inputs of a call: positions follow what is cached, token ids lie within the vocabulary."""
    random = np.random.default_rng(1)
    shapes = {i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in model.graph.input}
    cached = next((s[2] for n, s in shapes.items() if n.startswith("past.")), 0)
    inputs: dict[str, Any] = {}
    for name, shape in shapes.items():
        if name == "position":
            inputs[name] = np.broadcast_to(cached + np.arange(shape[1]), shape).copy()
        elif name == "input_ids":
            inputs[name] = random.integers(vocabulary, size=shape)
        else:
            inputs[name] = random.standard_normal(shape, np.float32).astype(np.float16)
    return inputs


def read_bytes(model: onnx.ModelProto) -> int:
    """Bytes that a call must read: caches, and the weights that are not only looked up in."""
    looked_up = {n.input[0] for n in model.graph.node if n.op_type == "Gather"}
    used = {i for n in model.graph.node for k, i in enumerate(n.input) if n.op_type != "Gather" or k}
    weights = (t for t in model.graph.initializer if t.name in used or t.name not in looked_up)
    size = sum(math.prod(t.dims) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in weights)
    pasts = (i for i in model.graph.input if i.name.startswith("past."))
    return size + 2 * sum(math.prod(d.dim_value for d in i.type.tensor_type.shape.dim) for i in pasts)


def bandwidth(gpu: int) -> float:
    """Bytes a second at which torch's sum reads; infinite without torch."""
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        return math.inf
    big = torch.zeros(READ // 2, dtype=torch.float16, device=f"cuda:{gpu}")
    best = math.inf
    for _ in range(10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        big.sum()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end))
    return READ / best * 1e3


def torch_calls(
    step: Step, gpu: int, compiled: str, graph: bool
) -> tuple[dict[str, Callable[[], None]], dict[str, str]]:
    """The same module in torch, as it is and compiled in mode `compiled`, as CUDA graphs where `graph` says so; each call
    waits for its end. What could not be made, with its error. None without torch."""
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        return {}, {}
    made, inputs = module(step, f"cuda:{gpu}")
    kinds = {"torch": made}
    if compiled:
        kinds[f"torch.compile {compiled}"] = torch.compile(made, mode=compiled)
    calls, left = dict[str, Callable[[], None]](), dict[str, str]()
    for name, kind in kinds.items():
        try:
            calls[name] = _waited(partial(kind, *inputs), gpu, graph)
        except Exception as error:
            left[name] = f"{type(error).__name__}: {error}"[:300]
    return calls, left


def _waited(call: Callable[[], Any], gpu: int, graph: bool) -> Callable[[], None]:
    import torch  # noqa: PLC0415

    with torch.no_grad():
        for _ in range(3):
            call()
        torch.cuda.synchronize(gpu)
        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                call()
            call = captured.replay

    def run() -> None:
        with torch.no_grad():
            call()
        torch.cuda.synchronize(gpu)

    return run


def main() -> None:
    """The three commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("export", "fill", "measure"))
    parser.add_argument("folder", type=Path)
    for f in fields(Step):
        kind = {"action": "store_true"} if f.type == "bool" else {"type": int if f.type == "int" else str}
        parser.add_argument(f"--{f.name}", default=f.default, help="of the export", **kind)
    parser.add_argument("--gpu", type=int, help="the GPU to measure on; by default the CPU")
    parser.add_argument("--tune", action="store_true", help="let optimize measure its candidates on that GPU")
    parser.add_argument(
        "--compiled", default="", metavar="MODE", help="time torch.compile in this mode, such as max-autotune"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="to measure for")
    given = parser.parse_args()
    if given.command == "export":
        print(export(Step(**{f.name: getattr(given, f.name) for f in fields(Step)}), given.folder))
    elif given.command == "fill":
        for path in (given.folder / MODEL, given.folder / OUT / "model.onnx"):
            if path.exists():
                print(path, fill(path, given.folder / MODEL))
    else:
        print(json.dumps(measure(given.folder, given.gpu, given.tune, given.compiled, given.seconds), indent=1))


if __name__ == "__main__":
    main()
