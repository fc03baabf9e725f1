"""Builds what a plan needs: providers in turn, through the cache, side by side."""

from __future__ import annotations

import functools
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles import settings
from warp_tiles.asked import AskedKeys
from warp_tiles.cache import default_root
from warp_tiles.errors import BuildError, ToolchainError, WarpTilesError, WorkerError
from warp_tiles.files import make_private_folders, write_atomic
from warp_tiles.planning import ModulePlan, PlannedVariant
from warp_tiles.progress import BuildProgress
from warp_tiles.providers import CublasdxProvider
from warp_tiles.records import Artifact, Recorder
from warp_tiles.threads import DaemonThreads
from warp_tiles.toolchain import Toolchain, ToolchainStore, Version, dotted, require_arch, require_linkable
from warp_tiles.variant import GemmVariant
from warp_tiles.version import __version__

if TYPE_CHECKING:
    from warp_tiles.cache import Cache
    from warp_tiles.compiler import CompileRequest
    from warp_tiles.pool import CompilerPool

log = logging.getLogger("warp_tiles")
Libmathdx = Callable[[GemmVariant], tuple[str, bytes]]
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

    def require(self, variant: GemmVariant) -> None:
        """Check that the toolchain can build a variant.

        Raises:
            ToolchainError: There is no usable toolchain, or it does not know the architecture.
        """
        require_arch(self.toolchain(), variant.arch)

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

    # ---- planning

    def salt(self) -> str:
        """What distinguishes a module built here from one that Warp built, for Warp's module hash.

        It changes with the providers that would be used: their sources, the compiler, the setting.
        """
        now = settings.current()
        parts = ["warp_tiles", __version__, now.provider, now.linker]
        if now.provider in ("auto", "cublasdx"):
            try:
                toolchain = self.toolchain()
                parts += [f"{name}={value}" for name, value in CublasdxProvider(self.store).identity().items()]
                if toolchain.nvjitlink is not None:
                    parts.append(f"linker={self.store.digests.digest(toolchain.nvjitlink)}")
            except ToolchainError as error:
                parts.append(f"no toolchain: {error.message}")
        return "\n".join(parts)

    def annotate(self, plan: ModulePlan) -> ModulePlan:
        """The plan with the provider, key and cache state of each needed variant."""
        return replace(plan, variants=tuple(self._annotated(variant) for variant in plan.variants))

    def _annotated(self, planned: PlannedVariant) -> PlannedVariant:
        if not planned.needed:
            return planned
        if planned.variant is None:
            return replace(planned, provider="scalar")
        provider = settings.current().provider
        if provider in ("auto", "cublasdx"):
            try:
                self.require(planned.variant)
                key = CublasdxProvider(self.store).key(planned.variant)
                cached = self.cache.manifest(key) is not None
                if not cached:
                    AskedKeys(self.root / "asked").note(key)
                return replace(planned, provider="cublasdx", key=key.digest, cached=cached)
            except ToolchainError as error:
                if provider == "cublasdx":
                    raise
                reason = f"{planned.reason}; no cuBLASDx build: {error.message}"
                return replace(planned, provider=self._without_toolchain, reason=reason)
        return replace(planned, provider=provider)

    @property
    def _without_toolchain(self) -> str:
        return "scalar" if self._libmathdx is None else "libmathdx"

    # ---- building

    def start(self, variants: Iterable[GemmVariant]) -> dict[GemmVariant, Future[Artifact]]:
        """Start building variants; one that another module already waits for is shared."""
        provider = settings.current().provider
        futures: dict[GemmVariant, Future[Artifact]] = {}
        for variant in variants:
            started = False
            with self._lock:
                future = self._in_flight.get((variant, provider))
                if future is None:
                    if self._waiters is None:
                        self._waiters = DaemonThreads(_WAITING_THREADS, "warp_tiles_wait")
                    future = self._waiters.submit(self._build, variant, provider)
                    self._in_flight[variant, provider] = future
                    started = True
            if started:  # outside the lock: a build that has ended already runs its callback here and now
                future.add_done_callback(functools.partial(self._landed, (variant, provider)))
            futures[variant] = future if started else _shared(future)
        return futures

    def _landed(self, identity: tuple[GemmVariant, str], _: Future[Artifact]) -> None:
        with self._lock:
            self._in_flight.pop(identity, None)

    def _attempts(self, variant: GemmVariant, provider: str) -> Iterator[tuple[str, Callable[[], Artifact]]]:
        """The ways to build a variant, best first, each with a name for messages."""
        if provider in ("auto", "cublasdx"):
            yield "cuBLASDx", lambda: self._cublasdx(variant, variant)
            weaker = variant.without_alignment()
            if weaker != variant:
                yield "cuBLASDx without alignment", lambda: self._cublasdx(variant, weaker)
        if provider in ("auto", "libmathdx") and self._libmathdx is not None:
            yield "Warp's libmathdx", lambda: self._mathdx(variant)
        if provider in ("auto", "scalar"):
            yield "Warp's scalar path", lambda: Artifact(variant, "", b"", "scalar", "", False, 0.0)

    def _build(self, variant: GemmVariant, provider: str) -> Artifact:
        failures: list[WarpTilesError] = []
        told: list[str] = []
        skip_cublasdx = False
        for name, attempt in self._attempts(variant, provider):
            if skip_cublasdx and name.startswith("cuBLASDx"):
                continue
            if failures:
                told.append(self._tell(variant, failures[-1], name))
            try:
                return replace(_twice(attempt), warnings=tuple(told))
            except WorkerError:
                raise  # an accident decides nothing: the scalar path would stay in Warp's cache for good
            except ToolchainError as error:
                failures.append(error)
                skip_cublasdx = True
            except BuildError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        raise BuildError(
            f"no provider can build {variant.describe()}", remedy="set the provider to auto: WARP_TILES_PROVIDER=auto"
        )

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

    def _cublasdx(self, variant: GemmVariant, attempt: GemmVariant) -> Artifact:
        from warp_tiles.pool import result_of

        self.require(attempt)
        provider = CublasdxProvider(self.store)
        start = time.perf_counter()

        def build() -> tuple[bytes, dict[str, object]]:
            request = provider.request(attempt)
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
            return compiled.payload, provider.manifest(attempt, compiled)

        with self.progress.variant(attempt.describe()):
            entry, hit = self.cache.get_or_build(provider.key(attempt), build)
        seconds = time.perf_counter() - start
        return Artifact(variant, attempt.symbol, entry.payload, provider.name, entry.key, hit, seconds)

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

    def _mathdx(self, variant: GemmVariant) -> Artifact:
        assert self._libmathdx is not None
        start = time.perf_counter()
        with self.progress.variant(variant.describe()):
            symbol, payload = self._libmathdx(variant)
        return Artifact(variant, symbol, payload, "libmathdx", "", False, time.perf_counter() - start)


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
