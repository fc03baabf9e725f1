"""The table of settings, their parsers, and the policies. Names, layers, keys of modules and docs/settings.md follow.

:mod:`warp_tiles.settings` resolves the values.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from warp_tiles.errors import SettingError, shown, unless_signalled
from warp_tiles.gemm.rejected import Rejected

PREFIX = "WARP_TILES_"
OPTION_PREFIX = "warp_tiles_"  # for wp.set_module_options()
DEFAULT = "default"  # the layer below all others
OF_MODULE = "module option"  # the beginning of a layer
COMMAND_LINE = "command line"
PROJECT_FILE = "pyproject.toml"
OWN = "own"  # trust in the user's own cache alone
PROVIDER_ORDER = ("own", "cublasdx", "libmathdx", "scalar")


# ---- parsers
#
# Each takes the name for messages and a value of any layer. It returns the typed value, or raises a SettingError with
# the value and the remedy.

#: The largest number of parallel compiler processes; a larger setting means this one.
MAX_JOBS = 1024
_MAX_DIGITS = 18
_PUBLIC_KEY = re.compile(r"ed25519:[A-Za-z0-9+/]{43}=")
_FLAGS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False, "": False}
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _refused(name: str, value: Any, remedy: str, reason: str = "") -> SettingError:
    return SettingError(f"{name} is {shown(value, 200)}{reason or ', which is invalid'}", remedy=remedy)


def _printed(value: Any) -> str:
    """The text of a value; for one that Python does not print, a number of thousands of digits."""
    try:
        return "" if isinstance(value, bool) else str(value).strip()
    except (ValueError, RecursionError):
        return "9" * 5000


def choice(*valid: str, **former: str) -> Callable[[str, Any], str]:
    """A parser that accepts the given words, and names the present ones of former words."""

    def parse(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in valid:  # an array has no truth value
            renamed = f"it is now {former[value]!r}; " if isinstance(value, str) and value in former else ""
            raise _refused(name, value, f"{renamed}valid values are {', '.join(valid)}")
        return str(value)

    return parse


def pipeline(name: str, value: Any) -> str:
    """A choice of a loop's pipeline (:class:`warp_tiles.gemm.pipeline.PipelineOverrides`), as text."""
    from warp_tiles.gemm.pipeline import PipelineOverrides

    try:
        PipelineOverrides.parse(_printed(value))
    except ValueError as error:
        remedy = (
            "give 'auto', 'wgmma', 'mma' or 'double_buffered', or fields with commas between, e.g. "
            "'wgmma,stages=3,in_flight=0,warps_m=2'"
        )
        raise _refused(name, value, remedy, f": {error!s:.200}") from error
    return str(value)


def path(name: str, value: Any) -> Path | None:
    """A folder or file, with ``~`` expanded; None for an empty value."""
    if value is None or value == "":
        return None
    remedy = "give the path of a folder or of a file"
    if not isinstance(value, (str, os.PathLike)):
        raise _refused(name, value, remedy)
    try:
        if "\0" in os.fspath(value):
            raise _refused(name, value, remedy, ", which contains a NUL")
        os.fsencode(value)
        return Path(value).expanduser()
    except UnicodeEncodeError as error:
        raise _refused(name, value, "give another path", ", which no file can have as its name") from error
    except unless_signalled(RuntimeError, TypeError) as error:  # no such user; a path of bytes
        raise _refused(name, value, remedy, f": {error}") from error


def paths(name: str, value: Any) -> tuple[Path, ...]:
    """Folders, from one path, from several paths, or from a text with ``os.pathsep`` between paths."""
    if isinstance(value, str):
        value = value.split(os.pathsep)
    if isinstance(value, os.PathLike):
        value = [value]
    if not isinstance(value, Iterable):
        raise _refused(name, value, f"give paths of folders, with {os.pathsep!r} between them")
    return tuple(folder for folder in (path(name, item) for item in value) if folder is not None)


