"""The pictures of docs/how-it-works.md: muGraphs that the search finds for published cases, as `mirage optimize` draws them.

python samples/pictures.py            # draw the muGraphs that are kept in docs/pictures again
python samples/pictures.py --search   # search and prove them anew first
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirage_cli.exporters.svg import drawing
from mirage_cli.planning.plan import PlanOptions, plan_fragment
from mirage_cli.report.stored_plan import plan_from_json
from samples.cases import CASES, program

FOLDER = Path(__file__).resolve().parents[1] / "docs/pictures"
#: file name -> case
PICTURES = {"norm_linear": "rmsnorm_linear", "attention": "gqa_incremental"}
TARGETS: dict[str, tuple[str, ...]] = {"cuda": ("sm_90a",)}


def main() -> None:
    """Draw all pictures, of muGraphs searched anew if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", action="store_true", help="search and prove the muGraphs anew")
    if parser.parse_args().search:
        search()
    draw()


def draw() -> None:
    """Write the drawings of the muGraphs that are kept."""
    for name, text in pictures().items():
        (FOLDER / name).write_text(text)


def search() -> None:
    """Search and prove the muGraphs, and keep them as files."""
    FOLDER.mkdir(exist_ok=True)
    for name, case in PICTURES.items():
        searched = program(CASES[case])
        plan = plan_fragment("0" * 16, name, searched, 1, PlanOptions(TARGETS))
        if not plan.plans:
            raise SystemExit(f"{name}: {plan.reasons}")
        (FOLDER / f"{name}.json").write_text(json.dumps(plan.to_json(), indent=1, ensure_ascii=False) + "\n")


def pictures() -> dict[str, str]:
    """The drawings of the muGraphs that are kept, by file name."""
    drawings = {}
    for name in PICTURES:
        stored = plan_from_json(json.loads((FOLDER / f"{name}.json").read_text()))
        _, graph, _ = stored.targets["cuda"]
        drawings[f"{name}.svg"] = drawing(graph, stored.program)
    return drawings


if __name__ == "__main__":
    main()
