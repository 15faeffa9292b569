"""Layers of a decoder of the shapes of Llama-3-8B, one new token on a long cache: what a patched model gains end to end.

    python samples/decoder.py export FOLDER [--batch B] ...   the graph without its weights (needs torch and transformers)
    python samples/decoder.py fill FOLDER                     random fp16 weights for it, and for a patched model in FOLDER/out
    python samples/decoder.py measure FOLDER [--gpu N]        optimize it into FOLDER/out if that is not there, then time the
                                                              original, the patched model and torch.compile in one process

Hidden size 4096, 32 query and 8 key heads of 128, intermediate size 14336, rotary embedding. The embedding lookup and the LM
head are left out: hidden states and caches go in, hidden states and grown caches come out. The graph is what
`torch.onnx.export` writes of `transformers.LlamaModel`. Where torch is, the same step written in plain torch runs beside it
(with weights of its own), as it is and under torch.compile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MODEL, SIZES, OUT = "decoder.onnx", "sizes.json", "out"
OPSET = 20
STORED = 1 << 16  #: bytes of a weight from which on it is in a file of its own
BLOCK = 1 << 22  #: random numbers that are drawn; larger weights repeat them, each from another place on


@dataclass(frozen=True)
class Sizes:
    """The shapes of a decoder and of the step."""

    layers: int = 4
    hidden: int = 4096
    heads: int = 32
    key_heads: int = 8
    depth: int = 128
    intermediate: int = 14336
    batch: int = 1
    cached: int = 4096

    @property
    def caches(self) -> list[str]:
        """The names of the caches."""
        return [f"{layer}.{part}" for layer in range(self.layers) for part in ("key", "value")]


# ---- exporting -------------------------------------------------------------------------------------------------------


def export(sizes: Sizes, folder: Path) -> Path:
    """Write the graph of one step, its large weights named but not stored, and its sizes beside it."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    class Step(torch.nn.Module):
        """Hidden states of one token and flat caches to hidden states and grown caches."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, hidden: Any, position: Any, past: list[Any]) -> tuple[Any, ...]:
            """Keys and values of each layer in turn."""
            cache = transformers.DynamicCache(config=self.model.config)
            for layer in range(len(past) // 2):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            out = self.model(inputs_embeds=hidden, position_ids=position, past_key_values=cache, use_cache=True)
            return (out.last_hidden_state, *(t for x in out.past_key_values.layers for t in (x.keys, x.values)))

    half = torch.float16
    inputs = {
        "hidden": torch.zeros(sizes.batch, 1, sizes.hidden, dtype=half),
        "position": torch.full((sizes.batch, 1), sizes.cached),
        "past": [
            torch.zeros(sizes.batch, sizes.key_heads, sizes.cached, sizes.depth, dtype=half) for _ in sizes.caches
        ],
    }
    with torch.no_grad():
        exported = torch.onnx.export(
            Step(_llama(sizes, torch, transformers)),
            (),
            kwargs=inputs,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
            input_names=["hidden", "position", *(f"past.{n}" for n in sizes.caches)],
            output_names=["output", *(f"present.{n}" for n in sizes.caches)],
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SIZES).write_text(json.dumps(asdict(sizes)) + "\n")
    return without_weights(exported.model_proto, folder / MODEL)


def _llama(sizes: Sizes, torch: Any, transformers: Any) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=8,  # the lookup is not part of the step
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.key_heads,
        head_dim=sizes.depth,
        max_position_embeddings=2 * sizes.cached,
        rope_theta=500000.0,
        pad_token_id=None,
    )
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = transformers.LlamaModel(config)
    model = model.half().to_empty(device="cpu").eval()
    model.rotary_emb = type(model.rotary_emb)(config)
    generator = torch.Generator().manual_seed(0)
    for k, parameter in enumerate(model.parameters()):  # all different: the exporter stores equal ones once
        if parameter.ndim == 1:
            parameter.data.copy_(1 + 0.1 * torch.randn(parameter.shape, generator=generator))
        else:
            parameter.data.fill_(1 + k / 1024)
    return model


def without_weights(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model whose large weights are external data that is not there yet."""
    offset = 0
    for tensor in model.graph.initializer:
        size = len(tensor.raw_data)
        if size >= STORED:
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
    """Write a weight of random numbers; the number of bytes."""
    if tensor.data_type != TensorProto.FLOAT16:
        raise SystemExit(f"weight {tensor.name} is not of type float16")
    shift = zlib.crc32(tensor.name.encode()) % BLOCK
    scaled = (np.roll(block, shift) / math.sqrt(tensor.dims[0])).astype(np.float16)
    size = left = math.prod(tensor.dims)
    while left > 0:
        file.write(scaled[:left].tobytes())
        left -= BLOCK
    return 2 * size


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(folder: Path, gpu: int | None, tune: bool, compiled: str, seconds: float) -> dict[str, Any]:
    """Time the original, the patched model and torch in turn; microseconds of one step."""
    from mirage_cli.errors import MirageError  # noqa: PLC0415
    from mirage_cli.files.output import LIBRARY  # noqa: PLC0415
    from mirage_cli.measurement import timing  # noqa: PLC0415
    from mirage_cli.measurement.contestant import OrtContestant, Place, agreement  # noqa: PLC0415
    from mirage_cli.optimization import story  # noqa: PLC0415
    from mirage_cli.options.options import Options  # noqa: PLC0415

    sizes = Sizes(**json.loads((folder / SIZES).read_text()))
    out = folder / OUT
    kind = "cpu" if gpu is None else "cuda"
    if not out.exists():
        options = Options(
            target=(kind,), gpu=gpu if tune else None, arch=() if gpu is None else ("native",), force=gpu is None
        )
        story.optimize(str(folder / MODEL), out, options)
    report = json.loads((out / "report.json").read_text())
    inputs = step_inputs(sizes)
    replaced: Counter[str] = Counter()
    for f in report["fragments"]:
        replaced[f["name"]] += f["occurrences"] if f["status"] == "replaced" else 0
    result: dict[str, Any] = {
        "sizes": asdict(sizes),
        "replaced": dict(replaced),
        "left": {f["name"]: f.get("reason", "") for f in report["fragments"] if f["status"] != "replaced"},
    }
    for graph in (True, False) if gpu is not None else (False,):  # without graphs where one of them cannot be captured
        place = Place(kind, gpu or 0)
        try:
            original = OrtContestant(folder / MODEL, None, [inputs], place, graph)
            patched = OrtContestant(out / "model.onnx", out / LIBRARY, [inputs], place, graph)
            same = agreement(patched.answers(), original.answers())
        except MirageError as error:
            result["graph" if graph else "plain"] = str(error)
            continue
        calls = {"original": original.call, "mirage": patched.call}
        if gpu is not None:
            calls |= torch_calls(sizes, gpu, compiled, graph)
        times = timing.paired(calls, timing.Effort(seconds=seconds))
        result["graph" if graph else "plain"] = {
            "relative_error": same.error,
            "problem": same.problem,
            "us": {name: d.to_json() for name, d in times.items()},
            "gain": timing.ratio(times["original"], times["mirage"]).median,
        }
        break
    return result


