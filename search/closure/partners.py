"""Which abstract expressions may make something with another one: looked up, so that few pairs have to be tried out.

The tests of `lax.expr` (`may_hold_product`, `may_hold_sum`, `may_hold_quotient`) look at the first monomials of two
expressions. What they ask of the products of primes in these, whatever the tails, is asked here of an index: a product needs
a monomial of a host that both divide together, a sum two monomials of a host with the same ratio, a quotient a divisor that
stands below a line somewhere. So every pair that passes such a test is found, and others are, too.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mirage_cli.lax.domains.expr import Expr, Expressions


class Partners:
    """The expressions seen so far, by what they may be partners of within `outputs`; `tags` are those of quotients."""

    def __init__(self, expressions: Expressions, outputs: Sequence[Expr], tags: Sequence[Hashable]) -> None:
        self.expressions, self.outputs, self.tags = expressions, outputs, tags
        products = {p for e in outputs for p in expressions.products(e)}
        self._largest = sorted(p for p in products if sum(q % p == 0 for q in products) == 1)
        self._ratios = sorted({r for e in outputs for r in expressions.ratios(e)})
        self._seen: dict[Expr, None] = {}
        self._by_product: dict[int, list[Expr]] = {}
        self._divisors: dict[int, list[int]] = {}  #: the products that divide what another one leaves of a host's
        self._below: dict[Expr, None] = {}

    def of(self, x: Expr) -> list[Expr]:
        """The expressions seen so far, `x` among them, that may make something with `x`, in a fixed order."""
        self._see(x)
        if x in self._below:
            return list(self._seen)
        product = self.expressions.first_product(x)
        partners = dict.fromkeys(self._below)
        for other in (*self._multiplied(product), *self._added(product)):
            partners |= dict.fromkeys(self._by_product.get(other, ()))
        return list(partners)

    def _see(self, x: Expr) -> None:
        if x in self._seen:
            return
        self._seen[x] = None
        product = self.expressions.first_product(x)
        if product not in self._by_product:
            self._by_product[product] = []
            for left, divisors in self._divisors.items():
                if left % product == 0:
                    divisors.append(product)
        self._by_product[product].append(x)
        if any(self.expressions.may_divide(x, tag, e) for tag in self.tags for e in self.outputs):
            self._below[x] = None

    def _multiplied(self, product: int) -> list[int]:
        """The products of primes that divide a host's monomial together with this one."""
        products: dict[int, None] = {}
        for left in {p // product for p in self._largest if p % product == 0}:
            if left not in self._divisors:
                self._divisors[left] = [p for p in self._by_product if left % p == 0]
            products |= dict.fromkeys(self._divisors[left])
        return list(products)

    def _added(self, product: int) -> list[int]:
        """The products of primes that stand beside this one in a host, up to a common factor."""
        return [product // a * b for a, b in self._ratios if product % a == 0]
