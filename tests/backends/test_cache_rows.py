"""New rows of caches: the kernel says what its function in standard operators says, in place and apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import helper

from mirage_cli.backends import cache_rows
from mirage_cli.backends.library import Options, build_library
from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.codegen.cache_rows import DOMAIN, CacheRows, named
from mirage_cli.frontends.onnx.parts.cached_attention import rows_function
from mirage_cli.runtime import sessions
from tests.codegen.test_cuda_compiles import compiled, in_namespaces
from tests.optimized import for_one_isa

FORMS = {
    "plain": CacheRows("f32", 4, 2, 16),
    "halves": CacheRows("f32", 4, 2, 16, turned=16),
    "neighbours of a part, listed": CacheRows("f32", 4, 2, 16, turned=8, interleaved=True, listed=True),
    "packed, without angles": CacheRows("f32", 3, 1, 8, packed=True, lengths=2, whole=1),
    "packed": CacheRows("f32", 4, 4, 8, turned=8, packed=True, lengths=2),
    "int8": CacheRows("f32", 4, 2, 16, turned=16, scales=1, stored="i8"),
    "int8 by channels": CacheRows("f16", 4, 2, 16, packed=True, scales=32, stored="i8"),
    "float8": CacheRows("f32", 4, 2, 16, turned=8, interleaved=True, scales=1, stored="e4m3"),
    "float8 by channels": CacheRows("f16", 4, 2, 16, turned=16, packed=True, scales=32, stored="e4m3"),
    "int4": CacheRows("f32", 4, 2, 32, turned=16, scales=1, stored="u4"),
    "int4 by channels": CacheRows("f16", 4, 2, 32, turned=32, packed=True, scales=64, stored="u4"),
    "int4, neighbours": CacheRows("f32", 4, 2, 32, turned=8, interleaved=True, scales=64, stored="u4"),
    "int4 as it is": CacheRows("f32", 4, 2, 32, scales=1, stored="u4"),
    "float16": CacheRows("f16", 4, 2, 16, turned=16, packed=True),
    "float8 as it is": CacheRows("f32", 1, 1, 16, scales=1, stored="e4m3"),
    "window": CacheRows("f32", 4, 2, 16, turned=16, window=4),
    "window, packed": CacheRows("f16", 4, 2, 16, turned=8, interleaved=True, packed=True, lengths=2, window=4),
    "window, listed": CacheRows("f32", 4, 2, 16, turned=16, listed=True, window=4),
    "window, int8": CacheRows("f32", 4, 2, 16, turned=16, window=4, scales=32, stored="i8"),
    "window, int4": CacheRows("f32", 4, 2, 32, packed=True, window=4, scales=1, stored="u4"),
    "window, float8": CacheRows("f32", 4, 2, 16, window=4, scales=1, stored="e4m3"),
}
#: new positions, filled ones of each sequence with them, the whole length
RUNS = {
    "prompt": (5, [5, 3], 5),
    "step": (1, [7, 4], 7),
    "one": (1, [1, 1], 1),
    "more": (3, [8], 8),
    "none": (2, [0], 2),
}
#: and of caches of a window's size: prompts longer than they are, steps that drop positions, several tokens
SLID = RUNS | {
    "long prompt": (12, [12, 9, 2], 12),
    "full": (1, [6, 5], 6),
    "slides": (1, [7, 13], 13),
    "more that slide": (3, [9], 9),
    "many": (9, [15], 15),
}
TABLE = 16
_TYPES: dict[str, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "i8": np.int8,
    "u8": np.uint8,
    "i32": np.int32,
    "i64": np.int64,
}
_TYPES["e4m3"] = ml_dtypes.float8_e4m3fn
OPSET = 19  #: the first one with float8e4m3fn


def model(rows: CacheRows) -> onnx.ModelProto:
    """A model of the one operator, with its function."""
    spec = cache_rows.spec(rows, cuda=False)

    def values(tensors: Any) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(
                t.name,
                helper.np_dtype_to_tensor_dtype(np.dtype(_TYPES[t.dtype.name])),
                [d if isinstance(d, int) else str(d) for d in t.dims],
            )
            for t in tensors
        ]

    node = helper.make_node(rows.op_type, [t.name for t in spec.inputs], [t.name for t in spec.outputs], domain=DOMAIN)
    graph = helper.make_graph([node], "g", values(spec.inputs), values(spec.outputs))
    versions = [helper.make_opsetid(d, v) for d, v in (("", OPSET), (DOMAIN, 1), ("com.microsoft", 1))]
    return helper.make_model(
        graph, functions=[ir.to_proto(rows_function(rows, OPSET))], opset_imports=versions, ir_version=9
    )


def arrays(rows: CacheRows, new: int, ends: list[int], whole: int, room: int) -> dict[str, NDArray[Any]]:
    """Inputs: past caches of so many positions hold anything behind what is filled."""
    rng = np.random.default_rng(new)
    sizes = {"batch": len(ends), "new": new, "past": room, "table": TABLE}
    found: dict[str, NDArray[Any]] = {}
    for t in cache_rows.spec(rows, cuda=False).inputs:
        dims = [d if isinstance(d, int) else sizes[str(d)] for d in t.dims]
        numbers = rng.standard_normal(dims)
        numbers = np.abs(numbers) / 50 + 0.01 if "scale" in t.name else numbers
        numbers = rng.integers(0, 256, dims) if t.dtype.name == "u8" else numbers
        found[t.name] = numbers.astype(_TYPES[t.dtype.name])
        if t.name == "key_scale":
            found[t.name][1:2] = 0
    for name in ("past_key", "past_value") if rows.cache.is_float else ():
        for row, end in enumerate(ends):
            found[name][row, :, max(end - new, 0) :] = np.nan
    found["lengths"] = (np.array(ends, np.int32) - 1).reshape(found["lengths"].shape)
    if not rows.window:
        found["whole"] = np.full(found["whole"].shape, whole, np.int32)
    if rows.listed:
        found["positions"] = rng.integers(0, TABLE, (len(ends), new))
    return found


def bound(session: Any, given: dict[str, NDArray[Any]], shared: bool) -> dict[str, NDArray[Any]]:
    """The results of a run; with `shared` its caches are written where they lie."""

    if not shared:
        return dict(sessions.run(session, given))
    binding, caches = session.io_binding(), {n: given[f"past_{n}"].copy() for n in ("key", "value")}
    for name, a in given.items():
        if not name.startswith("past"):
            binding.bind_cpu_input(name, a)
    for name, a in caches.items():
        value = sessions.to_ort(a)  # of the same memory
        binding.bind_ortvalue_input(f"past_{name}", value)
        binding.bind_ortvalue_output(f"present_{name}", value)
    others = [o.name for o in session.get_outputs() if not o.name.startswith("present")]
    for name in others:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    results = binding.get_outputs()[len(caches) :]
    return {n: v.numpy() for n, v in zip(others, results, strict=True)} | {f"present_{n}": a for n, a in caches.items()}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, cxx: Toolchain) -> Path:
    """A library of all forms."""
    specs = [cache_rows.spec(r, cuda=False) for r in FORMS.values()]
    sources = {r.id: cache_rows.source(r, cuda=False) for r in FORMS.values()}
    with for_one_isa():  # tests/frontends/onnx/test_window_caches.py compiles such kernels for all
        built = build_library(specs, sources, tmp_path_factory.mktemp("rows"), cxx)
    assert built.library is not None, built.failed
    return built.library


@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_says_what_its_function_says(form: str, library: Path) -> None:
    rows = FORMS[form]
    told = model(rows).SerializeToString()
    ours, theirs = sessions.session(told, library=library), sessions.session(told)
    near = {"rtol": 1e-6, "atol": 1e-6} if rows.dtype == "f32" else {"rtol": 2e-3, "atol": 2e-3}

    def close(a: NDArray[Any], b: NDArray[Any]) -> None:
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), **near)

    for new, ends, whole in (SLID if rows.window else RUNS).values():
        if rows.window:
            slid(rows, (ours, theirs), close, new, ends, whole)
            continue
        for room, shared in ((max(whole - new, 0), False), (whole + 3, False), (whole + 3, True)):
            given = arrays(rows, new, ends, whole, room)
            own, wanted = bound(ours, given, shared), dict(sessions.run(theirs, given))
            assert own.keys() == wanted.keys()
            for name in own.keys() - {"present_key", "present_value"}:
                close(own[name], wanted[name])
            for name in ("present_key", "present_value"):
                assert own[name].shape == wanted[name].shape
                for row, end in enumerate(ends):
                    last = max(end, new)
                    close(own[name][row, :, :last], wanted[name][row, :, :last])
                    if shared:  # nothing is written behind the new rows
                        past = given[name.replace("present", "past")][row, :, last:]
                        assert own[name][row, :, last:].tobytes() == past.tobytes()
                    else:
                        assert (own[name][row, :, last:] == 0).all()


def slid(rows: CacheRows, both: tuple[Any, Any], close: Any, new: int, ends: list[int], whole: int) -> None:
    """Assert that a kernel and its function say the same of caches of a window's size, and what they keep."""
    for slots, shared in ((4, False), (4, True), (6, False), (6, True), (9, True)):
        several = slots - rows.window + 1
        dropped = [several * -(-max(n - slots, 0) // several) for n in (*ends, *(max(e - new, 0) for e in ends))]
        begins, firsts = dropped[: len(ends)], dropped[len(ends) :]
        given = arrays(rows, new, ends, whole, slots)
        for row, end in enumerate(ends):
            for name in ("past_key", "past_value") if rows.cache.is_float else ():
                kept = given[name][row, :, : max(end - new, 0) - firsts[row]]
                kept[...] = np.random.default_rng(row).standard_normal(kept.shape)
        own, wanted = bound(both[0], given, shared), dict(sessions.run(both[1], given))
        kind = given["past_key"].dtype  # onnxruntime's own arrays of float8 are bytes
        own |= {name: a.view(kind) for name, a in own.items() if name.startswith("read")}
        np.testing.assert_array_equal(own["before"], [max(e - new, 0) - f for e, f in zip(ends, firsts, strict=True)])
        np.testing.assert_array_equal(own["last"], [e - 1 - f for e, f in zip(ends, firsts, strict=True)])
        assert own.keys() == wanted.keys()
        for name in ("turned", "before", "last"):
            if name in own:
                close(own[name], wanted[name])
        for x in ("key", "value"):
            for row, end in enumerate(ends):
                read, count = own[f"read_{x}"][row], max(end, new) - firsts[row]
                close(read[:, :count], wanted[f"read_{x}"][row, :, :count])
                present, kept = own[f"present_{x}"][row], end - begins[row]
                assert kept >= min(end, rows.window)
                moved = begins[row] - firsts[row]
                assert present[:, :kept].tobytes() == read[:, moved : moved + kept].tobytes()
                close(present[:, :kept], wanted[f"present_{x}"][row, :, :kept])
                behind = given[f"past_{x}"][row, :, kept:] if shared else np.zeros_like(present[:, kept:])
                assert present[:, kept:].tobytes() == behind.tobytes()
                assert (wanted[f"present_{x}"][row, :, kept:] == 0).all()


def test_a_cache_that_is_less_than_its_window_is_refused(library: Path) -> None:
    rows = FORMS["window"]
    session = sessions.session(model(rows).SerializeToString(), library=library)
    with pytest.raises(Exception, match="refused these shapes"):
        sessions.run(session, arrays(rows, 1, [3], 3, 3))


def test_numbers_of_float8_are_the_nearest(library: Path) -> None:
    """All of them, what lies between two, a little beside that, and beyond the largest one."""
    rows = FORMS["float8 as it is"]
    session = sessions.session(model(rows).SerializeToString(), library=library)
    own = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    between = (own[1:] + own[:-1]) / 2
    beside = [np.nextafter(between, np.float32(end)) for end in (0, np.inf)]
    numbers = np.concatenate([own, between, *beside, np.float32([449, 464, 465, 1e9, np.inf, 1e-30])])
    numbers = np.concatenate([numbers, -numbers, np.float32([np.nan])])
    numbers = np.resize(numbers, -(-numbers.size // 16) * 16).reshape(1, -1, 16)
    given = arrays(rows, numbers.shape[1], [numbers.shape[1]], numbers.shape[1], 0)
    given |= {"key": numbers, "value": -numbers, "key_scale": np.float32([1]), "value_scale": np.float32([0.5])}
    found = dict(sessions.run(session, given))
    for name, x in (("present_key", numbers), ("present_value", -2 * numbers)):
        wanted = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        np.testing.assert_array_equal(found[name][0].astype(np.float32), wanted.astype(np.float32))


def test_lengths_that_no_cache_has_room_for_write_nothing_else(library: Path) -> None:
    rows = FORMS["halves"]
    session = sessions.session(model(rows).SerializeToString(), library=library)
    given = arrays(rows, 2, [900, -7], 6, 6)
    own = bound(session, given, shared=True)
    np.testing.assert_array_equal(own["before"], [898, 0])
    np.testing.assert_array_equal(own["present_key"][0], given["past_key"][0])


def test_a_name_tells_all() -> None:
    for rows in FORMS.values():
        assert named(rows.op_type) == rows
    assert named("attention_0123456789abcdef") is None
    assert named(FORMS["plain"].op_type.replace("i0", "i2")) is None
    assert named(replace(FORMS["plain"], size=12).op_type) is None
    assert "heads of 12" in replace(FORMS["plain"], size=12).problem
    assert "heads of 8" in replace(FORMS["packed"], scales=1, stored="i8").problem
    assert "7 scales of 32" in replace(FORMS["plain"], scales=7, stored="i8").problem
    assert replace(FORMS["plain"], scales=1).problem and replace(FORMS["plain"], stored="i8").problem


@pytest.mark.nvcc
def test_it_compiles_for_gpus(tmp_path: Path, with_nvcc: Toolchain) -> None:
    """One in a library, all of them in one source: a call of the compiler reads CUDA's headers for four seconds."""
    several = [
        *(FORMS[name] for name in ("float16", "int8 by channels", "int4 by channels", "float8 by channels")),
        *(FORMS[name] for name in ("window, packed", "window, int4")),
        CacheRows("bf16", 8, 2, 128, 64, True, False, True, 2, 1),
    ]
    sources = {r.id: cache_rows.source(r, True) for r in several}
    spec = cache_rows.spec(several[-1], cuda=True)
    assert not build_library([spec], sources, tmp_path, with_nvcc, Options(archs=("sm_80",))).failed
    assert with_nvcc.nvcc is not None
    compiled(with_nvcc.nvcc, in_namespaces({i: s.cu or "" for i, s in sources.items()}), tmp_path, "sm_80")
