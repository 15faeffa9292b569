"""Random TorchScript programs for the reader: `python -m tests.fuzz.torchscript --count N --seed S` (needs torch).

Programs call operators with arguments of wrong kinds, sizes and types; those that torch compiles and writes are read as
`mirage inspect` does. Anything but a description or a clean error is a fault, printed with its program; exit code 1 then.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from mirage_cli.errors import MirageError
from mirage_cli.frontends import Options as ReadingOptions
from mirage_cli.frontends.torchscript import front_end
from mirage_cli.inspection import summary
from mirage_cli.options.options import Options
from tests.fuzz import limits

NUMBERS = (
    "0",
    "1",
    "2",
    "-1",
    "-2",
    "1",
    "-1",
    "0",
    "7",
    "-9",
    "1 << 31",
    "-(1 << 31)",
    "1 << 62",
    "None",
    "True",
    "0.5",
    "1e308",
    "-1e308",
)
LISTS = (
    "[]",
    "[0]",
    "[1, 2]",
    "[-1]",
    "[2, -1]",
    "[-1, -1]",
    "[0, 0, 0]",
    "[1 << 40]",
    "[1 << 31, 1 << 31]",
    "[3, 4]",
    "[-5]",
)
TYPES = (
    "torch.float16",
    "torch.float64",
    "torch.bool",
    "torch.int8",
    "torch.complex64",
    "torch.bfloat16",
    "99",
    "None",
)
SECONDS, BYTES = 30.0, 2 << 30  #: of processor time, and beyond what the process has, for one program
#: patterns of calls: T a tensor, N a number, L a list, D a type
CALLS = (
    *(
        "T + T",
        "T * N",
        "T / T",
        "T @ T",
        "T.sum(N)",
        "T.mean(L, True)",
        "T.softmax(N)",
        "T.log_softmax(N, D)",
        "torch.exp(T)",
    ),
    *(
        "T.view(L)",
        "T.reshape(L)",
        "T.permute(L)",
        "T.transpose(N, N)",
        "T.unsqueeze(N)",
        "T.squeeze(N)",
        "T.expand(L)",
    ),
    *(
        "T.to(D)",
        "T.type_as(T)",
        "torch.cat([T, T], N)",
        "torch.stack([T, T], N)",
        "T[N]",
        "T[N:N]",
        "T[:, N:N:N]",
        "T.flatten(N, N)",
    ),
    *(
        "torch.where(T > N, T, T)",
        "T.clamp(N, N)",
        "T.masked_fill(T > N, N)",
        "torch.zeros(L)",
        "torch.full(L, N)",
        "torch.arange(N)",
    ),
    *(
        "torch.layer_norm(T, L)",
        "torch.rms_norm(T, L)",
        "torch.nn.functional.gelu(T)",
        "torch.bmm(T, T)",
        "T.select(N, N)",
    ),
    *(
        "torch.nn.functional.scaled_dot_product_attention(T, T, T, None, N)",
        "torch.diff(T, N, N)",
        "T.index_select(N, T)",
    ),
    *(
        "torch.einsum('ij,jk->ik', [T, T])",
        "T.chunk(N, N)[0]",
        "T.split(N, N)[0]",
        "T.repeat(L)",
        "T.cumsum(N)",
        "T.topk(N)[0]",
    ),
    *(
        "T.new_zeros(L)",
        "torch.linalg_norm(T)",
        "T.std(N)",
        "torch.fft_fft(T)",
        "T.sort()[0]",
        "T.nonzero()",
        "T.unbind(N)[0]",
    ),
    *(
        "torch.tril(T, N)",
        "torch.one_hot(T, N)",
        "T.gather(N, T)",
        "T.size(N) * T",
        "float(T.sum()) * T",
        "T.numel() * T",
        "T.item() + T",
    ),
    *(
        "T.add_(T)",
        "torch.embedding(T, T)",
        "T.narrow(N, N, N)",
        "T.as_strided(L, L)",
        "T.roll(N, N)",
        "torch.addmm(T, T, T)",
    ),
)
SHAPES = ("3x4", "4x3", "1", "0x4", "2x3x4", "5", "3x4:i64", "3x4:f16", "4x4:bool")


def program(rng: Random) -> str:
    """The code of a `forward` of two tensors."""
    lines, names = ["def forward(self, x: Tensor, y: Tensor):"], ["x", "y"]
    for line in range(rng.randint(1, 5)):
        known = {"T": names[-3:], "N": NUMBERS, "L": LISTS, "D": TYPES}
        parts = re.split(r"\b([TNLD])\b", rng.choice(CALLS))
        call = "".join(f"({rng.choice(known[p])})" if k % 2 else p for k, p in enumerate(parts))
        if rng.random() < 0.1:
            call = f"({call} if x.size(0) > {rng.choice(NUMBERS[:5])} else y)"
        lines.append(f"    v{line} = {call}")
        names.append(f"v{line}")
    return "\n".join([*lines, f"    return {rng.choice([names[-1], f'({names[-1]}, x)'])}", ""])


class Here:
    """What holds a module, without a process of its own: many are read, and their faults are to be seen."""

    def __init__(self, path: str, options: ReadingOptions) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.file = Path(self._folder.name) / "model.onnx"
        self._reading = front_end.Reading(path, options, self.file)

    def exported(self) -> bytes:
        return self._reading.exported()

    def notes(self) -> list[str]:
        return self._reading.notes()


def attempt(torch: Any, code: str, shapes: tuple[str, str], folder: Path) -> str:
    """What became of a program: "no program", "read", or the code of a clean error. Raises whatever else the reader does."""
    path = folder / "m.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch._C._jit_clear_class_registry()
            torch.jit._recursive.concrete_type_store = torch.jit._recursive.ConcreteTypeStore()
            made = torch.jit.script(torch.nn.Module())
            made.define(code)
            made.save(str(path))
        except Exception:  # torch raises whatever its compiler does
            return "no program"
        try:
            with mock.patch.object(front_end, "Place", Here):
                found = summary.inspect(str(path), Options(shape=(f"x={shapes[0]}", f"y={shapes[1]}")))
        except MirageError as error:
            assert str(error), "an error without a message"
            return error.code
    found.text().encode("utf-8", "backslashreplace")
    json.dumps(found.to_json(), allow_nan=False)
    return "read"


def main() -> int:
    """Read programs; 1 with a fault."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, became, faults = Random(given.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory() as place:
        for number in range(given.count):
            code, shapes = program(rng), (rng.choice(SHAPES), rng.choice(SHAPES))
            try:
                with limits.time(SECONDS), limits.memory(BYTES):  # of what a program makes when it runs, too
                    became[attempt(torch, code, shapes, Path(place))] += 1
            except (Exception, limits.TooSlow):
                faults += 1
                print(f"FAULT {number}: {shapes}\n{code}{traceback.format_exc()[-900:]}", flush=True)
    print(f"{given.count} programs: {dict(became)}, {faults} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
