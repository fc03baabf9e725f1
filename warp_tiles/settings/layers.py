"""The layers that the value of a setting can come from, and its parser.

A setting is looked up when it is used, in this order: the innermost :func:`override` block, :func:`configure` or an
option of a command, the option ``warp_tiles_<name>`` of a Warp module, the environment variable ``WARP_TILES_<NAME>``,
``[tool.warp_tiles]`` of the nearest pyproject.toml, the default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warp_tiles.errors import SettingError
from warp_tiles.settings import project_file, values
from warp_tiles.settings.policy import POLICIES, PROVIDER_ORDER
from warp_tiles.settings.resolved import COMMAND_LINE, ENVIRONMENT, PREFIX, Settings

if TYPE_CHECKING:
    from typing_extensions import Never, Unpack

    from warp_tiles.settings.typed import Keywords

OPTION_PREFIX = "warp_tiles_"  # for wp.set_module_options()
PROVIDERS = ("auto", *PROVIDER_ORDER)
LINKERS = ("auto", "own", "warp")
SWITCHES = ("auto", "on", "off")


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "provider": values.choice(*PROVIDERS),
    "without_mathdx": values.choice("warp", "own"),
    "linker": values.choice(*LINKERS),
    "cache_dir": values.path,
    "cache_max_bytes": values.parse_size,
    "cache_shared": values.flag,
    "build_wait_s": values.seconds,
    "trusted_projects": values.absolute_paths,
    "cache_modules": values.flag,
    "remote": values.store_url,
    "remote_push": values.flag,
    "remote_wait_s": values.wait_seconds,
    "bundle": values.path,
    "signing_key": values.path,
    "trusted_keys": values.public_keys,
    "jobs": values.count,
    "precompile_headers": values.flag,
    "prefetch": values.flag,
    "progress": values.choice(*SWITCHES),
    "loop_sums": values.flag,
    "whole_gradients": values.choice("auto", "always", "off"),
    "main_loop": values.main_loop,
    "wide_moves": values.flag,
    "policy": values.choice(*POLICIES),
    "background": values.flag,
    "record_paths": values.paths,
    "stale_records": values.choice("reuse", "retune"),
    "record_gpu": values.text,
    "tune_budget_s": values.seconds,
    "nvtx": values.flag,
}

# with-blocks apply to the whole process, because Warp loads modules on its own threads
_configured: dict[str, tuple[Any, str]] = {}  # each value with its layer
_overrides: list[Mapping[str, Any]] = []
_listeners: list[Callable[[], None]] = []


def _refuse_unknown(names: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(_PARSERS))
    if unknown:
        raise SettingError(f"unknown setting {', '.join(unknown)}", remedy=f"valid settings are {', '.join(_PARSERS)}")


def _checked(given: Mapping[str, Any], layer: str) -> dict[str, Any]:
    _refuse_unknown(given)
    return {name: _PARSERS[name](f"the setting {name} ({layer})", value) for name, value in given.items()}


def from_environment(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings in environment variables.

    Raises:
        SettingError: A ``WARP_TILES_`` variable is unknown or has an unknown value.
    """
    environ = os.environ if environ is None else environ
    names = {variable: name for name, variable in ENVIRONMENT.items()}
    found = [variable for variable in environ if variable.startswith(PREFIX)]
    unknown = sorted(set(found) - set(names))
    if unknown:
        raise SettingError(
            f"unknown environment variable {', '.join(unknown)}", remedy=f"valid ones are {', '.join(names)}"
        )
    return {names[variable]: _PARSERS[names[variable]](variable, environ[variable]) for variable in found}


def from_options(options: Mapping[str, Any], module: str = "") -> dict[str, Any]:
    """The settings in the options of a Warp module. Options that are None are ignored.

    Args:
        options: All options of the module.
        module: Its name, for messages.

    Raises:
        SettingError: An option that begins with ``warp_tiles_`` is unknown or has an unknown value.
    """
    found = {name[len(OPTION_PREFIX) :]: value for name, value in options.items() if name.startswith(OPTION_PREFIX)}
    where = f"module {module}: option {OPTION_PREFIX}" if module else f"the module option {OPTION_PREFIX}"
    unknown = sorted(set(found) - set(_PARSERS))
    if unknown:
        raise SettingError(
            f"{where}{unknown[0]} is unknown",
            remedy=f"valid ones are {', '.join(OPTION_PREFIX + name for name in _PARSERS)}",
        )
    return {name: _PARSERS[name](f"{where}{name}", value) for name, value in found.items() if value is not None}


