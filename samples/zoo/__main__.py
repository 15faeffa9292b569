"""The command: `python -m samples.zoo --out DIR [NAME|GLOB ...]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from samples.zoo.cells import STORED, matrix, select, spread
from samples.zoo.examine import Record, load, store
from samples.zoo.run import quiet, run

DEFAULT_OUT = Path("out/models")
CHECKED_IN = Path(__file__).resolve().parent / "models"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "models.md"


def line(record: Record) -> str:
    """A record in one line."""
    if "problem" in record:
        return f"{record['name']}: {record['problem']}"
    shares = ", ".join(f"{v:.1%} of {k.replace('_', ' ')}" for k, v in record["coverage"].items())
    kinds = ", ".join(f"{n} {k}" for k, n in record["kinds"].items())
    return f"{record['name']}: {shares}; {kinds}{agreement_text(record)}"


def agreement_text(record: Record) -> str:
    """The agreement in words, if it was looked at."""
    agreement = record.get("agreement")
    if agreement is None:
        return ""
    if "problem" in agreement:
        return f"; {agreement['problem']}"
    verdict = "agrees" if agreement["passed"] and not agreement["failed"] else "DIFFERS"
    return f"; {verdict}: error {agreement['error']:.1e}, original's {agreement['original_error']:.1e}"


def main() -> None:
    """Export, inspect, print; with --write make the page from all records there are."""
    parser = argparse.ArgumentParser(prog="python -m samples.zoo", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="NAME", help="an architecture, or a glob such as 'llama/*-fp16*'")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="models and records")
    parser.add_argument("--all", action="store_true", help="the whole matrix; without it a spread of the cells")
    parser.add_argument("--store", action="store_true", help="export the cells that are checked in, and end")
    parser.add_argument("--list", action="store_true", help="only print the cells' names")
    parser.add_argument("--fresh", action="store_true", help="export again what is there")
    parser.add_argument(
        "--agree", action="store_true", help="also compile every fragment and compare the patched model's answers"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} from the records in DIR")
    given = parser.parse_args()
    try:
        cells = select(given.cells) if given.cells else list(matrix()) if given.all else spread()
    except ValueError as error:
        parser.error(str(error))
    if given.list:
        print("\n".join(c.name for c in cells))
        return
    if given.store:
        quiet()
        for cell in STORED:
            print(store(cell, CHECKED_IN), flush=True)
        return
    for record in run(cells, given.out, given.fresh, given.agree, given.jobs):
        print(line(record), flush=True)
    if given.write:
        from samples.zoo.page import page  # noqa: PLC0415

        records = [r for c in matrix() if (r := load(c, given.out)) is not None]
        PAGE.write_text(page(records))


if __name__ == "__main__":
    main()
