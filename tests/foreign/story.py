"""The story of one model: the original runs, it is optimized, the patched model runs and agrees, its folder is verified."""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import calls, judging
from .apart import Ended, call
from .case import Case, Draw
from .record import APART, FAILED, Record

REPLACED, KEPT, LOST = "replaced", "kept", "failed"
SELDOM = 8  #: one in so many is few
WANTED = 4  #: draws on which models are compared, and those with edges
OWN_FAULTS = ("crash", "hang", "exit 5", "internal", "runner", "bytes", "stdout")


@dataclass(frozen=True, slots=True)
class Settings:
    """How models are run. `cache` is as for `mirage optimize` ("": none), `keep` a folder for what is left of those that
    fail."""

    timeout: float = 300.0
    patience: float = 60.0  #: seconds for what only runs a model
    cache: str = ""
    keep: str = ""
    one_isa: bool = True
    forking: bool = True
    quick: bool = False  #: verify few of the folders in which nothing was replaced
    options: tuple[str, ...] = ()


@dataclass(slots=True)
class Runs:
    """What a model in onnxruntime made of draws: results by the draw's number; `ended` is how its last process did."""

    loaded: list[str] | None
    results: dict[int, dict[str, Any]]
    ended: Ended


def tell(case: Case, settings: Settings) -> Record:
    """Run a model's story. Never raises."""
    record = Record(case.name)
    with tempfile.TemporaryDirectory(prefix="mirage-foreign-") as place:
        try:
            record.digest = case.digest
            _Story(case, settings, Path(place), record).tell()
        except Exception as error:  # a defect of this program, told with the model that shows it
            record.fail("runner", f"{type(error).__name__}: {error}")
        if settings.keep and record.failures:
            kept = Path(settings.keep) / case.name.replace("/", "__")
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(Path(place), kept, symlinks=True)
    return record


