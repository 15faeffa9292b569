"""A softmax whose exponentials are read again once they are summed: its maxima as values that kernels can store.

In one kernel such a softmax needs its whole row in a block. In two, the first stores the maximum and the sum of each row, and
the second computes exp(x - maximum) / sum. Written with a maximum of its own, such a program is cut like any other
(`kernels.py`): behind the cut the maximum is an input, which only keeps exponentials small (`BlockGraph.validate`).
"""

from __future__ import annotations

from dataclasses import replace

from mirage_cli.lax.ir.program import REDUCTIONS, Node, Program


def with_maxima(program: Program) -> Program | None:
    """The program with the stabilised exponentials that outlive their sums as exp(x - maximum); None where there are none."""
    nodes: list[Node] = []
    for n in program.nodes:
        if n.op == "stable_exp" and _outlives(program, n):
            top = Node(f"{n.name}_max", "top", n.inputs, n.over)
            nodes += [top, Node(n.name, "exp_minus", (*n.inputs, top.name))]
        else:
            nodes.append(n)
    return replace(program, nodes=tuple(nodes), _axes_of={}).validate() if len(nodes) > len(program.nodes) else None


def _outlives(program: Program, e: Node) -> bool:
    """True if an output has an exponential's axes and depends on its sums over these."""
    whole, summed, late = {e.name}, set[str](), set[str]()
    for n in program.nodes:
        reduces = n.op in ("contract", *REDUCTIONS) and not set(e.over).isdisjoint(n.over)
        if not reduces and not whole.isdisjoint(n.inputs):
            whole.add(n.name)
            late |= {n.name} if not (summed | late).isdisjoint(n.inputs) else set()
        elif not (whole | summed).isdisjoint(n.inputs):
            summed.add(n.name)
    return any(o.value in late for o in program.outputs)
