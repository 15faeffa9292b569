"""The story of `mirage verify`: everything that an output folder claims is found out again.

1. files: what report.json names is there and has the hashes that it tells; configuration: genai_config.json, in a folder of
   onnxruntime-genai, names models and libraries that are there;
2. model: the patched model loads; each of its operators has a function and a muGraph file;
3. function: the program of each muGraph file is the one that the operator's function states, at every place where it
   stands; original: and the one that the original model states there, when that file is still the same;
4. proof: each muGraph computes the program that the model states, with other random points;
5. source: the muGraphs, rendered again, give the sources byte by byte; library: it was built from sources with these
   hashes; kernel: and its kernels agree with float64 on the inputs that `optimize` made, on others with another seed;
6. reference: the original computes what its nodes mean in float64; outputs: the patched model with the library agrees with
   the original, and so does it without the library; torchscript: and so does the patched TorchScript module, where there
   is one.

Originals run in a process of their own and the library in another, which either may end. The library is not loaded at
all where this user's mirage did not build it: then kernels and outputs are those of the sources of step 5, built anew.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirage_cli import __version__
from mirage_cli.errors import ModelError
from mirage_cli.files.output import LIBRARY, MARK, MODEL, digests, steady
from mirage_cli.frontends import folders
from mirage_cli.report.models import Index, index
from mirage_cli.report.reader import read
from mirage_cli.report.report import REPLACED
from mirage_cli.report.stages import Progress, Silent
from mirage_cli.verification.findings import Verification, VerifyOptions


def verify_folder(folder: Path, options: VerifyOptions, progress: Progress | None = None) -> Verification:
    """Verify an output folder of `optimize`, of one with several models each of these. A difference is a finding and no error.

    Raises ModelError for a folder that is none, UsageError for options that do not fit the model, Busy when another run
    replaces the folder meanwhile.
    """
    start, progress, result = time.perf_counter(), progress or Silent(), Verification()
    if not (folder / MODEL).exists() and not (folder / MARK).exists():
        raise ModelError(f"{folder}: expected an output folder of mirage optimize, found no report.json and no {MODEL}")
    with steady(folder):
        models = index(folder)
        if models is not None:
            return _models(folder, models, options, progress)
        progress.stage("read", 1)
        report = files(folder, result)
        configuration(folder, result)
        from mirage_cli.checks.model_runs import places  # noqa: PLC0415 - it takes a second
        from mirage_cli.verification.recheck import Recheck  # noqa: PLC0415

        with places(options.timeout, options.max_memory) as apart:
            run = Recheck(
                folder, folder / LIBRARY, options, progress, *apart, result=result, report=report, start=start
            )
            return run.folder_run()


def _models(folder: Path, models: Index, options: VerifyOptions, progress: Progress) -> Verification:
    """The verification of a folder with several models."""
    result = Verification()
    unchanged(models.files, digests(folder, models.models), result)
    configuration(folder, result)
    for place in models.models:
        saved = options.save_failing and str(Path(options.save_failing) / place)
        result.include(verify_folder(folder / place, replace(options, save_failing=saved), progress), place)
    return result


def verify_pair(
    original: Path, patched: Path, library: Path, options: VerifyOptions, progress: Progress | None = None
) -> Verification:
    """Compare a patched model that uses `library` with an original one; muGraphs beside the patched model are proved.

    Raises ModelError for files that cannot be read and for a library that is none, UsageError for models that do not
    have the same inputs and outputs.
    """
    from mirage_cli.checks.model_runs import places  # noqa: PLC0415
    from mirage_cli.verification.recheck import Recheck  # noqa: PLC0415

    with places(options.timeout, options.max_memory) as apart:
        return Recheck(patched.parent, library, options, progress or Silent(), *apart, patched.name).pair_run(original)


def files(folder: Path, result: Verification) -> dict[str, Any]:
    """Step 1: report.json, which is returned, is readable, the files that it names are there, and as it says."""
    try:
        report = read(folder)
    except ModelError as error:
        result.add("files", MARK, str(error))
        return {}
    result.add("files", MARK)
    if report["mirage"] != __version__:
        result.notes.append(f"made by mirage {report['mirage']}, verified by {__version__}")
    unchanged(report["files"], digests(folder), result)
    for f in report["fragments"]:
        file = f["mugraph"]["file"]
        if f["status"] == REPLACED and file and file not in report["files"] and not (folder / file).is_file():
            result.add("files", file, "the file is missing")
    return report


def unchanged(wanted: Mapping[str, str], stored: Mapping[str, str], result: Verification) -> None:
    """Files are there and have the hashes that they had."""
    for name, digest in wanted.items():
        changed = "the file is not the one that was written" if stored.get(name) != digest else ""
        result.add("files", name, changed if name in stored else "the file is missing")


def configuration(folder: Path, result: Verification) -> None:
    """A folder of onnxruntime-genai names models and libraries that it has."""
    if not (folder / folders.CONFIG).exists():
        return
    try:
        named = [name for pair in folders.sessions(folders.read_config(folder)) for name in pair if name]
    except ModelError as error:
        result.add("configuration", folders.CONFIG, str(error))
        return
    for name in dict.fromkeys(named):
        result.add(
            "configuration", name, "" if (folder / name).is_file() else f"{folders.CONFIG} names it: it is missing"
        )
