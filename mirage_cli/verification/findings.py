"""Findings of `mirage verify`: one for each thing that was looked at, and the outputs of both models."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mirage_cli.exporters import wording
from mirage_cli.exporters.drawing.labels import power_of_two
from mirage_cli.report.report import finite

if TYPE_CHECKING:
    from mirage_cli.checks.whole_model import Compared

SCHEMA_VERSION = 1
#: what is looked at, in the order in which it is told
CHECKS = {
    "files": "every file is as optimize wrote it",
    "configuration": "genai_config.json names models and libraries that are there",
    "model": "the model has an operator for each fragment, with its original nodes inside",
    "function": "the nodes inside compute the programs of the muGraphs",
    "original": "the nodes inside compute what the original model does there",
    "proof": "the muGraphs are proved again, at other points",
    "source": "the sources are what the muGraphs are printed to",
    "library": "the library was built from these sources",
    "kernel": "the kernels agree with float64",
    "reference": "the original computes what its nodes mean",
    "outputs": "the outputs agree with the original's",
    "torchscript": "the TorchScript module agrees with the original",
}


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """Options of `mirage verify`.

    `seed` gives random points and inputs (0: kernels are tried on the inputs of `optimize`), `confidence` the bits of the
    proofs, `dim` and `shape` (as in `Options`) the sizes at which whole models are run. `bisect` looks for the operator that
    makes outputs differ, `save_failing` is a folder for what is needed to see the difference again. `jobs` proofs run at a
    time. `trust_library` loads the library of a folder that somebody else wrote. `timeout` is what one run of a model may
    take, in seconds, and `max_memory` what a process that runs models may, in bytes (0: no limit). `inputs` is a file or
    folder with the inputs of whole models, in place of drawn ones.
    """

    seed: int = 0
    confidence: int = 40
    dim: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()
    bisect: bool = False
    save_failing: str | None = None
    jobs: int = 1
    trust_library: bool = False
    timeout: float = 600.0
    max_memory: int = 0
    inputs: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: `check` is one of `CHECKS`, `where` the file, fragment or output."""

    check: str
    where: str
    passed: bool
    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The form of `mirage verify --json`."""
        entries: dict[str, Any] = {"check": self.check, "where": self.where, "passed": self.passed}
        return entries | ({"text": self.text} if self.text else {}) | self.data


@dataclass(slots=True)
class Verification:
    """The outcome. `culprits` names every file, fragment or output with a difference, and what bisection found; `uncompared`
    says why outputs were not compared, where they were not."""

    findings: list[Finding] = field(default_factory=list)
    outputs: list[Compared] = field(default_factory=list)
    culprits: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    saved: str | None = None
    uncompared: str = ""
    seconds: float = 0.0

    def __repr__(self) -> str:
        wrong = f"differs: {', '.join(self.culprits)}" if not self.passed else "passed"
        return f"<verification of {len(self.findings)} findings: {wrong}>"

    @property
    def passed(self) -> bool:
        """True if no difference was found."""
        return all(f.passed for f in self.findings)

    def add(self, check: str, where: str, problem: str = "", text: str = "", **data: Any) -> bool:
        """Take down a finding, which has passed when there is no problem; whether it has."""
        self.findings.append(Finding(check, where, not problem, problem or text, data))
        if problem and where not in self.culprits:
            self.culprits.append(where)
        return not problem

    def include(self, other: Verification, name: str) -> None:
        """Take over what was found of a model called `name` of a folder."""
        self.findings += [replace(f, where=f"{name}: {f.where}") for f in other.findings]
        self.outputs += [replace(c, output=f"{name}: {c.output}") for c in other.outputs]
        self.culprits += [f"{name}: {c}" for c in other.culprits]
        self.notes += [f"{name}: {n}" for n in other.notes]
        self.saved = self.saved or other.saved
        self.uncompared = self.uncompared or (other.uncompared and f"{name}: {other.uncompared}")
        self.seconds += other.seconds

    def of(self, check: str) -> list[Finding]:
        """The findings of one check."""
        return [f for f in self.findings if f.check == check]

    def to_json(self) -> dict[str, Any]:
        """The document of `mirage verify --json`."""
        document = {
            "schema_version": SCHEMA_VERSION,
            "passed": self.passed,
            "culprits": self.culprits,
            "findings": [f.to_json() for f in self.findings],
            "outputs": [c.to_json() for c in self.outputs],
            "notes": self.notes,
            "saved": self.saved,
            "seconds": round(self.seconds, 3),
        }
        entries: dict[str, Any] = finite(document)  # the error of an output that is not finite is infinite
        return entries

    def text(self) -> str:
        """The text that the command prints: a line for each check, what is proved and measured, then every difference."""
        lines = []
        for check, meaning in CHECKS.items():
            findings = self.of(check)
            bad = sum(not f.passed for f in findings)
            if findings:
                lines.append(f"{'FAILED' if bad else 'ok':6} {meaning} ({len(findings) - bad} of {len(findings)})")
            told = [f for f in findings if f.passed and f.text]
            lines += [f"         {f.where}: {f.text}" for f in told]
        lines += [f"note   {n}" for n in self.notes]
        lines += [f"DIFFERS {f.check}: {f.where}: {f.text}" for f in self.findings if not f.passed]
        if self.saved is not None:
            lines.append(f"saved what failed in {self.saved}")
        bounds = [f.data["verdict"]["log2_bound"] for f in self.of("proof") if f.passed]
        sure = f"; chance of a wrong proof below {power_of_two(wording.union(bounds))}" if bounds else ""
        held = f"not compared: {self.uncompared}; all else verified" if self.uncompared else "verified"
        verdict = f"{held}{sure}" if self.passed else f"differs: {', '.join(self.culprits)}"
        return "\n".join([*lines, f"{verdict} ({self.seconds:.1f} s)"])