def step_inputs(sizes: Sizes) -> dict[str, Any]:
    """Random inputs of a step."""
    random = np.random.default_rng(1)
    shape = (sizes.batch, sizes.key_heads, sizes.cached, sizes.depth)
    return {
        "hidden": random.standard_normal((sizes.batch, 1, sizes.hidden), np.float32).astype(np.float16),
        "position": np.full((sizes.batch, 1), sizes.cached),
        **{f"past.{n}": random.standard_normal(shape, np.float32).astype(np.float16) for n in sizes.caches},
    }


def torch_calls(sizes: Sizes, gpu: int, compiled: str, graph: bool) -> dict[str, Callable[[], None]]:
    """The same step in plain torch, as it is and compiled in mode `compiled`, as CUDA graphs where `graph` says so; each
    call waits for its end. None without torch."""
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        return {}
    step = _torch_step(sizes, torch, torch.device("cuda", gpu))
    kinds = {"torch": step}
    if compiled:
        kinds[f"torch.compile {compiled}"] = torch.compile(step, mode=compiled, fullgraph=True)

    def waited(call: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            call()
            torch.cuda.synchronize(gpu)

        return run

    calls = {}
    with torch.no_grad():
        for name, call in kinds.items():
            for _ in range(3):
                call()
            torch.cuda.synchronize(gpu)
            if graph:
                captured = torch.cuda.CUDAGraph()
                with torch.cuda.graph(captured):
                    call()
                call = captured.replay
            calls[name] = waited(call)
    return calls


def _torch_step(sizes: Sizes, torch: Any, device: Any) -> Callable[[], Any]:
    """One step of a decoder as transformers computes it, with weights, inputs and caches of its own."""
    functional = torch.nn.functional
    half = {"dtype": torch.float16, "device": device}
    key_size, query_size = sizes.key_heads * sizes.depth, sizes.heads * sizes.depth
    shapes = {
        "q": (query_size, sizes.hidden),
        "k": (key_size, sizes.hidden),
        "v": (key_size, sizes.hidden),
        "o": (sizes.hidden, query_size),
        "gate": (sizes.intermediate, sizes.hidden),
        "up": (sizes.intermediate, sizes.hidden),
        "down": (sizes.hidden, sizes.intermediate),
    }
    layers = [{n: torch.randn(*s, **half) / s[1] ** 0.5 for n, s in shapes.items()} for _ in range(sizes.layers)]
    gains = [torch.ones(sizes.hidden, **half) for _ in range(2 * sizes.layers + 1)]
    past = [torch.randn(sizes.batch, sizes.key_heads, sizes.cached, sizes.depth, **half) for _ in sizes.caches]
    given = torch.randn(sizes.batch, 1, sizes.hidden, **half)
    position = torch.full((sizes.batch, 1), sizes.cached, device=device)
    rates = 500000.0 ** -(torch.arange(0, sizes.depth, 2, device=device).float() / sizes.depth)

    def norm(x: Any, gain: Any) -> Any:
        wide = x.float()
        return gain * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).half()

    def heads(x: Any, count: int) -> Any:
        return x.view(sizes.batch, 1, count, sizes.depth).transpose(1, 2)

    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def step(x: Any, past: list[Any], position: Any) -> Any:
        angles = (position[..., None].float() * rates).repeat(1, 1, 2)[:, None]
        cos, sin = angles.cos().half(), angles.sin().half()
        grown = []
        for n, w in enumerate(layers):
            y = norm(x, gains[2 * n])
            q = rotated(heads(functional.linear(y, w["q"]), sizes.heads), cos, sin)
            k = rotated(heads(functional.linear(y, w["k"]), sizes.key_heads), cos, sin)
            v = heads(functional.linear(y, w["v"]), sizes.key_heads)
            k, v = torch.cat((past[2 * n], k), 2), torch.cat((past[2 * n + 1], v), 2)
            grown += [k, v]
            a = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            x = x + functional.linear(a.transpose(1, 2).reshape(sizes.batch, 1, query_size), w["o"])
            y = norm(x, gains[2 * n + 1])
            y = functional.silu(functional.linear(y, w["gate"])) * functional.linear(y, w["up"])
            x = x + functional.linear(y, w["down"])
        return norm(x, gains[-1]), grown

    return lambda: step(given, past, position)


def main() -> None:
    """The three commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("export", "fill", "measure"))
    parser.add_argument("folder", type=Path)
    for f in fields(Sizes):
        parser.add_argument(f"--{f.name.replace('_', '-')}", type=int, default=f.default, help="of the export")
    parser.add_argument("--gpu", type=int, help="the GPU to measure on; by default the CPU")
    parser.add_argument("--tune", action="store_true", help="let optimize measure its candidates on that GPU")
    parser.add_argument(
        "--compiled", default="", metavar="MODE", help="time torch.compile in this mode, such as max-autotune"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="to measure for")
    given = parser.parse_args()
    if given.command == "export":
        print(export(Sizes(**{f.name: getattr(given, f.name) for f in fields(Sizes)}), given.folder))
    elif given.command == "fill":
        for path in (given.folder / MODEL, given.folder / OUT / "model.onnx"):
            if path.exists():
                print(path, fill(path, given.folder / MODEL))
    else:
        print(json.dumps(measure(given.folder, given.gpu, given.tune, given.compiled, given.seconds), indent=1))


if __name__ == "__main__":
    main()
