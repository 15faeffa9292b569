"""Building: what the folder holds, what is exported, and that one bad kernel does not sink the others."""

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mirage_cli.backends import cpu, cuda, toolchain
from mirage_cli.backends.compile import ObjectCache, digest_tree
from mirage_cli.backends.library import BuildResult, Options, build_library
from mirage_cli.backends.spec import KernelSource
from mirage_cli.backends.toolchain import Tool, Toolchain
from mirage_cli.codegen.render import include_dir
from mirage_cli.errors import CompileError, InvalidGraph, UsageError
from mirage_cli.files import result_store as kept
from mirage_cli.runtime import sessions

from .conftest import make_model, random
from .kernels import AFFINE, AFFINE_CUDA, PICKY, REVERSE, SOURCES, SPECS, WHICH, cpu_source


def symbols(library: Path) -> set[str]:
    printed = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in printed.stdout.splitlines()}


def exported(*ids: str) -> set[str]:
    kernels = {name for i in ids for name in (f"mirage_{i}_cpu", f"mirage_{i}_workspace_cpu")}
    return {"RegisterCustomOps", "mirage_sources", "mirage_packed_bytes"} | kernels


def test_only_the_entry_points_are_exported(library: Path) -> None:
    assert symbols(library) == exported(*(op.id for op in SPECS))


def test_no_run_time_library_is_needed(library: Path) -> None:
    printed = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    assert "libstdc++" not in printed
    assert "libgcc" not in printed


def test_the_folder_rebuilds_itself(built: BuildResult, tmp_path: Path) -> None:
    assert built.library is not None
    folder = built.library.parent
    assert sorted(p.name for p in folder.iterdir()) == ["libmirage.so", "mirage.h", "src"]
    assert {p.name for p in (folder / "src").iterdir()} == {
        *(f"{op.id}.cpp" for op in SPECS),
        "library.cpp",
        "include",
        "build.sh",
        "exports.map",
    }
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(folder), str(copy)], check=True)
    (copy / "libmirage.so").unlink()
    subprocess.run([str(copy / "src" / "build.sh")], check=True)
    assert (copy / "libmirage.so").read_bytes() == built.library.read_bytes()


def test_equal_input_gives_equal_bytes(built: BuildResult, cxx: Toolchain, tmp_path: Path) -> None:
    again = build_library(SPECS, SOURCES, tmp_path / "again", cxx)
    assert built.library is not None
    assert again.commands == built.commands
    assert digest_tree(tmp_path / "again") == digest_tree(built.library.parent)
    assert not any(str(tmp_path) in part for command in again.commands for part in command)


def test_header_compiles(built: BuildResult, cxx: Toolchain) -> None:
    assert built.header is not None
    text = built.header.read_text()
    assert "in[1]  w: i64[batch, 5]" in text
    for language, standard in (("c", "c11"), ("c++", "c++17")):
        strict = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", language]
        for first in ([], ["-include", str(include_dir() / "mirage" / "entry.h")]):
            command = [*cxx.cxx.command, *strict, *first, str(built.header)]
            subprocess.run(command, check=True)


@pytest.mark.parametrize("header", ["entry.h", "operators.hpp", "ort_shapes.hpp", "runtime.cpp", "cuda_error.hpp"])
@pytest.mark.parametrize("defines", [[], ["-DMIRAGE_WITH_CUDA"]])
def test_headers_compile_alone(cxx: Toolchain, header: str, defines: list[str], tmp_path: Path) -> None:
    (tmp_path / "probe.cpp").write_text(f'#include "mirage/{header}"\n')
    strict = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-fno-exceptions", "-fno-rtti"]
    command = [*cxx.cxx.command, *strict, *defines, "-fsyntax-only", f"-I{include_dir()}", str(tmp_path / "probe.cpp")]
    subprocess.run(command, check=True)


_SHARED = "Operand<float>, const Quantised<U4, SameWhole, Same>&"
_PRODUCT = """    using namespace mirage;
    static const uint8_t w[] = {0xa8, 0x78, 0x08, 0xf9, 0x98, 0x31, 0x5c, 0x8e};
    const uint8_t* const panels = nullptr;
    const auto weights = quantised(stored<U4>(w, 0, 4, 1, panels, 4), same_whole(8), same(0.5f), 4);
    const auto x = operand(static_cast<const float*>(in[0]), 4, 1);
    contract(static_cast<float*>(out[0]), 4, static_cast<int>(extents[0]), 4, 4, x, weights, false);"""


