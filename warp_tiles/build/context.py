"""Resources of a build under a module's settings: caches, toolchain and compiler processes."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.build.phases import COMPILE, Phase, now_s
from warp_tiles.cache.paths import MODULES, MODULES_SUFFIX, cache_root
from warp_tiles.errors import BuildError, LockedError, ToolchainError, WorkerError
from warp_tiles.remote import ANY_TOOLCHAIN, LTOIR, MODULE, RECORDS
from warp_tiles.settings import Settings
from warp_tiles.toolchain.search import Toolchain, Version, dotted, require_linkable
from warp_tiles.toolchain.store import ToolchainStore
from warp_tiles.util.threads import DaemonThreads
from warp_tiles.util.trusted_folder import TrustedFolder

if TYPE_CHECKING:
    from warp_tiles.build.headers import ModuleHeaders
    from warp_tiles.cache.key import CacheKey
    from warp_tiles.cache.store import AskUpstream, Cache
    from warp_tiles.compile.compiler import Compiled, CompileRequest
    from warp_tiles.compile.module import ModuleSource
    from warp_tiles.compile.pool import CompilerPool, Compilers
    from warp_tiles.remote.bundle import Bundle
    from warp_tiles.remote.store import RemoteStore

log = logging.getLogger("warp_tiles")
_WAITING_THREADS = 64  # they only wait for compiler processes and for locks of other processes
_WAITING_THREADS_OF_EXECUTORS = 256  # a cluster can have as many workers


class Resources:
    """Caches, toolchain stores and compiler processes: one for each set of settings, created at the first use.

    Args:
        warp_toolkit: CUDA version of Warp's linker, or None if unknown.
        executor: Runs the compilers in place of this package's processes.
    """

    def __init__(self, warp_toolkit: Version | None, executor: Executor | None) -> None:
        self.warp_toolkit = warp_toolkit
        self._executor = executor
        self._lock = threading.Lock()
        self.closed = False
        self._stores: dict[tuple[Path, bool, Path | None], ToolchainStore] = {}
        self._caches: dict[tuple[Path, str, int, bool, float], Cache] = {}
        self._headers: dict[Path, ModuleHeaders] = {}
        self._pools: dict[int, Compilers] = {}
        self._bundles: dict[tuple[Path, tuple[str, ...], Path | None], Bundle] = {}
        self._remotes: dict[tuple[object, ...], RemoteStore | None] = {}
        self._waiters: DaemonThreads | None = None

    def cache(self, settings: Settings, folder: str = "", suffix: str = ".ltoir") -> Cache:
        """The cache that the settings name.

        Args:
            settings: The settings.
            folder: A folder below its root; empty for the cache of functions.
            suffix: Suffix of its payloads.
        """
        from warp_tiles.cache.store import Cache

        wait_s = settings.build_wait_s or -1.0  # no limit
        identity = (cache_root(settings), folder, settings.cache_max_bytes, settings.cache_shared, wait_s)
        with self._lock:
            if identity not in self._caches:
                root, _, most, shared, _ = identity
                made = Cache(root, folder, max_bytes=most, allow_shared=shared, build_wait_s=wait_s, suffix=suffix)
                self._caches[identity] = made
            return self._caches[identity]

    def remote(self, settings: Settings) -> RemoteStore | None:
        """The remote store that the settings name. The first call connects to it in the background.

        A key that cannot be read is reported once, and builds continue without the store.
        """
        if not settings.remote:
            return None
        from warp_tiles.remote.connect import open_store

        identity = (
            settings.remote, settings.remote_push, settings.remote_wait_s, settings.signing_key,
            settings.trusted_keys, cache_root(settings), settings.cache_shared,
        )  # fmt: skip
        with self._lock:
            if identity not in self._remotes:
                context = BuildContext(self, settings)
                try:
                    self._remotes[identity] = open_store(settings, context.toolchain_text)
                except Exception as error:  # a store must not fail a launch
                    log.warning("the remote store is not used: %s", error)
                    self._remotes[identity] = None
            return self._remotes[identity]

    def bundle(self, settings: Settings) -> Bundle | None:
        """The deployment bundle that the settings name.

        Raises:
            BundleError: It cannot be used, or was made with other versions or settings.
            SettingError: The policy is not ``locked``.
        """
        if settings.bundle is None:
            return None
        from warp_tiles.build.deployment import open_bundle

        identity = (settings.bundle, settings.trusted_keys, settings.signing_key)
        with self._lock:
            if identity not in self._bundles:
                self._bundles[identity] = open_bundle(settings)
            return self._bundles[identity]

    def store(self, settings: Settings) -> ToolchainStore:
        """The toolchain and digests under the settings."""
        bundle = self.bundle(settings)
        identity = (cache_root(settings), settings.cache_shared, settings.bundle)
        with self._lock:
            if identity not in self._stores:
                root, shared, _ = identity
                if bundle is None:
                    self._stores[identity] = ToolchainStore(root, "toolchain", shared=shared)
                else:
                    from warp_tiles.build.deployment import toolchain_of

                    self._stores[identity] = toolchain_of(bundle, root, shared=shared)
            return self._stores[identity]

    def headers(self, settings: Settings) -> ModuleHeaders:
        """The precompiled headers under the settings."""
        from warp_tiles.build.headers import ModuleHeaders

        root, store = cache_root(settings), self.store(settings)
        with self._lock:
            if root not in self._headers:
                self._headers[root] = ModuleHeaders(root, store, lambda work: self.waiters.submit(work))
            return self._headers[root]

    def pool(self, settings: Settings) -> Compilers:
        """The compiler processes; the setting ``jobs`` gives their number.

        With an executor, its workers compile.

        Raises:
            WorkerError: warp_tiles was disabled.
        """
        from warp_tiles.compile.pool import CompilerPool

        store = self.store(settings)
        with self._lock:
            if self.closed:
                raise WorkerError("warp_tiles was disabled during a build", "enable it again and retry")
            if settings.jobs not in self._pools:

                def local() -> CompilerPool:
                    return CompilerPool(settings.jobs)

                self._pools[settings.jobs] = (
                    local() if self._executor is None else _remote(self._executor, store, local)
                )
            return self._pools[settings.jobs]

    @property
    def has_executor(self) -> bool:
        """True if an executor of the user runs the compilers."""
        return self._executor is not None

    @property
    def waiters(self) -> DaemonThreads:
        """Threads that wait for builds."""
        with self._lock:
            if self._waiters is None:
                count = _WAITING_THREADS_OF_EXECUTORS if self.has_executor else _WAITING_THREADS
                self._waiters = DaemonThreads(count, "warp_tiles_wait")
            return self._waiters

    def close(self) -> None:
        """End the compiler processes."""
        with self._lock:
            self.closed = True
            pools, self._pools = list(self._pools.values()), {}
            waiters, self._waiters = self._waiters, None
            remotes, self._remotes = list(self._remotes.values()), {}
            bundles, self._bundles = list(self._bundles.values()), {}
        for bundle in bundles:
            bundle.close()
        for remote in filter(None, remotes):
            remote.close()
        if waiters is not None:
            waiters.shutdown(wait=False, cancel_futures=True)
        for pool in pools:
            pool.close()

    def after_fork(self) -> None:
        """Reset a forked child, which has neither the parent's threads nor its compiler processes."""
        self._lock = threading.Lock()
        self._pools, self._remotes, self._waiters = {}, {}, None


