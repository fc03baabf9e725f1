"""The digest of a source changes if the kernel changes, and only then."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warp as wp

from warp_tiles._warp.searches import kernel_digest
from warp_tiles.tuning.source import source_digest, transcript

SIZE = 4
BASE = """
import warp as wp
import helper_module

SIZE = 4
UNUSED = 1
TABLE = {"a": [1, 2], "b": (3.5, None)}
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
    table = TABLE

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
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def digest_of(module: types.ModuleType) -> str:
    return source_digest(kernel_digest(module.factory(8)), inspect.unwrap(module.factory), module.dim)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SIZE = 4", "SIZE = 5"),
        ("[1, 2]", "[1, 3]"),
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
    found = transcript(load(tmp_path).factory)
    assert (found["0 > SIZE"], found["0 > TABLE"]) == ("4", '{"a": [1, 2], "b": [3.5, null]}')
    assert "return value *" in found["0 > scale"]
    assert "x * 2.0" in found["0 > twice"]
    assert found["0"].startswith("def factory(")
    assert "0 > UNUSED" not in found


def test_another_process_computes_the_same_digest(tmp_path: Path) -> None:
    here = digest_of(load(tmp_path))
    code = (
        "import inspect, sys; sys.path.insert(0, sys.argv[1]); import kernels_under_test as k\n"
        "from warp_tiles._warp.searches import kernel_digest; from warp_tiles.tuning.source import source_digest\n"
        "print(source_digest(kernel_digest(k.factory(8)), k.factory, k.dim))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout.split()[-1] == here


def test_a_build_does_not_change_the_digest(tmp_path: Path) -> None:
    text = BASE.replace(
        "    i = wp.tid()\n", "    i = wp.tid()\n        for k in range(2):\n            a[k] = wp.static(float(k))\n"
    )
    module = load(tmp_path, text)
    before = digest_of(module)
    kernel = module.factory(8)
    wp.load_module(kernel.module, device="cpu")
    assert kernel.adj.deferred_static_expressions, "the build resolves no expression"
    assert digest_of(module) == before


def closing_over(value: Any) -> Any:
    def factory() -> Any:
        return value

    return factory


def doubled(tile: int) -> int:
    return 2 * tile


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        ("1", 1),
        ({"a": 1}, {"a": 2}),
        (lambda x: x + 1, lambda x: x + 2),
        (closing_over(1), closing_over(2)),
        (functools.lru_cache(closing_over(1)), functools.lru_cache(closing_over(2))),
        (functools.partial(closing_over(1)), functools.partial(closing_over(2))),
        (None, False),
    ],
    ids=lambda value: getattr(value, "__qualname__", type(value).__name__),
)
def test_closed_over_values_count(one: Any, other: Any) -> None:
    assert transcript(closing_over(one)) == transcript(closing_over(one))
    assert transcript(closing_over(one)) != transcript(closing_over(other))


def test_values_without_a_text_do_not_count() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert (
        transcript(closing_over(object())) == transcript(closing_over(endless)) == transcript(closing_over(np.ones(1)))
    )


def test_functions_of_installed_packages_do_not_count() -> None:
    found = transcript(closing_over(textwrap.dedent), closing_over(doubled))
    assert "return 2 * tile" in found["1 > value"]
    assert "0 > value" not in found


def test_a_function_that_calls_itself() -> None:
    def factory(depth: int) -> int:
        return factory(depth - 1) if depth else 0

    assert list(transcript(factory)) == ["0", "0 > defaults"]


def test_functions_without_a_file() -> None:
    found = []
    for number in (1, 1, 2):
        namespace: dict[str, Any] = {}
        exec(f"def factory(tile):\n    return tile * {number}\n", namespace)
        found.append(transcript(namespace["factory"]))
    assert found[0] == found[1] != found[2]