def test_what_kernels_share_is_compiled_once(cxx: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in cpu.FLAGS))
    monkeypatch.setattr(cpu, "ISA_FLAGS", {"base": ()})
    specs = [replace(AFFINE, id=f"a{n}", op_type=f"product_a{n}") for n in range(3)]
    declared = [f'#include "mirage/cpu/tile.hpp"\nMIRAGE_PRODUCTS({of})\n' for of in (_SHARED, _SHARED, "NoType, Same")]
    sources = {
        s.id: KernelSource(s.id, cpu_source(s.id, _PRODUCT if n < 2 else "", before=declared[n]))
        for n, s in enumerate(specs)
    }
    compiled = list[str]()
    result = build_library(specs, sources, tmp_path, cxx, Options(progress=lambda job: compiled.append(job.object)))
    assert set(result.failed) == {"a2"}
    assert sum("Operand_float" in name for name in compiled) == 1
    assert result.library is not None
    x = random(20, 4)
    weights = np.array([[0, 2, 0, -1], [0, -8, 1, 7], [0, 1, -7, -5], [4, -3, 6, 0]]) * 0.5
    for s in specs[:2]:
        found = sessions.run(sessions.session(make_model(s), result.library), {"in0": x})
        np.testing.assert_allclose(found["out0"], x @ weights.T, rtol=1e-5, atol=1e-5)
    assert (tmp_path / "src" / "build.sh").read_text().count("products.cpp") == 1


def test_failures_are_isolated(cxx: Toolchain, tmp_path: Path) -> None:
    sources = SOURCES | {
        "c2": KernelSource("c2", cpu_source("c2", "    this is not C++;")),
        "d3": KernelSource("d3", cpu_source("d3", "    return nowhere();", before='extern "C" int nowhere();')),
    }
    result = build_library((AFFINE, REVERSE, PICKY, WHICH), sources, tmp_path, cxx)
    assert set(result.failed) == {"c2", "d3"}
    assert result.built == (AFFINE, WHICH)
    compiling, linking = str(result.failed["c2"]), str(result.failed["d3"])
    assert compiling.startswith("src/c2.cpp does not compile: ")
    assert "c2.cpp:6:5: error: " in compiling
    assert "g++" in result.failed["c2"].hint or "c++" in result.failed["c2"].hint
    assert "-c c2.cpp -o build/c2." in result.failed["c2"].hint
    assert "undefined" in linking
    assert "nowhere" in linking
    assert result.library is not None
    assert symbols(result.library) == exported("a0", "e4")
    assert not (tmp_path / "src" / "c2.cpp").exists()
    assert "d3" not in (tmp_path / "src" / "build.sh").read_text()
    x = random(3, 4)
    found = sessions.run(sessions.session(make_model(AFFINE), result.library), {"in0": x})
    assert (found["out0"] == 2 * x + 1).all()


def test_nothing_left_to_build(cxx: Toolchain, tmp_path: Path) -> None:
    bad = {"a0": KernelSource("a0", "#error no")}
    result = build_library((AFFINE,), bad, tmp_path, cxx)
    assert (result.library, result.header, result.built) == (None, None, ())
    assert not (tmp_path / "libmirage.so").exists()


def test_a_wrong_name_in_a_kernel_is_its_own_failure(cxx: Toolchain, tmp_path: Path) -> None:
    sources = SOURCES | {"c2": KernelSource("c2", cpu_source("zz", ""))}
    result = build_library((AFFINE, REVERSE), sources, tmp_path, cxx)
    assert set(result.failed) == {"c2"}
    assert "mirage_c2_cpu_base" in str(result.failed["c2"])


def test_time_limit(tmp_path: Path) -> None:
    slow = tmp_path / "slow-compiler"
    slow.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/child\nwait\n")
    slow.chmod(0o755)
    tools = Toolchain(Tool((str(slow),), "1", "test"))
    result = build_library((AFFINE,), SOURCES, tmp_path / "out", tools, Options(timeout=0.4))
    assert "was stopped: it took more than 0.4 seconds" in str(result.failed["a0"])
    child = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or ") Z " in state.read_text()


def test_objects_are_kept(cxx: Toolchain, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    build_library((AFFINE,), SOURCES, tmp_path / "one", cxx, Options(cache=cache))
    kept = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(kept) == len(cpu.isas()) + 3  # with the table, what all libraries have, and the library
    assert cache.stat().st_mode & 0o777 == 0o700
    # A compiler that refuses everything but linking shows that nothing is compiled again.
    script = tmp_path / "linker"
    script.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) exit 1;; esac\nexec {cxx.cxx.command[0]} "$@"\n')
    script.chmod(0o755)
    fake = Toolchain(replace(cxx.cxx, command=(str(script),)))
    assert build_library((AFFINE,), SOURCES, tmp_path / "no", fake, Options(cache=cache)).library is None
    again = build_library((AFFINE,), SOURCES, tmp_path / "two", cxx, Options(cache=cache))
    assert digest_tree(tmp_path / "one") == digest_tree(tmp_path / "two")
    assert not again.failed
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == kept


