"""Share of a model that the fragments cover, and for each node that stays why it was left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mirage_cli.frontends.imported import Imported
from mirage_cli.frontends.onnx.parts.splicing import WHOLE
from mirage_cli.lax import extents as ex
from mirage_cli.lax.fragments.fragment import CHAIN
from mirage_cli.lax.fragments.lax_fragment import Partition
from mirage_cli.lax.ir import graph as g
from mirage_cli.planning import ranges
from mirage_cli.planning.plan import PlanOptions
from mirage_cli.report.forms import Unchanged
from mirage_cli.search.schedules.alternatives import Sizes
from mirage_cli.search.schedules.cost import number
from mirage_cli.search.schedules.target import CPU, Target

if TYPE_CHECKING:
    from mirage_cli.optimization.task import Occurrence, Work

#: Operators that only describe shapes or constants: they do no work at run time.
FREE = ("Constant", "Shape", "Identity")

#: Operators that are matrix products, where they are not read.
_CONVOLUTIONS = ("Conv", "ConvTranspose", "ConvInteger")
_PRODUCTS = ("MatMul", "Gemm", "MatMulInteger")

EXCLUDED = "part of a fragment that --only or --skip leaves out"
UNDECIDED = "part of a fragment that was not planned"
TORN = "another part of {} is not replaced"
SHARED = "computed inside a replaced fragment too; something else reads its result as well"
TWICE = "other nodes need what it computes on the way, so that it would be computed twice (--force replaces it all the same)"
SHAPES = "computes shapes or indices that are known when the model is read: no work at run time"
UNREAD = "nothing that mirage reads uses its elements, at most its shape"
PASSED = "passes a tensor on as it is"
CONSTANT = "holds constants or positions"
LAYOUT = "layout only: it moves, selects or joins elements and computes nothing"
CONVERSION = "converts an element type and computes nothing"
CHAINED = f"elementwise, fewer than {CHAIN} operators in a row: a kernel of its own would gain nothing"
FEEDS = "only operators that mirage does not read need its result"
ELEMENTWISE = "elementwise operators between tensors that fragments neither read nor compute"
REDUCTION = "a reduction that no fragment reads"
PRODUCT = "a matrix product that no fragment could be made of"
LOOKUP = "embedding lookup: Gather of rows that are chosen at run time"


# --- shares -------------------------------------------------------------------------------------------------------------
def flops_of(graph: g.Graph, v: int) -> int:
    """Multiply-adds of a contraction; 0 for other steps."""
    step = graph.steps[v]
    if not isinstance(step, g.Contract):
        return 0
    size: dict[int, int] = {}
    for labels, i in zip((step.lhs, step.rhs), graph.inputs[v], strict=True):
        for label, e in zip(labels, graph.dims(i), strict=True):
            size[label] = max(size.get(label, 1), number(e))
    total = 1
    for n in size.values():
        total *= n
    return total


def total_flops(imported: Imported) -> int:
    """Multiply-adds of everything that the model's results need: contractions, and products that are not read."""
    graph = imported.graph
    needed = graph.cone(graph.outputs)
    labels = {step.label for v in needed if isinstance((step := graph.steps[v]), g.Opaque)}
    unread = (unread_flops(imported, n) for n in imported.model.graph if f"{n.op_type} {n.name}" in labels)
    return sum(flops_of(graph, v) for v in needed) + sum(unread)


def unread_flops(imported: Imported, node: ir.Node) -> int:
    """Multiply-adds of a convolution or a matrix product that is not read; 0 for other operators or unknown dimensions."""
    if node.op_type not in (*_CONVOLUTIONS, *_PRODUCTS) or node.domain not in ("", "ai.onnx"):
        return 0
    if len(node.inputs) < 2:
        return 0
    first, second, result = (_dims(imported, v) for v in (*node.inputs[:2], node.outputs[0]))
    if not first or not second or result is None:  # no product has operands without dimensions
        return 0
    if node.op_type in _CONVOLUTIONS:
        elements = result if node.op_type != "ConvTranspose" else first
        return number(ex.product([*elements, *second[1:]]))
    transposed = "transA" in node.attributes and node.attributes["transA"].as_int()
    return number(ex.product([*result, first[0 if transposed else -1]]))


def _dims(imported: Imported, tensor: ir.Value | None) -> g.Dims | None:
    """The dimensions of a tensor, where they are known."""
    if tensor is None:
        return None
    if tensor.name in imported.values:
        return imported.graph.dims(imported.values[tensor.name])
    return (
        tuple(int(d) for d in tensor.shape.numpy()) if tensor.shape is not None and tensor.shape.is_static() else None
    )


