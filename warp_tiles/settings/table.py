"""The table of settings, and the policies. Names, parsers, layers, keys of modules and docs/settings.md follow from it.

:mod:`warp_tiles.settings` resolves the values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from warp_tiles.errors import SettingError
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.settings import values
from warp_tiles.settings.values import without_password

PREFIX = "WARP_TILES_"
OPTION_PREFIX = "warp_tiles_"  # for wp.set_module_options()
DEFAULT = "default"  # the layer below all others
OF_MODULE = "module option"  # the beginning of a layer
COMMAND_LINE = "command line"
PROJECT_FILE = "pyproject.toml"
OWN = "own"  # trust in the user's own cache alone
PROVIDER_ORDER = ("own", "cublasdx", "libmathdx", "scalar")


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
        parse: Converts a value of any layer; see :mod:`warp_tiles.settings.values`.
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

    provider: str = _setting("auto", values.choice("auto", *PROVIDER_ORDER, mma="own"), affects="code", users_own=True)
    """`auto`: every [provider](providers.md#providers) in order. `own`, `cublasdx`, `libmathdx`, `scalar`: only this
    one; its failure is an error. `cublasdx` has no solvers and leaves them to libmathdx."""
    mathdx_opt_out: str = _setting("auto", values.choice("auto", "own", "warp"), affects="code")
    """Calls whose module opts out of MathDx (`enable_mathdx_gemm=False`, `enable_mathdx_solver=False`): `auto` builds
    those that own templates are expected to compute faster ([clients](clients.md#opted-out-calls)), `own` builds all,
    and `warp` leaves them to Warp. No library builds them."""
    linker: str = _setting("auto", values.choice("auto", "own", "warp"), affects="code", users_own=True)
    """`auto`: warp_tiles links if it can, else Warp. `own`: warp_tiles must link. `warp`: Warp links."""
    cache_dir: Path | None = _setting(
        None, values.path, affects="modules", users_own=True, absolute=True, unset="the user's cache folder"
    )
    """Folder of the LTO-IR cache, by an absolute path."""
    cache_max_bytes: int = _setting(4 * 1024**3, values.parse_size, users_own=True)
    """Size above which the least recently used entries are removed."""
    cache_shared: bool = _setting(False, values.flag, affects="modules", users_own=True)
    """Accept a folder that other users can write."""
    build_wait_s: float = _setting(120.0, values.seconds, users_own=True)
    """Seconds to wait for another process that builds the same function or module, before it is built here too; 0 is no
    limit."""
    trusted_project_dirs: tuple[Path, ...] = _setting(
        (), values.paths, affects="modules", users_own=True, absolute=True
    )
    """Folders, by absolute paths, whose pyproject.toml may set [everything](settings.md#project-files). Counts only
    from the environment, `configure()` and `override()`."""
    modules: str = _setting("auto", values.choice("auto", "tiles", "all"), affects="modules")
    """Which CUDA modules are kept in the cache: `tiles`, those with products or solvers
    ([linked modules](remote.md#linked-modules)); `all`, also those that [Warp's compiler](cache.md#modules-of-warp)
    builds; `auto`, as `all` if there is a remote store or a start list (`warm SCRIPT`, `run --start FILE`,
    `enable(start=FILE)`), otherwise only functions. With `auto`, a module that was kept before is found."""
    remote: str = _setting("", values.store_url, affects="modules", users_own=True)
    """URL of a [remote store](remote.md) behind the cache."""
    remote_push: bool = _setting(False, values.flag, affects="modules", users_own=True)
    """Write what is built to the remote store, signed with `signing_key`."""
    remote_wait_s: float = _setting(10.0, values.wait_seconds, affects="modules", users_own=True)
    """Seconds to wait for a reply of the remote store. After that, this process does not ask it again."""
    bundle: Path | None = _setting(None, values.path, affects="modules", users_own=True)
    """File of a [deployment bundle](deployment.md), the only source of modules. It needs the policy `locked`."""
    kernel_packages: str = _setting("auto", values.package_names, affects="modules", users_own=True)
    """Installed [kernel packages](deployment.md#a-wheel-of-kernels) that modules and functions come from: `auto`, all;
    `none`; or names, with commas between them."""
    signing_key: Path | None = _setting(None, values.path, affects="modules", users_own=True, absolute=True)
    """File of the [private key](remote.md#signatures) that signs what is written to a remote store, by an absolute
    path. Its public key is trusted."""
    trusted_keys: tuple[str, ...] = _setting((), values.public_keys, affects="modules", users_own=True)
    """Public keys whose signatures are trusted, with commas between them, beside those that `warp-tiles keys trust`
    added."""
    jobs: int = _setting(0, values.count)
    """Number of parallel compiler processes; 0 is one per core of the host, shared with other processes of the user, or
    fewer where memory is short. The link of one
    module uses all cores."""
    progress: str = _setting("auto", values.choice("auto", "on", "off"))
    """Progress bar: `auto` (on a terminal), `on`, `off`."""
    register_accumulators: bool = _setting(True, values.flag, affects="code")
    """Keep the accumulators of a loop of products in registers and write C after the loop ([what that
    changes](numerics.md))."""
    gemm_gradients: str = _setting("auto", values.choice("auto", "always", "off"))
    """Where a kernel is a product of whole arrays, a tape on a GPU computes its gradients as [two
    products](loops.md#gradients): `auto` for large arrays, and for all in a
    [deterministic](numerics.md#order-of-additions) module; `always`; or `off`."""
    solver_gradients: str = _setting("warp", values.choice("warp", "own"), affects="code")
    """Gradients of solvers on a GPU: `warp` computes those that Warp has, of `tile_cholesky` and `tile_lower_solve`;
    `own` computes those of [all eight](providers.md#gradients-of-solvers)."""
    main_loop: str = _setting("auto", values.main_loop, affects="code")
    """The pipeline of loops of products ([loops](loops.md)): `auto`; `mma` uses stages and never `wgmma`;
    `double_buffered` uses no stages; or [fields](loops.md#fields) such as `wgmma,stages=3`."""
    async_copies: bool = _setting(True, values.flag, affects="code")
    """Load tiles asynchronously in functions with products or solvers, and ahead of the product in loops. In modules
    with products or solvers, add gradients of loads as vectors."""
    policy: str = _setting("auto", values.choice(*POLICIES), affects="modules")
    """The limits of building and tuning: [`off`, `scalar`, `fast`, `auto`, `max`, `locked`](policy.md)."""
    record_paths: tuple[Path, ...] = _setting((), values.paths, affects="modules", users_own=True, absolute=True)
    """Folders of tuning records, by absolute paths, that are read before the user's own, and never written."""
    record_driver_mismatch: str = _setting("reuse", values.choice("reuse", "retune"), affects="modules")
    """Records of another driver or Warp patch release: `reuse` or `retune`."""
    target_gpu: str = _setting("", values.text, affects="modules", unset="this one")
    """Name of the GPU whose records are used without a GPU, as `warp-tiles tune list` shows it."""
    tune_budget_s: float = _setting(0.0, values.seconds)
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

        Raises:
            SettingError: The policy forbids the provider.
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
