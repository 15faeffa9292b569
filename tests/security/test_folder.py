"""Output folders that somebody else wrote, or changed: nothing of them runs, and nothing is read outside of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest

from mirage_cli.backends import toolchain
from mirage_cli.benchmark.benchmark import BenchOptions, bench_folder
from mirage_cli.errors import ModelError, Refused, ToolMissing, UsageError
from mirage_cli.files import output, result_store
from mirage_cli.files.output import check_target
from mirage_cli.inspection import fragment_details
from mirage_cli.kernels import trust
from mirage_cli.options.options import Options
from mirage_cli.report import mugraph_file, reader
from mirage_cli.report.report import sealed
from mirage_cli.verification.findings import Verification, VerifyOptions
from mirage_cli.verification.story import verify_folder
from tests.frontends.torchscript.test_archive import SCRIPT, archive
from tests.optimized import Optimized, anew, once, sample
from tests.security import models as m
from tests.verification.test_recheck import failed, match_hashes, mugraph

OPERATOR, MODEL = "rmsnorm_linear_fp32", "llama_fp32"
#: writes a file as soon as it is loaded
HARM = """#include <cstdio>
#include <cstdlib>
struct Harm { Harm() { if (FILE* f = std::fopen(std::getenv("MIRAGE_TEST_HARM"), "w")) std::fclose(f); } } harm;
extern "C" const char* mirage_sources() { return ""; }
"""


@pytest.fixture
def harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What appears when a hostile library is loaded."""
    path = tmp_path / "harm-was-done"
    monkeypatch.setenv("MIRAGE_TEST_HARM", str(path))
    return path


def poison(library: Path) -> None:
    """Put a library that does harm when it is loaded in the place of another one."""
    source = library.with_suffix(".cpp")
    source.write_text(HARM)
    command = [*toolchain.find_cxx().command, "-shared", "-fPIC", str(source), "-o", f"{library}.new"]
    subprocess.run(command, check=True)
    source.unlink()
    os.replace(f"{library}.new", library)


def checked(folder: Path, **options: Any) -> Verification:
    return verify_folder(folder, VerifyOptions(**options))


def test_a_library_that_somebody_else_built_is_not_loaded(copied: Optimized, harm: Path) -> None:
    """Its report says what is there, as far as somebody without the secret can write it. The kernels are judged all the same:
    built anew from sources that are compared with the muGraphs."""
    folder = copied(OPERATOR)
    poison(folder / "libmirage.so")
    match_hashes(folder)
    found = checked(folder)
    assert not harm.exists()
    assert failed(found, "library") == {"libmirage.so"} and "--trust-library" in found.text()
    assert found.of("kernel") and not failed(found, "kernel")
    assert found.of("outputs") and not failed(found, "outputs")
    checked(folder, trust_library=True)
    assert harm.exists()