def test_a_changed_object_is_not_linked_to_the_kept_library(cxx: Toolchain, tmp_path: Path) -> None:
    """A library is kept under what its objects contain, so that the kept one is the one that a linker would make."""
    cache = tmp_path / "cache"
    build_library((AFFINE,), SOURCES, tmp_path / "one", cxx, Options(cache=cache))
    library, secret = (tmp_path / "one" / "libmirage.so").read_bytes(), kept.secret(kept.PROGRAMS_SECRET)
    assert secret is not None
    for path in cache.iterdir():
        if kept.opened(secret, path.stem, path.read_bytes()) != library:
            path.write_bytes(kept.sealed(secret, path.stem, b"no object"))
    with pytest.raises(CompileError, match="does not link"):
        build_library((AFFINE,), SOURCES, tmp_path / "two", cxx, Options(cache=cache))


def test_an_object_that_somebody_else_made_is_not_used(cxx: Toolchain, tmp_path: Path) -> None:
    """Its name says what it should be, so whoever hands out a folder of objects could know it."""
    cache = tmp_path / "cache"
    build_library((AFFINE,), SOURCES, tmp_path / "one", cxx, Options(cache=cache))
    for path in cache.iterdir():
        path.write_bytes(kept.sealed(bytes(32), path.stem, b"no object"))
    result = build_library((AFFINE,), SOURCES, tmp_path / "two", cxx, Options(cache=cache))
    assert not result.failed
    assert digest_tree(tmp_path / "one") == digest_tree(tmp_path / "two")


def test_objects_that_are_links_or_without_an_end(cxx: Toolchain, tmp_path: Path) -> None:
    """In a folder that came with a model: files are replaced, not written through, and what has no end is not read."""
    (tmp_path / "mirage.h").write_text("mine")
    cache = ObjectCache(tmp_path / "cache", tmp_path)
    (cache.root / "linked.o").symlink_to(tmp_path / "mirage.h")
    with (cache.root / "sparse.o").open("wb") as file:
        file.truncate(1 << 42)
    for name in ("linked", "sparse"):
        assert not cache.fetch(name, tmp_path / "got")
        cache.put(name, tmp_path / "mirage.h")
        assert cache.fetch(name, tmp_path / "got") and (tmp_path / "got").read_text() == "mine"
    assert (tmp_path / "mirage.h").read_text() == "mine"


def test_a_cache_open_to_others_is_not_used(cxx: Toolchain, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    result = build_library((AFFINE,), SOURCES, tmp_path / "out", cxx, Options(cache=cache))
    assert not result.failed
    assert not list(cache.iterdir())
    assert "not used" in caplog.text


def test_without_nvcc_the_library_holds_the_cpu_part(cxx: Toolchain, tmp_path: Path) -> None:
    result = build_library((AFFINE_CUDA,), SOURCES, tmp_path, cxx)
    assert result.library is not None
    assert symbols(result.library) == exported("a0")
    only_cuda = {"a0": KernelSource("a0", None, SOURCES["a0"].cu)}
    result = build_library((AFFINE_CUDA,), only_cuda, tmp_path, cxx)
    assert "no nvcc" in str(result.failed["a0"])


def test_contradicting_input_is_refused(cxx: Toolchain, tmp_path: Path) -> None:
    with pytest.raises(InvalidGraph, match="no source"):
        build_library((AFFINE,), {}, tmp_path, cxx)
    with pytest.raises(InvalidGraph, match="no source"):
        build_library((replace(WHICH, has_cuda=True),), SOURCES, tmp_path, cxx)
    with pytest.raises(InvalidGraph, match="same identifier"):
        build_library((AFFINE, AFFINE), SOURCES, tmp_path, cxx)
    with pytest.raises(UsageError, match="sm-80"):
        cuda.arch_flags(["sm-80"])


def test_a_defect_of_the_tables_is_raised(cxx: Toolchain, tmp_path: Path) -> None:
    broken = Toolchain(replace(cxx.cxx, link_flags=("-lno-such-library",)))
    with pytest.raises(CompileError, match=r"libmirage.so does not link: .*\n.*no-such-library"):
        build_library((AFFINE,), SOURCES, tmp_path, broken)


def test_commands() -> None:
    tool = Tool(("g++",), "12", "test")
    archs = cuda.jobs(Tool(("nvcc",), "13", "test"), "ab12", ("sm_80", "sm_90a"))[0].command
    assert " ".join(archs) == (
        "nvcc -std=c++17 -O3 -Xcompiler -fPIC,-fvisibility=hidden --objdir-as-tempdir "
        "-gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a "
        "-Iinclude -c ab12.cu -o build/ab12.cuda.o"
    )
    assert " ".join(cpu.jobs(tool, "ab12")[0].command) == (
        "g++ -std=c++17 -O3 -falign-loops=64 -fPIC -fno-math-errno -fno-trapping-math -ffp-contract=fast "
        "-fvisibility=hidden -Wall -DMIRAGE_ISA=base -Iinclude -c ab12.cpp -o build/ab12.base.o"
    )
    assert toolchain.Tool(("a b",), "1", "PATH").__str__() == "'a b' (1, from PATH)"
