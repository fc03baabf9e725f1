"""Digest of a function's source and of everything that it refers to. Functions with one digest make the same kernel.

The digest covers, recursively, the text of the function and the values that it closes over or names as globals: helper
functions, ``wp.func``, structs, constants, arrays. Functions and classes of installed packages and of the standard
library count by name and version.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import dataclasses
import enum
import functools
import hashlib
import inspect
import linecache
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from warp_tiles.errors import TuningError, unless_signalled
from warp_tiles.store.key import CacheKey

_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_ATTRIBUTES = re.compile(r"(?<![\w.])([A-Za-z_]\w*)((?:\s*\.\s*\w+)+)")
_DEFINITION = re.compile(r"\s*(async\s+)?def\s")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_SCALARS = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))
_CACHED = type(functools.lru_cache(lambda: None))
_INSTALLED = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def source_digest(*roots: Any) -> str:
    """SHA-256, in hexadecimal, over functions and what they refer to. Decorators of the roots do not count.

    Raises TuningError if a value that is referred to has no stable text; the message names it.
    """
    return CacheKey.of(transcript(*roots)).digest


def transcript(*roots: Any) -> dict[str, str]:
    """The texts that :func:`source_digest` hashes, by path of reference."""
    owners = {str(root.__module__).split(".")[0] for root in roots if isinstance(root, types.FunctionType)}
    walk = _Walk(owners - {"warp_tiles"})
    for root in roots:
        is_function = isinstance(root, types.FunctionType)
        value = inspect.unwrap(root) if is_function else root
        name = getattr(value, "__qualname__", type(value).__name__)
        try:
            walk.visit(name, value, walk.function(value, decorators=False) if is_function else None)
        except RecursionError as error:
            raise TuningError(
                f"{name} refers to a value that contains itself, or is nested too deeply",
                remedy="close over numbers, texts, functions or dataclasses",
            ) from error
    return walk.found


@dataclasses.dataclass(frozen=True)
class _Described:
    """What counts of a value: a text, and other values, described or not, with the ends of their paths.

    ``is_shared`` is True if a second reference to the object is recorded as one to the first.
    """

    text: str | None
    parts: Iterable[tuple[str, Any]] = ()
    is_shared: bool = False


class _Walk:
    def __init__(self, own: set[str]) -> None:
        self.own = own  # packages whose objects count by source even if they are installed
        self.found: dict[str, str] = {}
        # by the id of an object, the path of its first reference, and the object, so that its id stays unique
        self._visited: dict[int, tuple[str, Any]] = {}

    def visit(self, path: str, value: Any, described: _Described | None = None) -> None:
        if id(value) in self._visited:
            self.found[path] = f"as {self._visited[id(value)][0]}"
            return
        if described is None:
            described = value if isinstance(value, _Described) else self._described(path, value)
        if described.is_shared:
            self._visited[id(value)] = path, value
        if described.text is not None:
            self.found[path] = described.text
        for end, part in described.parts:
            self.visit(path + end, part)

    def _described(self, path: str, value: Any) -> _Described:
        if isinstance(value, enum.Enum):
            return _Described(f"{type(value).__qualname__}.{value.name} {value.value!r}")
        if isinstance(value, _SCALARS):
            return _Described(f"{type(value).__name__} {value!r}")
        if isinstance(value, types.ModuleType):
            return self._module(value, ())
        if isinstance(value, (tuple, list)):
            return _items(type(value).__name__, enumerate(value))
        if isinstance(value, Mapping):
            return _items("mapping", value.items())
        if isinstance(value, (set, frozenset)):
            return _items("set", enumerate(sorted(value, key=_order)))
        if isinstance(value, functools.partial):
            return _Described(None, [(" function", value.func), (" arguments", [value.args, value.keywords])])
        if isinstance(value, types.BuiltinFunctionType) or self._is_installed(_module_name(value)):
            return _installed_object(path, value)
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, _CACHED):
            return _Described(None, [(" function", value.__wrapped__)])
        if isinstance(value, types.MethodType):
            return _Described(None, [(" function", value.__func__), (" self", value.__self__)])
        if isinstance(value, type):
            return _class(value)
        if (python := _python_of(value)) is not None:
            return _warp_object(value, python)
        if dataclasses.is_dataclass(value):
            names = [item.name for item in dataclasses.fields(value)]
            parts = [(f".{name}", getattr(value, name)) for name in names]
            return _Described(type(value).__qualname__, parts, is_shared=True)
        return _Described(_stable_text(path, value))

    def function(self, function: types.FunctionType, *, decorators: bool = True) -> _Described:
        code, text = function.__code__, function_text(function, decorators)
        defaults = [*enumerate(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
        parts: list[tuple[str, Any]] = [(f" default {name}", default) for name, default in defaults]
        named: list[tuple[str, Any]] = []
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            with contextlib.suppress(ValueError):  # not assigned yet
                named.append((name, cell.cell_contents))
        known, names = function.__globals__, _global_names(code, text)
        named += [(name, known[name]) for name in names if known.get(name, function) is not function]
        for name, value in named:
            if isinstance(value, types.ModuleType):
                chains = {chain for owner, chain in _ATTRIBUTES.findall(text or "") if owner == name}
                used = [[part.strip() for part in chain.split(".")[1:]] for chain in sorted(chains)]
                value = self._module(value, used)
            parts.append((f" > {name}", value))
        return _Described(_bytecode(code) if text is None else text, parts, is_shared=True)

    def _module(self, module: types.ModuleType, chains: Sequence[Sequence[str]]) -> _Described:
        """A module counts by name. The attributes that are used count too, unless the module is installed."""
        parts: list[tuple[str, Any]] = []
        for chain in () if self._is_installed(module.__name__) else chains:
            value: Any = module
            for depth, attribute in enumerate(chain, 1):
                value = getattr(value, attribute, None)
                if not isinstance(value, types.ModuleType):
                    parts.append((f".{'.'.join(chain[:depth])}", value))
                    break
        return _Described(f"module {module.__name__}", parts)

    def _is_installed(self, name: str) -> bool:
        top = name.split(".")[0]
        if top in self.own or top == "__main__":
            return False
        if top in sys.stdlib_module_names or top in ("warp", "numpy", "warp_tiles"):
            return True
        file = getattr(sys.modules.get(top), "__file__", None) or ""
        return file.startswith(_INSTALLED)


def _items(kind: str, items: Iterable[tuple[Any, Any]]) -> _Described:
    parts = [(f"[{key!r}]", item) for key, item in items]
    return _Described(f"{kind} of {len(parts)}", parts)


def _installed_object(path: str, value: Any) -> _Described:
    """Functions and classes count by name and version, arrays by content, other instances by their text."""
    name = _module_name(value)
    version = getattr(sys.modules.get(name.split(".")[0]), "__version__", "")
    shape = getattr(value, "_shape_", None)  # Warp's vector and matrix types share their names
    scalar = getattr(getattr(value, "_wp_scalar_type_", None), "__name__", "")
    called = getattr(value, "__qualname__", None) or getattr(value, "key", None)
    if isinstance(called, str):
        return _Described(f"{name} {version} {called} {shape} {scalar}")
    if not hasattr(value, "dtype"):
        return _Described(_stable_text(path, value))
    if hasattr(value, "tobytes"):
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        return _Described(f"array {value.dtype} {getattr(value, 'shape', ())} {digest}")
    kind = f"{type(value).__name__} of {getattr(value, 'ndim', '')} dimensions"  # the annotation of a Warp array
    return _Described(kind, [(" dtype", value.dtype)])


def _class(value: type) -> _Described:
    try:
        text = ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(value))))
    except unless_signalled(OSError, TypeError, SyntaxError):
        text = f"class {value.__module__}.{value.__qualname__}"
    # the text does not show the value of a computed constant
    names = [name for name, item in vars(value).items() if isinstance(item, _SCALARS) and not name.startswith("__")]
    return _Described(text, [(f".{name}", vars(value)[name]) for name in names], is_shared=True)


def _warp_object(value: Any, python: Any) -> _Described:
    """A ``wp.func``, ``wp.kernel`` or ``wp.struct`` counts by Python source, native code, overloads and options."""
    text = f"{type(value).__name__} {getattr(value, 'key', '')} {getattr(value, 'options', '')}"
    is_struct, is_function = isinstance(python, type), isinstance(value, sys.modules["warp"].Function)
    parts = [(" fields", dict(python.__annotations__)) if is_struct else (" python", python)]
    for name in ("native_snippet", "adj_native_snippet", "replay_snippet", "custom_grad_func", "custom_replay_func"):
        if part := getattr(value, name, None):
            parts.append((f" {name}", _Described(part) if isinstance(part, str) else part))
    overloads = (getattr(value, "user_overloads", None) or {}) if is_function else {}
    parts += [(f" overload {signature}", overload) for signature, overload in sorted(overloads.items())]
    return _Described(text, parts, is_shared=True)


def _stable_text(path: str, value: Any) -> str:
    text = repr(value)
    if _ADDRESS.search(text):
        raise TuningError(
            f"{path} is {text}, and this text is not the same in every process",
            remedy="close over numbers, texts, functions or dataclasses, or give it a __repr__ without an address",
        )
    return f"{type(value).__qualname__} {text}"


def _order(value: Any) -> str:
    """Returns a text to sort by. It is the same in every process if the value has a name or a stable text."""
    return f"{type(value).__qualname__} {getattr(value, '__qualname__', None) or repr(value)}"


def _python_of(value: Any) -> Any:
    """The Python function or class of a Warp object, or None."""
    if type(value).__module__.split(".")[0] != "warp" or isinstance(value, type):
        return None
    for name in ("func", "cls"):
        python = getattr(value, name, None)
        if isinstance(python, (types.FunctionType, type)):
            return python
    return None


def _module_name(value: Any) -> str:
    """Returns the name of the module that defines a function, a class, or the type of another object."""
    python = _python_of(value)
    if python is not None:
        return str(python.__module__)
    own = getattr(value, "__module__", None)
    return str(own if isinstance(own, str) else type(value).__module__)


def function_text(function: types.FunctionType, decorators: bool = True) -> str | None:
    """Returns the lines of a function without margin and blank lines, or the body of a lambda; None without a source.

    Functions are not parsed, because the first launch waits for this.
    """
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if function.__name__ == "<lambda>":
        return _lambda_text(code, lines)
    first = code.co_firstlineno - 1
    if not lines[first : first + 1]:
        return None

    def margin(line: str) -> int:
        return len(line) - len(line.lstrip())

    end = _last_line(code)
    while end < len(lines) and (margin(lines[end]) > margin(lines[first]) or lines[end].strip()[:1] in ("", *")]}")):
        end += 1
    if not decorators:
        while first < end and not _DEFINITION.match(lines[first]):
            first += 1
    return "\n".join(line.rstrip() for line in textwrap.dedent("".join(lines[first:end])).splitlines() if line.strip())


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of those within it."""
    yield code
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            yield from _codes(item)


