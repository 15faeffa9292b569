"""Names of fragments, from what their programs compute."""

from __future__ import annotations

from mirage_cli.lax.ir.program import Node, Program
from mirage_cli.lax.ops import OPS

LINEAR = ("add", "sub", "mul", "div", "neg", "where", "const")


def kind(p: Program) -> str:
    """attention, qknorm_attention, [norm_]gated_mlp, [norm_]mlp, [norm_]lora, [norm_]linear, norm or elementwise."""
    nodes = {n.name: n for n in p.nodes}
    contractions = [n for n in p.nodes if n.op == "contract"]
    if not contractions:
        return "norm" if any(n.op == "sum" for n in p.nodes) else "elementwise"
    prefix = "norm_" if any(_normalised(nodes, i) for c in contractions for i in c.inputs) else ""
    if any(_weights(p, n) and _behind(nodes, n.inputs[0], "contract") for n in p.nodes):
        return "qknorm_attention" if prefix else "attention"
    chained = any(_behind(nodes, i, "contract") for c in contractions for i in c.inputs)
    if chained:
        return prefix + ("lora" if len(contractions) > 2 else "low_rank")
    if any(_gate(nodes, n) for n in p.nodes):
        return prefix + "gated_mlp"
    active = any(
        n.op not in (*LINEAR, "contract", "sum", "iota") and n.op in OPS and _behind(nodes, n.name, "contract")
        for n in p.nodes
    )
    return prefix + ("mlp" if active else "linear")


def _weights(p: Program, n: Node) -> bool:
    """True if a node is the exponentials of a softmax, which are summed too if no maximum was subtracted."""
    return n.op == "stable_exp" or (n.op == "exp" and any(o.op == "sum" and n.name in o.inputs for o in p.nodes))


def _behind(nodes: dict[str, Node], v: str, op: str) -> bool:
    """True if an operator lies behind a value."""
    todo, seen = [v], set[str]()
    while todo:
        x = todo.pop()
        if x in seen or x not in nodes:
            continue
        seen.add(x)
        if nodes[x].op == op:
            return True
        todo.extend(nodes[x].inputs)
    return False


def _normalised(nodes: dict[str, Node], v: str) -> bool:
    """True if a value is divided by a root without a contraction in between."""
    todo, seen = [v], set[str]()
    while todo:
        x = todo.pop()
        if x in seen or x not in nodes or nodes[x].op == "contract":
            continue
        seen.add(x)
        if nodes[x].op == "sqrt":
            return True
        todo.extend(nodes[x].inputs)
    return False


def _gate(nodes: dict[str, Node], n: Node) -> bool:
    """A product of two values that each hold a contraction which the other lacks."""
    if n.op != "mul":
        return False
    left, right = (_contractions(nodes, i) for i in n.inputs)
    return bool(left - right) and bool(right - left)


def _contractions(nodes: dict[str, Node], v: str) -> set[str]:
    """The contractions behind a value."""
    todo, seen = [v], set[str]()
    while todo:
        x = todo.pop()
        if x not in seen and x in nodes:
            seen.add(x)
            todo.extend(nodes[x].inputs)
    return {x for x in seen if nodes[x].op == "contract"}
