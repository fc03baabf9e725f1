"""All settings of warp_tiles with their types, as one consistent set of values that knows the layer of each.

:mod:`warp_tiles.settings.layers` resolves them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warp_tiles.errors import SettingError
from warp_tiles.settings import project_file
from warp_tiles.settings.policy import POLICIES, Policy
from warp_tiles.util.urls import without_password

PREFIX = "WARP_TILES_"
DEFAULT = "default"  # the layer below all others
COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Settings:
    """One consistent set of settings, and the layer of each value.

    Attributes:
        provider: The provider that builds the functions of products and of solvers. ``auto`` tries the own templates
            (``mma``), then the cuBLASDx headers, both through NVRTC, then Warp's own libmathdx build, then the scalar
            path. A named provider is the only one, and its failure is an error. cuBLASDx has no solvers, so
            ``cublasdx`` leaves solvers to libmathdx.
        without_mathdx: The code of calls whose module opts out of MathDx with ``enable_mathdx_gemm`` or
            ``enable_mathdx_solver``: ``warp`` leaves them to Warp's scalar path, ``own`` builds them from the own
            templates, and never from a library.
        linker: The linker of a module. With ``auto``, warp_tiles links if every input allows it, and leaves the other
            modules to Warp. With ``own``, warp_tiles must link. With ``warp``, Warp links.
        cache_dir: Folder of the LTO-IR cache.
        cache_max_bytes: Size above which the least recently used entries are removed.
        cache_shared: Accept a cache folder that other users can write.
        build_wait_s: Seconds to wait for another process that builds the same function, before it is built here too; 0
            for no limit.
        trusted_projects: Folders whose pyproject.toml may set everything. This setting itself counts only from the
            environment, :func:`configure` and :func:`override`.
        cache_modules: Keep linked modules in the cache too. A remote store always does.
        remote: URL of a remote store behind the cache; empty for none.
        remote_push: Write what is built to the remote store, signed with ``signing_key``.
        remote_wait_s: Seconds to wait for an answer of the remote store. It is not asked again in this process then.
        bundle: File of a deployment bundle, the only source of modules. It needs the policy ``locked``.
        signing_key: File of the private key that signs what is written to a remote store. Its public key is trusted.
        trusted_keys: Public keys whose signatures are trusted, beside those of the user's file of trusted keys.
        jobs: Number of parallel compiler processes; 0 means one per core.
        precompile_headers: Keep NVRTC's precompiled headers of modules for later modules and processes.
        prefetch: ``warp-tiles run`` compiles the modules that the script's last run loaded side by side.
        progress: Progress bar: ``auto`` on a terminal, ``on``, ``off``.
        loop_sums: Keep the sums of a loop of products in registers, and write C after the loop.
        whole_gradients: Where a kernel is a product of whole arrays, a tape on a GPU computes its gradients as two
            products without atomic additions: ``auto`` for large arrays, ``always``, or ``off``.
        main_loop: The pipeline of loops of products: ``auto``; ``mma`` has stages but no wgmma; ``two_buffers`` has no
            stages; or single fields (:class:`warp_tiles.gemm.main_loop.LoopChoice`).
        wide_moves: Load tiles asynchronously in functions with products or solvers, and ahead of the product in loops.
            In modules with products or solvers, add gradients of loads to arrays as vectors.
        policy: The limits of building and tuning; see docs/policy.md.
        background: Run on the fast path while a slow build continues in another process.
        record_paths: Folders of tuning records that are read before the user's own, and never written.
        stale_records: Records of another driver or Warp patch release: ``reuse`` or ``retune``.
        record_gpu: Name of the GPU whose records are used without a GPU, as ``warp-tiles tune list`` shows it.
        tune_budget_s: Time limit of one search, which stops with the best result so far; 0 for no limit.
        nvtx: Mark plans, builds, links and replays as ranges for NVIDIA's profilers; needs the package ``nvtx``.
        fast_by_default: True if warp_tiles itself chose the policy ``fast``. Then the next provider may replace one
            without its toolchain. It is not a setting.
        layers: The layer of each value that is not a default, by name. It does not count for equality.
    """

    provider: str = "auto"
    without_mathdx: str = "warp"
    linker: str = "auto"
    cache_dir: Path | None = None
    cache_max_bytes: int = 4 * 1024**3
    cache_shared: bool = False
    build_wait_s: float = 120.0
    trusted_projects: tuple[Path, ...] = ()
    cache_modules: bool = False
    remote: str = ""
    remote_push: bool = False
    remote_wait_s: float = 10.0
    bundle: Path | None = None
    signing_key: Path | None = None
    trusted_keys: tuple[str, ...] = ()
    jobs: int = 0
    precompile_headers: bool = True
    prefetch: bool = False
    progress: str = "auto"
    loop_sums: bool = True
    whole_gradients: str = "auto"
    main_loop: str = "auto"
    wide_moves: bool = True
    policy: str = "auto"
    background: bool = False
    record_paths: tuple[Path, ...] = ()
    stale_records: str = "reuse"
    record_gpu: str = ""
    tune_budget_s: float = 0.0
    nvtx: bool = False
    fast_by_default: bool = field(default=False, repr=False)
    layers: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    def layer(self, name: str) -> str:
        """The layer of a setting's value, e.g. ``configure()`` or the path of a pyproject.toml."""
        return dict(self.layers).get(name, DEFAULT)

    def named(self, name: str) -> str:
        """A setting and its layer, for messages."""
        return f"the setting {name} ({self.layer(name)})"

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
        return self.cache_modules or bool(self.remote) or self.bundle is not None

    @property
    def store_trust(self) -> str:
        """Who may choose the code of the cache: ``own``, ``shared`` with its folder, or ``project`` with its file.

        It is part of a module's hash, so a module that was built from one such store is never loaded for another.
        """
        if self.cache_shared:
            return f"shared {_absolute(self.cache_dir) if self.cache_dir else ''}"
        layer = self.layer("cache_dir")
        return f"project {layer}" if layer.endswith(project_file.FILE) else "own"

    @property
    def rules(self) -> Policy:
        """The rules of the policy."""
        return POLICIES[self.policy]

    @property
    def needs_toolchain(self) -> bool:
        """True if a provider without its toolchain is an error, False if the next provider is tried."""
        return self.rules.needs_toolchain and not self.fast_by_default

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers that are tried for a variant, in this order.

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

    def fast_path(self) -> Settings:
        """Settings that a module uses while a slow build runs in the background: the policy ``fast``."""
        kept = tuple(item for item in self.layers if item[0] not in ("policy", "provider", "background"))
        layers = (*kept, ("policy", "while it is built in the background"))
        return dataclasses.replace(
            self, policy="fast", provider="auto", background=False, fast_by_default=True, layers=layers
        )

    def own_templates_only(self) -> Settings:
        """Settings of a module that opts out of MathDx but takes own templates: no provider that needs a library."""
        if self.policy not in ("auto", "max"):
            return self
        kept = tuple(item for item in self.layers if item[0] not in ("policy", "provider"))
        layers = (*kept, ("policy", "of a module that opts out of MathDx"))
        return dataclasses.replace(self, policy="fast", provider="auto", fast_by_default=True, layers=layers)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Value and layer of every setting, as JSON values."""
        values = {name: _json_value(getattr(self, name)) for name in ENVIRONMENT}
        values["remote"] = without_password(self.remote)
        return {name: {"value": value, "layer": self.layer(name)} for name, value in values.items()}


def _absolute(path: Path) -> Path:
    try:
        return path.absolute()
    except FileNotFoundError:  # the working folder was removed
        return path


def _json_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_json_value(item) for item in value]
    return str(value) if isinstance(value, Path) else value


_NO_SETTINGS = ("fast_by_default", "layers")
#: The environment variable of each setting.
ENVIRONMENT = {
    item.name: PREFIX + item.name.upper() for item in dataclasses.fields(Settings) if item.name not in _NO_SETTINGS
}
