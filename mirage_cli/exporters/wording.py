"""The wording of a report: shared by the page and the text in the terminal.

Everything here takes parts of `report.json` as it is stored, so that a page can be made of any output folder.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from mirage_cli.exporters.drawing.labels import counted, escaped, microseconds, percent, power_of_two, short
from mirage_cli.options.options import Options

Fragment = Mapping[str, Any]
NAME = 40  #: columns of a symbol's name

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
    log2 = log2_bound(verification)
    return "" if log2 is None else power_of_two(log2)


def log2_bound(verification: Mapping[str, Any]) -> float | None:
    """The error bound of a proof as the logarithm of it; None without a proof."""
    log2: float | None = verification.get("log2_bound")
    if log2 is None and verification.get("error_bound"):
        return math.log2(verification["error_bound"])
    return log2


def proof(verification: Mapping[str, Any]) -> list[str]:
    """Sentences about a proof: at which points, with which primes, and how wrong an acceptance may be."""
    primes, homomorphic = verification["primes"], verification["mode"] == "homomorphic"
    if not primes:
        return ["There is no proof: no muGraph was found for this fragment."]
    fields = (
        counted(len(primes) // 2, "pair") + " of prime fields" if homomorphic else counted(len(primes), "prime field")
    )
    sentences = [
        f"Original and muGraph were evaluated at random points of {fields} "
        f"({', '.join(map(str, primes))}), {counted(verification['rounds'], 'round')}, {_extents(verification)}."
    ]
    if verification.get("passed", True):
        kind = (
            f"quotient of sums of at most {verification['terms']} exponentials with polynomials"
            if homomorphic
            else "quotient of polynomials"
        )
        sentences.append(
            "All outputs agreed in every field. If the two were different functions, this would have happened with a "
            f"probability of at most {bound(verification)} over the choice of the points: the difference would be a "
            f"{kind} of degree at most {verification['degree']}, with at most "
            f"{verification['applications']} function applications behind one element."
        )
    else:
        sentences.append(f"The proof failed: {verification.get('reason', '')}.")
    if homomorphic:
        sentences.append(
            "exp(a) exp(b) = exp(a + b) was used; other scalar functions counted as arbitrary functions. The paper's own "
            f"theorem bounds the error by {power_of_two(verification['paper_log2_bound'])} for as many rounds."
        )
    else:
        sentences.append(
            "Exponentials and other scalar functions counted as arbitrary functions, so the equality holds for the true ones."
        )
    return sentences + stated(verification)


def stated(verification: Mapping[str, Any]) -> list[str]:
    """Sentences about the proof's beginning, at the nodes of the file, and about what it takes for granted."""
    statement = verification.get("statement")
    if statement is None:
        return []
    sentences = [
        "What the file's nodes mean, step by step, was compared in the same way with the program that the muGraph was proved "
        f"to compute (wrong with a probability of at most {bound(statement)})."
    ]
    return [*sentences, f"Taken for granted: {'; '.join(statement['assumptions'])}."]


def _extents(verification: Mapping[str, Any]) -> str:
    return {
        "real": "at the real extents of all axes",
        "stand-in": "on smaller extents with the same tiles, whole and partial",
    }.get(verification.get("extents", ""), f"in {verification['mode']} mode")


def proved(verification: Mapping[str, Any]) -> str:
    """A proof with its bound in one sentence; nothing without a proof."""
    if not verification["primes"] or not verification.get("passed", True):
        return ""
    points = counted(verification["rounds"], "round")
    return (
        f"Original and muGraph agreed at random points of {len(verification['primes'])} prime fields ({points}); two "
        f"different functions would have done so with a probability of at most {bound(verification)}."
    )


def proofs(report: Mapping[str, Any]) -> str:
    """The proofs of everything that was replaced, in one sentence; nothing where nothing was replaced."""
    replaced = [f["verification"] for f in report["fragments"] if f["status"] == "replaced"]
    proved = [v for own in replaced if log2_bound(own) is not None for v in _verdicts(own)]
    stated = [own["statement"] for own in replaced if "statement" in own]
    bounds = [log2 for v in (*proved, *stated) if (log2 := log2_bound(v)) is not None]
    if not bounds:
        return ""
    return f"Each was proved equal to the original; chance of a wrong proof below {power_of_two(union(bounds))}."


