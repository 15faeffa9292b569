"""Sentences about proofs: both modes, and a proof that failed."""

from dataclasses import replace
from typing import Any

from mirage_cli.exporters import text, wording
from mirage_cli.search.proof.verify import Verdict
from tests.exporters import reports

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


def test_the_least_certain_proof_is_told() -> None:
    f = reports.replaced()
    other = {**reports.PROOF, "log2_bound": -41.2, "when": {"n": [0, 8]}}
    targets = {"cpu": reports.PROOF, "cuda": {**reports.PROOF, "log2_bound": -60.0, "others": [other]}}
    f = replace(f, verification={**f.verification, "targets": targets})
    data = reports.report(f, reports.kept()).to_json()
    assert wording.proofs(data).endswith("chance of a wrong proof below 2^-41.")
    assert wording.proofs(reports.report(reports.kept()).to_json()) == ""


def test_one_sentence_for_a_proof() -> None:
    assert "agreed at random points of 3 prime fields (1 round)" in wording.proved(VERDICT.to_json())
    assert wording.proved(VERDICT.to_json()).endswith("at most 2^-79.")
    assert wording.proved(replace(VERDICT, passed=False, reason="output 0 differs").to_json()) == ""


def test_what_is_gained() -> None:
    data = reports.report(reports.replaced(), reports.kept(), sizes={"batch": 1, "seq": 64}).to_json()
    gained = "Predicted for these places at batch 1, seq 64: on cpu 4.94 us in place of 31.5 us, 6.4 times as fast."
    assert wording.speed(data) == gained
    data["fragments"][0]["predictions"]["cpu"]["predicted_us"] = 31.5
    assert wording.speed(data).endswith("63.0 us in place of 31.5 us, 0.5 times as fast.")
    assert wording.speed(reports.report(reports.kept()).to_json()) == ""


PREDICTED = ["predicted, cpu", "predicted, sm_90a"]


def test_targets_have_times_of_their_own() -> None:
    both = {"cpu": reports.PREDICTION, "cuda": {**reports.PREDICTION, "target": "sm_90a", "original_us": 24.72}}
    data = reports.report(replace(reports.replaced(), predictions=both, measured=[])).to_json()
    assert "on cpu 4.94 us in place of 31.5 us, 6.4 times as fast; on sm_90a 4.94 us" in wording.speed(data)
    head, row = (line.split("  ") for line in text.fragments(data["fragments"]))
    assert [c.strip() for c in head if c] == ["Fragment", "id", "places", "status", *PREDICTED, "proof"]
    assert "15.8 us -> 2.47 us" in row and "24.7 us -> 2.47 us" in row
    assert wording.lead(data["fragments"][0]).endswith("predicted for sm_90a 24.7 us -> 2.47 us, 10.0 times as fast")


def test_what_measuring_chose() -> None:
    tuning = {"tried": 68, "device": "NVIDIA H200", "own_us": 12.1, "chosen_us": 9.9}
    assert wording.tuned(tuning) == (
        "68 candidates measured on NVIDIA H200, the fastest 9.90 us (the cost model's choice 12.1 us)"
    )
    assert wording.tuned({}) == "" == wording.tuned({**tuning, "chosen_us": None})


def test_names_in_times_are_visible_and_short() -> None:
    hostile = {"cpu": {**reports.PREDICTION, "target": "a\nb"}}
    f = replace(reports.replaced(), predictions=hostile, measured=[])
    sentence = wording.speed(reports.report(f, sizes={"x\x1b[2J" + "y" * 99: 3}).to_json())
    assert sentence.isprintable() and "on a\\nb 4.94 us" in sentence and len(sentence) < 160
