"""Sentences about proofs: both modes, and a proof that failed."""

from dataclasses import replace
from typing import Any

from mirage_cli.exporters import wording
from mirage_cli.search.verify import Verdict

VERDICT = Verdict(True, "uninterpreted", (1073741827, 2147483647, 1073741831), 3, 1, 9.0, 49, 1, -79.77, "real", 0.01)
MERGED = replace(
    VERDICT,
    mode="homomorphic",
    primes=(1377762623, 688881311, 1899272399, 949636199),
    rounds=2,
    log2_bound=-51.1,
    terms=4,
    exponent_degree=1,
    paper_log2_bound=-14.5,
)


def sentences(verdict: Verdict) -> str:
    data: dict[str, Any] = verdict.to_json()
    return " ".join(wording.proof(data))


def test_a_proof_where_exp_is_any_function() -> None:
    text = sentences(VERDICT)
    assert "3 prime fields (1073741827, 2147483647, 1073741831), 1 round, at the real extents" in text
    assert "at most 2^-79 over" in text
    assert "a quotient of polynomials of degree at most 3, with at most 49" in text
    assert "counted as arbitrary functions, so the equality holds for the true ones" in text


def test_a_proof_where_exponentials_are_merged() -> None:
    text = sentences(MERGED)
    assert "2 pairs of prime fields (1377762623, 688881311, 1899272399, 949636199), 2 rounds" in text
    assert "a quotient of sums of at most 4 exponentials with polynomials of degree at most 3" in text
    assert "exp(a) exp(b) = exp(a + b) was used" in text
    assert "bounds the error by 2^-14 for as many rounds" in text
    assert "so the equality holds for the true ones" not in text


def test_a_proof_that_failed() -> None:
    for verdict in (VERDICT, MERGED):
        text = sentences(replace(verdict, passed=False, reason="output 0 differs"))
        assert "The proof failed: output 0 differs." in text
        assert "agreed" not in text
