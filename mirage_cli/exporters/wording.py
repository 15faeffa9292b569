"""What a report says, in words: shared by the page and the text in the terminal.

Everything here takes parts of `report.json` as it is stored, so that a page can be made of any output folder.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from mirage_cli.exporters.labels import counted, microseconds, percent, power_of_two, visible
from mirage_cli.options import Options

Fragment = Mapping[str, Any]

#: coverage key -> what it is a share of
SHARES = {
    "flops": "of the multiply-adds of matrix products",
    "weight_bytes": "of the bytes of weights",
    "nodes": "of the nodes",
}


def places(fragment: Fragment) -> str:
    """`1 place`, `24 places`."""
    return counted(fragment["occurrences"], "place")


def bound(verification: Mapping[str, Any]) -> str:
    """The error bound of a proof as a power of two; nothing without a proof."""
    log2 = verification.get("log2_bound")
    if log2 is None and verification.get("error_bound"):
        log2 = math.log2(verification["error_bound"])
    return "" if log2 is None else power_of_two(log2)


def proof(verification: Mapping[str, Any]) -> list[str]:
    """Sentences about a proof: at which points, with which primes, and how wrong an acceptance may be."""
    primes, homomorphic = verification["primes"], verification["mode"] == "homomorphic"
    if not primes:
        return ["There is no proof: no muGraph was found for this fragment."]
    fields = (
        counted(len(primes) // 2, "pair") + " of prime fields" if homomorphic else counted(len(primes), "prime field")
    )
    found = [
        f"Original and muGraph were evaluated at random points of {fields} "
        f"({', '.join(map(str, primes))}), {counted(verification['rounds'], 'round')}, {_extents(verification)}."
    ]
    if verification.get("passed", True):
        kind = (
            f"quotient of sums of at most {verification['terms']} exponentials with polynomials"
            if homomorphic
            else "quotient of polynomials"
        )
        found.append(
            "All outputs agreed in every field. If the two were different functions, this would have happened with a "
            f"probability of at most {bound(verification)} over the choice of the points: the difference would be a "
            f"{kind} of degree at most {verification['degree']}, with at most "
            f"{verification['applications']} function applications behind one element."
        )
    else:
        found.append(f"The proof failed: {verification.get('reason', '')}.")
    if homomorphic:
        found.append(
            "exp(a) exp(b) = exp(a + b) was used; other scalar functions counted as arbitrary functions. The paper's own "
            f"theorem bounds the error by {power_of_two(verification['paper_log2_bound'])} for as many rounds."
        )
    else:
        found.append(
            "Exponentials and other scalar functions counted as arbitrary functions, so the equality holds for the true ones."
        )
    return found


def _extents(verification: Mapping[str, Any]) -> str:
    return {
        "real": "at the real extents of all axes",
        "stand-in": "on smaller extents with the same tiles, whole and partial",
    }.get(verification.get("extents", ""), f"in {verification['mode']} mode")


def accuracy(check: Mapping[str, Any]) -> str:
    """The root mean square errors against float64: ours, and the original's in parentheses; nothing without a check."""
    if check.get("error") is None or check.get("original_error") is None:
        return ""
    return f"{check['error']:.1e} ({check['original_error']:.1e})"


def gain(fragment: Fragment) -> str:
    """`27.9 us -> 4.01 us` as predicted; nothing without a prediction."""
    if not fragment["predicted_us"]:
        return ""
    ours = microseconds(fragment["predicted_us"])
    original = fragment.get("original_us")
    return f"{microseconds(original)} -> {ours}" if original else ours


def covered(coverage: Mapping[str, float]) -> list[str]:
    """A phrase for each share that the report has."""
    return [f"{percent(coverage[kind])} {of}" for kind, of in SHARES.items() if kind in coverage]


def outcome(report: Mapping[str, Any]) -> str:
    """What became of the model, in a sentence."""
    fragments = report["fragments"]
    replaced = [f for f in fragments if f["status"] == "replaced"]
    dry = report["options"].get("dry_run", False)
    if not fragments:
        return "There is no fragment to improve; the model " + ("would be" if dry else "was") + " copied as it is."
    if not replaced:
        return (
            f"None of {counted(len(fragments), 'fragment')} was replaced; the model "
            + ("would be" if dry else "was")
            + " copied as it is."
        )
    distinct = "fragment" if len(fragments) == 1 else f"of {len(fragments)} distinct fragments"
    total = counted(sum(f["occurrences"] for f in replaced), "place")
    verb = "would be replaced" if dry else "replaced"
    return f"{len(replaced)} {distinct} {verb}, at {total} of the model."


def settings(options: Mapping[str, Any]) -> list[str]:
    """The options that differ from the defaults, as on the command line."""
    words: list[str] = []
    defaults = Options().to_json()
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value == defaults.get(name) or value is None:
            continue
        if isinstance(value, bool):
            words += [flag] if value else []
        elif isinstance(value, list):
            words += [part for item in value for part in (flag, str(item))]
        else:
            words += [flag, str(value)]
    return words


def command(words: Sequence[str]) -> str:
    """Words as a line that a shell takes apart again, on one visible line."""
    return visible(shlex.join(words))


def optimize_command(report: Mapping[str, Any], folder: str) -> str:
    """The command that made a report."""
    options = settings(report["options"])
    return command(["mirage", "optimize", report["model"]["path"], "-o", folder, *options])


def targets(fragment: Fragment) -> list[str]:
    """The kinds of targets for which a fragment has kernels."""
    return sorted(fragment["schedule"])
