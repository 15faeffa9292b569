"""The host's part of a HIP source: that of CUDA, without clusters and dependent launches."""

from __future__ import annotations

from dataclasses import replace

from mirage_cli.codegen.requests.host import CUDA, Started, blocks_of, started_with
from mirage_cli.codegen.requests.request import FAILED
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir


def _launch(s: Started) -> ir.Statement:
    return started_with(s, _start)


def _start(s: Started, own: str) -> list[ir.Statement]:
    launch = s.kernel.launch
    sizes = ("blocks", launch.threads, launch.shared_bytes)
    started = k.assign("status", k.call("mirage::hip::launch", own, *sizes, "stream", "p"))
    return [blocks_of(s), k.when(k.name("blocks") > 0, *s.kernel.setup(s.own), started, FAILED)]


HIP = replace(CUDA, launch=_launch)
