"""A muGraph as a tree of texts: the three levels, with maps and phases."""

from __future__ import annotations

import pytest

from mirage_cli.exporters import tree
from tests.exporters.graphs import HOSTILE, looped, norm_linear

WANTED = """\
kernel graph
  kernel 0
    reads x f32[5, 48]
    reads w f32[48, 40]
    block graph  grid a x b  loop over c
      body, for each step of c
        t0 [a c] = load x0  imap {a<->a, b<->φ} fmap {c<->c}
        t1 [b c] = load x1  imap {a<->φ, b<->b} fmap {c<->c}
        t2 [a c] = thread graph(t0)
          r0 = mul(t0, t0)
        t3 [a] = sum(t2) over c
        t4 [a b] = contract(t0, t1) over c in f32
      epilogue
        t5 [a] = accum(t3)
        t6 [a b] = accum(t4)
        t7 [a b] = thread graph(t6, t5)
          r0 = mul(t5, 0.0208333)
          r1 = sqrt(r0)
          r2 = div(t6, r1)
      store t7  omap {a, b}
    writes y f32[5, 40]"""


def test_the_three_levels() -> None:
    program = norm_linear()
    found = tree.mugraph(looped(program), program)
    assert "\n".join("  " * depth + line for depth, line in found.lines()) == WANTED


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names(name: str) -> None:
    program = norm_linear(name, name, name)
    for _, line in tree.mugraph(looped(program), program).lines():
        assert line.isprintable() and len(line) < 120
