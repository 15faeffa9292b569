"""HIP kernels, which nothing here runs: compiled for each architecture, with its matrix instructions; the layouts of fragments
and the functions of numbers run in threads of this machine, where an instruction does what AMD's guides say."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirage_cli.backends import hip
from mirage_cli.codegen.render import include_dir
from mirage_cli.errors import ToolMissing
from mirage_cli.lax.dtypes import BF16, F16, F32, DType
from mirage_cli.search.schedules.architectures import architectures
from samples import operators
from tests.codegen.kernels import Case, cases
from tests.codegen.opencl.cases import of_model
from tests.codegen.programs import NAMED, program

HERE = Path(__file__).parent
MATRIX = {"gfx90a": "v_mfma_f32_16x16x16", "gfx942": "v_mfma_f32_16x16x16", "gfx1100": "v_wmma_f32_16x16x16"}


@pytest.fixture(scope="module")
def clang() -> Path:
    try:
        return Path(hip.find().command[0])
    except ToolMissing as missing:
        pytest.skip(f"{missing}: {missing.hint}")


def disassembled(clang: Path, texts: list[str], folder: Path) -> dict[str, str]:
    """The instructions of sources for each architecture."""
    (folder / "all.hip").write_text("\n".join(texts))
    flags = (*hip.FLAGS, *hip.offloads(), "-Wall", "-Werror", f"-I{include_dir()}")
    run([clang, *flags, "-c", "all.hip", "-o", "all.o"], folder)
    run([clang.parent / "llvm-objcopy", "--dump-section", ".hip_fatbin=all.fatbin", "all.o"], folder)
    found = {}
    for arch in architectures("hip"):
        bundle = ["--unbundle", "--type=o", "--input=all.fatbin", f"--targets=hipv4-amdgcn-amd-amdhsa--{arch}"]
        run([clang.parent / "clang-offload-bundler", *bundle, f"--output={arch}.co"], folder)
        found[arch] = run([clang.parent / "llvm-objdump", "-d", f"{arch}.co"], folder)
    return found


def run(command: list[object], folder: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return done.stdout


def of_kinds(dtype: DType) -> Iterator[Case]:
    for name in ("rms_linear", "gated", "attention_masked"):
        yield from cases(name, program(NAMED[name], dtype), "gfx942", 1, 1)


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_compiled_for_every_architecture(clang: Path, dtype: DType, tmp_path: Path) -> None:
    made = list(of_kinds(dtype))
    code = disassembled(clang, [c.render().text for c in made], tmp_path)
    assert set(code) == set(MATRIX)
    for arch, instructions in code.items():
        assert instructions.count("s_endpgm") >= len(made)
        assert (MATRIX[arch] in instructions) == (dtype is not F32 and arch != "gfx1100")  # there they are too narrow
        assert ("_16x16x16bf16" in instructions or "_16x16x16_bf16" in instructions) == (
            dtype is BF16 and arch != "gfx1100"
        )


def test_operators_compile(clang: Path, tmp_path: Path) -> None:
    names = ("lora", "gqa_decode", "mla", "layer_norm_linear_gelu")
    found = [c for n in names for c in of_model(n.replace("_", ""), operators.build(n, "small", "fp16"), "gfx942")]
    found += of_model("wide", operators.build("rmsnorm_linear", "paper", "fp16"), "gfx942")
    code = disassembled(clang, [c.render().text for c in found], tmp_path)
    assert all(MATRIX[arch] in instructions for arch, instructions in code.items())


@pytest.mark.parametrize("wave", ["-D__GFX9__ -DWAVE=64", "-D__GFX11__ -DWAVE=32"])
def test_layouts_and_functions(clang: Path, wave: str, tmp_path: Path) -> None:
    include = (f"-I{HERE / 'emulated'}", f"-I{include_dir()}")
    flags = ("-std=c++17", "-O1", "-Wno-psabi", *wave.split(), *include, "-pthread")
    run([clang, *flags, HERE / "tiles.cpp", "-o", "tiles"], tmp_path)
    assert run([tmp_path / "tiles"], tmp_path) == ""
