"""The settings: the layers that a value can come from. Their table and the policies are in :mod:`.table`.

A setting is looked up when it is used, in this order: the innermost :func:`override` block, :func:`configure` or an
option of a command, the option ``warp_tiles_<name>`` of a Warp module, the environment variable ``WARP_TILES_<NAME>``,
``[tool.warp_tiles]`` of the nearest pyproject.toml, the default.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warp_tiles.errors import SettingError, shown, unless_signalled
from warp_tiles.settings.table import (
    COMMAND_LINE,
    DEFAULT,
    ENVIRONMENT,
    FORMER,
    OF_MODULE,
    OPTION_PREFIX,
    OWN,
    POLICIES,
    PREFIX,
    PROJECT_FILE,
    PROVIDER_ORDER,
    SETTINGS,
    Settings,
    require_absolute,
)
from warp_tiles.util.files import FileTooLargeError, read_whole

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from typing import Generic, Literal, TypeVar

    from typing_extensions import Never, TypedDict, Unpack

    Removed = TypeVar("Removed")  # None where a setting can be removed, else Never
    Folder = str | PathLike[str]

    class Keywords(TypedDict, Generic[Removed], total=False):
        """The keywords of ``configure()`` and ``override()``. A test compares them with the settings."""

        provider: Literal["auto", "own", "cublasdx", "libmathdx", "scalar"] | Removed
        mathdx_opt_out: Literal["auto", "own", "warp"] | Removed
        linker: Literal["auto", "own", "warp"] | Removed
        cache_dir: Folder | Removed
        cache_max_bytes: int | str | Removed
        cache_shared: bool | Removed
        build_wait_s: float | Removed
        trusted_project_dirs: Sequence[Folder] | Removed
        modules: Literal["auto", "tiles", "all"] | Removed
        remote: str | Removed
        remote_push: bool | Removed
        remote_wait_s: float | Removed
        bundle: Folder | Removed
        kernel_packages: str | Sequence[str] | Removed
        signing_key: Folder | Removed
        trusted_keys: Sequence[str] | Removed
        jobs: int | Removed
        progress: Literal["auto", "on", "off"] | Removed
        register_accumulators: bool | Removed
        gemm_gradients: Literal["auto", "always", "off"] | Removed
        solver_gradients: Literal["warp", "own"] | Removed
        main_loop: str | Removed
        async_copies: bool | Removed
        policy: Literal["off", "scalar", "fast", "auto", "max", "locked"] | Removed
        record_paths: Sequence[Folder] | Removed
        record_driver_mismatch: Literal["reuse", "retune"] | Removed
        target_gpu: str | Removed
        tune_budget_s: float | Removed


__all__ = [
    "COMMAND_LINE",
    "DEFAULT",
    "ENVIRONMENT",
    "FORCED",
    "OF_MODULE",
    "OPTION_PREFIX",
    "OWN",
    "POLICIES",
    "PROVIDER_ORDER",
    "SETTINGS",
    "Settings",
    "configure",
    "configure_by_option",
    "configured",
    "current",
    "from_environment",
    "from_options",
    "keep_start_list",
    "on_change",
    "override",
]

FORCED = f"{OPTION_PREFIX}forced"  # the option of a search, which is no setting

# with-blocks apply to the whole process, because Warp loads modules on its own threads
_configured: dict[str, tuple[Any, str]] = {}  # each value with its layer
_overrides: list[Mapping[str, Any]] = []
_listeners: list[Callable[[], None]] = []
_keeps_start_list = False

_MAX_BYTES = 1 << 20
_MOST_DOTS = 200
_NOT_IN_A_KEY = re.compile(rb"[^\w\"'. \t-]+")
# by path: modification time and size, and the table at that state
_read: dict[str, tuple[tuple[int, int], Mapping[str, Any] | None]] = {}


def _parsed(
    given: Mapping[str, Any],
    spell: Callable[[str], str],
    label: Callable[[str], str],
    unknown: Callable[[str], str],
    *,
    skip_none: bool = False,
    folder: Path | None = None,
) -> dict[str, Any]:
    """The typed values of a layer, by setting.

    Args:
        given: Its values, by the names that it uses.
        spell: The layer's name of a setting.
        label: A name in the messages of parsers.
        unknown: The message about unknown names.
        folder: The folder that relative paths are relative to; None if they are relative to the working folder, which
            those that decide about trust must not be.

    Raises a SettingError if a name or value is unknown, or a path is relative that must not be.
    """
    if not given:  # the usual case, also at each launch on a tape
        return {}
    names = {spell(name): name for name in SETTINGS}
    strangers = sorted(set(given) - set(names))
    if strangers:
        former = {spell(name): f"{text}. " for name, text in FORMER.items() if spell(name) in strangers}
        misspelt = [stranger.replace("-", "_") for stranger in strangers if stranger not in former]
        near = [match for stranger in misspelt for match in get_close_matches(stranger, names, 1)]
        meant = f"{''.join(former.values())}did you mean {' and '.join(near)}? " if near else "".join(former.values())
        raise SettingError(unknown(", ".join(strangers)), remedy=f"{meant}valid ones are {', '.join(names)}")
    values = {}
    for spelled, value in given.items():
        name = names[spelled]
        if not (value is None and skip_none):
            typed = SETTINGS[name].parse(label(spelled), value)
            values[name] = typed if folder is None else _resolve_paths(folder, typed)
            if SETTINGS[name].absolute:
                require_absolute(label(spelled), values[name])
    return values


def _of_keywords(given: Mapping[str, Any], layer: str, **how: Any) -> dict[str, Any]:
    return _parsed(
        given, str, lambda name: f"the setting {name} ({layer})", lambda names: f"unknown setting {names}", **how
    )


def from_environment(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings in environment variables.

    Raises a SettingError if a ``WARP_TILES_`` variable is unknown or has an unknown value.
    """
    environ = os.environ if environ is None else environ
    given = {variable: environ[variable] for variable in environ if variable.startswith(PREFIX)}
    return _parsed(
        given, lambda name: PREFIX + name.upper(), str, lambda names: f"unknown environment variable {names}"
    )


