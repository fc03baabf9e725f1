"""The digest of a source changes if the kernel changes, and only then."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib.util
import math
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warp_tiles.errors import TuningError
from warp_tiles.tuning.source import source_digest, transcript

SIZE = 4
BASE = """
import math
import numpy as np
import warp as wp
import helper_module

SIZE = 4
UNUSED = 1
TABLE = {"a": [1, 2], "b": (3.5, None)}
WEIGHTS = np.arange(3.0)
DTYPE = wp.float32
LIMIT = wp.constant(7)

def decorate(*values):
    return lambda function: function

def scale(value):
    return value * helper_module.FACTOR

@wp.func
def twice(x: float):
    return x * 2.0

@wp.struct
class Options:
    gain: float

@decorate(1)
def factory(tile, extra=3):
    factor = scale(SIZE)
    table, weights = TABLE, WEIGHTS

    @wp.kernel(module="unique")
    def kernel(a: wp.array(dtype=DTYPE), options: Options):
        i = wp.tid()
        a[i] = twice(a[i]) + float(LIMIT)
    return kernel

dim = lambda config, args: (args.a.shape[0] // config["tile"],)
"""
HELPER = "FACTOR = 2\nOTHER = 1\n"


def load(folder: Path, text: str = BASE, helper: str = HELPER) -> types.ModuleType:
    """Load the text as a fresh module from its own file."""
    folder.mkdir(exist_ok=True)
    for name, content in (("helper_module", helper), ("kernels_under_test", text)):
        path = folder / f"{name}.py"
        path.write_text(content)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def digest_of(module: types.ModuleType) -> str:
    return source_digest(module.factory, module.dim)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SIZE = 4", "SIZE = 5"),
        ("[1, 2]", "[1, 3]"),
        ("np.arange(3.0)", "np.arange(4.0)"),
        ("DTYPE = wp.float32", "DTYPE = wp.float16"),
        ("wp.constant(7)", "wp.constant(8)"),
        ("x * 2.0", "x * 3.0"),
        ("gain: float", "gain: int"),
        ("gain: float", "gain: float\n    loss: float"),
        ("extra=3", "extra=4"),
        ("i = wp.tid()", "i = wp.tid() + 0"),
        ("return value * helper", "return 1 + value * helper"),
        ('// config["tile"]', '* config["tile"]'),
    ],
)
def test_inputs_of_the_kernel_count(tmp_path: Path, old: str, new: str) -> None:
    assert old in BASE
    before = digest_of(load(tmp_path / "a"))
    assert digest_of(load(tmp_path / "b", BASE.replace(old, new))) != before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("@decorate(1)\ndef factory", "@decorate(\n    1,\n    2,\n)\ndef factory"),
        ("UNUSED = 1", "UNUSED = 2"),
        ("def decorate", "\n\n\ndef decorate"),
        ("return kernel\n", "return kernel\n\n\nMORE = [1,\n]\n"),
    ],
    ids=["decorator of the factory", "unused global", "lines before", "lines after"],
)
def test_other_text_does_not_count(tmp_path: Path, old: str, new: str) -> None:
    before = digest_of(load(tmp_path / "a"))
    assert digest_of(load(tmp_path / "b", BASE.replace(old, new))) == before
    assert digest_of(load(tmp_path / "c", helper="FACTOR = 2\nOTHER = 5\n")) == before


def test_the_transcript_names_each_reference(tmp_path: Path) -> None:
    module = load(tmp_path)
    found = transcript(module.factory)
    assert found["factory > SIZE"] == "int 4"
    assert found["factory > scale > helper_module.FACTOR"] == "int 2"
    assert found["factory > wp"] == "module warp"
    assert "factory > UNUSED" not in found
    assert found["factory"].startswith("def factory(")
    assert "x * 2.0" in found["factory > twice python"]


def test_another_process_computes_the_same_digest(tmp_path: Path) -> None:
    here = digest_of(load(tmp_path))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import kernels_under_test as k\n"
        "from warp_tiles.tuning.source import source_digest; print(source_digest(k.factory, k.dim))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout.split()[-1] == here


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Plan:
    size: int
    inner: Any = None


def closing_over(value: Any) -> Any:
    def factory() -> Any:
        return value

    return factory


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        ("1", 1),
        ((1, 2), [1, 2]),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, {1, 3}),
        (Color.RED, Color.BLUE),
        (Plan(1), Plan(2)),
        (Plan(1, [Color.RED]), Plan(1, [Color.BLUE])),
        (np.float32(1), np.float32(2)),
        (np.zeros(3), np.zeros(3, np.float32)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (math.sin, math.cos),
        (lambda x: x + 1, lambda x: x + 2),
        (closing_over(1), closing_over(2)),
        (None, False),
    ],
    ids=lambda value: getattr(value, "__qualname__", type(value).__name__),
)
def test_closed_over_values_count(one: Any, other: Any) -> None:
    assert source_digest(closing_over(one)) == source_digest(closing_over(one))
    assert source_digest(closing_over(one)) != source_digest(closing_over(other))


def test_sets_and_cycles_have_one_digest() -> None:
    cycle = Plan(1)
    cycle.inner = cycle
    assert source_digest(closing_over(cycle)) == source_digest(closing_over(cycle))
    assert source_digest(closing_over({"b", "a"})) == source_digest(closing_over({"a", "b"}))


def test_members_of_a_set_count_by_their_source() -> None:
    def one() -> int:
        return 1

    members = {one, len}

    def factory(tile: int) -> Any:
        return members

    assert "return 1" in "".join(transcript(factory).values())
    assert " at 0x" not in "".join(transcript(factory).values())


def test_a_cached_helper_counts_by_its_source() -> None:
    @functools.lru_cache
    def helper(tile: int) -> int:
        return 2 * tile

    def factory(tile: int) -> Any:
        return helper(tile)

    assert any("return 2 * tile" in text for text in transcript(factory).values())


def test_a_constant_of_a_class_counts_by_value() -> None:
    class Sizes:
        tile = SIZE

    def factory(tile: int) -> Any:
        return Sizes.tile

    before = source_digest(factory)
    Sizes.tile = SIZE + 1
    assert source_digest(factory) != before


def test_a_value_that_contains_itself_is_an_error() -> None:
    endless: list[Any] = []
    endless.append(endless)

    def factory(tile: int) -> Any:
        return endless

    with pytest.raises(TuningError, match="contains itself"):
        source_digest(factory)


def test_a_function_that_calls_itself() -> None:
    def factory(depth: int) -> int:
        return factory(depth - 1) if depth else 0

    assert source_digest(factory) == source_digest(factory)


def test_a_value_without_a_stable_text_is_named() -> None:
    with pytest.raises(TuningError, match=r"factory > value is <object object at 0x") as caught:
        source_digest(closing_over(object()))
    assert "__repr__" in caught.value.remedy


def test_a_stable_repr_is_enough() -> None:
    class Sized:
        def __init__(self, size: int) -> None:
            self.size = size

        def __repr__(self) -> str:
            return f"Sized({self.size})"

    assert source_digest(closing_over(Sized(1))) == source_digest(closing_over(Sized(1)))
    assert source_digest(closing_over(Sized(1))) != source_digest(closing_over(Sized(2)))


def test_functions_without_a_file() -> None:
    digests = []
    for number in (1, 1, 2):
        namespace: dict[str, Any] = {}
        exec(f"def factory(tile):\n    return tile * {number}\n", namespace)
        digests.append(source_digest(namespace["factory"]))
    assert digests[0] == digests[1] != digests[2]