def require_absolute(name: str, value: Any) -> None:
    """Refuse relative paths, because whoever fills the working folder would choose what they name."""
    for given in value if isinstance(value, tuple) else (value,):
        if given is not None and not given.is_absolute():
            raise SettingError(
                f"{name} contains the relative path {str(given)!r}, which means another place in each working folder",
                remedy="give absolute paths",
            )


def flag(name: str, value: Any) -> bool:
    """True or False, from a bool or from a word such as ``on`` or ``0``."""
    typed = value if isinstance(value, bool) else _FLAGS.get(_printed(value).lower())
    if typed is None:
        raise _refused(name, value, "valid values are 1, 0, true, false, on, off")
    return typed


def parse_size(name: str, value: Any) -> int:
    """Bytes from a whole number or a text such as ``500MB`` or ``1.5GiB``, which is rounded down."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", _printed(value).lower())
    if match is None or match.group(2) not in _UNITS or len(match.group(1)) > 2 * _MAX_DIGITS:
        raise _refused(name, value, "give bytes, or a number with kB, MB, GB, KiB, MiB or GiB")
    from decimal import Decimal  # imported here because it takes long

    number, unit = Decimal(match.group(1)), _UNITS[match.group(2)]
    if unit == 1 and number % 1:
        raise _refused(name, value, "give whole bytes, or a unit, e.g. 1.5GB", ", which has a fraction of a byte")
    return int(number * unit)


def count(name: str, value: Any) -> int:
    """An integer of 0 or more."""
    text = _printed(value)
    if not re.fullmatch(r"\d+", text):
        raise _refused(name, value, "give a whole number, 0 for one per core")
    digits = text.lstrip("0") or "0"
    return MAX_JOBS if len(digits) > _MAX_DIGITS else min(int(digits), MAX_JOBS)


def seconds(name: str, value: Any) -> float:
    """Seconds, a finite number of 0 or more. The result is at most half of ``threading.TIMEOUT_MAX``."""
    try:
        is_number = isinstance(value, (str, numbers.Number)) and not isinstance(value, bool)
        number = float(value) if is_number else math.nan
    except (TypeError, ValueError):
        number = math.nan
    except OverflowError:  # an integer, which may have more digits than Python prints
        number = value = math.inf
    if not 0 <= number < math.inf:
        raise _refused(name, value, "give seconds, a finite number of 0 or more; 0 for no limit")
    return min(number, threading.TIMEOUT_MAX / 2)


def wait_seconds(name: str, value: Any) -> float:
    """Seconds to wait, more than 0 and at most a day."""
    number = seconds(name, value)
    if not 0 < number <= 86400:
        raise _refused(name, value, "give seconds, more than 0 and at most 86400")
    return number


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _refused(name, value, "give a text")
    return value


def store_url(name: str, value: Any) -> str:
    url = text(name, value).strip()
    try:
        return checked_url(url) if url else ""
    except ValueError as error:
        raise SettingError(  # without the text, which may contain a password
            f"{name} is not the URL of a store: {error}",
            remedy="give a URL such as https://host/path, s3://bucket/path or file:///folder",
        ) from error


def package_names(name: str, value: Any) -> str:
    """``auto``, ``none``, or names of distributions, as text with commas between them."""
    if isinstance(value, str):
        value = value.split(",")
    given = value if isinstance(value, (list, tuple)) else ()
    names = [re.sub(r"[-_.]+", "-", text(name, item).strip()).lower() for item in given]
    if not names or not all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", item) for item in names):
        raise _refused(name, value, "give auto, none, or names of packages, with commas between them")
    if len(names) > 1 and not {"auto", "none"}.isdisjoint(names):
        raise _refused(name, value, "give auto or none alone, or names of packages")
    return ",".join(dict.fromkeys(names))


def public_keys(name: str, value: Any) -> tuple[str, ...]:
    """Public keys, from several texts, or from one with commas between them."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, Iterable):
        raise _refused(name, value, "give texts, with commas between them")
    keys = tuple(stripped for stripped in (text(name, item).strip() for item in value) if stripped)
    for key in keys:
        if not _PUBLIC_KEY.fullmatch(key):
            raise SettingError(f"{name} contains {key!r:.100}", "give keys as `warp-tiles keys show` prints them")
    return keys


