"""TorchScript in and out: modules traced and scripted here, optimized, loaded with their library, verified, damaged."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_cli import frontends
from mirage_cli.errors import ModelError, OutOfTime, UsageError
from mirage_cli.frontends import Options
from mirage_cli.options.options import Options as RunOptions
from mirage_cli.python import api
from tests.optimized import anew

torch = pytest.importorskip("torch", exc_type=ImportError)

pytestmark = pytest.mark.torch
Module: Any = torch.nn.Module
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Block(Module):  # type: ignore[misc]
    """An embedding, grouped attention with a mask, and an MLP behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(32, 32)
        self.q, self.k, self.v = (torch.nn.Linear(32, n, bias=False) for n in (32, 16, 16))
        self.norm = torch.nn.RMSNorm(32, eps=1e-5)
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        self.register_buffer("shift", torch.arange(32) / 32)

    def forward(self, ids: Any, mask: Any) -> Any:
        x = self.table(ids)
        q, k, v = (f(x).unflatten(-1, (-1, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
        attend = torch.nn.functional.scaled_dot_product_attention
        x = x + attend(q, k, v, attn_mask=mask != 0, enable_gqa=True).transpose(1, 2).flatten(2)
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x) + self.shift)))


class Branch(Module):  # type: ignore[misc]
    """Control flow around a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (torch.nn.Linear(*s) for s in ((32, 64), (32, 64), (64, 32)))
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):  # type: ignore[no-untyped-def]
        if x.sum() > 0:
            x = x * 2
        return self.drop(self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))), x.mean()


class Mutating(Module):  # type: ignore[misc]
    """Changes its input."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        y = torch.softmax(x * 2 + 1, -1)
        x.mul_(2)
        return y @ x


IDS, MASK = (np.arange(12).reshape(2, 6) * 5 % 32), np.tri(6, dtype=np.float32)
SHAPES = ("ids=2x6", "mask=6x6")
Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torchscript")
    torch.manual_seed(1)
    with torch.no_grad():
        torch.jit.trace(Block().eval(), (torch.tensor(IDS), torch.tensor(MASK))).save(str(folder / "block.pt"))
        torch.jit.script(Branch()).save(str(folder / "branch.ts"))
        torch.jit.script(Mutating()).save(str(folder / "mutating.pt"))
    return folder


@pytest.fixture(scope="module")
def optimized(models: Path, cache: Path) -> Folder:
    def folder(name: str) -> Path:
        out = models / f"out-{name}"
        if not out.exists():
            shape = SHAPES if name == "block.pt" else ("x=3x32",)
            options = RunOptions(shape=shape, target=("cpu",), force=True, jobs=1, cache=str(cache))
            anew(str(models / name), out, options)
        return out

    return folder


RUN = """
import sys, numpy, torch
original, folder, *inputs = sys.argv[1:]
torch.ops.load_library(folder + "/libmirage_torch.so")
patched = torch.jit.load(folder + "/model.pt")
inputs = [torch.tensor(numpy.load(p)) for p in inputs]
def flat(r): return r if isinstance(r, tuple) else (r,)
with torch.no_grad():
    for a, b in zip(flat(patched(*inputs)), flat(torch.jit.load(original).eval()(*inputs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
print(sum(n.kind().startswith("mirage::") for n in patched.graph.nodes()), len(list(patched.parameters())))
"""


def run(original: Path, folder: Path, *inputs: Any) -> tuple[int, int]:
    """Compare both modules in a process of its own: how many fragments and parameters the patched one has."""
    paths = []
    for k, a in enumerate(inputs):
        paths.append(str(folder.parent / f"input{k}.npy"))
        np.save(paths[-1], a)
    program = [sys.executable, "-c", RUN, str(original), str(folder), *paths]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    calls, parameters = map(int, done.stdout.split())
    return calls, parameters


def test_a_traced_block(models: Path, optimized: Folder) -> None:
    folder = optimized("block.pt")
    calls, parameters = run(models / "block.pt", folder, IDS, MASK)
    assert calls >= 4
    assert parameters <= 9


def test_a_scripted_branch(models: Path, optimized: Folder) -> None:
    folder = optimized("branch.ts")
    for sign in (1, -1):
        calls, _ = run(models / "branch.ts", folder, np.full((3, 32), sign, np.float32))
        assert calls == 2


def test_the_report_says_what_was_read(optimized: Folder) -> None:
    model = json.loads((optimized("block.pt") / "report.json").read_text())["model"]
    assert (model["format"], model["external_data"]) == ("torchscript", {})


