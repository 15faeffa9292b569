"""The options of a run: as YAML, as Python keywords, and what is said of those that do not fit."""

from __future__ import annotations

import string
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from mirage_cli.codegen.requests.passes import PASSES
from mirage_cli.errors import ConfigError, UsageError
from mirage_cli.optimization import coverage
from mirage_cli.options import config, settings
from mirage_cli.options.options import Options
from mirage_cli.search.schedules.architectures import architectures
from tests.optimized import sample

FIXED = hypothesis(deadline=None, derandomize=True, max_examples=60, database=None)
NUMBERS = st.integers(0, 10**9)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
NAMES = st.text(string.ascii_letters + string.digits + "_./:*=[] ", min_size=1)
PAIRS = st.tuples(NAMES, st.lists(st.integers(1, 99), min_size=1, max_size=3))
OPTIONS = st.builds(
    Options,
    shape=st.lists(PAIRS, unique_by=lambda p: p[0]).map(lambda x: tuple(f"{n}={'x'.join(map(str, d))}" for n, d in x)),
    dim=st.lists(PAIRS, unique_by=lambda p: p[0]).map(
        lambda x: tuple(f"{n}={':'.join(map(str, sorted(d)))}" for n, d in x if len(d) != 2)
    ),
    target=st.lists(st.sampled_from(("cpu", "cuda"))).map(tuple),
    arch=st.lists(st.sampled_from((*architectures(), "native"))).map(tuple),
    gpu=st.none() | NUMBERS,
    only=st.lists(TEXTS).map(tuple),
    skip=st.lists(TEXTS).map(tuple),
    max_kernels=st.integers(1, 99),
    budget=st.floats(0, 1e300),
    without=st.lists(st.sampled_from(PASSES)).map(tuple),
    unwritten=st.lists(TEXTS).map(tuple),
    jobs=st.integers(1, 99),
    seed=NUMBERS,
    cache=st.none() | st.just("") | TEXTS,
    max_memory=NUMBERS,
    target_file=st.none() | TEXTS,
    scheduler=st.none() | st.sampled_from(["tls://host:8786", "tcp://127.0.0.1:1"]),
    require_coverage=st.lists(st.floats(0, 1).map(lambda x: f"flops={x}")).map(tuple),
    dry_run=st.booleans(),
    force=st.booleans(),
    strict=st.booleans(),
)


def file(folder: Path, text: str | bytes) -> str:
    path = folder / "mirage.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def read(folder: Path, text: str | bytes) -> dict[str, Any]:
    return config.read(file(folder, text))


@FIXED
@given(options=OPTIONS)
def test_what_is_written_reads_back(tmp_path_factory: pytest.TempPathFactory, options: Options) -> None:
    path = file(tmp_path_factory.mktemp("config"), config.written(options))
    assert settings.options(config.read(path)) == options


@FIXED
@given(options=OPTIONS)
def test_what_is_written_means_the_same_to_yaml_1_1(options: Options) -> None:
    assert yaml.safe_load(config.written(options)) == config.to_json(options)


@FIXED
@given(options=OPTIONS)
def test_keywords_are_the_fields(options: Options) -> None:
    assert settings.from_keywords(asdict(options)) == options


def test_the_table_is_complete() -> None:
    assert set(settings.BY_NAME) == set(Options.__dataclass_fields__)
    for name, value in asdict(Options()).items():
        assert settings.value_of(settings.BY_NAME[name], value) == value
        assert settings.BY_NAME[name].many == isinstance(value, tuple)


def test_choices_are_those_of_the_parts_that_use_them() -> None:
    assert settings.BY_NAME["arch"].kind.choices == (*architectures(), "native")
    from mirage_cli import frontends

    imported = frontends.load(str(sample("rmsnorm_linear_fp32")))
    assert set(coverage.measure(imported, [])) == set(settings.COVERAGE_KINDS)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}", "~"])
