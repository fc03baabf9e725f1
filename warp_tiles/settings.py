"""Every setting and environment variable of warp_tiles, typed, in one place.

A setting is looked up when it is used: first in the innermost :func:`override` block, then in what
:func:`configure` set, then in the environment; otherwise it has its default. For ``provider`` a Warp
module can have an option of its own, which lies between code and environment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warp_tiles.errors import SettingError

PREFIX = "WARP_TILES_"
PROVIDERS = ("auto", "mma", "cublasdx", "libmathdx", "scalar")
POLICIES = ("off", "scalar", "fast", "auto", "max", "locked")
MODULE_OPTION = "warp_tiles_provider"  # of wp.set_module_options()
LINKERS = ("auto", "own", "warp")
SWITCHES = ("auto", "on", "off")


@dataclass(frozen=True)
class Settings:
    """One consistent set of settings.

    Attributes:
        provider: Who builds GEMM variants. ``auto`` tries own templates (``mma``), then the cuBLASDx
            headers, both through NVRTC, then Warp's own libmathdx build, then the scalar path. A named
            one is the only one tried, and its failing is an error; ``scalar`` leaves the GEMM of
            tile_cholesky's adjoint to Warp.
        linker: Who links a module. ``auto`` links itself where every input allows it, and leaves
            the rest to Warp; ``own`` insists, ``warp`` never does.
        cache_dir: Folder of the LTO-IR cache.
        cache_max_bytes: Size above which least recently used entries are dropped.
        cache_shared: Accept a cache folder that other users can write.
        jobs: Compiler processes that run side by side, read at the first build; 0 means one per core.
        progress: Progress bar: ``auto`` on a terminal, ``on``, ``off``.
        loop_sums: Keep the sums of a loop of products in registers, and write C behind the loop.
        policy: What may be built and tuned; docs/policy.md.
        background: Run on what builds in milliseconds while a slow build goes on in another process.
        record_paths: Folders of tuning records that are read before the user's own, and never written.
        stale_records: Records of another driver or Warp patch release: ``reuse`` or ``retune``.
        record_gpu: Name of the GPU whose records are used where there is none, as ``warp-tiles tune list`` shows it.
        tune_budget_s: Seconds that one search may take, in which it stops with the best so far; 0 for no limit.
    """

    provider: str = "auto"
    linker: str = "auto"
    cache_dir: Path | None = None
    cache_max_bytes: int = 4 * 1024**3
    cache_shared: bool = False
    jobs: int = 0
    progress: str = "auto"
    loop_sums: bool = True
    policy: str = "auto"
    background: bool = False
    record_paths: tuple[Path, ...] = ()
    stale_records: str = "reuse"
    record_gpu: str = ""
    tune_budget_s: float = 0.0


@dataclass(frozen=True)
class ProviderChoice:
    """The provider that is asked for, and by what.

    Attributes:
        name: A value of the setting ``provider``.
        by: What names it, for messages.
    """

    name: str = "auto"
    by: str = "the default of the setting provider"


def _choice(*valid: str) -> Callable[[str, Any], str]:
    def parse(name: str, value: Any) -> str:
        if value not in valid:
            raise SettingError(f"{name} is {value!r}", remedy=f"valid values are {', '.join(valid)}")
        return str(value)

    return parse


def _path(name: str, value: Any) -> Path | None:
    if value is None or value == "":
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise SettingError(f"{name} is {value!r}", remedy="give the path of a folder")
    return Path(value).expanduser()


def _flag(name: str, value: Any) -> bool:
    known = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False, "": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() not in known:
        raise SettingError(f"{name} is {value!r}", remedy="valid values are 1, 0, true, false, on, off")
    return known[str(value).lower()]


def parse_size(name: str, value: Any) -> int:
    """Bytes from a number or a text such as ``500MB`` or ``4GiB``.

    Raises:
        SettingError: The text is not a size.
    """
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip().lower())
    if isinstance(value, bool) or match is None or match.group(2) not in units:
        raise SettingError(f"{name} is {value!r}", remedy="give bytes, or a number with kB, MB, GB, KiB, MiB or GiB")
    from decimal import Decimal  # takes longer to import than all else here

    return int(Decimal(match.group(1)) * units[match.group(2)])


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value)):
        raise SettingError(f"{name} is {value!r}", remedy="give a whole number, 0 for one per core")
    return int(value)


def _paths(name: str, value: Any) -> tuple[Path, ...]:
    if isinstance(value, str):
        value = value.split(os.pathsep)
    if isinstance(value, os.PathLike):
        value = [value]
    if not isinstance(value, Iterable):
        raise SettingError(f"{name} is {value!r}", remedy=f"give paths of folders, with {os.pathsep!r} between them")
    return tuple(path for path in (_path(name, item) for item in value) if path is not None)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SettingError(f"{name} is {value!r}", remedy="give a text")
    return value


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not re.fullmatch(r"\d+(\.\d*)?", str(value)):
        raise SettingError(f"{name} is {value!r}", remedy="give seconds, 0 for no limit")
    return float(value)


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "provider": _choice(*PROVIDERS),
    "linker": _choice(*LINKERS),
    "cache_dir": _path,
    "cache_max_bytes": parse_size,
    "cache_shared": _flag,
    "jobs": _count,
    "progress": _choice(*SWITCHES),
    "loop_sums": _flag,
    "policy": _choice(*POLICIES),
    "background": _flag,
    "record_paths": _paths,
    "stale_records": _choice("reuse", "retune"),
    "record_gpu": _text,
    "tune_budget_s": _seconds,
}
ENVIRONMENT = {name: PREFIX + name.upper() for name in _PARSERS}

# with-blocks hold for the whole process, because Warp loads modules on threads of its own
_configured: dict[str, Any] = {}
_overrides: list[Mapping[str, Any]] = []
_listeners: list[Callable[[], None]] = []


def _refuse_unknown(names: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(_PARSERS))
    if unknown:
        raise SettingError(f"unknown setting {', '.join(unknown)}", remedy=f"valid settings are {', '.join(_PARSERS)}")


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_unknown(values)
    return {name: _PARSERS[name](name, value) for name, value in values.items()}


def from_environment(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Settings that the environment names.

    Raises:
        SettingError: A ``WARP_TILES_`` variable is unknown or has an unknown value.
    """
    environ = os.environ if environ is None else environ
    names = {variable: name for name, variable in ENVIRONMENT.items()}
    found = {variable: value for variable, value in environ.items() if variable.startswith(PREFIX)}
    unknown = sorted(set(found) - set(names))
    if unknown:
        raise SettingError(
            f"unknown environment variable {', '.join(unknown)}", remedy=f"valid ones are {', '.join(names)}"
        )
    return {names[variable]: _PARSERS[names[variable]](variable, value) for variable, value in found.items()}