def union(log2_bounds: Sequence[float]) -> float:
    """log2 of the sum of probabilities, at most 0."""
    top = max(log2_bounds)
    return min(0.0, top + math.log2(math.fsum(2.0 ** max(b - top, -1000.0) for b in log2_bounds)))


def _verdicts(verification: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The verdicts of a fragment's muGraphs for all targets and sizes."""
    own = list(verification.get("targets", {}).values())
    return [*(own or [verification]), *(o for v in own for o in v.get("others", ()))]


def speed(report: Mapping[str, Any]) -> str:
    """The times of the whole model where it was measured; else the cost model's predictions for everything that was
    replaced, by target, in a sentence; nothing without any."""
    whole = report.get("whole")
    if whole and whole["mirage_us"] and whole["original_us"]:
        ours, original = whole["mirage_us"], whole["original_us"]
        return (
            f"Measured on {escaped(whole['device'])}{sizes(report)}, the whole model: {microseconds(ours)} in place of "
            f"{microseconds(original)}, {times(original / ours)}."
        )
    said = [
        f"{f'on {target} ' if target else ''}{microseconds(ours)} in place of {microseconds(original)}, "
        f"{times(original / ours)}"
        for target, (ours, original) in totals(report).items()
    ]
    return f"Predicted for these places{sizes(report)}: {'; '.join(said)}." if said else ""


def sizes(report: Mapping[str, Any]) -> str:
    """The sizes that times are for, ` at batch 1, seq 128`; nothing for a model without symbols."""
    known = report.get("sizes", {})
    return f" at {', '.join(f'{short(name, NAME)} {size}' for name, size in known.items())}" if known else ""


def predictions(fragment: Fragment) -> dict[str, tuple[float, float]]:
    """Predicted microseconds of a fragment, ours and the original's, by target (without a name in old reports)."""
    known = {
        escaped(p["target"]): (p["predicted_us"], p["original_us"]) for p in fragment.get("predictions", {}).values()
    }
    return known or ({"": (fragment["predicted_us"], fragment["original_us"])} if fragment["predicted_us"] else {})


def totals(report: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Predicted microseconds of all places that were replaced, ours and the original's, by target: where all have some."""
    replaced = [(predictions(f), f["occurrences"]) for f in report["fragments"] if f["status"] == "replaced"]
    return {
        target: (math.fsum(p[target][0] * n for p, n in replaced), math.fsum(p[target][1] * n for p, n in replaced))
        for target in (replaced[0][0] if replaced else {})
        if all(target in p and all(p[target]) for p, _ in replaced)
    }


def times(ratio: float) -> str:
    """`3.9 times as fast`; below one with two digits: `0.0082 times as fast`."""
    return f"{factor(ratio)} times as fast"


def factor(ratio: float) -> str:
    """A speed-up as a factor: `14.3`, `0.74`."""
    return f"{ratio:.1f}" if ratio >= 1.05 else f"{ratio:.2g}"


def accuracy(check: Mapping[str, Any]) -> str:
    """The root mean square errors against float64: ours, and the original's in parentheses; nothing without a check."""
    if check.get("error") is None or check.get("original_error") is None:
        return ""
    return f"{check['error']:.1e} ({check['original_error']:.1e})"


def rounding(check: Mapping[str, Any]) -> str:
    """The accuracy check in a sentence."""
    if not accuracy(check):
        return f"Not compared with float64: {check.get('skipped') or 'no kernel was built'}."
    text = (
        f"Against a float64 run, the {check['target']} kernel has a root mean square error of {check['error']:.2e} where "
        f"the original operators have {check['original_error']:.2e}"
    )
    if check.get("max_error") is not None and check.get("original_max_error") is not None:
        text += f" (largest: {check['max_error']:.2e} and {check['original_max_error']:.2e})"
    text += f", on {check.get('case', 'random')} inputs." + (f" {check['note']}." if check.get("note") else "")
    return text + edges(check.get("edges"))


def _error(value: float | None) -> str:
    """An error of a report, where one that is not finite is null."""
    return "infinite" if value is None else f"{value:.1e}"


def edges(check: Mapping[str, Any] | None) -> str:
    """The outcome of inputs at the edges of numbers, in sentences to follow another; nothing without any."""
    if not check:
        return ""
    text = (
        f" Of {counted(len(check['kinds']), 'kind')} of inputs at the edges of numbers "
        f"the worst was: {check['worst']} (error {_error(check['error'])}, original {_error(check['original_error'])})."
    )
    better = ", ".join(check["better"])
    return text + (f" Better than the original, which overflows, on: {better}." if better else "")


def gain(fragment: Fragment, target: str | None = None) -> str:
    """`27.9 us -> 4.01 us` as predicted for a target; for all of them with their names, where there are several; nothing
    without a prediction."""
    known = predictions(fragment)
    if target is not None:
        return gain_of(*known[target]) if target in known else ""
    return ", ".join(f"{t} {gain_of(*us)}" if len(known) > 1 else gain_of(*us) for t, us in known.items())


def measured(fragment: Fragment) -> str:
    """The same as it was measured last; nothing without."""
    rows = [m for m in fragment["measured"] if m["mirage_us"] and m["original_us"]]
    return gain_of(rows[-1]["mirage_us"], rows[-1]["original_us"]) if rows else ""


def gain_of(ours: float, original: float) -> str:
    """Two times in microseconds as a change."""
    return f"{microseconds(original)} -> {microseconds(ours)}" if original else microseconds(ours)


def lead(f: Mapping[str, Any]) -> str:
    """The fragment in one line."""
    nodes = len(f["nodes"][0]) if f["nodes"] else 0
    parts = [places(f), f"{counted(nodes, 'node')} each" if f["occurrences"] > 1 else counted(nodes, "node")]
    if f["mugraph"]["kernels"]:
        parts.append(counted(f["mugraph"]["kernels"], "kernel"))
    several = len(predictions(f)) > 1
    for target, (ours, original) in predictions(f).items():
        if ours and original:
            where = f" for {target}" if several else ""
            parts.append(f"predicted{where} {gain_of(ours, original)}, {times(original / ours)}")
    return " · ".join(parts)


def searched(search: Mapping[str, Any]) -> str:
    """The counts of what a search went through."""
    counts = f"{search['muGraphs']} muGraphs from {search['mappings']} mappings and {search['values']} values"
    return f"{counts}, {search['seconds']} s"


def tuned(tuning: Mapping[str, Any]) -> str:
    """The choice that measuring candidates has made; nothing where none were measured."""
    if not tuning.get("chosen_us"):
        return ""
    text = f"{counted(tuning.get('tried', 0), 'candidate')} measured on {tuning.get('device', 'a GPU')}"
    own = tuning.get("own_us")
    return f"{text}, the fastest {microseconds(tuning['chosen_us'])}" + (
        f" (the cost model's choice {microseconds(own)})" if own else ""
    )


def covered(coverage: Mapping[str, float]) -> list[str]:
    """A phrase for each share that the report has."""
    return [f"{percent(coverage[kind])} {of}" for kind, of in SHARES.items() if kind in coverage]


def outcome(report: Mapping[str, Any]) -> str:
    """The outcome for the model, in a sentence."""
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


def outcomes(report: Mapping[str, Any]) -> list[str]:
    """The outcome for the model, the gain and the proofs: a sentence each."""
    return [s for s in (outcome(report), speed(report), proofs(report)) if s]


def settings(options: Mapping[str, Any]) -> list[str]:
    """The options that differ from the defaults, and the seed, as on the command line."""
    words: list[str] = []
    defaults = Options().to_json()
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if (value == defaults.get(name) and name != "seed") or value is None:
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
    return escaped(shlex.join(words))


def optimize_command(report: Mapping[str, Any], folder: str) -> str:
    """The command that made a report; `folder` is a word as a shell takes it."""
    words = ["mirage", "optimize", report["model"]["path"], "-o"], settings(report["options"])
    return " ".join([command(words[0]), folder, *([command(words[1])] if words[1] else [])])


def targets(fragment: Fragment) -> list[str]:
    """The kinds of targets for which a fragment has kernels."""
    return sorted(fragment["schedule"])
