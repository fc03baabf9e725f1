"""The digest of a source changes if the kernel changes, and only then."""

import dataclasses
import enum
import functools
import math
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.speed.builds import import_kernels
from tests.interpreter import python
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
        module = import_kernels(path, name)
    return module


def digest_of(module: types.ModuleType) -> str:
    return source_digest(module.factory, module.dim)


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("SIZE = 4", "SIZE = 5", True),
        ("[1, 2]", "[1, 3]", True),
        ("np.arange(3.0)", "np.arange(4.0)", True),
        ("DTYPE = wp.float32", "DTYPE = wp.float16", True),
        ("wp.constant(7)", "wp.constant(8)", True),
        ("x * 2.0", "x * 3.0", True),
        ("gain: float", "gain: int", True),
        ("gain: float", "gain: float\n    loss: float", True),
        ("extra=3", "extra=4", True),
        ("i = wp.tid()", "i = wp.tid() + 0", True),
        ("return value * helper", "return 1 + value * helper", True),
        ('// config["tile"]', '* config["tile"]', True),
        ("@decorate(1)\ndef factory", "@decorate(\n    1,\n    2,\n)\ndef factory", False),
        ("UNUSED = 1", "UNUSED = 2", False),
        ("def decorate", "\n\n\ndef decorate", False),
        ("return kernel\n", "return kernel\n\n\nMORE = [1,\n]\n", False),
    ],
)
def test_inputs_of_the_kernel_count_and_other_text_does_not(tmp_path: Path, old: str, new: str, counts: bool) -> None:
    assert old in BASE
    before = digest_of(load(tmp_path / "a"))
    changed = digest_of(load(tmp_path / "b", BASE.replace(old, new), HELPER if counts else "FACTOR = 2\nOTHER = 5\n"))
    assert (changed != before) is counts


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
    assert python("-c", code, tmp_path).stdout.split()[-1] == here


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


class Sized:
    """Has a stable text, and a constant."""

    tile = SIZE

    def __init__(self, size: int) -> None:
        self.size = size

    def __repr__(self) -> str:
        return f"Sized({self.size})"


def without_a_file(number: int) -> Any:
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(f"def factory(tile):\n    return tile * {number}\n", namespace)
    return namespace["factory"]


@functools.lru_cache
def cached(tile: int) -> int:
    return 2 * tile


def calls_itself(depth: int) -> int:
    return calls_itself(depth - 1) if depth else cached(depth)


CYCLE = Plan(1)
CYCLE.inner = CYCLE


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
        (CYCLE, Plan(1)),
        (Sized(1), Sized(2)),
        (np.float32(1), np.float32(2)),
        (np.zeros(3), np.zeros(3, np.float32)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (math.sin, math.cos),
        (lambda x: x + 1, lambda x: x + 2),
        (closing_over(1), closing_over(2)),
        (without_a_file(1), without_a_file(2)),
        (calls_itself, cached),
        (functools.partial(cached, 1), functools.partial(cached, 2)),
        (None, False),
    ],
    ids=lambda value: getattr(value, "__qualname__", type(value).__name__),
)
def test_closed_over_values_count(one: Any, other: Any) -> None:
    assert source_digest(closing_over(one)) == source_digest(closing_over(one))
    assert source_digest(closing_over(one)) != source_digest(closing_over(other))


def test_members_of_a_set_and_cached_helpers_count_by_their_source() -> None:
    found = "".join(transcript(closing_over({cached, len})).values())
    assert "return 2 * tile" in found
    assert " at 0x" not in found
    assert "return 2 * tile" in "".join(transcript(calls_itself).values())
    assert source_digest(closing_over({"b", "a"})) == source_digest(closing_over({"a", "b"}))


def test_a_constant_of_a_class_counts_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def factory(tile: int) -> Any:
        return Sized.tile

    before = source_digest(factory)
    monkeypatch.setattr(Sized, "tile", SIZE + 1)
    assert source_digest(factory) != before


def test_a_value_without_a_stable_text_or_an_end_is_named() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TuningError, match="contains itself"):
        source_digest(closing_over(endless))
    with pytest.raises(TuningError, match=r"factory > value is <object object at 0x") as caught:
        source_digest(closing_over(object()))
    assert "__repr__" in caught.value.remedy