def test_an_empty_file_changes_nothing(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == {}


def test_a_file_as_people_write_it(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        # for the decoder
        target: cpu
        dim:
          batch: 1
          seq: 1:16:32          # base 60 in YAML 1.1
        shape: {x: [1, 128], y: 2x3}
        require_coverage: {flops: 0.9}
        only: ['*attn*', "*mlp*"]
        max-memory: 4G
        budget: 1e2
        jobs: 08
        force: true
        no-cache: true
        keep_going: false
        gpu:
        """,
    )
    assert settings.options(found) == replace(
        Options(),
        target=("cpu",),
        dim=("batch=1", "seq=1:16:32"),
        shape=("x=1x128", "y=2x3"),
        require_coverage=("flops=0.9",),
        only=("*attn*", "*mlp*"),
        max_memory=4 << 30,
        budget=100.0,
        jobs=8,
        force=True,
        cache="",
        strict=True,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nmax-kernels: many\n", ":2:14: max-kernels: expected an integer of at least 1, found 'many'"),
        ("max-kernels: 0", ":1:14: max-kernels: expected an integer of at least 1, found 0"),
        ("max-ops: 2.5", r":1:\d+: max-ops: expected an integer of at least 1, found 2.5"),
        ("max-ops: true", r":1:\d+: max-ops: expected an integer of at least 1, found true"),
        ("confidence: 2000", r":1:\d+: confidence: expected an integer from 1 to 1024, found 2000"),
        ("budget: -1", r":1:\d+: budget: expected a number of at least 0, found -1"),
        ("force: yes", ":1:8: force: expected true or false, found 'yes'"),
        ("keep-going: 1", r":1:\d+: keep-going: expected true or false, found 1"),
        ("\n\ntarget: [cpu, gpu]", ":3:9: target: expected cuda or cpu or hip or opencl, found 'gpu'"),
        ("arch: sm_70", r":1:\d+: arch: expected sm_80 or sm_89 or sm_90a or sm_120 or native, found 'sm_70'"),
        ("max-memory: 4Q", r":1:\d+: max-memory: expected a size such as 4G or 512M, found '4Q'"),
        ("cache: []", r":1:\d+: cache: expected a folder, or false for none, found \[\]"),
        ("dim: {s: 3:2:1}", r":1:\d+: dim: s=3:2:1: expected 0 <= MIN <= TYPICAL <= MAX"),
        ("dim: [s]", r":1:\d+: dim: s: expected SYMBOL=N or SYMBOL=MIN:TYPICAL:MAX"),
        ("shape: {x: abc}", r":1:\d+: shape: x=abc: expected NAME=1x128x"),
        ("require-coverage: {speed: 1}", r":1:\d+: require-coverage: expected KIND=SHARE with KIND one of flops"),
        ("require-coverage: {flops: 2}", r":1:\d+: require-coverage: expected KIND=SHARE .* SHARE from 0 to 1"),
        ("only: {a: b}", r":1:\d+: only: expected a pattern"),
        ("seed: 1\nmax-kernel: 3", ":2:1: unknown option 'max-kernel'"),
        ("seed: 1\nseed: 2", r":2:\d+: seed: the option is set in line 1 already"),
        ("max_ops: 1\nmax-ops: 1", r":2:\d+: max-ops: the option is set in line 1 already"),
        ("strict: true\nkeep-going: true", ":2:1: keep-going: contradicts strict"),
        ("cache: x\nno-cache: true", r":2:\d+: no-cache: contradicts cache"),
        ("- seed: 1", r":1:\d+: expected options and their values, found a list"),
        ("seed", r":1:\d+: expected options and their values, found 'seed'"),
        ("seed: 1\nonly: [a\n", r":3:\d+: broken YAML: "),
        ("seed: 1\n\tjobs: 2", ":2:1: broken YAML: "),
        ("a: 1\n---\nb: 2", r":2:\d+: broken YAML: "),
        ("only: *a", r":1:7: broken YAML: "),
        ("only: !!python/object:os.system x", r":1:\d+: the tag .* is not supported"),
        ("seed: !!int x", r":1:\d+: 'x' is no int"),
        ("only: &a [*a]", r":1:\d+: broken YAML: anchors and their aliases are not supported"),
        ("only: " + "[" * 9999, "nested too deeply|broken YAML"),
        ("only: [[[[[[a]]]]]]", r":1:\d+: lists and mappings are nested too deeply"),
        ("# " + "a" * (1 << 18), "expected at most 262144 bytes"),
        (b"only: \xff\xfe", ": broken YAML: "),
        (b"\0", ": broken YAML: "),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "mirage.yaml"))
    assert len(str(caught.value)) < 400


def test_unknown_options_suggest_the_near_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "max_kernel: 3")
    assert caught.value.hint == "did you mean max-kernels?"
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "zzz: 3")
    assert caught.value.hint.startswith("options are shape, dim, target")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the configuration file cannot be read: No such file"):
        config.read(str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match="the configuration file cannot be read: Is a directory"):
        config.read(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4G", 4 << 30),
        ("512M", 512 << 20),
        ("1.5k", 1536),
        ("2 GiB", 2 << 30),
        ("3gb", 3 << 30),
        ("1000", 1000),
        (7, 7),
    ],
)
def test_sizes(text: str | int, expected: int) -> None:
    assert settings.size(text) == expected


@pytest.mark.parametrize("text", ["", "G", "-1", "4Q", "1.G", "1e3", "4 G G", None, True, "9" * 30])
def test_no_sizes(text: Any) -> None:
    with pytest.raises(ValueError):
        settings.size(text)


def test_keywords_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match="unknown option 'max_kernel'") as caught:
        settings.from_keywords({"max_kernel": 3})
    assert caught.value.hint == "did you mean max_kernels?"
    with pytest.raises(UsageError, match="jobs: expected an integer of at least 1, found 0"):
        settings.from_keywords({"jobs": 0})
    with pytest.raises(UsageError, match="no_cache: contradicts"):
        settings.from_keywords({"cache": "x", "no_cache": True})
    with pytest.raises(UsageError, match="--dim s=2: s is 1 already"):
        settings.from_keywords({"dim": ["s=1", "s=2"]})


def test_keywords_as_people_write_them(tmp_path: Path) -> None:
    found = settings.from_keywords(
        {"target": "cpu", "dim": {"seq": (1, 8, 9), "b": 2}, "cache": tmp_path, "keep_going": True, "no_cache": False}
    )
    assert found == replace(Options(), target=("cpu",), dim=("seq=1:8:9", "b=2"), cache=str(tmp_path))
