"""Errors: their parts and pickling."""

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warp_tiles
from warp_tiles import errors
from warp_tiles.errors import WarpTilesError
from warp_tiles.util.trusted_folder import RefusedFolderError

CLASSES = [
    value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, WarpTilesError)
]  # in the order of the file


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "RefusedFolderError": (Path("/folder"), "others can write it"),
    "StandardOutputError": (OSError(28, "No space left on device"),),
}


def every_exception() -> list[type[BaseException]]:
    """Every class of exceptions of this package, private ones included."""
    found = {}
    for module in pkgutil.walk_packages(warp_tiles.__path__, "warp_tiles."):
        if not module.name.endswith("__main__"):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and issubclass(value, BaseException):
                    found[f"{value.__module__}.{value.__qualname__}"] = value
    return [cls for name, cls in sorted(found.items()) if name.startswith("warp_tiles.")]


def test_every_exception_of_the_package_can_be_pickled() -> None:
    """It may come from a worker, a child or an executor of the user."""
    classes = every_exception()
    assert {RefusedFolderError, *CLASSES} < set(classes)
    for cls in classes:
        error = cls(*ARGUMENTS.get(cls.__name__, ("what failed",)))
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back), list(vars(back))) == (cls, str(error), list(vars(error)))


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
@pytest.mark.parametrize("cls", CLASSES)
def test_copies_keep_class_and_parts(cls: type[WarpTilesError], again: Callable[[WarpTilesError], Any]) -> None:
    back = again(cls("what {failed} \u00e9", remedy="r", log="line 1\nline 2\n"))
    assert (type(back), back.message, back.remedy, back.log) == (cls, "what {failed} \u00e9", "r", "line 1\nline 2\n")


def test_the_text_holds_all_parts_of_the_error() -> None:
    assert str(WarpTilesError("message")) == "message"
    assert str(WarpTilesError("message", remedy="r")) == "message\nRemedy: r"
    assert str(WarpTilesError("message", log="one\ntwo\n\n")) == "message\nLog:\none\ntwo"
    assert str(WarpTilesError("message", remedy="r", log="one")) == "message\nRemedy: r\nLog:\none"


def test_errors_can_be_caught_as_builtin_exceptions() -> None:
    for name in ("SettingError", "BundleError", "MatmulError"):
        assert issubclass(getattr(errors, name), ValueError)
    for name in ("UnsupportedWarpError", "ToolchainError", "PlanError", "BuildError", "LinkError", "ScriptError"):
        assert issubclass(getattr(errors, name), RuntimeError)
