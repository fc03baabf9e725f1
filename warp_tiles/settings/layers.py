"""Every setting of warp_tiles, typed, in one place, and the layers that a value can come from.

A setting is looked up when it is used, from the inside out: the innermost :func:`override` block, what
:func:`configure` set, the option ``warp_tiles_<name>`` of a Warp module, the environment variable
``WARP_TILES_<NAME>``, ``[tool.warp_tiles]`` of the nearest pyproject.toml, the default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warp_tiles.errors import SettingError
from warp_tiles.settings import project_file, values
from warp_tiles.settings.policy import POLICIES, PROVIDER_ORDER, Policy

PREFIX = "WARP_TILES_"
OPTION_PREFIX = "warp_tiles_"  # of wp.set_module_options()
PROVIDERS = ("auto", *PROVIDER_ORDER)
LINKERS = ("auto", "own", "warp")
SWITCHES = ("auto", "on", "off")
DEFAULT = "default"  # the layer below all others


@dataclass(frozen=True)
class Settings:
    """One consistent set of settings, and where each value comes from.

    Attributes:
        provider: The provider that builds GEMM variants. ``auto`` tries own templates (``mma``), then the cuBLASDx
            headers, both through NVRTC, then Warp's own libmathdx build, then the scalar path. A named
            one is the only one tried, and its failing is an error; ``scalar`` leaves the GEMM of
            tile_cholesky's adjoint to Warp.
        linker: The linker of a module. ``auto`` links itself where every input allows it, and leaves
            the rest to Warp; ``own`` insists, ``warp`` never does.
        cache_dir: Folder of the LTO-IR cache.
        cache_max_bytes: Size above which least recently used entries are dropped.
        cache_shared: Accept a cache folder that other users can write.
        jobs: Compiler processes that run side by side; 0 means one per core.
        progress: Progress bar: ``auto`` on a terminal, ``on``, ``off``.
        loop_sums: Keep the sums of a loop of products in registers, and write C behind the loop.
        wide_moves: In functions with products, load tiles side by side and add gradients to arrays as vectors.
        policy: What may be built and tuned; docs/policy.md.
        background: Run on what builds in milliseconds while a slow build goes on in another process.
        record_paths: Folders of tuning records that are read before the user's own, and never written.
        stale_records: Records of another driver or Warp patch release: ``reuse`` or ``retune``.
        record_gpu: Name of the GPU whose records are used where there is none, as ``warp-tiles tune list`` shows it.
        tune_budget_s: Seconds that one search may take, in which it stops with the best so far; 0 for no limit.
        layers: The layer of each value that is no default, by name. Settings of equal values are equal.
    """

    provider: str = "auto"
    linker: str = "auto"
    cache_dir: Path | None = None
    cache_max_bytes: int = 4 * 1024**3
    cache_shared: bool = False
    jobs: int = 0
    progress: str = "auto"
    loop_sums: bool = True
    wide_moves: bool = True
    policy: str = "auto"
    background: bool = False
    record_paths: tuple[Path, ...] = ()
    stale_records: str = "reuse"
    record_gpu: str = ""
    tune_budget_s: float = 0.0
    layers: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    def layer(self, name: str) -> str:
        """Return the origin of the value of a setting, e.g. ``configure()`` or the path of a pyproject.toml."""
        return dict(self.layers).get(name, DEFAULT)

    def named(self, name: str) -> str:
        """A setting and its layer, for messages."""
        return f"the setting {name} ({self.layer(name)})"

    def remedy(self, name: str, value: str) -> str:
        """How a setting is changed in the layer that it comes from."""
        layer = self.layer(name)
        if layer.startswith("environment"):
            return f"set {ENVIRONMENT[name]}={value}"
        if layer.startswith("module option"):
            return f'set the {layer} to "{value}"'
        if layer in ("configure()", "override()"):
            return f'call {layer[:-1]}{name}="{value}")'
        return f'set {name} = "{value}" in {layer}'

    @property
    def rules(self) -> Policy:
        """The rules of the policy."""
        return POLICIES[self.policy]

    @property
    def providers(self) -> tuple[str, ...]:
        """Providers that are tried for a GEMM variant, in this order.

        Raises:
            SettingError: A provider is named that the policy forbids.
        """
        if self.provider == "auto":
            return self.rules.providers
        if self.provider not in self.rules.providers:
            allowed = ", ".join(("auto", *self.rules.providers))
            raise SettingError(
                f"the policy {self.policy!r} ({self.layer('policy')}) does not allow the provider "
                f"{self.provider!r} ({self.layer('provider')})",
                remedy=f"change one of the two; with this policy the provider can be {allowed}",
            )
        return (self.provider,)

    def fast_path(self) -> Settings:
        """Settings that a module uses while a slow build runs in the background: the policy ``fast``."""
        kept = tuple(item for item in self.layers if item[0] not in ("policy", "provider", "background"))
        layers = (*kept, ("policy", "while it is built in the background"))
        return dataclasses.replace(self, policy="fast", provider="auto", background=False, layers=layers)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Value and layer of every setting, as JSON values."""
        return {name: {"value": _plain(getattr(self, name)), "layer": self.layer(name)} for name in _PARSERS}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "provider": values.choice(*PROVIDERS),
    "linker": values.choice(*LINKERS),
    "cache_dir": values.path,
    "cache_max_bytes": values.parse_size,
    "cache_shared": values.flag,
    "jobs": values.count,
    "progress": values.choice(*SWITCHES),
    "loop_sums": values.flag,
    "wide_moves": values.flag,
    "policy": values.choice(*POLICIES),
    "background": values.flag,
    "record_paths": values.paths,
    "stale_records": values.choice("reuse", "retune"),
    "record_gpu": values.text,
    "tune_budget_s": values.seconds,
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