def _last_line(code: types.CodeType) -> int:
    return max(line for inner in _codes(code) for _, _, line in inner.co_lines() if line is not None)


def _lambda_text(code: types.CodeType, lines: list[str]) -> str | None:
    """Returns a lambda's arguments and body; before Python 3.11, whose code does not know its columns, its lines."""
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    whole = "".join(lines[code.co_firstlineno - 1 : _last_line(code)]) or None
    body = _segment(code, lines) if hasattr(code, "co_positions") else whole
    return None if body is None else f"lambda {', '.join(arguments)}: {' '.join(body.split())}"


def _segment(code: Any, lines: list[str]) -> str | None:
    """Returns the text that the instructions of an expression cover."""
    known = [position for position in code.co_positions() if None not in position and position[2:] != (0, 0)]
    if not known or not lines:
        return None
    first, start = min((line, column) for line, _, column, _ in known)
    last, end = max((line, column) for _, line, _, column in known)
    text = [line.encode() for line in lines[first - 1 : last]]  # columns count bytes
    text[-1] = text[-1][:end]
    text[0] = text[0][start:]
    return b"".join(text).decode()


def _global_names(code: types.CodeType, text: str | None) -> list[str]:
    """Returns the names of globals that a function may use, without attributes if its text is known."""
    used = {name for inner in _codes(code) for name in inner.co_names}
    plain = used if text is None else set(_NAME.findall(text))
    if text is not None and code.co_flags & __future__.annotations.compiler_flag:
        return sorted(plain - set(code.co_freevars))  # only the text has annotations
    return sorted(plain & used)


def _bytecode(code: types.CodeType) -> str:
    parts = [f"{sys.version_info[:2]}"]
    for inner in _codes(code):
        constants = [repr(item) for item in inner.co_consts if not isinstance(item, types.CodeType)]
        parts.append(f"{inner.co_code.hex()} {inner.co_names} {inner.co_varnames} {constants}")
    return " ".join(parts)
