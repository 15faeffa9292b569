"""The host's part of an OpenCL source: kernels started one after the other on a queue."""

from __future__ import annotations

from mirage_cli.codegen.requests.host import Host, Started, blocks_of, symbols_of
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir


def _launch(s: Started) -> ir.Statement:
    launch = s.kernel.launch
    tensors = (k.call("mirage::opencl::tensor", place) for place in (*s.inputs, *s.outputs))
    sizes = (k.name(f"s_{n}") for n in launch.symbols)
    name = k.number(f'"{s.kernel.kernel.name}"')
    started = k.call("mirage::opencl::launch", "queue", "program", name, "blocks", launch.threads, *tensors, *sizes)
    failed = k.when(k.binary("!=", "status", 0), ir.Return(k.name("status")))
    return k.scope(*symbols_of(s), blocks_of(s), k.when(k.name("blocks") > 0, k.assign("status", started), failed))


OPENCL = Host(
    "queue",
    _launch,
    (k.declare("int", "status", 0),),
    k.name("status"),
    lambda behind: k.call("mirage::opencl::inside", "workspace", behind),
)
