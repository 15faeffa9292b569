"""Drivers, architectures and packages that do not fit: what commands, kernels and sessions say.

    python -m tests.faults.drivers [--gpu 0] [--model FILE]

Needs a GPU, onnxruntime with its CUDA provider, and torch. In turns: a driver of CUDA 11.0 (`driver.c` in the place of
libcuda.so.1); kernels for an architecture that the device is not; torch and cupy that cannot be imported.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("driver.c")
MODEL = ROOT / "samples" / "operators" / "rmsnorm_linear_fp16.onnx"
#: calls the kernel of an output folder on torch's tensors, then its model in a session; prints what either says
CALLS = """
import json, sys
from pathlib import Path
import numpy as np
import mirage_cli as mi
from mirage_cli.runtime import sessions as runtime
out, gpu = Path(sys.argv[1]), int(sys.argv[2])

def told(name, call):
    try:
        call()
        print(f"{name}: it runs")
    except mi.MirageError as error:
        print(f"{name}: {type(error).__name__} ({error.code}): {error} [{error.hint}]")
    except Exception as error:  # torch's own
        print(f"{name}: {type(error).__name__}: {str(error)[:200]}")

def kernel():
    import torch
    (identifier,) = (p.stem for p in (out / "mugraphs").glob("*.json"))
    made = mi.load_kernel(out)
    given = [torch.zeros([int(d) for d in t.dims], dtype=getattr(torch, runtime.element_name(t.dtype)), device="cuda")
             for t in made.spec.inputs]
    made(*given)
    torch.cuda.synchronize()

def session():
    made = runtime.session(out / "model.onnx", out / "libmirage.so", "cuda", device=gpu)
    runtime.run(made, {i.name: np.zeros(i.shape, np.float16) for i in made.get_inputs()})

told("kernel on torch's tensors", kernel)
told("session", session)
"""


def driver(folder: Path) -> Path:
    """A folder with the driver of CUDA 11.0. Raises OSError or CalledProcessError without a C compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["gcc", *flags, str(SOURCE), "-o", str(library)], check=True, capture_output=True)
    return folder


def broken(folder: Path) -> Path:
    """A folder with a torch and a cupy that cannot be imported."""
    folder.mkdir()
    (folder / "torch.py").write_text("raise OSError('libcudart.so.9.0: cannot open shared object file')\n")
    (folder / "cupy.py").write_text("raise RuntimeError('built for another numpy')\n")
    return folder


def other_architecture(out: Path) -> None:
    """Build the library of an output folder again, for code that a Hopper device does not run."""
    script = out / "src" / "build.sh"
    text, count = re.subn(r"-gencode arch=\S+", "-gencode arch=compute_80,code=sm_80", script.read_text())
    assert count >= 2, text
    script.write_text(re.sub(r"MIRAGE_ARCHS=\w+", "MIRAGE_ARCHS=sm_80", text))
    subprocess.run(["sh", str(script)], check=True, capture_output=True)


def ahead(name: str, folder: Path) -> dict[str, str]:
    """A variable of folders with one more at its beginning."""
    return {name: os.pathsep.join([str(folder), os.environ.get(name, "")])}


def run(name: str, arguments: list[str], changes: Mapping[str, str]) -> None:
    """Run mirage, or a program (-c), and print how it ended."""
    command = [sys.executable, *([] if arguments[0] == "-c" else ["-m", "mirage_cli"]), *arguments]
    child = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | changes,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    text = child.stdout.strip()
    try:
        text = json.dumps(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        text = text[-1500:]
    print(f"{name}: exit code {child.returncode}: {text} {child.stderr.strip()[-500:]}", flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--model", type=Path, default=MODEL)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        cache, out, model = ["--cache", str(root / "cache")], str(root / "out"), str(asked.model)
        make = ["optimize", model, "-o", out, "--target", "cuda", "--arch", "native", "--force", "-q", *cache]
        tune = ["optimize", model, "-o", str(root / "tuned"), "--gpu", asked.gpu, "--tune-candidates", "2", "--json"]
        run("a library", make, {})
        run("nothing wrong, calls", ["-c", CALLS, out, asked.gpu], {})
        old = ahead("LD_LIBRARY_PATH", driver(root / "driver"))
        run("driver of CUDA 11.0, doctor", ["doctor"], old)
        run("driver of CUDA 11.0, optimize --gpu", [*tune, *cache], old)
        run("driver of CUDA 11.0, bench --gpu", ["bench", out, "--gpu", asked.gpu, "--json"], old)
        run("driver of CUDA 11.0, calls", ["-c", CALLS, out, asked.gpu], old)
        packages = ahead("PYTHONPATH", broken(root / "packages"))
        run("broken torch and cupy, optimize --gpu", [*tune, "--force", *cache], packages)
        run("broken torch and cupy, bench --gpu", ["bench", out, "--gpu", asked.gpu, "--json"], packages)
        run("broken torch and cupy, doctor", ["doctor"], packages)
        other_architecture(Path(out))
        run("kernels for sm_80 alone, calls", ["-c", CALLS, out, asked.gpu], {})
        run("kernels for sm_80 alone, bench --gpu", ["bench", out, "--gpu", asked.gpu, "--json"], {})


if __name__ == "__main__":
    main()
