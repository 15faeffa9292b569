"""int4 decoders of onnxruntime-genai's model builder on a GPU: what a patched folder gains, prompt and steps apart.

    python -m samples.int4_decoder build FOLDER --shape llama-3.2-1b --layers 16   # needs the extra genai, and torch
    python -m samples.int4_decoder fill FOLDER   # random weights for it and for FOLDER-out
    python -m samples.int4_decoder measure FOLDER --batch 1 --positions 1024 8192  # needs onnxruntime with CUDA

The builder makes two layers; the others are copies of the second one, under names of their own. Weights are not stored. Steps
run in CUDA graphs, in caches that past and present share, whose lengths lie on the GPU; prompts without a graph.
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from samples.decoder import fill

MODEL, CONFIG = "model.onnx", "genai_config.json"
WORDS, POSITIONS = 128256, 40960
SHAPES = {
    "llama-3.2-1b": {"hidden_size": 2048, "intermediate_size": 8192, "head_dim": 64, "tie_word_embeddings": True},
    "llama-3-8b": {"hidden_size": 4096, "intermediate_size": 14336, "head_dim": 128, "tie_word_embeddings": False},
}
_HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8}
_MADE = 2  #: layers that the builder makes
_DRAWN = {"MatMulNBits", "GatherBlockQuantized", "Gather"}  #: operators whose weights are not stored


# ---- building --------------------------------------------------------------------------------------------------------
def build(shape: str, layers: int, folder: Path, options: Iterable[str]) -> None:
    """Write a folder of the builder without its large weights."""
    import torch  # noqa: PLC0415
    from tokenizers import Tokenizer, models  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: PLC0415

    words = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes = {**SHAPES[shape], **_HEADS, **words, "max_position_embeddings": POSITIONS, "rope_theta": 500000.0}
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=_MADE))
    for parameter in model.parameters():
        if parameter.ndim == 1:  # gains of 1 would be left out
            parameter.data.copy_(1 + 0.1 * torch.randn(parameter.shape))
    weights = folder.with_name(f"{folder.name}-weights")
    model.save_pretrained(weights)
    del model
    known = Tokenizer(models.WordLevel({f"w{n}": n for n in range(WORDS)}, unk_token="w3"))
    PreTrainedTokenizerFast(tokenizer_object=known, unk_token="w3").save_pretrained(weights)
    more = ["--extra_options", *options] if options else []
    given = ["-i", str(weights), "-o", str(folder), "-c", str(folder.with_name("cache"))]
    sys.argv = ["builder", *given, "-p", "int4", "-e", "cuda", *more]
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
    shutil.rmtree(weights)
    strip(folder, layers)


def strip(folder: Path, layers: int) -> None:
    """Give a folder of two layers so many, and take its large weights away."""
    model = onnx.load(folder / MODEL, load_external_data=False)
    without_weights(model, folder)
    (folder / MODEL).write_bytes(placed(deepened(model, layers)).SerializeToString(deterministic=True))
    (folder / f"{MODEL}.data").unlink()
    config = json.loads((folder / CONFIG).read_text())
    config["model"]["decoder"]["num_hidden_layers"] = layers
    (folder / CONFIG).write_text(json.dumps(config, indent=4))


def deepened(model: onnx.ModelProto, layers: int) -> onnx.ModelProto:
    """The model with copies of its second layer in front of all that follows it."""
    graph, more = model.graph, layers - _MADE
    numbered = re.compile(r"(layers|key_values|present)\.(\d+)")

    def moved(by: int, least: int = 0) -> Any:
        """The names of layers from `least` on, so many further."""
        return lambda name: numbered.sub(lambda m: f"{m[1]}.{int(m[2]) + by * (int(m[2]) >= least)}", name)

    def copies(items: Any, names: Any) -> list[Any]:
        """Those of the second layer and of what follows anew, others as they are."""
        kept: list[Any] = []
        for item in items:
            number = numbered.search(item.name)
            at = int(number[2]) if number else -1
            renames = [moved(by) for by in range(more + 1)] if at == 1 else [moved(more, _MADE)]
            for rename in renames:
                new = type(item)()
                new.CopyFrom(item)
                names(new, rename if at != _MADE else moved(more))
                kept.append(new)
        return kept

    def named(item: Any, rename: Any) -> None:
        item.name = rename(item.name)

    def wired(node: onnx.NodeProto, rename: Any) -> None:
        node.name = rename(node.name)
        node.input[:] = [rename(n) for n in node.input]
        node.output[:] = [rename(n) for n in node.output]

    nodes = copies(graph.node, wired)
    layer = [numbered.search(n.name) for n in nodes]
    last = max(k for k, number in enumerate(layer) if number)
    order = [int(number[2]) if number else layers if k > last else -1 for k, number in enumerate(layer)]
    nodes = [nodes[k] for k in sorted(range(len(nodes)), key=order.__getitem__)]
    for items, names in (
        (graph.initializer, named),
        (graph.input, named),
        (graph.output, named),
        (graph.value_info, named),
    ):
        new = copies(items, names)
        del items[:]
        items.extend(new)
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def without_weights(model: onnx.ModelProto, folder: Path) -> None:
    """Leave the weights of products and lookups out, whose external data is not there then; others come into the model."""
    read = {n for node in model.graph.node if node.op_type in _DRAWN for n in node.input}
    read |= {node.input[0] for node in model.graph.node if node.op_type == "Reshape"}
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL and tensor.name not in read:
            external_data_helper.load_external_data_for_tensor(tensor, str(folder))
            tensor.ClearField("external_data")
            tensor.data_location = TensorProto.DEFAULT


def placed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its external data one behind the other."""
    offset = 0
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            told = {e.key: e.value for e in tensor.external_data} | {"offset": str(offset)}
            del tensor.external_data[:]
            for key, value in told.items():
                tensor.external_data.add(key=key, value=value)
            offset += -(-int(told["length"]) // 4096) * 4096
    return model


def patched(folder: Path) -> Path:
    """Where the output of `optimize` for a folder lies."""
    return folder.with_name(f"{folder.name}-out")


# ---- measuring -------------------------------------------------------------------------------------------------------
class Decoder:
    """A folder's model in onnxruntime's CUDA provider; keys and values lie in `caches`, tensors of torch."""

    def __init__(self, model: Path, library: Path | None, graph: bool) -> None:
        import onnxruntime as ort  # noqa: PLC0415
        import torch  # noqa: PLC0415

        self.ort, self.torch, self.graph = ort, torch, graph
        options = ort.SessionOptions()
        options.log_severity_level = 3
        if library is not None:
            options.register_custom_ops_library(str(library))
        provider = {"enable_cuda_graph": "1"} if graph else {}
        self.session = ort.InferenceSession(str(model), options, providers=[("CUDAExecutionProvider", provider)])
        self.results: dict[str, Any] = {}

    def bound(self, given: dict[str, Any], caches: dict[str, Any]) -> Any:
        """A binding of inputs, which are tensors on the GPU, and of caches as past and present."""
        binding, numbers = self.session.io_binding(), {"torch.int64": np.int64, "torch.float16": np.float16}

        def bind(bind: Any, name: str, t: Any) -> None:
            bind(name, "cuda", 0, numbers[str(t.dtype)], tuple(t.shape), t.data_ptr())

        for name, t in {**given, **caches}.items():
            bind(binding.bind_input, name, t)
        for name, t in caches.items():
            bind(binding.bind_output, name.replace("past_key_values", "present"), t)
        shape = (*given["input_ids"].shape, WORDS)
        self.results["logits"] = self.torch.full(shape, float("nan"), dtype=self.torch.float16, device="cuda")
        bind(binding.bind_output, "logits", self.results["logits"])
        return binding

    def run(self, binding: Any) -> Any:
        """One run; its logits."""
        self.torch.cuda.synchronize()
        self.session.run_with_iobinding(binding)
        self.torch.cuda.synchronize()
        return self.results["logits"]


def caches_of(folder: Path, batch: int, room: int) -> dict[str, Any]:
    """Random caches for a folder's model."""
    import torch  # noqa: PLC0415

    graph = onnx.load(folder / MODEL, load_external_data=False).graph
    size = json.loads((folder / CONFIG).read_text())["model"]["decoder"]["head_size"]
    torch.manual_seed(2)
    names = [i.name for i in graph.input if i.name.startswith("past_")]
    return {n: torch.randn((batch, 8, room, size), dtype=torch.float16, device="cuda") for n in names}


def inputs(batch: int, new: int, filled: int, room: int) -> dict[str, Any]:
    """Tokens behind so many positions; the mask is as long as the caches, as genai's is in a CUDA graph."""
    import torch  # noqa: PLC0415

    torch.manual_seed(filled + new)
    mask = (torch.arange(room, device="cuda") < filled + new).long().expand(batch, room).contiguous()
    return {"input_ids": torch.randint(3, WORDS, (batch, new), device="cuda"), "attention_mask": mask}


def timed(run: Any, seconds: float) -> float:
    """Median microseconds of a call."""
    for _ in range(5):
        run()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 5:
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return float(np.median(found) * 1e6)


def difference(a: Any, b: Any) -> float:
    """Root mean square of a difference over that of the second."""
    a, b = a.double(), b.double()
    return float(((a - b).square().mean() / b.square().mean()).sqrt())


def profile(run: Any, times: int = 5) -> list[tuple[float, float, str]]:
    """(microseconds, launches, name) of each kernel in a run. The time of one that starts while others run, which it may have
    to wait for, counts from their end on."""
    from torch.profiler import ProfilerActivity  # noqa: PLC0415
    from torch.profiler import profile as profiled  # noqa: PLC0415

    with profiled(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(times):
            run()
    spans = sorted((e.time_range.start, e.time_range.end, e.name[:90]) for e in p.events() if e.device_time_total)
    found, last = dict[str, list[float]](), 0.0
    for start, end, name in spans:
        found.setdefault(name, []).append(max(0.0, end - max(start, last)))
        last = max(last, end)
    return sorted(((sum(us) / times, len(us) / times, name) for name, us in found.items()), reverse=True)


def measure(folder: Path, batch: int, prompt: int, positions: list[int], seconds: float, shown: int) -> dict[str, Any]:
    """Microseconds of a prompt and of steps behind so many positions, original beside patched, and how far logits differ."""
    out, rows = patched(folder), dict[str, Any]()
    sides = {"original": (folder / MODEL, None), "patched": (out / MODEL, out / "libmirage.so")}
    for filled in positions:
        room = filled + 512
        row, logits = dict[str, Any](), dict[str, Any]()
        for name, (model, library) in sides.items():
            step = Decoder(model, library, graph=True)
            caches = caches_of(folder, batch, room)
            binding = step.bound(inputs(batch, 1, filled, room), caches)
            logits[name] = step.run(binding).clone()
            row[name] = timed(lambda b=binding, s=step: s.session.run_with_iobinding(b), seconds)
            if shown:
                for us, count, kernel in profile(lambda b=binding, s=step: s.session.run_with_iobinding(b))[:shown]:
                    print(f"   {name} {filled}: {us:9.1f} us {count:5.1f} x {kernel}", flush=True)
            del step, binding, caches
        row["difference"] = difference(logits["patched"], logits["original"])
        rows[f"step {batch} {filled}"] = row
        print(json.dumps({f"step {batch} {filled}": row}), flush=True)
    row, logits = {}, {}
    for name, (model, library) in sides.items():
        first = Decoder(model, library, graph=False)
        caches = caches_of(folder, batch, prompt + 512)
        binding = first.bound(inputs(batch, prompt, 0, prompt), caches)
        logits[name] = first.run(binding).clone()
        row[name] = timed(lambda b=binding, s=first: s.session.run_with_iobinding(b), seconds)
        if shown:
            for us, count, kernel in profile(lambda b=binding, s=first: s.session.run_with_iobinding(b), 2)[:shown]:
                print(f"   {name} prompt: {us:9.1f} us {count:5.1f} x {kernel}", flush=True)
        del first, binding, caches
    row["difference"] = difference(logits["patched"], logits["original"])
    rows[f"prompt {batch} {prompt}"] = row
    print(json.dumps({f"prompt {batch} {prompt}": row}), flush=True)
    return rows


def main() -> None:
    """The three commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("build", "fill", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    parser.add_argument("--layers", type=int, default=_MADE)
    parser.add_argument("--extra-options", nargs="*", default=(), help="of the builder")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--positions", type=int, nargs="*", default=[1024, 8192])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--kernels", type=int, default=0, help="print so many kernels of each run")
    given = parser.parse_args()
    if given.command == "build":
        build(given.shape, given.layers, given.folder, given.extra_options)
    elif given.command == "fill":
        for path in (given.folder / MODEL, patched(given.folder) / MODEL):
            if path.exists():
                print(path, fill(path, given.folder / MODEL))
    else:
        measure(given.folder, given.batch, given.prompt, given.positions, given.seconds, given.kernels)


if __name__ == "__main__":
    main()