def measure(imported: Imported, occurrences: Sequence[Occurrence]) -> dict[str, float]:
    """Shares of the work in products, of the weights' bytes and of the nodes that are in fragments.

    A share of nothing is 1, since nothing of it is left outside, unless there are no fragments.
    """
    graph = imported.graph
    needed = set(graph.cone(graph.outputs))
    inside = {v for o in occurrences for v in o.fragment.steps}
    weights = {
        v: number(ex.product(graph.dims(v))) * graph.dtype(v).size
        for v in needed
        if isinstance((step := graph.steps[v]), g.Input) and step.constant
    }
    read = {v for o in occurrences for v in o.fragment.inputs}
    read |= {graph.inputs[v][0] for v in read if isinstance(graph.steps[v], g.Choose)}
    nodes = {n.name for n in imported.model.graph if n.op_type not in FREE}
    gone = {n.name for o in occurrences for n in o.region.nodes}
    return {
        kind: part / whole if whole else float(bool(occurrences))
        for kind, part, whole in (
            ("flops", sum(flops_of(graph, v) for v in needed & inside), total_flops(imported)),
            ("weight_bytes", sum(b for v, b in weights.items() if v in read), sum(weights.values())),
            ("nodes", len(nodes & gone), len(nodes)),
        )
    }


# --- what stays, and why ------------------------------------------------------------------------------------------------
def unchanged(imported: Imported, parts: Partition, work: Sequence[Work]) -> list[Unchanged]:
    """Groups of nodes that the patched model still has, each with its reason; in the order of the model.

    Nodes that nothing needs any more (shape computations of what was replaced, say) are gone and in no group.
    """
    reasons = _Reasons(imported, parts, work)
    groups: dict[str, list[str]] = {}
    for node in remaining(imported.model, [o for w in work if w.replace for o in w.occurrences]):
        groups.setdefault(reasons.of(node), []).append(node.name or "")
    return [{"nodes": names, "reason": reason} for reason, names in groups.items()]


def remaining(model: ir.Model, occurrences: Iterable[Occurrence]) -> list[ir.Node]:
    """The nodes that are still needed when `occurrences` are operators of their own, in the order of the model."""
    occurrences = list(occurrences)
    inputs_of: dict[ir.Value, Sequence[ir.Value]] = {v: o.region.inputs for o in occurrences for v in o.region.outputs}
    for o in occurrences:
        inputs_of |= {v: [p.tensor for p in grown.parts] for v, grown in o.region.grown.items()}
    seen: set[ir.Value] = set()
    nodes: set[ir.Node] = set()
    todo: list[ir.Value | None] = list(model.graph.outputs)
    while todo:
        v = todo.pop()
        if v is None or v in seen:
            continue
        seen.add(v)
        if v in inputs_of:
            todo.extend(inputs_of[v])
            continue
        node = v.producer()
        if node is not None and node not in nodes:
            nodes.add(node)
            todo.extend(node.inputs)
            todo.extend(_captured(node))
    return [n for n in model.graph if n in nodes]


def leave_doubled(model: ir.Model, work: Sequence[Work]) -> None:
    """Leave replaced fragments that would only add to the work, again while more are found: in most places all their products
    (of one without, all nodes) stay in the model, since what is not replaced needs results on the way, or their shapes."""
    while True:
        kept = set(remaining(model, [o for w in work if w.replace for o in w.occurrences]))
        doubled = [
            w for w in work if w.replace and 2 * sum(_stays(o, kept) for o in w.occurrences) > len(w.occurrences)
        ]
        for w in doubled:
            w.replace, w.reason = False, TWICE
        if not doubled:
            return


def leave_torn(model: ir.Model, work: Sequence[Work]) -> None:
    """Leave replaced fragments inside of operators whose parts are replaced together, where some of their products stay."""
    products: dict[Any, list[ir.Node]] = {}
    for node in model.graph:
        if (whole := node.meta.get(WHOLE)) is not None and node.op_type in _PRODUCTS:
            products.setdefault(whole, []).append(node)
    while products:
        parts = [(w, n) for w in work if w.replace for o in w.occurrences for n in o.region.nodes]
        replaced = {n for _, n in parts}
        torn = {whole for whole, own in products.items() if not replaced.issuperset(own)}
        lost = {w.id: w for w, n in parts if n.meta.get(WHOLE) in torn}
        if not lost:
            return
        for w in lost.values():
            w.replace, w.reason = False, TORN.format(w.inside)


