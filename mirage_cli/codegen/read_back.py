"""Kernels of engines that still print text, read back. It goes when the last of them hands over `ir.Kernel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mirage_cli.codegen.printers.render import render
from mirage_cli.codegen.requests.request import Kernel, Launch, Parameter, Request, Spelled
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.printer import text
from mirage_cli.kernel_language.reader import read_expression, read_kernels, read_statements


def read_back(
    r: Request,
    tile: Spelled,
    context: dict[str, Any],
    workspace: int = 0,
    setup: Callable[[str], Sequence[str]] = lambda _: (),
) -> Kernel:
    """The kernel that a template prints of a context."""
    printed = render(context["template"], r.target.name, k=context | {"symbols": r.numbers})
    start = printed.index("__global__")
    launch = Launch(
        tuple(Parameter(i["name"], i["type"], i["source"]) for i in context["inputs"]),
        tuple(Parameter(o["name"], o["type"]) for o in context["outputs"]),
        r.numbers,
        tuple(read_expression(str(g["blocks"])) for g in context["grid"]),
        context["threads"],
        context["shared_bytes"],
        context.get("cluster", 1),
        context.get("dependent", False),
    )
    members = [f"{t};" for t in "".join(context.get("members", [])).split(";") if t]
    own = [_field(m) for m in members]
    struct = text(ir.Kernel(f"kernel{r.number}", "p", launch.fields(*own), (), ())).split("\n\n")[0]
    (kernel,) = read_kernels(f"{struct}\n\n{printed[start:]}").values()
    return Kernel(
        tile,
        kernel,
        launch,
        tuple(context.get("headers", ())),
        workspace,
        lambda at: read_statements("\n".join(setup(text(at)))),
        printed[:start],
    )


def _field(member: str) -> ir.Field:
    (statement,) = read_statements(member)
    assert isinstance(statement, ir.Declare)
    (variable,) = statement.variables
    return ir.Field(ir.Type(statement.type.name, pointers=variable.pointers), variable.name)
