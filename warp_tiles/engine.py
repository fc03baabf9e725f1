"""Builds what a plan needs: providers in turn, through the cache, side by side."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles import settings
from warp_tiles.asked import AskedKeys
from warp_tiles.cache import default_root
from warp_tiles.chain import Chain, planned_with
from warp_tiles.errors import BuildError, ToolchainError, WarpTilesError, WorkerError
from warp_tiles.files import make_private_folders, write_atomic
from warp_tiles.planning import ModulePlan, PlannedVariant
from warp_tiles.progress import BuildProgress
from warp_tiles.providers import (
    CublasdxProvider,
    LibmathdxProvider,
    MmaProvider,
    Provider,
    Recipe,
    ScalarProvider,
)
from warp_tiles.providers.warps import Libmathdx
from warp_tiles.records import Artifact, Recorder
from warp_tiles.settings import ProviderChoice
from warp_tiles.threads import DaemonThreads
from warp_tiles.toolchain import Toolchain, ToolchainStore, Version, dotted, require_linkable
from warp_tiles.tuned import TunedSnapshots
from warp_tiles.variant import GemmVariant
from warp_tiles.version import __version__

if TYPE_CHECKING:
    from warp_tiles.cache import Cache, CacheKey
    from warp_tiles.compiler import Compiled, CompileRequest
    from warp_tiles.pool import CompilerPool

log = logging.getLogger("warp_tiles")
_WAITING_THREADS = 64  # they wait for compiler processes and for other processes' locks, and compute nothing


class Engine:
    """Everything between a plan and its LTO-IR.

    Args:
        warp_toolkit: CUDA version of Warp's linker, or None if unknown.
        executor: Runs the compilers in place of own processes.
    """

    def __init__(
        self,
        *,
        warp_toolkit: Version | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.recorder = Recorder()
        self.progress = BuildProgress()
        self.tuned = TunedSnapshots()
        self._warp_toolkit = warp_toolkit
        self._libmathdx: Libmathdx | None = None
        self._executor = executor
        self._lock = threading.Lock()
        self._pool: CompilerPool | None = None
        self._waiters: DaemonThreads | None = None
        self._closed = False
        self._stores: dict[tuple[Path, bool], ToolchainStore] = {}
        self._caches: dict[tuple[Path, int, bool], Cache] = {}
        self._in_flight: dict[tuple[GemmVariant, str], Future[Artifact]] = {}
        self._told: set[str] = set()

    def use_libmathdx(self, build: Libmathdx) -> None:
        """Name Warp's own libmathdx build, which returns a variant's symbol and LTO-IR, as a provider."""
        self._libmathdx = build

    # ---- parts, made when first used

    @property
    def root(self) -> Path:
        """Folder of the cache and of what is remembered about the toolchain."""
        return settings.current().cache_dir or default_root()

    @property
    def cache(self) -> Cache:
        """The cache that the settings name."""
        from warp_tiles.cache import Cache

        now = settings.current()
        identity = (self.root, now.cache_max_bytes, now.cache_shared)
        with self._lock:
            if identity not in self._caches:
                self._caches[identity] = Cache(self.root, max_bytes=now.cache_max_bytes, allow_shared=now.cache_shared)
            return self._caches[identity]

    @property
    def store(self) -> ToolchainStore:
        """Toolchain and digests."""
        identity = (self.root, settings.current().cache_shared)
        with self._lock:
            if identity not in self._stores:
                self._stores[identity] = ToolchainStore(self.root / "toolchain", shared=identity[1])
            return self._stores[identity]

    @property
    def pool(self) -> CompilerPool:
        """Compiler processes."""
        from warp_tiles.pool import CompilerPool

        with self._lock:
            if self._closed:
                raise WorkerError("warp_tiles was disabled in the middle of a build", "enable it again and retry")
            if self._pool is None:
                self._pool = CompilerPool(settings.current().jobs, self._executor)
            return self._pool

    def toolchain(self) -> Toolchain:
        """The toolchain, checked against Warp's linker.

        Raises:
            ToolchainError: It is missing, or newer than Warp's linker.
        """
        toolchain = self.store.toolchain()
        require_linkable(toolchain, self._warp_toolkit)
        return toolchain

    def try_toolchain(self) -> Toolchain | None:
        """The toolchain, or None where none is usable."""
        try:
            return self.toolchain()
        except ToolchainError:
            return None

    def close(self) -> None:
        """End the compiler processes."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
            waiters, self._waiters = self._waiters, None
        if waiters is not None:
            waiters.shutdown(wait=False, cancel_futures=True)
        if pool is not None:
            pool.close()

    def after_fork(self) -> None:
        """In a forked child: the parent's threads are gone, and its compiler processes are not this one's."""
        self._lock = threading.Lock()
        self._pool = self._waiters = None
        self._in_flight = {}

    # ---- providers

    def chain(self, choice: ProviderChoice) -> Chain:
        """The providers that are asked under a choice of the setting."""
        tuned = self.tuned.at(settings.current(), self.store)
        make: dict[str, Callable[[], Provider]] = {
            "mma": lambda: MmaProvider(self.store, tuned),
            "cublasdx": lambda: CublasdxProvider(self.store),
            "libmathdx": lambda: LibmathdxProvider(self._libmathdx),
            "scalar": ScalarProvider,
        }
        names = [choice.name] if choice.name != "auto" else list(make)
        if choice.name == "auto" and self._libmathdx is None:
            names.remove("libmathdx")
        return Chain(choice, tuple(make[name]() for name in names), tuned)

    def tune_missing(self, variants: Iterable[GemmVariant], now: settings.Settings) -> None:
        """Measure the variants that have no record, where there is a GPU for which they are meant.

        Modules that were hashed before have to be hashed again.

        Args:
            variants: What is about to be built.
            now: The settings; the search takes as long as ``tune_budget_s`` allows.
        """
        from warp_tiles.tuning.gemm import tune_missing

        tune_missing(self, tuple(variants), now)

    # ---- planning

    def salt(self, choice: ProviderChoice | None = None) -> str:
        """What distinguishes a module built here from one that Warp built, for Warp's module hash.

        It changes with the providers that would be asked: their sources, the compiler, the setting.
        """
        choice = choice or settings.provider_choice()
        now = settings.current()
        parts = ["warp_tiles", __version__, choice.name, now.linker, f"loop_sums={now.loop_sums}"]
        chain = self.chain(choice)
        if chain.tuned is not None:
            parts.append(f"tuned={chain.tuned.fingerprint}")
        for provider in chain.providers:
            try:
                parts += [f"{provider.name} {name}={value}" for name, value in provider.salt().items()]
            except ToolchainError as error:
                parts.append(f"{provider.name}: {error.message}")
        if any(provider.compiles for provider in chain.providers):
            try:
                if (nvjitlink := self.toolchain().nvjitlink) is not None:
                    parts.append(f"linker={self.store.digests.digest(nvjitlink)}")
            except ToolchainError as error:
                parts.append(f"no toolchain: {error.message}")
        return "\n".join(parts)

    def annotate(self, plan: ModulePlan) -> ModulePlan:
        """The plan with the provider, key and cache state of each needed variant.

        Raises:
            TypeError, UnsupportedVariant, ToolchainError: See :func:`warp_tiles.chain.planned_with`.
        """
        chain = self.chain(plan.choice)
        return replace(plan, variants=tuple(self._annotated(chain, variant) for variant in plan.variants))

    def _annotated(self, chain: Chain, planned: PlannedVariant) -> PlannedVariant:
        if not planned.needed:
            return planned
        if planned.variant is None:
            return replace(planned, provider="scalar")
        found, offer = planned_with(chain, planned, self)
        key = offer.provider.key_of(offer.recipes[0])
        if key is None:
            return found
        cached = self.cache.manifest(key) is not None
        if not cached:
            AskedKeys(self.root / "asked").note(key)
        return replace(found, key=key.digest, cached=cached)

    # ---- building

    def start(
        self, variants: Iterable[GemmVariant], choice: ProviderChoice | None = None
    ) -> dict[GemmVariant, Future[Artifact]]:
        """Start building variants; one that another module already waits for is shared."""
        choice = choice or settings.provider_choice()
        futures: dict[GemmVariant, Future[Artifact]] = {}
        for variant in variants:
            started = False
            with self._lock:
                future = self._in_flight.get((variant, choice.name))
                if future is None:
                    if self._waiters is None:
                        self._waiters = DaemonThreads(_WAITING_THREADS, "warp_tiles_wait")
                    future = self._waiters.submit(self._build, variant, choice)
                    self._in_flight[variant, choice.name] = future
                    started = True
            if started:  # outside the lock: a build that has ended already runs its callback here and now
                future.add_done_callback(functools.partial(self._landed, (variant, choice.name)))
            futures[variant] = future if started else _shared(future)
        return futures

    def _landed(self, identity: tuple[GemmVariant, str], _: Future[Artifact]) -> None:
        with self._lock:
            self._in_flight.pop(identity, None)

    def _build(self, variant: GemmVariant, choice: ProviderChoice) -> Artifact:
        chain = self.chain(choice)
        obstacles: list[WarpTilesError] = []
        failures: list[WarpTilesError] = []
        untold: list[WarpTilesError] = []
        told: list[str] = []
        lacking = False  # what the first provider that compiles lacks, the others lack too
        for provider in chain.order(variant):
            if lacking and provider.compiles:
                continue
            offer = chain.ask(provider, variant, self)
            if isinstance(offer.obstacle, ToolchainError):
                lacking = lacking or provider is chain.providers[0]
                failures.append(offer.obstacle)
                untold.append(offer.obstacle)
            elif offer.obstacle is not None:
                obstacles.append(offer.obstacle)
            for recipe in offer.recipes:
                told += [self._tell(variant, failure, recipe.title) for failure in untold]
                untold = []
                try:
                    return replace(
                        _twice(functools.partial(self._made, variant, provider, recipe)), warnings=tuple(told)
                    )
                except WorkerError:
                    raise  # an accident decides nothing: the scalar path would stay in Warp's cache for good
                except (ToolchainError, BuildError) as error:
                    failures.append(error)
                    untold = [error]
                    if isinstance(error, ToolchainError):
                        lacking = lacking or provider is chain.providers[0]
                        break
        raise failures[0] if failures else chain.nobody(variant, obstacles)

    def _tell(self, variant: GemmVariant, failure: WarpTilesError, instead: str) -> str:
        cause = failure.message
        if failure.log:
            cause = next((line.strip() for line in failure.log.splitlines() if "error" in line), cause)
        text = f"{variant.describe()}: {cause}; using {instead}."
        if isinstance(failure, BuildError) and failure.remedy:
            text += f" To see it alone: {failure.remedy.splitlines()[0]}"
        if isinstance(failure, ToolchainError):
            text = f"{failure.message}; using {instead}. Remedy: {failure.remedy}"
        with self._lock:
            first = text not in self._told
            self._told.add(text)
        if first:
            warnings.warn(f"warp_tiles: {text}", RuntimeWarning, stacklevel=2)
        return text

    def _made(self, variant: GemmVariant, provider: Provider, recipe: Recipe) -> Artifact:
        start = time.perf_counter()
        with self.progress.variant(recipe.variant.describe()) if recipe.symbol else contextlib.nullcontext():
            built = provider.build(recipe, self)
        seconds = time.perf_counter() - start
        return Artifact(
            variant, built.symbol, built.payload, provider.name, built.key, built.hit, seconds,
            tile_config=recipe.tile_config,
        )  # fmt: skip

    def get_or_compile(
        self, key: CacheKey, request: CompileRequest, info: Callable[[Compiled], dict[str, object]]
    ) -> tuple[bytes, bool]:
        """LTO-IR from the cache or from a compiler process, and whether the cache held it.

        Raises:
            BuildError: The compiler refused it; the rejected source is kept.
            ToolchainError: There is no toolchain, or a compiler process failed.
        """
        from warp_tiles.pool import result_of

        def build() -> tuple[bytes, dict[str, object]]:
            try:
                compiled = result_of(self.pool.submit(request))
            except BuildError as error:
                raise BuildError(error.message, self._reproduction(request), error.log) from error
            expected = f"NVRTC {dotted(self.toolchain().nvrtc_version)}"
            if compiled.compiler != expected:
                raise WorkerError(
                    f"the executor compiled with {compiled.compiler}, this process has {expected}",
                    "install the same packages where the executor runs",
                )
            return compiled.payload, info(compiled)

        entry, hit = self.cache.get_or_build(key, build)
        return entry.payload, hit

    def _reproduction(self, request: CompileRequest) -> str:
        """Keep a rejected source, and say how to compile it alone."""
        path = self.root / "failed" / request.name
        try:
            make_private_folders(path.parent)
            write_atomic(path, request.text.encode("utf-8"))
        except OSError:
            return (
                f"`python -m warp_tiles.worker --reproduce FILE` compiles it alone, with this in FILE:\n{request.text}"
            )
        return f"python -m warp_tiles.worker --reproduce {path}"


def _twice(attempt: Callable[[], Artifact]) -> Artifact:
    """Try again where a compiler process died, once."""
    try:
        return attempt()
    except WorkerError:
        return attempt()


def _shared(build: Future[Artifact]) -> Future[Artifact]:
    """The build of another module, which this one finds without building."""
    mine: Future[Artifact] = Future()

    def pass_on(done: Future[Artifact]) -> None:
        cancelled = WorkerError("the build was cancelled: warp_tiles was disabled") if done.cancelled() else None
        error = cancelled or done.exception()
        if error is not None:
            mine.set_exception(error)
        else:
            mine.set_result(replace(done.result(), hit=True))

    build.add_done_callback(pass_on)
    return mine