def from_project(trusted: Iterable[Path] = ()) -> tuple[str, dict[str, Any]]:
    """The nearest pyproject.toml with a table ``[tool.warp_tiles]``, and its settings; both are empty if there is none.

    Relative paths are relative to the file.

    Args:
        trusted: Folders whose file may set everything.

    Raises:
        SettingError: The file cannot be read, a name or value in the table is unknown, or the file sets something that
            only the user may set (:data:`project_file.USERS_OWN`), or a wait that is too long for such a file.
    """
    found = project_file.find()
    if found is None:
        return "", {}
    path, table = found
    is_trusted = project_file.is_trusted(path, trusted)
    refused = [name for name in project_file.USERS_OWN if name in table]
    if refused and not is_trusted:
        raise SettingError(
            f"{', '.join(refused)} in [tool.warp_tiles] of {path} is refused, because a file that came with a folder "
            "must not decide where code is loaded from, which compiler runs or which files are deleted",
            remedy=_consent(path, refused),
        )
    unknown = sorted(set(table) - set(_PARSERS))
    if unknown:
        raise SettingError(
            f"unknown setting {', '.join(unknown)} in [tool.warp_tiles] of {path}",
            remedy=f"valid settings are {', '.join(_PARSERS)}",
        )
    typed = {name: _PARSERS[name](f"{name} in [tool.warp_tiles] of {path}", value) for name, value in table.items()}
    for name, most_s in project_file.LONGEST_WAITS_S.items():
        if name in typed and not is_trusted and not 0 < typed[name] <= most_s:
            raise SettingError(
                f"{name} in [tool.warp_tiles] of {path} is {table[name]!r}, and a file that came with a folder may set "
                f"more than 0 and at most {most_s:g} seconds",
                remedy=_consent(path, [name]),
            )
    return str(path), {name: _resolve_paths(path.parent, value) for name, value in typed.items()}


def _consent(path: Path, names: Iterable[str]) -> str:
    """How a user allows what a project file must not set by itself."""
    return (
        f"set {', '.join(ENVIRONMENT[name] for name in names)} yourself; or, if you trust this file, "
        f"{ENVIRONMENT['trusted_projects']}={path.parent}"
    )


def _resolve_paths(folder: Path, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_resolve_paths(folder, item) for item in value)
    return folder / value if isinstance(value, Path) else value


def current(options: Mapping[str, Any] | None = None, module: str = "") -> Settings:
    """The current settings of a module or of the process.

    Args:
        options: Options of the Warp module; None for the settings of the process.
        module: Its name, for messages.

    Raises:
        SettingError: A layer holds an unknown name or value.
    """
    environment = from_environment()
    process = _of_process()
    trusted, _ = process.get("trusted_projects", (environment.get("trusted_projects", ()), ""))
    file, project_values = from_project(trusted)
    suffix = f" of module {module}" if module else ""
    found: dict[str, tuple[Any, str]] = {name: (value, file) for name, value in project_values.items()}
    for name, value in environment.items():
        found[name] = value, f"environment variable {ENVIRONMENT[name]}"
    for name, value in from_options(options or {}, module).items():
        found[name] = value, f"module option {OPTION_PREFIX}{name}{suffix}"
    found.update(process)
    layers = tuple((name, layer) for name, (_, layer) in found.items())
    return Settings(**{name: value for name, (value, _) in found.items()}, layers=layers)


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` after every change of a setting by :func:`configure` or :func:`override`."""
    if listener not in _listeners:
        _listeners.append(listener)


def _changed() -> None:
    for listener in tuple(_listeners):
        listener()


def configure(**given: Unpack[Keywords[None]]) -> None:
    """Change settings of the process. They take precedence over those of modules. ``None`` removes a setting.

    Raises:
        SettingError: A name or value is unknown. Nothing is changed then.
    """
    _configure(given, "configure()")


def configure_by_option(name: str, value: Any) -> None:
    """Change a setting of the process as :func:`configure` does, for an option of a command.

    Raises:
        SettingError: The value is unknown.
    """
    _configure({name: value}, COMMAND_LINE)


def _configure(given: Mapping[str, Any], layer: str) -> None:
    checked = _checked({name: value for name, value in given.items() if value is not None}, layer)
    removed = [name for name, value in given.items() if value is None]
    _refuse_unknown(removed)
    for name in removed:
        _configured.pop(name, None)
    _configured.update({name: (value, layer) for name, value in checked.items()})
    _changed()


def configured(layer: str | None = None) -> dict[str, Any]:
    """The settings from options of a command, from :func:`configure`, and from :func:`override` blocks above them.

    Args:
        layer: The only layer whose settings are returned; None for all of these.
    """
    return {name: value for name, (value, place) in _of_process().items() if layer in (None, place)}


def _of_process() -> dict[str, tuple[Any, str]]:
    """The settings above those of modules, each with its layer."""
    found = dict(_configured)
    for block in tuple(_overrides):
        found.update({name: (value, "override()") for name, value in block.items()})
    return found


@contextlib.contextmanager
def override(**given: Unpack[Keywords[Never]]) -> Iterator[Settings]:
    """Change settings for a with-block, in every thread of the process. They take precedence over all others.

    Raises:
        SettingError: A name or value is unknown.
    """
    layer = _checked(given, "override()")
    _overrides.append(layer)
    _changed()
    try:
        yield current()
    finally:
        _overrides[:] = [other for other in _overrides if other is not layer]
        _changed()


def defaults() -> dict[str, Any]:
    """Every setting with its default."""
    return {item.name: item.default for item in dataclasses.fields(Settings) if item.name in _PARSERS}