def _checked(given: Mapping[str, Any], layer: str) -> dict[str, Any]:
    _refuse_unknown(given)
    return {name: _PARSERS[name](f"the setting {name} ({layer})", value) for name, value in given.items()}


def from_environment(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Settings that the environment names.

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
    """Settings that the options of a Warp module name; those that are None name nothing.

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


def from_project() -> tuple[str, dict[str, Any]]:
    """The nearest pyproject.toml with a table ``[tool.warp_tiles]``, and what it sets; empty where there is none.

    Relative paths are relative to the file.

    Raises:
        SettingError: The file cannot be read, or a name or value in the table is unknown.
    """
    found = project_file.find()
    if found is None:
        return "", {}
    path, table = found
    unknown = sorted(set(table) - set(_PARSERS))
    if unknown:
        raise SettingError(
            f"unknown setting {', '.join(unknown)} in [tool.warp_tiles] of {path}",
            remedy=f"valid settings are {', '.join(_PARSERS)}",
        )
    typed = {name: _PARSERS[name](f"{name} in [tool.warp_tiles] of {path}", value) for name, value in table.items()}
    return str(path), {name: _below(path.parent, value) for name, value in typed.items()}


def _below(folder: Path, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_below(folder, item) for item in value)
    return folder / value if isinstance(value, Path) else value


def current(options: Mapping[str, Any] | None = None, module: str = "") -> Settings:
    """The settings in force here and now.

    Args:
        options: Options of the Warp module that they are for; None for the process.
        module: Its name, for messages.

    Raises:
        SettingError: A layer holds an unknown name or value.
    """
    file, of_project = from_project()
    of_module = f" of module {module}" if module else ""
    found: dict[str, tuple[Any, str]] = {name: (value, file) for name, value in of_project.items()}
    for name, value in from_environment().items():
        found[name] = value, f"environment variable {ENVIRONMENT[name]}"
    for name, value in from_options(options or {}, module).items():
        found[name] = value, f"module option {OPTION_PREFIX}{name}{of_module}"
    found.update({name: (value, "configure()") for name, value in tuple(_configured.items())})
    for block in tuple(_overrides):
        found.update({name: (value, "override()") for name, value in block.items()})
    layers = tuple((name, layer) for name, (_, layer) in found.items())
    return Settings(**{name: value for name, (value, _) in found.items()}, layers=layers)


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` after every change of a setting by code."""
    if listener not in _listeners:
        _listeners.append(listener)


def _changed() -> None:
    for listener in tuple(_listeners):
        listener()


def configure(**given: Any) -> None:
    """Set settings for the process, above those of modules; ``None`` takes one back.

    Raises:
        SettingError: A name or value is unknown; nothing is changed then.
    """
    checked = _checked({name: value for name, value in given.items() if value is not None}, "configure()")
    removed = [name for name, value in given.items() if value is None]
    _refuse_unknown(removed)
    for name in removed:
        _configured.pop(name, None)
    _configured.update(checked)
    _changed()


@contextlib.contextmanager
def override(**given: Any) -> Iterator[Settings]:
    """Settings for a with-block, above all others, for every thread of the process.

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