def test_a_folder_of_another_user(copied: Optimized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied(OPERATOR)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def absent(*_: object, **__: object) -> Any:
        raise ToolMissing("no compiler")

    monkeypatch.setattr(toolchain, "find", absent)
    (tmp_path / "program.pt").write_bytes(b"not to be opened")
    report = json.loads((folder / "report.json").read_text())
    report["model"]["path"] = str(tmp_path / "program.pt")
    (folder / "report.json").write_text(json.dumps(report))
    found = checked(folder)
    assert any("program.pt is a program, which this folder alone names" in n for n in found.notes)
    assert failed(found, "library") == {"libmirage.so"} and not found.of("kernel")
    assert any("cannot be built anew: no compiler" in n for n in found.notes)
    assert checked(folder, trust_library=True).passed


def test_a_seal_is_of_the_files(copied: Optimized, harm: Path) -> None:
    """The seal of one folder in the report of another, and a seal that is right for files that are not there any more."""
    folder = copied(OPERATOR)
    written = json.loads((folder / "report.json").read_text())
    assert trust.is_own(folder, written)
    poison(folder / "libmirage.so")
    assert not trust.is_own(folder, written)
    for made_up in ("", "0" * 64, json.loads((folder / "report.json").read_text())["seal"]):
        match_hashes(folder)
        report = json.loads((folder / "report.json").read_text())
        (folder / "report.json").write_text(json.dumps(report | {"seal": made_up}))
        assert not trust.is_own(folder, report | {"seal": made_up})
    assert not harm.exists()


def test_a_library_that_is_a_link(copied: Optimized, tmp_path: Path, harm: Path) -> None:
    folder = copied(OPERATOR)
    shutil.move(folder / "libmirage.so", tmp_path / "elsewhere.so")
    (folder / "libmirage.so").symlink_to(tmp_path / "elsewhere.so")
    poison(tmp_path / "elsewhere.so")
    assert failed(checked(folder), "library") == {"libmirage.so"}
    with pytest.raises(Refused, match=r"libmirage.so is not loaded: it is a link"):
        bench_folder(folder, BenchOptions(cpu=True, runs=1))
    assert not harm.exists()


@pytest.mark.parametrize("name", trust.RUNS)
@pytest.mark.parametrize("whole", [True, False])
def test_programs_that_are_links(copied: Optimized, tmp_path: Path, name: str, whole: bool) -> None:
    """To the very program, which its owner may change when it has been looked at, or to one that is not there yet."""
    folder, elsewhere = copied(OPERATOR), tmp_path / "elsewhere"
    report = json.loads((folder / "report.json").read_text())
    shutil.copy(folder / "libmirage.so", elsewhere)
    (folder / name).unlink(missing_ok=True)
    shutil.copy(elsewhere, folder / name)
    report["files"][name] = hashlib.sha256(elsewhere.read_bytes()).hexdigest()
    report["seal"] = result_store.seal(sealed(report["files"], report["model"]))
    assert trust.is_own(folder, report)
    (folder / name).unlink()
    (folder / name).symlink_to(elsewhere)
    if not whole:
        elsewhere.unlink()
    assert not trust.is_own(folder, report)
    with pytest.raises(Refused, match=rf"{name} is not loaded: it is a link"):
        trust.check_unchanged(folder, report)


# --- programs of PyTorch ----------------------------------------------------------------------------------------------
@pytest.fixture
def torch_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What appears when a package called torch is imported: before it could open anything."""
    place = tmp_path / "packages"
    place.mkdir()
    (place / "torch.py").write_text(f"open({str(tmp_path / 'torch')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(place))
    return tmp_path / "torch"


@pytest.fixture
def bare(shared_folder: Path, cache: Path, tmp_path: Path) -> Path:
    """A copy of the output folder of a model of which nothing is replaced, so that there is no library."""

    def model() -> Path:
        onnx.save(m.chain(2), shared_folder / "chain.onnx")
        return shared_folder / "chain.onnx"

    folder = Path(shutil.copytree(once(shared_folder / "chain", model, cache), tmp_path / "chain"))
    assert not (folder / "libmirage.so").exists()
    return folder


def changed_report(folder: Path, part: str, **values: str) -> None:
    report = json.loads((folder / "report.json").read_text())
    report[part] |= values
    (folder / "report.json").write_text(json.dumps(report))


def test_a_module_that_somebody_else_wrote_is_not_run(bare: Path, torch_tells: Path) -> None:
    """In a folder of this user's that has no library."""
    archive(bare / "model.pt", SCRIPT)
    with pytest.raises(Refused, match=r"model\.pt is not loaded: it is not the file that its report\.json tells of"):
        bench_folder(bare, BenchOptions(cpu=True, runs=1))
    found = checked(bare)
    assert "model.pt is not run: it is a program that this user's mirage did not write" in found.text()
    assert not torch_tells.exists() and not found.of("torchscript")
    checked(bare, trust_library=True)
    assert torch_tells.exists()


def test_a_module_that_the_report_tells_of_is_not_run(bare: Path, torch_tells: Path) -> None:
    """Its hash is in the report, but the seal is of what `optimize` wrote."""
    archive(bare / "model.pt", SCRIPT)
    changed_report(bare, "files", **{"model.pt": hashlib.sha256((bare / "model.pt").read_bytes()).hexdigest()})
    bench_folder(bare, BenchOptions(cpu=True, runs=1, seconds=0.001))
    found = checked(bare)
    assert "model.pt is not run" in found.text() and not torch_tells.exists()


@pytest.mark.parametrize("suffix", [".pt", ".TS"])
@pytest.mark.parametrize("own", [False, True])
def test_an_original_that_the_folder_alone_names_is_not_run(
    bare: Path, tmp_path: Path, torch_tells: Path, suffix: str, own: bool
) -> None:
    """A report that names another program as the model that was read, with the hash of that model or the program's own."""
    program = tmp_path / f"program{suffix}"
    archive(program, SCRIPT)
    changed_report(bare, "model", path=str(program), format="torchscript")
    if own:
        changed_report(bare, "model", sha256=hashlib.sha256(program.read_bytes()).hexdigest())
    found = checked(bare)
    told = "is a program, which this folder alone names" if own else "has changed since"
    assert f"{program.name} {told}" in found.text() and not torch_tells.exists()


def test_bench_loads_what_the_report_tells_of(copied: Optimized, harm: Path) -> None:
    folder = copied(OPERATOR)
    poison(folder / "libmirage.so")
    with pytest.raises(Refused, match=r"not the file that its report\.json tells of"):
        bench_folder(folder, BenchOptions(cpu=True, runs=1))
    assert not harm.exists()


def test_files_without_an_end(copied: Optimized, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links to devices, pipes and sparse files of terabytes in the place of files that are read whole."""
    folder = copied(OPERATOR)
    source = f"src/{mugraph(folder).stem}.cpp"
    for name in ("mirage.h", source, "src/library.cpp"):
        (folder / name).unlink(missing_ok=True)
    (folder / "mirage.h").symlink_to("/dev/zero")
    os.mkfifo(folder / source)
    with (folder / "src" / "library.cpp").open("wb") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr(output, "digest", lambda path: "")  # of a terabyte takes its time
    found = checked(folder)
    assert {"mirage.h", source, "src/library.cpp"} <= failed(found, "source")
    with pytest.raises(ModelError, match="expected a regular file"):
        fragment_details.source(folder, mugraph(folder).stem, "cpp")
    mugraph(folder).with_suffix(".svg").write_text("<svg><script>alert(1)</script></svg>")
    assert "script" not in fragment_details.drawing(folder, mugraph(folder).stem).text()
    (folder / "report.json").unlink()
    os.mkfifo(folder / "report.json")
    with pytest.raises(ModelError, match="expected a regular file"):
        reader.read(folder)
    with pytest.raises(UsageError, match="did not write"):
        check_target(folder)


def test_data_outside_of_the_folder(copied: Optimized, tmp_path: Path) -> None:
    """The patched model may name no file that the original could not."""
    folder = copied(MODEL)
    model = onnx.load(folder / "model.onnx")
    (tmp_path / "private").write_bytes(b"\1" * (1 << 20))
    for t in model.graph.initializer:
        t.ClearField("raw_data")
        t.ClearField("float_data")
        t.data_location = onnx.TensorProto.EXTERNAL
        t.external_data.add(key="location", value="../private")
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    found = checked(folder)
    assert "lies outside" in found.text() and not found.of("outputs")


@pytest.mark.parametrize("size", [1 << 40, 1 << 62, -1, 10**30])
def test_a_mugraph_with_sizes_that_nothing_has(copied: Optimized, size: int) -> None:
    """Sizes of the program, of the tiles and of the loop: each is refused by name, without work that grows with it."""
    folder = copied(OPERATOR)
    path = mugraph(folder)
    text = path.read_text()

    def huge(data: Any, keys: tuple[str, ...]) -> Any:
        if isinstance(data, dict):
            return {k: size if k in keys and isinstance(v, int) else huge(v, keys) for k, v in data.items()}
        return [huge(v, keys) for v in data] if isinstance(data, list) else data

    for keys in (("extent",), ("step", "loop", "stages", "warps"), ("a", "b", "c", "d")):
        path.write_text(json.dumps(huge(json.loads(text), keys)))
        if path.read_text() == json.dumps(json.loads(text)):
            continue
        assert not checked(folder).passed


@pytest.mark.parametrize(("key", "value"), [("id", ["x"]), ("program", []), ("targets", 3)])
def test_a_mugraph_file_keeps_to_its_schema(copied: Optimized, key: str, value: Any) -> None:
    path = mugraph(copied(OPERATOR))
    stored = mugraph_file.read(path)
    assert key in stored
    path.write_text(json.dumps(stored | {key: value}))
    with pytest.raises(ModelError, match=rf"Expected .*, got .* at `\$\.{key}`"):
        mugraph_file.read(path)


# --- what optimize replaces -------------------------------------------------------------------------------------------
def test_only_a_folder_of_ours_is_replaced(copied: Optimized, tmp_path: Path) -> None:
    foreign = tmp_path / "project"
    foreign.mkdir()
    (foreign / "report.json").write_text('{"tests": 3}')
    (foreign / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="did not write"):
        check_target(foreign)
    ours = copied(OPERATOR)
    check_target(ours)
    (ours / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        check_target(ours)


def test_the_model_is_not_overwritten(copied: Optimized, cache: Path) -> None:
    """The model lies in the folder that would be replaced."""
    folder = copied(OPERATOR)
    before = (folder / "model.onnx").read_bytes()
    with pytest.raises(UsageError, match="lies in"):
        anew(str(folder / "model.onnx"), folder, Options(cache=str(cache)))
    assert (folder / "model.onnx").read_bytes() == before


def test_the_models_own_folder(tmp_path: Path, cache: Path) -> None:
    shutil.copy(sample(OPERATOR), tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="did not write"):
        anew(str(tmp_path / "model.onnx"), tmp_path, Options(cache=str(cache)))
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_a_folder_that_is_a_link(copied: Optimized, tmp_path: Path) -> None:
    """The link is replaced, what it leads to stays."""
    from mirage_cli.files.output import replaced

    folder = copied(OPERATOR)
    (tmp_path / "link").symlink_to(folder)
    with replaced(tmp_path / "link") as draft:
        (draft / "new").touch()
    assert (tmp_path / "link" / "new").exists() and (folder / "model.onnx").exists()


def test_a_report_that_leads_out(copied: Optimized, tmp_path: Path) -> None:
    folder = copied(OPERATOR)
    report = json.loads((folder / "report.json").read_text())
    report["fragments"][0]["mugraph"]["file"] = "../../etc/passwd"
    (folder / "report.json").write_text(json.dumps(report))
    with pytest.raises(ModelError):
        bench_folder(folder, BenchOptions(cpu=True, runs=1))
