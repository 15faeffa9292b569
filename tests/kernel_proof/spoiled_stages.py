"""Spoiled schedules of kernels with stages, none of which the proof may accept.

`make spoiled-stages` draws 10,000 of them: a barrier left out, at another place, of another number or count; a wait that comes
too late or is left out; reads in front of it; tasks that are skipped or done by two blocks; blocks that may not be resident;
a gate that nobody opens, that is not a launch's own, or lies on something else; pointers that promise too much. One or two
such changes are made at a time, each of which is wrong at the sizes that are run, whatever else there is.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from mirage_cli.codegen.source import source
from mirage_cli.kernel_interpreter import statements
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.printer import text
from mirage_cli.kernel_proof.compare import TURNS, Point, point
from mirage_cli.kernel_proof.run import Source
from tests.codegen.staged_programs import HOPPER, NAMED, made

MOST_TURNS = 1 << 10  #: of a loop, after which a spoiled kernel is taken for one that does not end
Body = tuple[ir.Statement, ...]
Rng = np.random.Generator


@dataclass(frozen=True)
class Base:
    """A kernel with stages as it is printed, the points at which it is run, and the tasks of each stage."""

    text: str
    kernel: ir.Kernel
    points: tuple[Point, ...]
    tasks: tuple[int, ...]

    @property
    def most(self) -> int:
        """Tasks of the largest stage, which are blocks of one of the runs; a third of them are those of the other."""
        return max(self.tasks)

    def shared(self, stage: int) -> bool:
        """Whether some block has several tasks of a stage where blocks are few."""
        return self.tasks[stage] > -(-self.most // TURNS) + 1

    def reason(self, body: Body, host: str) -> str:
        """Why the proof refutes a kernel with this body and what starts it, or nothing."""
        changed = Source(host).changed(replace(self.kernel, body=body))
        for at in self.points:
            try:
                finding = at.finding(changed)
            except Exception as e:  # what is not understood is not accepted
                return f"{type(e).__name__}: {e}"
            if not finding.passed:
                return finding.reason
        return ""


@cache
def base(name: str) -> Base:
    """The kernel of a named program."""
    m = made(name)
    printed = source("s", m.program, m.graph, m.schedules, HOPPER, "").text
    points = tuple(point(m.program, m.graph, {}, 1, residues) for residues in (True, False))
    (kernel,) = Source(printed).kernels.values()
    found = sorted(re.findall(r"p\.tasks(\d+) = static_cast<unsigned>\(([\d *+]+)\)", printed))
    tasks = tuple(sum(int(np.prod([int(x) for x in part.split("*")])) for part in n.split("+")) for _, n in found)
    b = Base(printed, kernel, points, tasks)
    assert not (reason := b.reason(kernel.body, printed)), f"{name} is refuted unchanged: {reason}"
    return b


# --- parts of a kernel --------------------------------------------------------------------------------------------------
def calls(body: Body, name: str) -> list[int]:
    """Where a body calls an instruction."""
    return [n for n, s in enumerate(body) if isinstance(s, ir.Do) and _called(s) == name]


def _called(s: ir.Do) -> str:
    return _of(s.calls[0])


def _of(x: ir.Expression) -> str:
    match x:
        case ir.Call(ir.Name((name,))):
            return name
    return ""


def walks(body: Body) -> list[int]:
    """Where the tasks of each stage are."""
    return [n for n, s in enumerate(body) if isinstance(s, ir.For)]


def without(body: Body, n: int) -> Body:
    """A body without a statement."""
    return (*body[:n], *body[n + 1 :])


def moved(body: Body, old: int, new: int) -> Body:
    """A body with a statement in front of what is at another place."""
    rest = without(body, old)
    new -= new > old
    return (*rest[:new], body[old], *rest[new:])


def at(body: Body, n: int, s: ir.Statement) -> Body:
    """A body with another statement at a place."""
    return (*body[:n], s, *body[n + 1 :])


def argument(body: Body, n: int, place: int, value: ir.Value) -> Body:
    """A body in which a call has another argument."""
    (call,) = body[n].calls  # type: ignore[union-attr]
    args = (*call.args[:place], ir.lift(value), *call.args[place + 1 :])
    return at(body, n, ir.Do((replace(call, args=args),)))


def changing(inner: Body) -> set[str]:
    """The names in a stage that stand for what another stage writes."""
    found = {v.name for s in inner if isinstance(s, ir.Declare) for v in s.variables if _workspace(v.value)}
    for s in inner:
        if isinstance(s, ir.Declare):
            found |= {v.name for v in s.variables if isinstance(v.value, ir.Lambda) and found & k.names_in(v.value)}
    return found


def _workspace(value: object) -> bool:
    return isinstance(value, ir.Member) and re.match(r"v\d", value.name) is not None


def reads(s: ir.Statement, names: set[str]) -> bool:
    """Whether a statement does something with these names, or with such members of the parameters themselves."""
    if isinstance(s, ir.Declare) and all(isinstance(v.value, ir.Lambda | ir.Member) for v in s.variables):
        return False
    return bool(names & k.names_in(s)) or any(_workspace(x) for x in k.parts(s))


# --- what is spoiled ----------------------------------------------------------------------------------------------------
Change = tuple[Body, str] | None
Spoil = Callable[[Base, Body, str, Rng], Change]
SPOILS: dict[str, Spoil] = {}


def spoil(name: str) -> Callable[[Spoil], Spoil]:
    """Register a way to spoil a kernel: (base, body, source, random) to a body and a source; None where it does not apply."""

    def register(f: Spoil) -> Spoil:
        SPOILS[name] = f
        return f

    return register


def pick(rng: Rng, among: Sequence[int]) -> int | None:
    """One of some numbers."""
    return int(among[int(rng.integers(len(among)))]) if among else None


@spoil("an arrival is left out")
def _no_arrival(b: Base, body: Body, host: str, rng: Rng) -> Change:
    n = pick(rng, calls(body, "grid_arrive"))
    return None if n is None else (without(body, n), host)


@spoil("an arrival comes before what is stored")
def _early(b: Base, body: Body, host: str, rng: Rng) -> Change:
    n = pick(rng, calls(body, "grid_arrive"))
    if n is None:
        return None
    before = [w for w in walks(body) if w < n]
    if not before:
        return None
    if rng.integers(2):
        return moved(body, n, int(rng.integers(before[-1] + 1))), host
    walk = body[before[-1]]
    assert isinstance(walk, ir.For)
    place = int(rng.integers(len(walk.body) + 1))
    inner = (*walk.body[:place], body[n], *walk.body[place:])
    return without(at(body, before[-1], replace(walk, body=inner)), n), host


@spoil("an arrival comes after what waits for it")
def _late(b: Base, body: Body, host: str, rng: Rng) -> Change:
    n = pick(rng, calls(body, "grid_arrive"))
    behind = [] if n is None else [w for w in walks(body) if w > n]
    return None if n is None or not behind else (moved(body, n, behind[0] + 1 + int(rng.integers(2))), host)


@spoil("an arrival is said twice")
def _twice(b: Base, body: Body, host: str, rng: Rng) -> Change:
    n = pick(rng, calls(body, "grid_arrive"))
    return None if n is None else ((*body[:n], body[n], *body[n:]), host)


@spoil("an arrival is at another barrier")
def _other_barrier(b: Base, body: Body, host: str, rng: Rng) -> Change:
    n = pick(rng, calls(body, "grid_arrive"))
    return None if n is None else (argument(body, n, 2, _other(body, n, 2, rng)), host)


@spoil("the gate has another count")
def _other_count(b: Base, body: Body, host: str, rng: Rng) -> Change:
    call = next((x for x in k.parts(body) if isinstance(x, ir.Call) and _of(x) == "grid_start"), None)
    if call is None:
        return None
    count = int(rng.integers(1, 5 if rng.integers(2) else 4000))
    count += count >= int(call.args[3].text)  # type: ignore[union-attr]
    return k.substituted(body, {call: replace(call, args=(*call.args[:3], ir.lift(count)))}), host


@spoil("nobody opens the gate")
def _closed(b: Base, body: Body, host: str, rng: Rng) -> Change:
    call = next((x for x in k.parts(body) if isinstance(x, ir.Call) and _of(x) == "grid_start"), None)
    if call is None:
        return None
    other = k.call("wait_for_earlier")
    if rng.integers(2):
        other = replace(call, args=(call.args[0] + int(rng.integers(1, 4000)), *call.args[1:]))
    return k.substituted(body, {call: other}), host


def _other(body: Body, n: int, place: int, rng: Rng) -> int:
    """A number unlike an argument."""
    (call,) = body[n].calls  # type: ignore[union-attr]
    now = int(call.args[place].text)
    return now + int(rng.integers(1, 3 if rng.integers(2) else 2000)) if rng.integers(2) else int(rng.integers(now))


def _waiting(body: Body, rng: Rng) -> tuple[int, ir.For, list[int]] | None:
    """A stage that waits, and where in its tasks."""
    found = [(w, s, calls(s.body, "grid_wait")) for w in walks(body) if isinstance(s := body[w], ir.For)]
    found = [f for f in found if f[2]]
    return found[int(rng.integers(len(found)))] if found else None


@spoil("a wait is left out")
def _no_wait(b: Base, body: Body, host: str, rng: Rng) -> Change:
    if (found := _waiting(body, rng)) is None:
        return None
    w, walk, (n, *_) = found
    return at(body, w, replace(walk, body=without(walk.body, n))), host


@spoil("a wait is at another barrier")
def _wait_elsewhere(b: Base, body: Body, host: str, rng: Rng) -> Change:
    if (found := _waiting(body, rng)) is None:
        return None
    w, walk, (n, *_) = found
    return at(body, w, replace(walk, body=argument(walk.body, n, 2, _other(walk.body, n, 2, rng)))), host


@spoil("no task waits")
def _no_task(b: Base, body: Body, host: str, rng: Rng) -> Change:
    if (found := _waiting(body, rng)) is None:
        return None
    w, walk, (n, *_) = found
    task = k.name("task") + int(rng.integers(1, 4000))
    return at(body, w, replace(walk, body=argument(walk.body, n, 0, task))), host


@spoil("a read is in front of its wait")
def _read_early(b: Base, body: Body, host: str, rng: Rng) -> Change:
    if (found := _waiting(body, rng)) is None:
        return None
    w, walk, (n, *_) = found
    names = changing(walk.body)
    behind = [m for m in range(n + 1, len(walk.body)) if reads(walk.body[m], names)]
    if not behind:
        return None
    if rng.integers(2):  # the wait moves behind it
        return at(
            body, w, replace(walk, body=moved(walk.body, n, int(rng.integers(behind[0] + 1, len(walk.body)))))
        ), host
    return at(body, w, replace(walk, body=moved(walk.body, behind[0], n))), host


@spoil("tasks are skipped at the start")
def _start(b: Base, body: Body, host: str, rng: Rng) -> Change:
    n = pick(rng, walks(body))
    if n is None or not isinstance(walk := body[n], ir.For) or not isinstance(walk.start, ir.Declare):
        return None
    (v,) = walk.start.variables
    later = replace(v, value=ir.lift(v.value or 0) + int(rng.integers(1, 4000)))
    return at(body, n, replace(walk, start=replace(walk.start, variables=(later,)))), host


def _strided(b: Base, body: Body, rng: Rng) -> tuple[int, ir.For, ir.Assign] | None:
    """The place of a walk whose tasks blocks share, the walk and its step."""
    n = pick(rng, [w for n, w in enumerate(walks(body)) if n < len(b.tasks) and b.shared(n)])
    if n is None or not isinstance(walk := body[n], ir.For) or not isinstance(walk.step, ir.Assign):
        return None
    return n, walk, walk.step


@spoil("tasks are skipped in between")
def _step(b: Base, body: Body, host: str, rng: Rng) -> Change:
    found = _strided(b, body, rng)
    if found is None:
        return None
    n, walk, step = found
    return at(body, n, replace(walk, step=replace(step, value=step.value + int(rng.integers(1, 4000))))), host


@spoil("tasks are skipped at the end")
def _end(b: Base, body: Body, host: str, rng: Rng) -> Change:
    n = pick(rng, walks(body))
    if n is None or not isinstance(walk := body[n], ir.For) or not isinstance(walk.condition, ir.Binary):
        return None
    less = k.binary("<", walk.condition.left + int(rng.integers(1, 4000)), walk.condition.right)
    return at(body, n, replace(walk, condition=less)), host


@spoil("tasks are done by several blocks")
def _done_twice(b: Base, body: Body, host: str, rng: Rng) -> Change:
    found = _strided(b, body, rng)
    if found is None:
        return None
    n, walk, step = found
    return at(body, n, replace(walk, step=ir.Step("++", step.place))), host


@spoil("stages change places")
def _swapped(b: Base, body: Body, host: str, rng: Rng) -> Change:
    own = walks(body)
    n = int(rng.integers(len(own) - 1))
    return at(at(body, own[n], body[own[n + 1]]), own[n + 1], body[own[n]]), host


@spoil("the host says fewer tasks")
def _fewer(b: Base, body: Body, host: str, rng: Rng) -> Change:
    n = int(rng.integers(len(b.tasks)))
    less = int(rng.integers(b.tasks[n]))
    return body, re.sub(
        rf"p\.tasks{n} = static_cast<unsigned>\(.*?\);", f"p.tasks{n} = static_cast<unsigned>({less});", host
    )


@spoil("blocks may not be resident")
def _not_resident(b: Base, body: Body, host: str, rng: Rng) -> Change:
    return body, host.replace("mirage::launch_resident(", "mirage::launch(")


@spoil("a number that other launches have")
def _stale(b: Base, body: Body, host: str, rng: Rng) -> Change:
    return body, host.replace("mirage::fresh_number()", str(int(rng.integers(2, 1 << 30))))


@spoil("the gate lies on something else")
def _elsewhere(b: Base, body: Body, host: str, rng: Rng) -> Change:
    return body, re.sub(r"(p\.gate = .*?\(workspace\) \+ )(\(.*?\)|\d+)(\)\);)", r"\g<1>0\3", host)


@spoil("there is no room for the barriers")
def _no_room(b: Base, body: Body, host: str, rng: Rng) -> Change:
    size = re.search(r"return ([\d +]+);\n}\n\nextern", host)
    if size is None:
        return None
    whole = sum(map(int, size[1].split("+")))
    return body, host.replace(size[0], size[0].replace(size[1], str(whole - 256 - 8 * int(rng.integers(1, 1000)))))


@spoil("blocks do not wait for earlier launches")
def _no_earlier(b: Base, body: Body, host: str, rng: Rng) -> Change:
    own = calls(body, "wait_for_earlier")
    return None if not own or b.tasks[0] == b.most else (without(body, own[0]), host)


@spoil("a pointer says that nobody writes")
def _restricted(b: Base, body: Body, host: str, rng: Rng) -> Change:
    found = [
        (w, n)
        for w in walks(body)
        for n, s in enumerate(body[w].body)  # type: ignore[union-attr]
        if isinstance(s, ir.Declare) and any(_workspace(v.value) and v.pointers + s.type.pointers for v in s.variables)
    ]
    if not found:
        return None
    w, n = found[int(rng.integers(len(found)))]
    walk = body[w]
    assert isinstance(walk, ir.For)
    s = walk.body[n]
    assert isinstance(s, ir.Declare)
    variables = tuple(replace(v, restrict=_workspace(v.value) or v.restrict) for v in s.variables)
    return at(body, w, replace(walk, body=at(walk.body, n, replace(s, variables=variables)))), host


UNDO = {  #: pairs of which one may undo the other
    frozenset(("an arrival is left out", "an arrival is said twice")),
    frozenset(("an arrival comes before what is stored", "an arrival comes after what waits for it")),
}


# --- the run ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Spoiled:
    """A spoiled kernel: of which program, how, and its body and source."""

    name: str
    kinds: tuple[str, ...]
    body: Body
    host: str


def draw(seed: int) -> Iterator[Spoiled]:
    """Spoiled kernels without end, each another one."""
    rng, seen = np.random.default_rng(seed), set[tuple[str, str]]()
    names, kinds = list(NAMED), list(SPOILS)
    while True:
        name = names[int(rng.integers(len(names)))]
        b = base(name)
        body, host, done = b.kernel.body, b.text, list[str]()
        for _ in range(1 + int(rng.integers(2))):
            kind = kinds[int(rng.integers(len(kinds)))]
            if kind in done or any(frozenset((kind, other)) in UNDO for other in done):
                continue
            changed = SPOILS[kind](b, body, host, rng)
            if changed is not None and changed != (body, host):
                body, host = changed
                done.append(kind)
        key = (text(body), host)
        if done and key not in seen:
            seen.add(key)
            yield Spoiled(name, tuple(done), body, host)


def accepted(s: Spoiled) -> bool:
    """Whether the proof takes a spoiled kernel for a good one."""
    return not base(s.name).reason(s.body, s.host)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how many spoiled kernels there were of each kind; 1 if the proof accepts one."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.kernel_proof.spoiled_stages")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args(arguments)
    statements.MOST_TURNS = MOST_TURNS
    tally, wrong, start = Counter[str](), list[Spoiled](), time.monotonic()
    for _, s in zip(range(o.count), draw(o.seed), strict=False):
        tally.update(s.kinds)
        if accepted(s):
            wrong.append(s)
            print(f"ACCEPTED {s.name}: {', '.join(s.kinds)}", flush=True)
    for kind, n in sorted(tally.items()):
        print(f"{n:6} {kind}")
    print(f"{o.count} spoiled kernels, {len(wrong)} accepted, {time.monotonic() - start:.0f} s")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
