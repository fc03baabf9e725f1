"""The public names, and imports without side effects."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warp_tiles
from warp_tiles import errors

ROOT = Path(__file__).resolve().parent.parent


def test_all_lists_the_exports() -> None:
    helpers = {"TYPE_CHECKING", "Any", "annotations", "import_module"}
    exported = {
        name
        for name in dir(warp_tiles)
        if not isinstance(getattr(warp_tiles, name), types.ModuleType)
        and (not name.startswith("_") or name == "__version__")
    }
    exported -= helpers
    assert exported == set(warp_tiles.__all__)


def test_all_is_sorted_and_has_no_duplicates() -> None:
    assert warp_tiles.__all__ == sorted(set(warp_tiles.__all__))


@pytest.mark.parametrize("name", warp_tiles.__all__)
def test_each_public_name_is_documented(name: str) -> None:
    value = getattr(warp_tiles, name)
    if callable(value):
        assert inspect.getdoc(value), f"{name} has no docstring"


# What a user's kernel takes may be anything; other objects are made by a function of the package.
UNTYPED = {"RecordedLaunch.set: value", "TunedKernel.launch: named"}
MADE_BY_FUNCTIONS = {"RecordedLaunch.__init__", "TunedKernel.__init__"}


def public_functions() -> Iterator[tuple[str, Callable[..., object]]]:
    """Public functions, and the methods, properties and constructors of public classes."""
    for name in warp_tiles.__all__:
        value = getattr(warp_tiles, name)
        if inspect.isfunction(value):
            yield name, value
        for member, given in vars(value).items() if inspect.isclass(value) else ():
            function = given.fget if isinstance(given, property) else getattr(given, "__func__", given)
            if inspect.isfunction(function) and (member == "__init__" or not member.startswith("_")):
                yield f"{name}.{member}", function


def test_an_editor_knows_the_types_of_the_public_functions() -> None:
    untyped = {
        f"{name}: {argument}"
        for name, function in public_functions()
        if name not in MADE_BY_FUNCTIONS
        for argument, kind in function.__annotations__.items()
        if kind in ("Any", "object")
    }
    assert untyped == UNTYPED


def test_every_error_is_public() -> None:
    public = {value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)}
    assert public <= {getattr(warp_tiles, name) for name in warp_tiles.__all__}


def test_lazy_names_are_listed_before_their_import(tmp_path: Path) -> None:
    code = (
        "import sys, warp_tiles; listed = dir(warp_tiles)\n"
        "print(set(warp_tiles.__all__) <= set(listed), 'warp_tiles.tuning' in sys.modules)\n"
        "from warp_tiles import autotune; print(autotune is warp_tiles.autotune, 'warp_tiles.tuning' in sys.modules)"
    )
    assert python(code, tmp_path).split() == ["True", "False", "True", "True"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'autotone'"):
        _ = getattr(warp_tiles, "autotone")  # noqa: B009  mypy would refuse the attribute


def python(code: str, folder: Path, **environment: str) -> str:
    """Output of a new process without the cache folders of this test run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WARP")}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**kept, "PYTHONPATH": str(ROOT), "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "c"), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout


def test_importing_is_inert(tmp_path: Path) -> None:
    # a .pth file of cuda-bindings adds an empty "cuda" at every start of Python
    code = (
        "import sys, json, threading; sys.dont_write_bytecode = True; before = set(sys.modules); import warp_tiles; "
        "print(json.dumps([sorted({m.split('.')[0] for m in set(sys.modules) - before}), threading.active_count()]))"
    )
    loaded, threads = json.loads(python(code, tmp_path))
    assert "warp_tiles" in loaded
    assert not {"warp", "cuda", "numpy", "rich", "filelock", "click"} & set(loaded)
    assert threads == 1
    assert list(tmp_path.iterdir()) == []