def test_bench_times_the_module_in_pytorch(models: Path, optimized: Folder) -> None:
    found = api.bench(optimized("block.pt"), cpu=True, runs=1, seconds=0.01)
    assert found.original == f"{models / 'block.pt'} in PyTorch"
    assert not found.wrong and all(found.model.entry(n).us is not None for n in ("original", "mirage"))


def test_verify_runs_the_module(optimized: Folder) -> None:
    found = api.verify(optimized("branch.ts"))
    assert found.passed, found.text()
    assert len(found.of("torchscript")) == 2


def test_verify_finds_a_changed_module(models: Path, optimized: Folder, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(optimized("branch.ts")), str(copy)], check=True)
    torch.jit.script(Branch()).save(str(copy / "model.pt"))
    found = api.verify(copy)
    assert "model.pt" in found.culprits
    assert not found.of("torchscript") and "model.pt is not run" in found.text()
    report = json.loads((copy / "report.json").read_text())
    report["files"]["model.pt"] = hashlib.sha256((copy / "model.pt").read_bytes()).hexdigest()
    (copy / "report.json").write_text(json.dumps(report))
    found = api.verify(copy, trust_library=True)
    assert any(not f.passed for f in found.of("torchscript"))


def test_types_of_inputs(models: Path) -> None:
    shapes = {"ids": (2, 6), "mask": (6, 6)}
    imported = frontends.load(str(models / "block.pt"), Options(shapes=shapes, types={"mask": "f64"}))
    assert [v.dtype.name for v in imported.model.graph.inputs if v.dtype] == ["INT64", "DOUBLE"]


def test_shapes_are_asked_for(models: Path) -> None:
    with pytest.raises(UsageError, match="does not tell the shapes of its inputs: mask") as caught:
        frontends.load(str(models / "block.pt"), Options(shapes={"ids": (2, 6)}))
    assert caught.value.hint == "--shape mask=1x128"
    with pytest.raises(UsageError, match="no such input; it has ids, mask"):
        frontends.load(str(models / "block.pt"), Options(shapes={"id": (2, 6)}))


def test_a_trace_through_the_fast_path_is_told_in_a_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 1).eval()
    with torch.no_grad():
        torch.jit.trace(module, torch.zeros(1, 8, 32), check_trace=False).save(tmp_path / "m.pt")
    capfd.readouterr()
    with pytest.raises(ModelError, match="aten::_transformer_encoder_layer_fwd") as told:
        api.inspect(tmp_path / "m.pt", shape="src=1x8x32")
    assert "torch.backends.mha.set_fastpath_enabled(False)" in told.value.hint
    assert "Torch IR graph" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("training", [True, False])
def test_a_trace_in_train_mode_is_noted(tmp_path: Path, training: bool) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).train(training)
    torch.jit.trace(module, torch.zeros(2, 8), check_trace=False).save(tmp_path / "m.pt")
    notes = api.inspect(tmp_path / "m.pt", shape="input=2x8").document["notes"]
    assert [n for n in notes if "train mode: 1 x dropout" in n and "model.eval()" in n] == notes[: int(training)]


def test_inputs_that_do_not_fit(models: Path) -> None:
    with pytest.raises(ModelError, match=r"does not run for inputs x=float32\[3x31\]") as caught:
        frontends.load(str(models / "branch.ts"), Options(shapes={"x": (3, 31)}))
    assert ":i64" in caught.value.hint


def test_an_operator_that_changes_its_operand_in_the_graph_is_left(models: Path, tmp_path: Path, cache: Path) -> None:
    path, out = models / "mutating.pt", tmp_path / "out"
    options = RunOptions(shape=("x=4x4",), target=("cpu",), force=True, jobs=1, cache=str(cache))
    report = anew(str(path), out, options)
    assert (out / "model.pt").read_bytes() == path.read_bytes()
    assert any("model.pt is the original module: its aten::mul_" in n for n in report.notes)


# --- modules that mean harm -------------------------------------------------------------------------------------------
class Endless(Module):  # type: ignore[misc]
    """Runs until somebody ends it."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        count = 0
        while bool(x.sum() > -1e30):
            count += 1
        return x


class Greedy(Module):  # type: ignore[misc]
    """Takes 16 GiB."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        return x + torch.zeros([1 << 32])[0]


@pytest.mark.parametrize(
    ("module", "options", "error", "said"),
    [
        (Endless, {"seconds": 10.0}, OutOfTime, "it took longer than 10 s while torch ran"),
        (Greedy, {"max_memory": 4 << 30}, ModelError, "does not run for inputs"),
    ],
)
def test_modules_run_under_limits(
    module: Any, options: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.pt"
    torch.jit.script(module()).save(str(path))
    with pytest.raises(error, match=said):
        frontends.load(str(path), Options({"x": (4,)}, **options))