def leave_losers(work: Sequence[Work], options: PlanOptions) -> None:
    """On a CPU leave replaced fragments until the others together gain at every size that was asked for, with all threads and
    with one: the one that loses most where the sums lose most. A fragment may lose at some sizes what others gain there."""
    given, own = dict(options.ranges), [w for w in work if _is_summed(w)]
    names = ranges.bases([s for w in own for s in w.program.symbols])
    sizes, cores = ranges.asked(names, given), options.target(CPU)
    if CPU in options.once or len(sizes) == 1:
        return
    targets = (cores, cores.alone) if cores.units > 1 else (cores,)
    times = {w.id: np.concatenate([_times(w, t, sizes) for t in targets]) for w in own}
    while own:
        ours, theirs = np.sum([times[w.id] for w in own], axis=0).T
        worst = int(np.argmax(ours / theirs))
        if ours[worst] <= theirs[worst]:
            return
        lost = max(own, key=lambda w: times[w.id][worst] @ (1, -1))
        own.remove(lost)
        where = ", ".join(f"{name} {size}" for name, size in sizes[worst % len(sizes)].items())
        where += " on one thread" if worst >= len(sizes) else ""
        took, before = times[lost.id][worst] / len(lost.occurrences)
        lost.replace = False
        lost.reason = (
            f"the replaced fragments together are not predicted to be faster on cpu at {where}, and this one takes "
            f"{took:.1f} us against {before:.1f} us there (--force replaces it all the same)"
        )


def _is_summed(w: Work) -> bool:
    """True for what is replaced and was not judged at each size by itself."""
    planned = w.plan is not None and CPU in w.plan.plans
    return w.replace and planned and not w.inside and not ranges.quantised(w.program)


def _times(w: Work, target: Target, sizes: Sequence[Sizes]) -> NDArray[np.float64]:
    """What its places and the original ones take in all at each size, in microseconds."""
    assert w.plan is not None
    plan = w.plan.plans[CPU]
    others = [o.alternative for o in plan.others]
    return len(w.occurrences) * np.array(ranges.compared(plan, others, w.program, target, w.operators, sizes))


def _stays(place: Occurrence, kept: Collection[ir.Node]) -> bool:
    """True if the model has all the work of a place without it."""
    products = [n for n in place.region.nodes if n.op_type in _PRODUCTS]
    return all(n in kept for n in products or place.region.nodes)


def _captured(node: ir.Node) -> list[ir.Value | None]:
    """The values that the sub-graphs of a node read (their own among them)."""
    graphs: list[ir.Graph] = []
    for a in node.attributes.values():
        graphs += [a.as_graph()] if a.type == ir.AttributeType.GRAPH else []
        graphs += a.as_graphs() if a.type == ir.AttributeType.GRAPHS else []
    read = [i for graph in graphs for n in ir.traversal.RecursiveGraphIterator(graph) for i in n.inputs]
    return read + [v for graph in graphs for v in graph.outputs]


