"""Digest of the functions that make a tuned kernel. Functions with one digest make the same kernels.

Warp's hash of one of the kernels covers what that kernel refers to: ``wp.func``, structs, constants, types. Other
configurations may take other branches, so the text of the functions counts too, with the Python functions and the plain
values that it names, recursively. Functions of installed packages are left out.
"""

from __future__ import annotations

import inspect
import json
import linecache
import re
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from warp_tiles.store.key import CacheKey

_DEFINITION = re.compile(r"\s*(async\s+)?def\s")
_INSTALLED = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def source_digest(kernel: str, *functions: Callable[..., Any]) -> str:
    """SHA-256, in hexadecimal, over functions and a kernel that they make. Decorators do not count.

    Args:
        kernel: Warp's hash of a kernel.
        functions: The functions.
    """
    return CacheKey.of({"kernel": kernel, **transcript(*functions)}).digest


def transcript(*functions: Callable[..., Any]) -> dict[str, str]:
    """Returns the texts of functions, and of the functions and values that they name, by path of reference."""
    found: dict[str, str] = {}
    seen: set[types.FunctionType] = set()

    def add(path: str, function: types.FunctionType) -> None:
        seen.add(function)
        found[path] = _text(function)
        for name, value in _references(function):
            called = _function_of(value)
            if called is None:
                with suppress(TypeError, ValueError, RecursionError):  # only Warp's hash covers what JSON cannot hold
                    found[f"{path} > {name}"] = json.dumps(value, sort_keys=True)
            elif called not in seen and (_package(called) == _package(function) or not _is_installed(called)):
                add(f"{path} > {name}", called)

    for number, function in enumerate(functions):
        if (called := _function_of(function)) is not None:
            add(f"{number}", called)
    return found


def _function_of(value: Any) -> types.FunctionType | None:
    """The Python function behind a function, a ``wp.func``, a method or ``functools.partial``."""
    if not callable(value):
        return None
    found = inspect.unwrap(getattr(value, "func", getattr(value, "__func__", value)))
    return found if isinstance(found, types.FunctionType) else None


def _package(function: types.FunctionType) -> str:
    return str(function.__module__).partition(".")[0]


def _is_installed(function: types.FunctionType) -> bool:
    return function.__code__.co_filename.startswith(_INSTALLED)


def _references(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields default values, and what a function and its inner functions close over or name as globals."""
    code = function.__code__
    yield "defaults", [function.__defaults__, function.__kwdefaults__]
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        with suppress(ValueError):  # not assigned yet
            yield name, cell.cell_contents
    for name in sorted(_names(code) & function.__globals__.keys()):
        yield name, function.__globals__[name]


def _names(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(item) for item in code.co_consts if isinstance(item, types.CodeType)))


def _text(function: types.FunctionType) -> str:
    """Returns a function's lines without decorators; of a lambda its own part of the lines, since Python 3.11.

    If the source is missing, it is the byte code. Functions are not parsed, because the first launch waits for this.
    """
    code: Any = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    first, end = code.co_firstlineno - 1, _last_line(code)
    if len(lines) < end:
        return f"{code.co_code.hex()} {[item for item in code.co_consts if not isinstance(item, types.CodeType)]}"
    if function.__name__ == "<lambda>":
        return _lambda_text(code, lines) if hasattr(code, "co_positions") else "".join(lines[first:end])
    first = next((number for number in range(first, end) if _DEFINITION.match(lines[number])), first)
    margin = len(lines[first]) - len(lines[first].lstrip())
    while end < len(lines) and lines[end][: margin + 1].strip() in ("", *")]}"):  # the rest of the last statement
        end += 1
    return "\n".join(line.rstrip() for line in textwrap.dedent("".join(lines[first:end])).splitlines() if line.strip())


def _last_line(code: types.CodeType) -> int:
    inner = [_last_line(item) for item in code.co_consts if isinstance(item, types.CodeType)]
    return max([line for _, _, line in code.co_lines() if line is not None] + inner)


def _lambda_text(code: Any, lines: list[str]) -> str:
    """Returns the arguments of a lambda, and the text that its instructions cover."""
    known = [position for position in code.co_positions() if None not in position and position[2:] != (0, 0)]
    first, start = min((line, column) for line, _, column, _ in known)
    last, end = max((line, column) for _, line, _, column in known)
    text = [line.encode() for line in lines[first - 1 : last]]  # columns count bytes
    text[-1] = text[-1][:end]
    text[0] = text[0][start:]
    return f"lambda {', '.join(code.co_varnames[: code.co_argcount])}: {b''.join(text).decode()}"
