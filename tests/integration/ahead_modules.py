"""Modules that may be generated ahead of their launches, and what became of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import warp as wp

import warp_tiles
from tests.integration.helpers import load
from tests.store.test_start_list import MODULE
from warp_tiles._warp.internals import find
from warp_tiles.build.ahead import AheadModule
from warp_tiles.settings import Settings
from warp_tiles.store.key import CacheKey

PLAIN = """
N = {value}
{more}
@wp.kernel(enable_backward={backward})
def plain(out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = {expression}
"""
SLOW = " + ".join(f"wp.sin(out[i] * {i}.0 + float(N))" for i in range(60))

LATE = """
@wp.func
def late(x: float):
    for i in range(3):
        x += wp.static(evaluate(i))
    return x
"""
SEEN = f"seen = []\ndef evaluate(i): return seen.append(i) or float(i)\n{LATE}"


def plain(value: int = 1, expression: str = "float(N)", more: str = "", *, backward: bool = False) -> ModuleType:
    return load(PLAIN.format(value=value, expression=expression, more=more, backward=backward))


def warp_module(module: ModuleType) -> Any:
    return wp.get_module(module.__name__)


def found_at_load() -> list[bool]:
    return [record["found"] for record in warp_tiles.report()["modules"] if "output" in record]


def module_of(number: int, kilobytes: int = 100) -> AheadModule:
    key = CacheKey.of({"number": str(number)})
    module = replace(MODULE, name=f"m{number}", source="x" * (kilobytes * 1000))
    context = SimpleNamespace(settings=Settings(), remote=object())
    return AheadModule(module, key, None, context)  # type: ignore[arg-type]


@contextmanager
def generated() -> Iterator[list[str]]:
    """The modules whose code is generated in a block, in order."""
    names: list[str] = []
    builder = find("context").ModuleBuilder
    original = builder.codegen

    def codegen(self: Any, *given: Any, **named: Any) -> Any:
        names.append(self.module.name)
        return original(self, *given, **named)

    with mock.patch.object(builder, "codegen", codegen):
        yield names
