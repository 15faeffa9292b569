"""The nodes of a fragment as the model has them, as a picture: what stands beside the drawing of its muGraph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirage_cli.exporters.drawing import canvas
from mirage_cli.exporters.drawing.labels import counted, short
from mirage_cli.exporters.figure import Figure, assembled, framed, node, tensor_box
from mirage_cli.exporters.layout import Gaps

NAME = 24  #: columns of a node's name
MOST = 120  #: nodes that are drawn; a larger graph is no picture any more
GAPS = Gaps(16.0, 22.0, 0.0)


def drawing(original: Mapping[str, Any]) -> str:
    """The SVG document of `fragments[].original` of a report; nothing where it is not known or too large to be seen."""
    nodes = original.get("nodes", [])
    if not 0 < len(nodes) <= MOST:
        return ""
    figures: list[Figure] = []
    edges: list[tuple[int, int]] = []
    place: dict[str, int] = {}
    tensors = {tensor["name"]: tensor for tensor in original["inputs"]}
    for n in nodes:
        read = [i for i in dict.fromkeys(n["inputs"]) if i in tensors or i in place]
        for name in read:
            if name not in place:
                tensor = tensors[name]
                place[name] = len(figures)
                figures.append(tensor_box(name, tensor["type"], "weight" if tensor["weight"] else "input"))
        own = len(figures)
        figures.append(_operator(n))
        edges += [(source, own) for source in sorted({place[i] for i in read})]
        place |= dict.fromkeys(n["outputs"], own)
    for tensor in original["outputs"]:
        if tensor["name"] in place:
            edges.append((place[tensor["name"]], len(figures)))
            figures.append(tensor_box(tensor["name"], tensor["type"], "output"))
    whole = framed(assembled(figures, edges, GAPS), [], "page")
    title = f"{counted(len(nodes), 'operator')} of the model"
    return canvas.document(whole.width, whole.height, title, whole.body)


def _operator(n: Mapping[str, Any]) -> Figure:
    lines = [short(n["op"], NAME), short(n["name"], NAME)]
    return node(lines if n["name"] else lines[:1], "tile", tip=f"{n['op']} {n['name']}")