def test_enabling_loads_no_modules_for_building_or_drawing(tmp_path: Path) -> None:
    code = (
        "import sys, json, warp; warp.init(); before = set(sys.modules); import warp_tiles; warp_tiles.enable(); "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    environment = {"WARP_CACHE_PATH": str(tmp_path / "w"), "WARP_TILES_CACHE_DIR": str(tmp_path / "c")}
    loaded = set(json.loads(python(code, tmp_path, **environment).splitlines()[-1]))
    assert "warp_tiles._warp" in loaded
    assert not {"cuda", "rich", "filelock", "click", "multiprocessing"} & {name.split(".")[0] for name in loaded}
    tuning = {name for name in loaded if name.startswith("warp_tiles.tuning")}
    assert tuning == {"warp_tiles.tuning", "warp_tiles.tuning.snapshots"}  # snapshots imports the rest lazily
    assert not {name for name in loaded if name.startswith("warp_tiles.recorded")}
    building = ("gemm.choose", "codegen.loops", "build.module_build", "store.cache", "cli")
    building += ("compile.module", "compile.compiler", "compile.pool")
    assert all(importlib.util.find_spec(f"warp_tiles.{name}") for name in building)
    assert not {f"warp_tiles.{name}" for name in building} & loaded


def test_modules_that_launch_nothing_can_be_imported_without_warp_and_cuda(tmp_path: Path) -> None:
    modules = ["_warp", "cli.contribution", "recorded", "__main__"]
    choosers = {"matmul_choice", "matmul_problem", "matmul_rates", "solve_choice", "tensor_kernel"}  # of whole arrays
    files = Path(*warp_tiles.__path__, "array_products").glob("*.py")
    modules += [f"array_products.{file.stem}" for file in files if file.stem not in choosers]
    modules += [f"tuning.{name}" for name in ("corpus", "factory", "in_kernels", "kernel", "launches")]
    launching = [f"warp_tiles.{name}" for name in modules]
    code = (
        "import sys, pkgutil, importlib; sys.dont_write_bytecode = True; before = set(sys.modules); import warp_tiles\n"
        "def visit(path, prefix):\n"
        "    for found in pkgutil.iter_modules(path, prefix):\n"
        f"        if found.name not in {launching}:\n"
        "            module = importlib.import_module(found.name)\n"
        "            if found.ispkg:\n"
        "                visit(module.__path__, found.name + '.')\n"
        "visit(warp_tiles.__path__, 'warp_tiles.')\n"
        "print(*{m.split('.')[0] for m in set(sys.modules) - before} & {'warp', 'cuda', 'warp_tiles'})"
    )
    assert python(code, tmp_path).split() == ["warp_tiles"]
    assert list(tmp_path.iterdir()) == []


def refers_to_internals(node: ast.AST) -> bool:
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    return any(name.startswith("warp._src") for name in names) or (
        isinstance(node, ast.Attribute) and node.attr == "_src"
    )


def test_only_the_hooks_package_uses_warps_internals() -> None:
    package = ROOT / "warp_tiles"
    offenders = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(refers_to_internals(node) for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    }
    assert {Path(path).parts[0] for path in offenders} <= {"_warp"}


@pytest.mark.parametrize("name", ["plan", "report"])
def test_functions_that_need_the_hooks_raise_without_them(name: str) -> None:
    assert not warp_tiles.is_enabled()
    with pytest.raises(warp_tiles.PlanError, match="needs warp_tiles to be enabled") as caught:
        getattr(warp_tiles, name)(*(["__main__"] if name == "plan" else []))
    assert "warp_tiles.enable()" in caught.value.remedy


def test_no_module_that_a_command_imports_takes_the_place_of_a_public_function(tmp_path: Path) -> None:
    code = (
        "import warp_tiles, warp_tiles.cli, warp_tiles.reports.page, warp_tiles.reports.timeline\n"
        "print([name for name in ('plan', 'report', 'record', 'prefetch') if not callable(getattr(warp_tiles, name))])"
    )
    assert python(code, tmp_path).split() == ["[]"]


@pytest.mark.parametrize("start", ["\0", "a\0b", 0, True, 1.5, b"record", "", "\ud800", Path.cwd(), []])
def test_a_start_list_that_is_no_file_is_refused(start: Any) -> None:
    with pytest.raises(errors.SettingError, match=r"^start is "):
        warp_tiles.enable(start=start)
    assert not warp_tiles.is_enabled()


@pytest.mark.parametrize("value", [np.ones(3), np.ones(1), ["auto"], None.__class__, 1.0])
def test_a_setting_with_a_list_of_values_refuses_what_is_no_word(value: Any) -> None:
    for name in ("policy", "provider", "linker"):
        with pytest.raises(errors.SettingError, match=name):
            warp_tiles.configure(**{name: value})


@pytest.mark.parametrize("block_dim", ["x", 0, -1, True, 1.5, 4096])
def test_a_prefetch_refuses_blocks_that_cannot_be_launched(block_dim: Any) -> None:
    with warp_tiles.enabled(), pytest.raises(errors.PlanError, match="block_dim is"):
        warp_tiles.prefetch(block_dim=block_dim)
