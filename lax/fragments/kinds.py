"""Names of fragments, from what their programs compute."""

from __future__ import annotations

from mirage_cli.lax.ir.program import Node, Program
from mirage_cli.lax.ops import OPS

LINEAR = ("add", "sub", "mul", "div", "neg", "where", "const")


def kind(p: Program) -> str:
    """attention, qknorm_attention, [norm_]gated_mlp, [norm_]mlp, [norm_]lora, [norm_]linear, norm or elementwise."""
    made = {n.name: n for n in p.nodes}
    contractions = [n for n in p.nodes if n.op == "contract"]
    if not contractions:
        return "norm" if any(n.op == "sum" for n in p.nodes) else "elementwise"
    prefix = "norm_" if any(_normalised(made, i) for c in contractions for i in c.inputs) else ""
    if any(_weights(p, n) and _behind(made, n.inputs[0], "contract") for n in p.nodes):
        return "qknorm_attention" if prefix else "attention"
    chained = any(_behind(made, i, "contract") for c in contractions for i in c.inputs)
    if chained:
        return prefix + ("lora" if len(contractions) > 2 else "low_rank")
    if any(_gate(made, n) for n in p.nodes):
        return prefix + "gated_mlp"
    active = any(
        n.op not in (*LINEAR, "contract", "sum", "iota") and n.op in OPS and _behind(made, n.name, "contract")
        for n in p.nodes
    )
    return prefix + ("mlp" if active else "linear")


def _weights(p: Program, n: Node) -> bool:
    """Whether a node is the exponentials of a softmax, which are summed too if no maximum was subtracted."""
    return n.op == "stable_exp" or (n.op == "exp" and any(o.op == "sum" and n.name in o.inputs for o in p.nodes))


def _behind(made: dict[str, Node], v: str, op: str) -> bool:
    """Whether an operator lies behind a value."""
    todo, seen = [v], set[str]()
    while todo:
        x = todo.pop()
        if x in seen or x not in made:
            continue
        seen.add(x)
        if made[x].op == op:
            return True
        todo.extend(made[x].inputs)
    return False


def _normalised(made: dict[str, Node], v: str) -> bool:
    """Whether a value is divided by a root without a contraction in between."""
    todo, seen = [v], set[str]()
    while todo:
        x = todo.pop()
        if x in seen or x not in made or made[x].op == "contract":
            continue
        seen.add(x)
        if made[x].op == "sqrt":
            return True
        todo.extend(made[x].inputs)
    return False


def _gate(made: dict[str, Node], n: Node) -> bool:
    """A product of two values that each hold a contraction which the other lacks."""
    if n.op != "mul":
        return False
    left, right = (_contractions(made, i) for i in n.inputs)
    return bool(left - right) and bool(right - left)


def _contractions(made: dict[str, Node], v: str) -> set[str]:
    """The contractions behind a value."""
    todo, seen = [v], set[str]()
    while todo:
        x = todo.pop()
        if x not in seen and x in made:
            seen.add(x)
            todo.extend(made[x].inputs)
    return {x for x in seen if made[x].op == "contract"}