def _remote(executor: Executor, store: ToolchainStore, local: Callable[[], CompilerPool]) -> Compilers:
    from warp_tiles.build.executor import ExecutorPool
    from warp_tiles.build.installation import Installation

    return ExecutorPool(executor, Installation(store), local)


@dataclass(frozen=True)
class BuildContext:
    """The resources under one set of settings: a :class:`warp_tiles.providers.base.ProviderContext`.

    Attributes:
        compiled: The work of the compiler, added by each :meth:`get_or_compile` that compiles.
    """

    resources: Resources
    settings: Settings
    compiled: list[Phase] = field(default_factory=list, compare=False, repr=False)

    @property
    def root(self) -> Path:
        """Folder of the cache and of the stored facts about the toolchain."""
        return cache_root(self.settings)

    @property
    def cache(self) -> Cache:
        """The cache."""
        return self.resources.cache(self.settings)

    @property
    def modules(self) -> Cache:
        """The cache of linked modules."""
        return self.resources.cache(self.settings, MODULES, MODULES_SUFFIX)

    def upstream(self, kind: str, key: CacheKey) -> AskUpstream | None:
        """The part of the bundle or of the remote store in a lookup; None without either.

        Args:
            kind: ``ltoir`` or ``module``.
            key: The key that is looked up.
        """
        bundle = self.resources.bundle(self.settings)
        if bundle is not None:
            return functools.partial(bundle.lease, kind, key.digest, functools.partial(self.toolchain_text, kind))
        remote = self.resources.remote(self.settings)
        if remote is None:
            return None
        return functools.partial(remote.lease, kind, key.digest, self.settings.build_wait_s or -1.0)

    @property
    def stores_modules(self) -> bool:
        """True if a linked module is to be stored. A store that does not answer must not cost the time of that."""
        if self.settings.cache_modules or self.settings.remote_push:
            return True
        remote = self.resources.remote(self.settings)
        return remote is not None and remote.is_up

    def toolchain_text(self, kind: str) -> str:
        """The compiler, and for modules the linker, with the beginnings of their digests. Signatures cover it.

        Args:
            kind: ``ltoir``, ``module``, or ``records``, which hold no code and name their own driver and versions.

        Raises:
            ToolchainError: There is no toolchain.
        """
        if kind == RECORDS:
            return ANY_TOOLCHAIN
        toolchain = self.toolchain()
        text = f"NVRTC {dotted(toolchain.nvrtc_version)} {self.store.compiler_digest()[:12]}"
        if kind == MODULE and toolchain.nvjitlink is not None:
            text += f", nvJitLink {dotted(toolchain.nvjitlink_version)} {self.store.linker_digest()[:12]}"
        return text

    @property
    def store(self) -> ToolchainStore:
        """The toolchain and digests."""
        return self.resources.store(self.settings)

    @property
    def pool(self) -> Compilers:
        """The compiler processes; raises WorkerError if warp_tiles was disabled."""
        return self.resources.pool(self.settings)

    def toolchain(self) -> Toolchain:
        """The toolchain, checked against Warp's linker.

        Raises:
            ToolchainError: It is missing, or newer than Warp's linker.
        """
        toolchain = self.store.toolchain()
        require_linkable(toolchain, self.resources.warp_toolkit)
        return toolchain

    def try_toolchain(self) -> Toolchain | None:
        """The toolchain, or None if there is no usable one."""
        try:
            return self.toolchain()
        except ToolchainError:
            return None

    def compile_module(self, request: CompileRequest, module: ModuleSource, prefix: str) -> Future[Compiled]:
        """Start compiling a module to LTO-IR, with precompiled headers if the settings allow them.

        Args:
            request: The module.
            module: The module as Warp passes it to its compiler.
            prefix: The beginning of its source, up to the first declaration.

        Raises:
            WorkerError: warp_tiles was disabled.
        """
        pool = self.pool
        if self.resources.has_executor:
            return pool.submit(request, prefix=len(prefix))
        # a file of precompiled headers is an image of a compiler's heap, so other users must not have written it
        precompiles = self.settings.precompile_headers and not self.settings.cache_shared
        if not precompiles or module.keywords.get("extra_include_dirs"):
            return pool.submit(request)
        return self.resources.headers(self.settings).compile(pool, request, Path(module.native_dir), prefix)

    def is_cached(self, key: CacheKey) -> bool:
        """Returns True if the cache holds a key."""
        return self.cache.manifest(key) is not None

    def get_or_compile(
        self, key: CacheKey, request: CompileRequest, info: Callable[[Compiled], dict[str, object]]
    ) -> tuple[bytes, bool]:
        """LTO-IR from the cache or from a compiler process, and True if it comes from the cache.

        Raises:
            BuildError: The compiler rejected the source, which is kept.
            ToolchainError: There is no toolchain, or a compiler process failed.
            LockedError: It is not in the cache, and the policy is ``locked``.
        """
        from warp_tiles.compile.pool import result_of

        def build() -> tuple[bytes, dict[str, object]]:
            if not self.settings.rules.builds:
                raise LockedError(f"{request.subject} is not in the cache: {key.digest}")
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
            self.compiled.append(Phase(COMPILE, now_s() - compiled.seconds, compiled.seconds))
            return compiled.payload, info(compiled)

        entry, hit = self.cache.get_or_build(key, build, self.upstream(LTOIR, key))
        return entry.payload, hit

    def _reproduction(self, request: CompileRequest) -> str:
        """Keep a rejected source, and return instructions for compiling it alone."""
        name = f"failed/{request.name}"
        files = TrustedFolder(self.root, shared=self.settings.cache_shared, private=True)
        try:
            files.write(name, request.text.encode("utf-8"))
        except OSError:
            return (
                "`python -m warp_tiles.compile.worker --reproduce FILE` compiles it alone, with this in FILE:\n"
                f"{request.text}"
            )
        return f"python -m warp_tiles.compile.worker --reproduce {files.path(name)}"