class _Story:
    def __init__(self, case: Case, settings: Settings, place: Path, record: Record) -> None:
        self.case, self.settings, self.place, self.record = case, settings, place, record
        self.path, self.out = str(case.path.absolute()), place / "out"
        self.draws: list[Draw] = []

    def tell(self) -> None:
        original = self.original()
        self.optimize()
        if self.record.code == 0:
            self.bytes()
            exact = {} if original is None else self.exact(original)
            if original is not None and self.record.replaced:
                self.compare(original, exact)
            seldom = self.settings.quick and int(self.record.digest, 16) % SELDOM != 0
            if original is not None and (self.record.replaced or not seldom):
                self.verify()
        if self.record.apart:
            self.only_own_faults()

    def only_own_faults(self) -> None:
        """Crashes, hangs and internal errors count although onnxruntime does not run the original; nothing else does."""
        record = self.record
        record.failures = [f for f in record.failures if f[0] in OWN_FAULTS]
        record.status = FAILED if record.failures else APART

    def timed(self, what: str, function: Any, args: Sequence[Any], seconds: float) -> Ended:
        ended = call(function, args, seconds, self.place)
        self.record.seconds[what] = round(self.record.seconds.get(what, 0.0) + ended.seconds, 2)
        return ended

    # --- 1. the original ------------------------------------------------------------------------------------------------
    def original(self) -> Runs | None:
        """The original in onnxruntime, on as many draws as are wanted; None where it does not run."""
        made = self.timed("draw", calls.draws, (self.path, str(self.place)), self.settings.patience)
        try:
            self.draws = pickle.loads((self.place / "draws.pickle").read_bytes())
        except OSError:
            self.not_ours(f"no inputs: {_last(made)}")
            return None
        runs = self.run("original", self.path, "", range(len(self.draws)), wanted=WANTED, twice=True)
        if runs.loaded is None:
            self.not_ours(f"does not load: {_last(runs.ended)}")
            return None
        good = {k: r for k, r in runs.results.items() if "outputs" in r}
        if not any(not self.draws[k].edge for k in good):
            errors = [r["error"] for r in runs.results.values() if "error" in r]
            self.not_ours(f"does not run: {errors[0] if errors else _last(runs.ended)}")
            return None
        self.record.draws = [self.draws[k].name for k in good]
        return Runs(runs.loaded, good, runs.ended)

    def not_ours(self, why: str) -> None:
        self.record.status, self.record.apart = APART, " ".join(why.split())[:400]

    def run(
        self,
        what: str,
        path: str,
        library: str,
        numbers: Sequence[int],
        plain: bool = False,
        wanted: int = 0,
        twice: bool = False,
    ) -> Runs:
        """A model in a process of its own, and in another one after a draw that ended it."""
        out = self.place / what
        out.mkdir(exist_ok=True)
        left = list(numbers)
        while True:
            args = (path, library, str(self.place), str(out), left, plain, wanted, twice)
            ended = self.timed(what, calls.session, args, self.settings.patience)
            at = int(_read(out / "at") or -1)
            if ended.code == 0 or at not in left:
                break
            if not (out / f"{at}.pickle").exists():
                (out / f"{at}.pickle").write_bytes(pickle.dumps({"error": f"the process: {ended.how}", "ended": True}))
            left = left[left.index(at) + 1 :]
            if not left or ended.code is None:
                break
        names = _read(out / "loaded")
        results = {int(p.stem): pickle.loads(p.read_bytes()) for p in out.glob("*.pickle")}
        return Runs(None if names is None else names.split("\n"), dict(sorted(results.items())), ended)

    # --- 2. optimize ----------------------------------------------------------------------------------------------------
    def optimize(self) -> None:
        """The command, and what its report says."""
        record, cache = self.record, self.settings.cache
        arguments = [
            "optimize",
            self.path,
            "-o",
            str(self.out),
            "--target",
            "cpu",
            "--force",
            "--json",
            "-q",
            "--jobs",
            "1",
        ]
        arguments += ["--cache", cache] if cache else ["--no-cache"]
        ended = self.mirage("optimize", [*arguments, *self.settings.options])
        record.code = ended.code
        if self.ended_badly("optimize", ended):
            return
        said = _json(ended.out)
        if ended.code:
            error = said.get("error", {})
            record.refusal = f"{error.get('code')}: {error.get('message')}"
            text = record.refusal if ended.code != 5 else f"{record.refusal} {self.log(error.get('hint', ''))}"
            record.fail("refused" if ended.code == 3 else f"exit {ended.code}", text or _last(ended))
            return
        if not said:
            record.fail("stdout", f"no JSON document: {ended.out.splitlines()[0] if ended.out else 'nothing'}")
            said = json.loads((self.out / "report.json").read_text())
        self.report(said)

    def report(self, said: dict[str, Any]) -> None:
        record = self.record
        for f in said["fragments"]:
            places, reason = f["occurrences"], f.get("reason", "")
            record.replaced += places if f["status"] == REPLACED else 0
            record.kept += places if f["status"] == KEPT else 0
            if f["status"] == LOST:
                record.lost[reason] = record.lost.get(reason, 0) + places
            if "internal error" in reason or "process ended" in reason or "took longer" in reason:
                record.fail("internal", f"{f['name']}: {reason}")
            elif "cannot load the model" in reason:
                record.fail("not loaded", f"{f['name']}: {reason}")
        left = Counter[str]()
        for u in said["unchanged"]:
            left[u["reason"]] += len(u["nodes"])
        record.left = dict(left.most_common(40))
        record.notes = said["notes"][:5]

    def mirage(self, what: str, arguments: Sequence[str]) -> Ended:
        state = str(self.place / "state")
        args = (arguments, state, self.settings.one_isa, self.settings.forking)
        return self.timed(what, calls.mirage, args, self.settings.timeout)

    def ended_badly(self, what: str, ended: Ended) -> bool:
        if ended.code is None:
            self.record.fail("hang", f"{what}: {ended.how}")
        elif ended.crashed:
            self.record.fail("crash", f"{what}: {ended.how} {_last(ended)}")
        return ended.code is None or ended.crashed

    def log(self, hint: str) -> str:
        """The end of the log of an internal error."""
        path = Path(hint.rsplit("the log is ", maxsplit=1)[-1].strip())
        text = _read(path) if path.suffix == ".log" else None
        return " < ".join(line.strip() for line in (text or "").strip().splitlines()[-6:])

    # --- 3. bytes -------------------------------------------------------------------------------------------------------
    def bytes(self) -> None:
        """Where nothing was replaced, the model is the original file."""
        patched = self.out / "model.onnx"
        if not patched.is_file():
            self.record.fail("bytes", "there is no model.onnx")
        elif not self.record.replaced and patched.read_bytes() != self.case.path.read_bytes():
            self.record.fail("bytes", "nothing was replaced, but model.onnx is not the original file")

    # --- 4. the patched model -------------------------------------------------------------------------------------------
    def compare(self, original: Runs, exact: dict[int, dict[str, Any]]) -> None:
        """The patched model without and with the library, on the draws that the original ran on."""
        for what, library in (("bare", ""), ("library", str(self.out / "libmirage.so"))):
            found = self.run(what, str(self.out / "model.onnx"), library, list(original.results))
            if found.loaded is None:
                self.record.fail(f"load {what}", f"{found.ended.how}: {_last(found.ended)}")
                continue
            bad = {k: self.compare_draw(what, k, found, r, exact.get(k, {})) for k, r in original.results.items()}
            once = sum(map(bool, bad.values())) == 1 < len(bad)
            for k, differing in bad.items():
                for d in [d for d in differing[:2] if not (once and d.may_be_luck)]:
                    self.record.fail(f"{d.kind} {self.kind(what, k)}", f"{what}, {self.draws[k].name}: {d.text}")

    def kind(self, what: str, k: int) -> str:
        """What ran, or that a dimension had size 0."""
        return "empty" if self.draws[k].edge else what

    def compare_draw(
        self, what: str, k: int, found: Runs, right: dict[str, Any], exact: dict[str, Any]
    ) -> list[judging.Difference]:
        """How a draw's outputs differ; what did not run is taken down at once."""
        draw, result = self.draws[k], found.results.get(k, {"error": "it was not reached"})
        kind, where = self.kind(what, k), f"{what}, {draw.name}"
        if "error" in result:
            ended = "crash" if "ended" in result else "run"
            self.record.fail(f"{ended} {kind}", f"{where}: {result['error']}")
            return []
        names, ours, theirs = found.loaded or [], result["outputs"], right["outputs"]
        bad = judging.differences(names, ours, theirs, right["random"], exact)
        if bad and not exact:
            bad = judging.differences(names, ours, theirs, right["random"], exact, self.plain(k))
        if (
            draw.expected
            and not bad
            and judging.agrees(theirs, draw.expected)
            and not judging.agrees(ours, draw.expected)
        ):
            self.record.fail(f"expected {kind}", f"{where}: not the expected outputs, which the original gives")
        return bad

    def plain(self, k: int) -> list[Any]:
        """The original's outputs without onnxruntime's optimizations."""
        runs = self.run("plain", self.path, "", [k], plain=True)
        return list(runs.results.get(k, {}).get("outputs", []))

    def exact(self, original: Runs) -> dict[int, dict[str, Any]]:
        """The float64 outputs by draw, as far as there are some."""
        numbers, folder = list(original.results)[: None if self.record.replaced else 1], self.place / "truth"
        folder.mkdir(exist_ok=True)
        self.timed(
            "truth",
            calls.truth,
            (self.path, str(self.place), str(folder), numbers, self.settings.patience / 4),
            self.settings.patience,
        )
        found = {int(p.stem): pickle.loads(p.read_bytes()) for p in folder.glob("*.truth")}
        why = {r["!"] for r in found.values() if "!" in r}
        self.record.notes += [f"no float64 run: {w}"[:300] for w in sorted(why)[:1]]
        exact = {k: {n: a for n, a in r.items() if n != "!"} for k, r in found.items()}
        self.record.exact = sum(bool(r) for r in exact.values())
        for k, r in exact.items():
            self.doubt(original.loaded or [], original.results[k], r, self.draws[k].name)
        return exact

    def doubt(self, names: list[str], right: dict[str, Any], exact: dict[str, Any], draw: str) -> None:
        """Take down where the float64 run is not what the original computes."""
        for name, own, random in zip(names, right["outputs"], right["random"], strict=True):
            text = "" if random or name not in exact else judging.far(own, exact[name])
            if text and len(self.record.doubts) < 3:
                self.record.doubts.append(f"{draw}, {name}: {text}"[:300])

    # --- 5. verify ------------------------------------------------------------------------------------------------------
    def verify(self) -> None:
        """The command finds nothing, or says that it has no inputs for the model."""
        ended = self.mirage("verify", ["verify", str(self.out), "--json", "-q"])
        if self.ended_badly("verify", ended) or ended.code == 0:
            return
        said = _json(ended.out)
        if "error" in said:
            error = said["error"]
            if ended.code == 2 and "input" in error["message"]:
                self.record.notes.append(f"verify: {error['message']}"[:300])
                return
            text = f"{error['code']}: {error['message']} {self.log(error.get('hint', '')) if ended.code == 5 else ''}"
        else:
            text = "; ".join(
                f"{f['check']} {f['where']}: {f.get('text')}" for f in said.get("findings", ()) if not f["passed"]
            )
        self.record.fail("verify", f"{ended.how}: {text or _last(ended)}")


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _last(ended: Ended) -> str:
    """The last line that a process wrote, or how it ended."""
    lines = ended.err.strip().splitlines()
    return lines[-1][:300] if lines else ended.how