# ---- URLs of stores of objects

SCHEMES = ("file", "http", "https", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")


def checked_url(text: str) -> str:
    """A store's URL. Raises a ValueError that lists the known kinds of stores."""
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"its scheme is {parts.scheme!r}; known are {', '.join(f'{name}://' for name in SCHEMES)}")
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not parts.path.startswith("/")):
        raise ValueError("give a folder with its whole path: file:///path")
    if parts.scheme != "file" and not parts.hostname:
        raise ValueError("it names no host or bucket")
    if parts.netloc.rpartition("@")[2].count(":") == 1 and not _has_port(parts):
        raise ValueError("the text after the host is not a port; a password needs %2F for /, %3F for ? and %23 for #")
    return text


def _has_port(parts: SplitResult) -> bool:
    try:
        return parts.port is not None
    except ValueError:
        return False


def without_password(url: str) -> str:
    """A URL for messages, without user name, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(no URL)"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def secrets_of(url: str) -> tuple[str, ...]:
    """Parts of a URL that no message may contain, the longest first: user name and password, and the query."""
    parts = urlsplit(url)
    secrets = {parts.netloc.rpartition("@")[0], parts.password or "", unquote(parts.password or ""), parts.query}
    secrets |= {unquote(parts.query)}
    return tuple(sorted(filter(None, secrets), key=len, reverse=True))


# ---- policies and settings


@dataclass(frozen=True)
class Policy:
    """The limits of building and tuning, under one name. docs/policy.md compares them.

    Attributes:
        name: A value of the setting ``policy``.
        providers: Providers that are tried for a function, in this order; none if Warp builds everything.
        records: True if tuning records decide a function's tile configuration.
        tunes: True if functions without a record are measured.
        builds: True if missing functions are built, False if they are an error.
        needs_toolchain: True if a provider without its toolchain is an error, False if the next provider is tried.
    """

    name: str
    providers: tuple[str, ...] = PROVIDER_ORDER
    records: bool = True
    tunes: bool = False
    builds: bool = True
    needs_toolchain: bool = False


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("off", (), records=False),
        Policy("scalar", ("scalar",), records=False),
        Policy("fast", ("own", "scalar"), records=False, needs_toolchain=True),
        Policy("auto"),
        Policy("max", tunes=True),
        Policy("locked", builds=False, needs_toolchain=True),
    )
}


@dataclass(frozen=True)
class Setting:
    """One setting, beside its name, type, default and text, which are those of the field of :class:`Settings`.

    Attributes:
        parse: Converts a value of any layer, by the name for messages.
        affects: ``code`` if the code of modules depends on it, so fingerprints and bundles contain it; ``modules`` if
            it decides where modules or tuning records come from, so a change of it hashes modules again.
        users_own: True if it decides where code and choices are loaded from or written to, whose files and signatures
            count, which compiler and linker run, which files are deleted, or how long a program waits. A project file
            may set it only if the user trusts the folder. docs/security.md names the effect of each of the others.
        absolute: True if its paths decide whose code or choices count, so that relative ones are refused.
        unset: The word for an empty default in docs/settings.md.
    """

    parse: Callable[[str, Any], Any]
    affects: Literal["code", "modules", "nothing"] = "nothing"
    users_own: bool = False
    absolute: bool = False
    unset: str = "none"


def _setting(default: Any, parse: Callable[[str, Any], Any], **facts: Any) -> Any:
    return dataclasses.field(default=default, metadata={"setting": Setting(parse, **facts)})


@dataclass(frozen=True)
class Settings:
    """One consistent set of settings, and the layer of each value. docs/settings.md is made from this table.

    Attributes:
        forced: Configurations that count before tuning records, as JSON by the digests of their problems. A
            search forces them with the option ``warp_tiles_forced`` of a module of its own. It is not a setting.
        deterministic: True under Warp's module option ``deterministic``. Tuning records do not count then, since they
            change the order of additions. It is not a setting.
        own_products: True in a module whose products opt out of MathDx: no library builds them, and nothing is tuned.
            It is not a setting.
        start_list: True if the program or its parent keeps a start list. It is not a setting.
        layers: The layer of each value that is not a default, by name. It does not count for equality.
    """

    provider: str = _setting("auto", choice("auto", *PROVIDER_ORDER, mma="own"), affects="code", users_own=True)
    """`auto`: every [provider](providers.md#providers) in order. `own`, `cublasdx`, `libmathdx`, `scalar`: only this
    one; its failure is an error. `cublasdx` has no solvers and leaves them to libmathdx."""
    mathdx_opt_out: str = _setting("auto", choice("auto", "own", "warp"), affects="code")
    """Calls whose module opts out of MathDx (`enable_mathdx_gemm=False`, `enable_mathdx_solver=False`): `auto` builds
    those that own templates are expected to compute faster ([clients](clients.md#opted-out-calls)), `own` builds all,
    and `warp` leaves them to Warp. No library builds them."""
    linker: str = _setting("auto", choice("auto", "own", "warp"), affects="code", users_own=True)
    """`auto`: warp_tiles links if it can, else Warp. `own`: warp_tiles must link. `warp`: Warp links."""
    cache_dir: Path | None = _setting(
        None, path, affects="modules", users_own=True, absolute=True, unset="the user's cache folder"
    )
    """Folder of the LTO-IR cache, by an absolute path."""
    cache_max_bytes: int = _setting(4 * 1024**3, parse_size, users_own=True)
    """Size above which the least recently used entries are removed."""
    cache_shared: bool = _setting(False, flag, affects="modules", users_own=True)
    """Accept a folder that other users can write."""
    build_wait_s: float = _setting(120.0, seconds, users_own=True)
    """Seconds to wait for another process that builds the same function or module, before it is built here too; 0 is no
    limit."""
    trusted_project_dirs: tuple[Path, ...] = _setting((), paths, affects="modules", users_own=True, absolute=True)
    """Folders, by absolute paths, whose pyproject.toml may set [everything](settings.md#project-files). Counts only
    from the environment, `configure()` and `override()`."""
    modules: str = _setting("auto", choice("auto", "tiles", "all"), affects="modules")
    """Which CUDA modules are kept in the cache: `tiles`, those with products or solvers
    ([linked modules](remote.md#linked-modules)); `all`, also those that [Warp's compiler](cache.md#modules-of-warp)
    builds; `auto`, as `all` if there is a remote store or a start list (`warm SCRIPT`, `run --start FILE`,
    `enable(start=FILE)`), otherwise only functions. With `auto`, a module that was kept before is found."""
    remote: str = _setting("", store_url, affects="modules", users_own=True)
    """URL of a [remote store](remote.md) behind the cache."""
    remote_push: bool = _setting(False, flag, affects="modules", users_own=True)
    """Write what is built to the remote store, signed with `signing_key`."""
    remote_wait_s: float = _setting(10.0, wait_seconds, affects="modules", users_own=True)
    """Seconds to wait for a reply of the remote store. After that, this process does not ask it again."""
    bundle: Path | None = _setting(None, path, affects="modules", users_own=True)
    """File of a [deployment bundle](deployment.md), the only source of modules. It needs the policy `locked`."""
    kernel_packages: str = _setting("auto", package_names, affects="modules", users_own=True)
    """Installed [kernel packages](deployment.md#a-wheel-of-kernels) that modules and functions come from: `auto`, all;
    `none`; or names, with commas between them."""
    signing_key: Path | None = _setting(None, path, affects="modules", users_own=True, absolute=True)
    """File of the [private key](remote.md#signatures) that signs what is written to a remote store, by an absolute
    path. Its public key is trusted."""
    trusted_keys: tuple[str, ...] = _setting((), public_keys, affects="modules", users_own=True)
    """Public keys whose signatures are trusted, with commas between them, beside those that `warp-tiles keys trust`
    added."""
    jobs: int = _setting(0, count)
    """Number of parallel compiler processes; 0 is one per core of the host, shared with other processes of the user, or
    fewer where memory is short. The link of one
    module uses all cores."""
    progress: str = _setting("auto", choice("auto", "on", "off"))
    """Progress bar: `auto` (on a terminal), `on`, `off`."""
    register_accumulators: bool = _setting(True, flag, affects="code")
    """Keep the accumulators of a loop of products in registers and write C after the loop ([what that
    changes](numerics.md))."""
    gemm_gradients: str = _setting("auto", choice("auto", "always", "off"))
    """Where a kernel is a product of whole arrays, a tape on a GPU computes its gradients as [two
    products](loops.md#gradients): `auto` for large arrays, and for all in a
    [deterministic](numerics.md#order-of-additions) module; `always`; or `off`."""
    solver_gradients: str = _setting("warp", choice("warp", "own"), affects="code")
    """Gradients of solvers on a GPU: `warp` computes those that Warp has, of `tile_cholesky` and `tile_lower_solve`;
    `own` computes those of [all eight](providers.md#gradients-of-solvers)."""
    main_loop: str = _setting("auto", pipeline, affects="code")
    """The pipeline of loops of products ([loops](loops.md)): `auto`; `mma` uses stages and never `wgmma`;
    `double_buffered` uses no stages; or [fields](loops.md#fields) such as `wgmma,stages=3`."""
    async_copies: bool = _setting(True, flag, affects="code")
    """Load tiles asynchronously in functions with products or solvers, and ahead of the product in loops. In modules
    with products or solvers, add gradients of loads as vectors."""
    policy: str = _setting("auto", choice(*POLICIES), affects="modules")
    """The limits of building and tuning: [`off`, `scalar`, `fast`, `auto`, `max`, `locked`](policy.md)."""
    record_paths: tuple[Path, ...] = _setting((), paths, affects="modules", users_own=True, absolute=True)
    """Folders of tuning records, by absolute paths, that are read before the user's own, and never written."""
    record_driver_mismatch: str = _setting("reuse", choice("reuse", "retune"), affects="modules")
    """Records of another driver or Warp patch release: `reuse` or `retune`."""
    target_gpu: str = _setting("", text, affects="modules", unset="this one")
    """Name of the GPU whose records are used without a GPU, as `warp-tiles tune list` shows it."""
    tune_budget_s: float = _setting(0.0, seconds)
    """Time limit of one search in seconds; 0 is no limit."""
    forced: str = dataclasses.field(default="", repr=False)
    deterministic: bool = dataclasses.field(default=False, repr=False)
    own_products: bool = dataclasses.field(default=False, repr=False)
    start_list: bool = dataclasses.field(default=False, repr=False)
    layers: tuple[tuple[str, str], ...] = dataclasses.field(default=(), compare=False, repr=False)

    def layer(self, name: str) -> str:
        """The layer of a setting's value, e.g. ``configure()`` or the path of a pyproject.toml."""
        return dict(self.layers).get(name, DEFAULT)

    def named(self, name: str) -> str:
        """A setting and its layer, for messages."""
        return f"the setting {name} ({self.layer(name)})"

    def against(self, name: str, better: str = "") -> Rejected:
        """A setting with its layer and value as the reason against something, and how to set a better value."""
        value = getattr(self, name)
        facts = self.named(name), ("on" if value else "off") if isinstance(value, bool) else repr(value)
        return (
            Rejected("setting_to_change", (*facts, self.remedy(name, better))) if better else Rejected("setting", facts)
        )

    def remedy(self, name: str, value: str) -> str:
        """Instructions for changing a setting in its layer."""
        layer = self.layer(name)
        if layer == COMMAND_LINE:
            return f"give the option --{name} {value}"
        if layer == DEFAULT or layer.startswith("environment"):
            return f"set {ENVIRONMENT[name]}={value}"
        if layer.startswith("module option"):
            return f'set the {layer} to "{value}"'
        if layer in ("configure()", "override()"):
            return f'call {layer[:-1]}{name}="{value}")'
        return f'set {name} = "{value}" in {layer}'

    @property
    def keeps_modules(self) -> bool:
        """True if linked modules are kept in the cache."""
        return self.modules != "auto" or self.all_modules or bool(self.remote) or self.bundle is not None

    @property
    def all_modules(self) -> bool:
        """True if modules without products or solvers pass through the cache, too."""
        has_store = bool(self.remote) and self.bundle is None  # a bundle takes the place of the store
        return self.modules == "all" or (self.modules == "auto" and (self.start_list or has_store))

    @property
    def store_trust(self) -> str:
        """Who may choose the code of the cache: ``own``, ``shared`` with its folder, or ``project`` with its file.

        It is part of a module's hash, so a module that was built from one such store is never loaded for another.
        """
        if self.cache_shared:
            return f"shared {self.cache_dir or ''}"
        layer = self.layer("cache_dir")
        return f"project {layer}" if layer.endswith(PROJECT_FILE) else OWN

    @property
    def rules(self) -> Policy:
        rules = POLICIES[self.policy]
        return dataclasses.replace(rules, records=False, tunes=False) if self.own_products else rules

    @property
    def serves_opted_out(self) -> bool:
        """True if calls whose module opts out of MathDx may be built from own templates."""
        if self.mathdx_opt_out == "auto":
            return self.provider == "auto" and "own" in self.rules.providers
        return self.mathdx_opt_out == "own"

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers that are tried for a function, in this order.

        Raises a SettingError if the policy forbids the provider.
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

    @property
    def decides_opted_out(self) -> bool:
        """True if each product is built from own templates only where they are faster than Warp's scalar path."""
        return self.own_products and self.mathdx_opt_out == "auto"

    def affecting_code(self) -> dict[str, Any]:
        """The values that the code of modules depends on, by setting."""
        return {name: getattr(self, name) for name, item in SETTINGS.items() if item.affects == "code"}

    def opted_out(self, *, products: bool) -> Settings:
        """Settings of a module that opts out of MathDx, also for its products or for solvers alone."""
        if not self.serves_opted_out:
            return self
        if self.provider == "scalar":
            return dataclasses.replace(self, own_products=products)
        layers = tuple(item for item in self.layers if item[0] != "provider")
        return dataclasses.replace(self, provider="auto", own_products=products, layers=layers)

    def left_to_warp(self) -> Settings:
        """Settings of a module whose products Warp serves alone, because it generates code in an unknown way."""
        kept = (item for item in self.layers if item[0] != "policy")
        return dataclasses.replace(self, policy="off", layers=(*kept, ("policy", "of an untested Warp")))

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Value and layer of every setting, as JSON values."""
        values_shown = {name: _json_value(getattr(self, name)) for name in SETTINGS}
        values_shown["remote"] = without_password(self.remote)
        return {name: {"value": value, "layer": self.layer(name)} for name, value in values_shown.items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_json_value(item) for item in value]
    return str(value) if isinstance(value, Path) else value


#: Every setting by name.
SETTINGS: dict[str, Setting] = {
    item.name: item.metadata["setting"] for item in dataclasses.fields(Settings) if item.metadata
}
#: What to do in place of a setting that is gone, for the error that refuses it.
FORMER = {
    "cache_modules": "cache_modules is now modules: 'tiles' keeps linked modules, and 'all' those of Warp, too",
    "background": "background is gone: the policy 'fast' has no slow builds, and `warp-tiles compile` builds before",
    "precompile_headers": "precompile_headers is gone: leave it out, because each module reads Warp's headers itself",
    "nvtx": "nvtx is gone: a range of your own around a call shows it in Nsight Systems",
    "prefetch": "prefetch is gone: call warp_tiles.prefetch() in the script",
    "whole_gradients": "whole_gradients is now gemm_gradients",
    "without_mathdx": "without_mathdx is now mathdx_opt_out",
    "trusted_projects": "trusted_projects is now trusted_project_dirs",
    "stale_records": "stale_records is now record_driver_mismatch",
    "record_gpu": "record_gpu is now target_gpu",
    "wide_moves": "wide_moves is now async_copies",
    "loop_sums": "loop_sums is now register_accumulators",
}
#: The environment variable of each setting.
ENVIRONMENT = {name: PREFIX + name.upper() for name in SETTINGS}
