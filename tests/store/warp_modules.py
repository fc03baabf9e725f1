"""Sources of modules without products, and what is compiled and kept of them."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import warp as wp
from click.testing import CliRunner

import warp_tiles
from warp_tiles._warp.lookups import exact_hashes
from warp_tiles.build.start_list import StartModule, read_start_list
from warp_tiles.cli import commands
from warp_tiles.store import MODULES
from warp_tiles.store.cache import Cache

PLAIN = """
N = wp.constant({value})

@wp.func
def f(x: float, n: int):
    s = float(0.0)
    for i in range(n):
        s += wp.sin(x * float(i))
    return s

@wp.kernel
def plain(x: wp.array(dtype=float), y: wp.array(dtype=float)):
    i = wp.tid()
    y[i] = {expression}
"""
TEXTS = {
    "functions and adjoints": PLAIN.format(value=3, expression="f(x[i], N)"),
    "an assertion": PLAIN.format(value=3, expression="x[i]\n    assert x[i] > 0.0"),
    "output and atomics": PLAIN.format(value=3, expression='wp.atomic_add(y, 0, 1.0)\n    wp.printf("%d", N)'),
    "a tile": """
@wp.kernel(enable_backward=False)
def plain(x: wp.array(dtype=float), y: wp.array(dtype=float)):
    wp.tile_store(y, wp.tile_load(x, shape=64) * 2.0)
""",
    "a struct": """
@wp.struct
class S:
    a: wp.vec3
    b: wp.mat33

@wp.kernel
def plain(x: wp.array(dtype=S), y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    y[i] = x[i].b * x[i].a
""",
    "a snippet": """
@wp.func_native("// # include <nothing>\\nreturn x * 2.0f;")
def twice(x: float) -> float: ...

@wp.kernel
def plain(x: wp.array(dtype=float)):
    x[0] = twice(x[0])
""",
}
Files = dict[str, bytes]


def text(value: object = 3, expression: str = "x[i] * float(N)") -> str:
    return PLAIN.format(value=value, expression=expression)


@contextmanager
def enabled(cache: Path, *, start: Path | str | None = None, jobs: int = 1) -> Iterator[None]:
    """warp_tiles with a cache through which every module passes, and with a start list if one is named."""
    with warp_tiles.override(cache_dir=cache, modules="all", jobs=jobs), warp_tiles.enabled(start=start):
        yield


def compiled(module: Any, folder: Path, **given: Any) -> Files:
    """What Warp writes for a module ahead of time."""
    wp.compile_aot_module(module, module_dir=folder, **{"arch": 90, **given})
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def records() -> list[dict[str, Any]]:
    return [record for record in warp_tiles.report()["modules"] if "output" in record]


def entries(folder: Path) -> list[dict[str, str]]:
    """The transcripts of all entries, by label."""
    found = Cache(folder / "cache", MODULES).entries()
    return [{field.label: field.shown for field in item.manifest.key.fields} for item in found]


def exact(module: ModuleType) -> list[str]:
    """What a start key adds to Warp's hashes of the kernels."""
    found = wp.get_module(module.__name__)
    found.get_module_hash(64)
    return [line.split()[1] for line in exact_hashes(found.hashers[64])]


def warm(*arguments: object, status: int = 0, **environment: object) -> str:
    """Run ``warp-tiles warm`` in this process, and return what it prints."""
    given = {name: str(value) for name, value in environment.items()}
    found = CliRunner().invoke(commands, ["warm", *map(str, arguments)], env={"WARP_TILES_JOBS": "1", **given})
    assert found.exit_code == status, found.output
    return found.stdout


def rewrite(file: Path, *modules: StartModule) -> None:
    """Put other modules into a start list."""
    file.write_bytes(dataclasses.replace(read_start_list(file), modules=modules).to_bytes())