class _Reasons:
    """Why nodes of a model stay. Everything is looked up once; a question costs what the node itself holds."""

    def __init__(self, imported: Imported, parts: Partition, work: Sequence[Work]) -> None:
        self.imported, self.graph = imported, imported.graph
        self.kept: dict[ir.Node, str] = {}
        self.inside: set[ir.Node] = set()
        for w in work:
            for occurrence in w.occurrences:
                if w.replace:
                    self.inside.update(occurrence.region.nodes)
                else:
                    self.kept |= dict.fromkeys(occurrence.region.nodes, w.reason or UNDECIDED)
        chosen = {occurrence.fragment.outputs for w in work for occurrence in w.occurrences}
        self.excluded = {v for f in parts.fragments if f.outputs not in chosen for v in f.steps}
        self.live = set(self.graph.cone(self.graph.outputs))
        self.consumers = self.graph.consumers()
        self.left = self._left(parts)
        self.named = set(imported.values.values())
        self.gone = {v for w in work if w.replace for occurrence in w.occurrences for v in occurrence.fragment.steps}
        self.chains: dict[int, str] = {}

    def _left(self, parts: Partition) -> dict[int, str]:
        """For the values behind those of which no fragment could be made the reason; the first one's wins."""
        stops = {v for f in parts.fragments for v in f.outputs}
        reasons: dict[int, str] = {}
        for x in parts.left:
            todo = [x.value]
            while todo:
                v = todo.pop()
                if v in reasons or v in stops or isinstance(self.graph.steps[v], g.Input | g.Opaque):
                    continue
                reasons[v] = f"no fragment could be made here: {x.reason}"
                todo.extend(self.graph.inputs[v])
        return reasons

    def of(self, node: ir.Node) -> str:
        """The reason of one node that stays."""
        name = node.name or ""
        if name in self.imported.reasons:
            return _not_read(node, self.imported.reasons[name])
        if node in self.kept:
            return self.kept[node]
        outputs = [o.name for o in node.outputs if o.name]
        values = [self.imported.values[o] for o in outputs if o in self.imported.values]
        if self.excluded.intersection(values):
            return EXCLUDED
        if outputs and all(o in self.imported.shapes or o not in self.imported.values for o in outputs):
            return SHAPES
        if node in self.inside:
            return SHARED
        left = next((self.left[v] for v in values if v in self.left), "")
        if left:
            return left
        if not self.live.intersection(values):
            return UNREAD
        return self._of_steps(node, values)

    def _of_steps(self, node: ir.Node, values: Sequence[int]) -> str:
        """The reason by what a node computes."""
        own = self._own(node, values)
        steps = [self.graph.steps[v] for v in own]
        if not own:
            return PASSED
        if any(isinstance(s, g.Contract) for s in steps):
            return PRODUCT
        if any(isinstance(s, g.Reduce | g.StableExp) for s in steps):
            return FEEDS if self._feeds(values) else REDUCTION
        if any(isinstance(s, g.Map) for s in steps):
            return self._elementwise(next(v for v in own if isinstance(self.graph.steps[v], g.Map)))
        if any(isinstance(s, g.Cast) for s in steps):
            return CONVERSION
        return LAYOUT if any(isinstance(s, (*g.VIEWS, g.Concat)) for s in steps) else CONSTANT

    def _own(self, node: ir.Node, values: Sequence[int]) -> list[int]:
        """The steps of a node: those behind its results that are no tensor of the model, and the results."""
        read = {self.imported.values.get(i.name or "") for i in node.inputs if i is not None}
        steps: set[int] = set()
        todo = [v for v in values if v not in read]
        while todo:
            v = todo.pop()
            if v not in steps:
                steps.add(v)
                todo.extend(i for i in self.graph.inputs[v] if i not in self.named)
        return sorted(steps)

    def _feeds(self, values: Iterable[int]) -> bool:
        """True if operators that are not read, and only they, read some values."""
        after = {u for v in values for u in self._users(v)}.difference(values)
        return bool(after) and all(isinstance(self.graph.steps[u], g.Opaque) for u in after)

    def _elementwise(self, v: int) -> str:
        """The reason of an elementwise step, by those that are connected with it (over views too) and stay with it."""
        if v not in self.chains:
            chain: set[int] = set()
            todo = [v]
            while todo:
                x = todo.pop()
                if x not in chain and isinstance(self.graph.steps[x], g.Map) and (x == v or x not in self.gone):
                    chain.add(x)
                    todo.extend(self._users(x))
                    todo.extend(self._operands(x))
            reason = CHAINED if len(chain) < CHAIN else FEEDS if self._feeds(chain) else ELEMENTWISE
            self.chains |= dict.fromkeys(chain, reason)
        return self.chains[v]

    def _users(self, v: int) -> list[int]:
        """The live readers of a value, looking through views."""
        readers: list[int] = []
        todo = list(self.consumers[v])
        while todo:
            u = todo.pop()
            if isinstance(self.graph.steps[u], (*g.VIEWS, g.Cast)):
                todo.extend(self.consumers[u])
            elif u in self.live:
                readers.append(u)
        return readers

    def _operands(self, v: int) -> list[int]:
        """The operands of a value, looking through views."""
        operands = []
        for i in self.graph.inputs[v]:
            while isinstance(self.graph.steps[i], (*g.VIEWS, g.Cast)):
                i = self.graph.inputs[i][0]
            operands.append(i)
        return operands


def _not_read(node: ir.Node, reason: str) -> str:
    """The reader's reason with the operator's name, which the reason itself does not say."""
    data = node.inputs[0] if node.inputs else None
    if node.op_type == "Gather" and data is not None and data.const_value is not None and "indices" in reason:
        return LOOKUP
    return f"{node.op_type}: {reason}"