def current() -> Settings:
    """The settings in force here and now.

    Raises:
        SettingError: An environment variable is unknown or has an unknown value.
    """
    values = {**from_environment(), **_configured}
    for layer in tuple(_overrides):
        values.update(layer)
    return Settings(**values)


def provider_choice(option: object = None) -> ProviderChoice:
    """The provider in force for a Warp module.

    Code (:func:`override`, :func:`configure`) comes before the module's option, which comes before
    the environment.

    Args:
        option: The module's option ``warp_tiles_provider``; None if it has none.

    Raises:
        SettingError: The option or an environment variable has an unknown value.
    """
    if option is not None:
        option = _PARSERS["provider"](f"the module option {MODULE_OPTION}", option)
    for layer in (*reversed(tuple(_overrides)), _configured):
        if "provider" in layer:
            return ProviderChoice(layer["provider"], "the setting provider")
    if option is not None:
        return ProviderChoice(str(option), f"the module option {MODULE_OPTION}")
    found = from_environment()
    if "provider" in found:
        return ProviderChoice(found["provider"], f"the setting provider ({ENVIRONMENT['provider']})")
    return ProviderChoice()


def on_change(listener: Callable[[], None]) -> None:
    """Have ``listener`` called after every change of a setting by code."""
    if listener not in _listeners:
        _listeners.append(listener)


def _changed() -> None:
    for listener in tuple(_listeners):
        listener()


def configure(**values: Any) -> None:
    """Set settings for the process, above the environment; ``None`` takes one back.

    Raises:
        SettingError: A name or value is unknown; nothing is changed then.
    """
    checked = _checked({name: value for name, value in values.items() if value is not None})
    removed = [name for name, value in values.items() if value is None]
    _refuse_unknown(removed)
    for name in removed:
        _configured.pop(name, None)
    _configured.update(checked)
    _changed()


@contextlib.contextmanager
def override(**values: Any) -> Iterator[Settings]:
    """Settings for a with-block, above all others, for every thread of the process.

    Raises:
        SettingError: A name or value is unknown.
    """
    layer = _checked(values)
    _overrides.append(layer)
    _changed()
    try:
        yield current()
    finally:
        _overrides[:] = [other for other in _overrides if other is not layer]
        _changed()


def defaults() -> dict[str, Any]:
    """Every setting with its default."""
    return {item.name: item.default for item in dataclasses.fields(Settings)}
