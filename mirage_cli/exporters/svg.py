"""A muGraph as a picture: kernels on stored tensors, in each the block graph with its maps and phases, in that the
thread graphs with their operators (the three levels of the muGraph, nested)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_cli.exporters.drawing import canvas
from mirage_cli.exporters.drawing.canvas import LINE
from mirage_cli.exporters.drawing.labels import number, short
from mirage_cli.exporters.figure import NAME, PAD, Figure, assembled, drawn, framed, node, tensor_box, wrapped
from mirage_cli.exporters.layout import Gaps, layered
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import (
    BODY,
    EPILOGUE,
    GRID,
    PHASES,
    PROLOGUE,
    BlockGraph,
    BlockOp,
    CustomKernel,
    KernelGraph,
)

THREAD = Gaps(12.0, 16.0, 0.0)
BLOCK = Gaps(16.0, 24.0, 12.0)
KERNEL = Gaps(24.0, 30.0, 0.0)
STORES = len(PHASES)  #: the band behind the phases
CARRIES = ("accum", "running", "shrink", "grid_top", "grid_sum")


def drawing(graph: KernelGraph, program: Program) -> str:
    """The SVG document of a muGraph that computes `program`. The same bytes for the same muGraph."""
    inner = _kernel_graph(graph, program)
    axes = "axes  " + "  ".join(f"{a.name}={short(str(a.extent), NAME)}" for a in program.axes)
    head = ["kernel graph", *wrapped(axes, max(inner.width, 320.0))]
    whole = framed(inner, head, "page")
    title = f"muGraph with {len(graph.kernels)} kernel" + ("s" if len(graph.kernels) != 1 else "")
    return canvas.document(whole.width, whole.height, title, whole.body)


# --- kernel level -------------------------------------------------------------------------------------------------------
def _kernel_graph(graph: KernelGraph, program: Program) -> Figure:
    """Tensors and kernels."""
    labels = [
        (s.name, f"{s.dtype}{_dims(s.dims)}{', of parts' if s.parts else ''}", "weight" if s.constant else "input")
        for s in program.sources
    ]
    labels += [
        (output.name or output.value, f"{output.dtype}{_dims(output.dims)}", "output") for output in program.outputs
    ]
    labels += [(f"intermediate {k}", "", "") for k in range(graph.tensors - len(labels))]
    for k in graph.kernels:
        for t, output in zip(k.outputs, k.program.outputs, strict=True):
            if t >= graph.sources + graph.outputs:
                labels[t] = (labels[t][0], f"{output.dtype}{_dims(output.dims)}", "stored")
    figures: list[Figure] = []
    edges: list[tuple[int, int]] = []
    place: dict[int, int] = {}

    def tensor(number: int) -> int:
        if number not in place:
            place[number] = len(figures)
            figures.append(tensor_box(*labels[number]))
        return place[number]

    for n, k in enumerate(graph.kernels):
        readers = [tensor(i) for i in k.inputs]
        own = len(figures)
        figures.append(_kernel(n, k, [labels[i][0] for i in k.inputs], [labels[i][0] for i in k.outputs]))
        edges += [(i, own) for i in readers]
        edges += [(own, tensor(output)) for output in k.outputs]
    return assembled(figures, edges, KERNEL)


def _kernel(n: int, k: CustomKernel, inputs: Sequence[str], outputs: Sequence[str]) -> Figure:
    block = _block(k, inputs, outputs)
    return framed(block, [f"kernel {n}"], "kernel")


# --- block level --------------------------------------------------------------------------------------------------------
def _block(k: CustomKernel, inputs: Sequence[str], outputs: Sequence[str]) -> Figure:
    """The block graph of a kernel: a band for each phase, then the stores."""
    block, p = k.block, k.program
    axes = block.axes_of(p)
    order = [o for phase in PHASES for o in block.ops if o.phase == phase]
    place = {o.name: n for n, o in enumerate(order)}
    edges = [(place[i], place[o.name]) for o in order for i in dict.fromkeys(o.inputs)]
    figures = [_tile(o, k, inputs, sorted(axes[o.name])) for o in order]
    for value, out, name in zip(block.outputs, p.outputs, outputs, strict=True):
        own = {s.axis for s in out.access}
        omap = "omap {" + ", ".join(a for a in block.grid if a in own) + "}"
        lines = [f"store {value} in {short(name, NAME)}", omap]
        edges.append((place[value], len(figures)))
        figures.append(replace(node(lines, "load", tip=f"store {value} in {name}"), band=STORES))
    bands = sorted({f.band for f in figures})
    titles = [_phase(band, block) for band in bands]
    margin = max(canvas.width_of(*lines) for lines in titles) + 2 * PAD
    inner = assembled(figures, edges, BLOCK, titles, margin, [band == PHASES.index(BODY) for band in bands])
    head = ["block graph", f"grid  {' × '.join(block.grid) or 'one block'}"]
    if block.split:
        head.append(f"split  {' × '.join(block.split)}, summed over blocks")
    head.append(f"loop  over {block.loop}" if block.loop else "loop  none")
    return framed(inner, head, "block")


def _phase(band: int, g: BlockGraph) -> list[str]:
    """The title of a band."""
    if band == STORES:
        return ["stores"]
    names = {PROLOGUE: ["prologue"], EPILOGUE: ["epilogue"], GRID: ["grid", "epilogue"]}
    return names.get(PHASES[band], ["body", f"for {g.loop}"])


def _tile(operator: BlockOp, k: CustomKernel, inputs: Sequence[str], axes: Sequence[str]) -> Figure:
    """An operator on tiles."""
    band = PHASES.index(operator.phase)
    head = f"{operator.name} [{' '.join(axes)}]"
    if operator.thread is not None:
        return replace(_thread(operator, head), band=band)
    if operator.op == "load":
        return replace(_load(operator, k, inputs, head), band=band)
    lines = [f"{head} = {operator.op}"]
    detail = [f"over {' '.join(operator.over)}"] if operator.over else []
    detail += [f"along {operator.axis}"] if operator.axis else []
    detail += [f"in {operator.dtype}"] if operator.dtype else []
    lines += ["  ".join(detail)] if detail else []
    return replace(node(lines, "carry" if operator.op in CARRIES else "tile"), band=band)


def _load(operator: BlockOp, k: CustomKernel, inputs: Sequence[str], head: str) -> Figure:
    source = k.program.input(operator.source_value)
    name = inputs[source.source]
    own = {s.axis for s in source.access}
    imap = "  ".join(f"{a}↔{a}" if a in own else f"{a}↔φ" for a in k.block.grid)
    walked = operator.phase == BODY and k.block.loop in own
    fmap = f"{k.block.loop}↔{k.block.loop}" if walked else f"{k.block.loop}↔φ" if k.block.loop else ""
    lines = [f"{head} = load {short(name, NAME)}", f"reads [{', '.join(map(str, source.access))}]"]
    lines += [f"imap {{{imap}}}"] if imap else []
    lines += [f"fmap {{{fmap}}}"] if fmap else []
    return node(lines, "load", tip=f"{operator.name} = load {name}")


# --- thread level -------------------------------------------------------------------------------------------------------
def _thread(operator: BlockOp, head: str) -> Figure:
    """A thread graph: the operators inside, each operand entering at a port of the box."""
    assert operator.thread is not None
    names = list(dict.fromkeys(operator.inputs))
    figures = [Figure(4.0, 4.0, ('<circle class="tip" cx="2" cy="2" r="2"/>',)) for _ in names]  # a band of their own
    value = [names.index(i) for i in operator.inputs]
    edges: list[tuple[int, int]] = []
    for n in operator.thread.nodes:
        text = number(n.value) if n.op == "const" and n.value is not None else n.op
        edges += [(value[i], len(figures)) for i in n.inputs]
        value.append(len(figures))
        figures.append(_operator(text, len(n.inputs)))
    layout = layered([f.box for f in figures], edges, THREAD)
    margin = canvas.width_of(head, "thread") + 2 * PAD
    width = margin + max(layout.width, 20.0) + PAD
    lowest = max(layout.height, 2 * LINE - 2)
    body = [
        canvas.rect(0, 0, width, lowest + 2 * PAD, "thread"),
        canvas.text(PAD, PAD + 9, head, "ink strong"),
        canvas.text(PAD, PAD + 9 + LINE, "thread", "soft"),
    ]
    ports = []
    for x, y in layout.corners[: len(names)]:
        ports.append(margin + x + 2)
        body.append(canvas.arrow([(margin + x + 2, 0), (margin + x + 2, PAD + y + 2)], head=False))
    body.append(canvas.group(margin, PAD, drawn(figures, layout)))
    return Figure(width, lowest + 2 * PAD, tuple(body), ports=tuple(ports))


def _operator(text: str, operands: int) -> Figure:
    width = canvas.width_of(text) + 10
    body = (canvas.rect(0, 0, width, 19, "op", 9.5), canvas.text(width / 2, 13, text, anchor="middle"))
    ports = tuple(width * (k + 1) / (operands + 1) for k in range(operands))
    return Figure(width, 19.0, body, 1, ports)


def _dims(dims: Sequence[Extent]) -> str:
    return "[" + ", ".join(short(str(ex.to_json(d)), NAME) for d in dims) + "]"
