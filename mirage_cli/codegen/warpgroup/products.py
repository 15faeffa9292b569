"""Matrix products of warpgroups as statements that issue them."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_cli.codegen.terms.expressions import ctype
from mirage_cli.codegen.warpgroup.plan import GROUP_ROWS, PANEL, PARTS, Plan, Product, Tile
from mirage_cli.codegen.warpgroup.values import PAIR, M
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax.dtypes import BF16

DEPTH = 16  #: positions that an instruction sums over
UNIT = 16  #: bytes that descriptors count in
#: parts of a left and a right operand whose products make that of float32, to within 2^-24: small ones first
PAIRS = sorted(((a, b) for a in range(PARTS) for b in range(PARTS) if a + b < PARTS), key=lambda x: (-sum(x), -x[0]))


def issue(plan: Plan, products: Sequence[Product], step: int) -> list[ir.Statement]:
    """Statements that issue products; an accumulator begins at 0 in iteration `step`."""
    return [_split(plan, p) if p.split else _product(plan, p, step) for p in products]


def _split(plan: Plan, p: Product) -> ir.Scope:
    """The products of parts, from 0 on."""
    right = plan.loaded(p.right)
    parts, turned = right.parts(), right.inner != p.over
    found = _descriptor("right", parts.name, right.rows * PANEL * 2 if turned else UNIT)
    issued = list[ir.Statement]()
    for n, (a, b) in enumerate(PAIRS):
        at = k.name("right") + k.total([parts.bytes // PARTS * b, *_along(right, turned)]) / UNIT
        words = k.name(f"{p.left}_words")[M][PAIR][a]
        more = PAIR > 0 if n == 0 else k.number("true")
        multiply = k.call("wgmma", k.name(p.sums)[M], words, at, more, static=(p.cols, ctype(BF16), turned))
        loops = [("m", plan.row_tiles), ("k", p.depth // DEPTH)]
        issued += k.nested(loops, k.do(multiply), unroll=k.UNROLL)
    return k.scope(found, *issued)


def _product(plan: Plan, p: Product, step: int) -> ir.Scope:
    first = k.negated(k.binary("==", "step", step))
    more = k.binary("||", PAIR > 0, first) if p.accumulated else PAIR > 0
    right = plan.loaded(p.right)
    turned = right.inner != p.over
    names: list[ir.Statement] = [_descriptor("right", p.right, right.rows * PANEL * 2 if turned else UNIT)]
    b = k.name("right") + k.total(_along(right, turned)) / UNIT
    a: ir.Expression = k.name(f"{p.left}_words")[M][PAIR]
    kinds = [turned]
    if not plan.in_words(p):
        left = plan.loaded(p.left)
        across = left.inner != p.over
        height = (left.rows if across else GROUP_ROWS) * PANEL * 2
        names.append(_descriptor("left", k.name(p.left) + k.name("base") / GROUP_ROWS * height, UNIT))
        a = k.name("left") + k.total([M * height, *_along(left, across)]) / UNIT
        kinds = [across, turned]
    multiply = k.call("wgmma", k.name(p.out)[M], a, b, more, static=(p.cols, ctype(p.dtype), *kinds))
    return k.scope(*names, *k.nested([("m", plan.row_tiles), ("k", p.depth // DEPTH)], k.do(multiply), unroll=k.UNROLL))


def _descriptor(name: str, at: ir.Value, panel: int) -> ir.Statement:
    return k.let("uint64_t", name, k.call("tile_descriptor", at, panel))


def _along(t: Tile, turned: bool) -> list[ir.Expression]:
    """The terms of the place of 16 summed positions `k`: rows of panels where they are turned, else columns."""
    return [PAIR * (DEPTH * PANEL * 2)] if turned else [PAIR / 4 * (t.rows * PANEL * 2), PAIR % 4 * (DEPTH * 2)]