def from_options(options: Mapping[str, Any], module: str = "") -> dict[str, Any]:
    """The settings in the options of a Warp module. Options that are None are ignored.

    Raises a SettingError if an option that begins with ``warp_tiles_`` is unknown or has an unknown value.
    """
    given = {n: value for n, value in options.items() if n.startswith(OPTION_PREFIX) and n != FORCED}
    where = f"module {module}: option " if module else "the module option "
    return _parsed(
        given, OPTION_PREFIX.__add__, where.__add__, lambda names: f"{where}{names} is unknown", skip_none=True
    )


def from_project(trusted: Iterable[Path] = ()) -> tuple[str, dict[str, Any]]:
    """The nearest pyproject.toml with a table ``[tool.warp_tiles]``, and its settings; both are empty if there is none.

    Relative paths are relative to the file. Raises a SettingError if the file cannot be read, a name or value in the
    table is unknown, or the file sets something that only the user may set (``Setting.users_own``).
    """
    if (nearest := _nearest_project()) is None:
        return "", {}
    path, table = nearest
    refused = [name for name in table if name in SETTINGS and SETTINGS[name].users_own]
    if refused and os.path.realpath(path.parent) not in map(os.path.realpath, trusted):
        raise SettingError(
            f"{', '.join(refused)} in [tool.warp_tiles] of {path} is refused, because a file that came with a folder "
            "must not decide where code is loaded from, which compiler runs, which files are deleted or how long a "
            "program waits",
            remedy=f"set {', '.join(ENVIRONMENT[name] for name in refused)} yourself; or, if you trust this "
            f"file, {ENVIRONMENT['trusted_project_dirs']}={path.parent}",
        )
    where = f" in [tool.warp_tiles] of {path}"
    return str(path), _parsed(
        table,
        str,
        lambda name: name + where,
        lambda names: f"unknown setting {names} in [tool.warp_tiles] of {path}",
        folder=path.parent,
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
    trusted, _ = process.get("trusted_project_dirs", (environment.get("trusted_project_dirs", ()), ""))
    file, project_values = from_project(trusted)
    suffix = f" of module {module}" if module else ""
    layered: dict[str, tuple[Any, str]] = {name: (value, file) for name, value in project_values.items()}
    for name, value in environment.items():
        layered[name] = value, f"environment variable {ENVIRONMENT[name]}"
    for name, value in from_options(options or {}, module).items():
        layered[name] = value, f"{OF_MODULE} {OPTION_PREFIX}{name}{suffix}"
    layered.update(process)
    layers = tuple((name, layer) for name, (_, layer) in layered.items())
    return Settings(
        **{name: value for name, (value, _) in layered.items()},
        forced=str((options or {}).get(FORCED) or ""),
        deterministic=bool((options or {}).get("deterministic")),
        start_list=_keeps_start_list,
        layers=layers,
    )


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` after every change of a setting by :func:`configure` or :func:`override`."""
    if listener not in _listeners:
        _listeners.append(listener)


def _changed() -> None:
    for listener in tuple(_listeners):
        listener()


def keep_start_list(*, kept: bool) -> None:
    global _keeps_start_list
    _keeps_start_list = kept
    _changed()


def configure(**given: Unpack[Keywords[None]]) -> None:
    """Change settings of the process. They take precedence over those of modules. ``None`` removes a setting.

    Raises:
        SettingError: A name or value is unknown. Nothing is changed then.
    """
    _configure(given, "configure()")


def configure_by_option(name: str, value: Any) -> None:
    """Change a setting of the process as :func:`configure` does, for an option of a command."""
    _configure({name: value}, COMMAND_LINE)


def _configure(given: Mapping[str, Any], layer: str) -> None:
    checked = _of_keywords(given, layer, skip_none=True)
    for name, value in given.items():
        if value is None:
            _configured.pop(name, None)
    _configured.update({name: (value, layer) for name, value in checked.items()})
    _changed()


def configured(layer: str | None = None) -> dict[str, Any]:
    """The settings of a layer; by default from options of a command, :func:`configure`, and :func:`override` blocks."""
    return {name: value for name, (value, its) in _of_process().items() if layer in (None, its)}


def _of_process() -> dict[str, tuple[Any, str]]:
    """The settings above those of modules, each with its layer."""
    settings = dict(_configured)
    for block in tuple(_overrides):
        settings.update({name: (value, "override()") for name, value in block.items()})
    return settings


@contextlib.contextmanager
def override(**given: Unpack[Keywords[Never]]) -> Iterator[Settings]:
    """Change settings for a with-block, in every thread of the process. They take precedence over all others.

    Raises:
        SettingError: A name or value is unknown.
    """
    layer = _of_keywords(given, "override()")
    _overrides.append(layer)
    _changed()
    try:
        yield current()
    finally:
        _overrides[:] = [block for block in _overrides if block is not layer]
        _changed()


# ---- the table [tool.warp_tiles] of the nearest pyproject.toml


def _nearest_project() -> tuple[Path, Mapping[str, Any]] | None:
    """The first pyproject.toml with a table ``[tool.warp_tiles]``, from the working folder upwards.

    Another user's file in a world-writable folder, such as /tmp, is ignored, because it could name a cache with
    malicious code. Raises a SettingError if one of these files is not TOML, or its ``tool.warp_tiles`` is not a table.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:  # the working directory was removed
        return None
    while True:
        path = os.path.join(here, PROJECT_FILE)
        table = _table(path)
        if table is not None:
            return Path(path), table
        parent = os.path.dirname(here)
        if parent == here:
            return None
        here = parent


def _table(path: str) -> Mapping[str, Any] | None:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or _foreign(path, status):
            return None
        identity = (status.st_mtime_ns, status.st_size)
        known = _read.get(path)
        if known is None or known[0] != identity:
            _read[path] = known = (identity, _project_table(path, read_whole(path, _MAX_BYTES)[0]))
    except FileTooLargeError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}", remedy="make it smaller") from error
    except unless_signalled(OSError):  # there is no file, or it is not readable
        return None
    return known[1]


def _foreign(path: str, status: os.stat_result) -> bool:
    if not hasattr(os, "getuid") or status.st_uid in (0, os.getuid()):
        return False
    return bool(os.stat(os.path.dirname(path)).st_mode & stat.S_IWOTH)


def _project_table(path: str, data: bytes) -> Mapping[str, Any] | None:
    if not re.search(rb"warp[-_]tiles", data):  # no such table; the file need not even be TOML
        return None
    if any(part.count(b".") > _MOST_DOTS for part in _NOT_IN_A_KEY.split(data)):  # tomllib takes their square
        raise SettingError(f"{path} cannot be read: it has keys of hundreds of parts", remedy="make them shorter")
    try:
        tools = tomllib.loads(data.decode("utf-8")).get("tool", {})
        table, misnamed = tools.get("warp_tiles"), "warp-tiles" in tools
    except (ValueError, AttributeError, RecursionError) as error:
        raise SettingError(f"{path} cannot be read: {error}", remedy="make it valid TOML, in UTF-8") from error
    if misnamed:
        raise SettingError(f"{path} has a table [tool.warp-tiles], which nothing reads", "call it [tool.warp_tiles]")
    if table is not None and not isinstance(table, dict):
        raise SettingError(f"tool.warp_tiles in {path} is {shown(table)}", remedy="make it a table of settings")
    return table
