"""Resources of a build under a module's settings: caches, toolchain and compiler processes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from warp_tiles.build.log import COMPILE, FETCH, LOOK_UP, Phase, Phases
from warp_tiles.compile.find import Toolchain, Version, dotted, unlinkable_reason
from warp_tiles.compile.toolchain import BundledFacts, ToolchainFacts, open_bundle
from warp_tiles.errors import BuildError, LockedError, RemoteError, WorkerError, unless_signalled
from warp_tiles.settings import OF_MODULE, Settings, current
from warp_tiles.store import (
    AHEAD,
    ANY_TOOLCHAIN,
    FUNCTIONS,
    LTOIR,
    MODULE,
    MODULES,
    RECORDS,
    REJECTED_SOURCES,
    Kind,
    cache_root,
)
from warp_tiles.store.documents import Documents
from warp_tiles.util.threads import LAUNCH, DaemonThreads
from warp_tiles.util.trusted_folder import TrustedFolder
from warp_tiles.util.warn import log

if TYPE_CHECKING:
    from warp_tiles.compile.compiler import Compiled, CompileRequest
    from warp_tiles.compile.pool import CompilerPool, Request
    from warp_tiles.store.bundle import Bundle
    from warp_tiles.store.cache import AskUpstream, BuildLease, Cache, Upstream
    from warp_tiles.store.key import CacheKey
    from warp_tiles.store.packages import KernelPackages, Packaged
    from warp_tiles.store.remote import RemoteStore

T = TypeVar("T")
_WAITING_THREADS = 64  # they only wait for compiler processes and for locks of other processes
_WAITING_THREADS_OF_EXECUTORS = 256  # a cluster can have as many workers


class _ThisThread(threading.local):
    ahead = LAUNCH


_this_thread = _ThisThread()


@contextmanager
def ahead_of_launches(order: int) -> Iterator[None]:
    """What this thread builds in the block leaves compiler processes to launches: PREFETCH or START_LIST."""
    before, _this_thread.ahead = _this_thread.ahead, order
    try:
        yield
    finally:
        _this_thread.ahead = before


class Resources:
    """What contexts share: caches, toolchain stores, connections and compiler processes, created at the first use.

    ``executor_pool`` makes the pool of an executor that runs the compilers, for the setting ``jobs``.
    """

    def __init__(
        self,
        warp_toolkit: Version | None = None,
        executor_pool: Callable[[ToolchainFacts, int], CompilerPool] | None = None,
    ) -> None:
        self.warp_toolkit = warp_toolkit
        self.executor_pool = executor_pool
        self.closed = False
        self._lock = threading.RLock()
        self._made: dict[tuple[object, ...], Any] = {}  # by kind, and by the settings that decide about it

    def once(self, make: Callable[[], T], *identity: object) -> T:
        """What ``make`` has returned for an identity, which begins with its kind."""
        with self._lock:
            if identity not in self._made:
                self._made[identity] = make()
            made: T = self._made[identity]
            return made

    def pool(self, jobs: int, others: int, make: Callable[[], CompilerPool]) -> CompilerPool:
        """``jobs`` compiler processes. Those for neither this number nor ``others`` end after their last request."""
        with self._lock:
            if self.closed:
                raise WorkerError(
                    "warp_tiles was disabled, or its libraries were replaced, during a build",
                    "retry the build; enable warp_tiles first if it is disabled",
                )
            for identity in [made for made in self._made if made[0] == "pool" and made[1] not in (jobs, others)]:
                self._made.pop(identity).retire()
            return self.once(make, "pool", jobs)

    @property
    def waiters(self) -> DaemonThreads:
        count = _WAITING_THREADS_OF_EXECUTORS if self.executor_pool is not None else _WAITING_THREADS
        return self.once(lambda: DaemonThreads(count, "warp_tiles_wait"), "waiters")

    def close(self) -> None:
        with self._lock:
            self.closed = True
            made, self._made = self._made, {}
        for (kind, *_), what in made.items():
            if kind in ("waiters", "queue", "pool", "remote", "bundle") and what is not None:
                what.close()

    def after_fork(self) -> None:
        """Reset a forked child, which has neither the parent's threads nor its compiler processes."""
        self._lock = threading.RLock()
        gone = ("pool", "remote", "waiters", "queue", "facts")  # a thread of the parent may hold their locks
        for identity, pool in self._made.items():
            if identity[0] == "pool":
                pool.after_fork()
        self._made = {identity: made for identity, made in self._made.items() if identity[0] not in gone}


@dataclass(frozen=True)
class BuildContext:
    """The resources under one set of settings: a :class:`warp_tiles.providers.base.ProviderContext`.

    Attributes:
        compiled: The work of the compiler, added by each :meth:`get_or_compile` that compiles.
        ahead: PREFETCH or START_LIST if no launch waits for what it builds, else LAUNCH.
    """

    resources: Resources
    settings: Settings
    compiled: list[Phase] = field(default_factory=list, compare=False, repr=False)
    ahead: int = field(default_factory=lambda: _this_thread.ahead, compare=False)
    linker_reason: str = ""

    @property
    def root(self) -> Path:
        """Folder of the cache and of the stored facts about the toolchain."""
        return cache_root(self.settings.cache_dir)

    @property
    def cache(self) -> Cache:
        return self._cache(FUNCTIONS)

    @property
    def modules(self) -> Cache:
        return self._cache(MODULES)

    def _cache(self, kind: Kind) -> Cache:
        from warp_tiles.store.cache import Cache

        root, most, shared = self.root, self.settings.cache_max_bytes, self.settings.cache_shared
        wait_s = self.settings.build_wait_s or -1.0  # no limit

        def make() -> Cache:
            return Cache(root, kind, max_bytes=most, allow_shared=shared, build_wait_s=wait_s, packaged=packaged)

        def packaged(key: CacheKey) -> Packaged | None:  # with the search path as it is then
            return None if (packages := self.packages) is None else packages.find(kind.object, key)

        chosen = self.settings.kernel_packages, self.settings.bundle
        return self.resources.once(make, "cache", root, kind, most, shared, wait_s, chosen)

    @property
    def warp_version(self) -> str:
        """Version of the installed Warp and of its CUDA, as kernel packages name it."""
        import warp

        return f"{warp.__version__}, CUDA {dotted(self.resources.warp_toolkit)}"

    @property
    def packages(self) -> KernelPackages | None:
        """The installed kernel packages that the settings allow; None if there is none."""
        chosen = self.settings.kernel_packages
        if chosen == "none" or self.settings.bundle is not None:
            return None
        from warp_tiles.store.packages import KernelPackages

        make = partial(KernelPackages, chosen, self.warp_version, tuple(sys.path))
        packages = self.resources.once(make, "packages", chosen, *sys.path)
        return packages if packages.found else None

    def is_packaged(self, module: str) -> bool:
        """True if an installed kernel package may have a module, by name."""
        return self.settings.policy != "off" and (packages := self.packages) is not None and packages.serve(module)

    def is_looked_up(self, module: str) -> bool:
        """True if a module is looked up although it will not be kept: in the cache, if it has modules, or a package."""
        now = self.settings
        if now.policy == "off" or now.modules == "tiles":
            return False
        return self.modules.had_entries or self.is_packaged(module)

    @property
    def remote(self) -> RemoteStore | None:
        """The remote store, connected in the background. If a key cannot be read, builds go on without it."""
        now = self.settings
        if not now.remote:
            return None
        from warp_tiles.store.remote import open_store

        def make() -> RemoteStore | None:
            try:
                return open_store(now, self.toolchain_text)
            except (RemoteError, ImportError) as error:
                log.warning("the remote store is not used: %s", error)
                return None

        return self.resources.once(
            make, "remote", now.remote, now.remote_push, now.remote_wait_s, now.signing_key, now.trusted_keys,
            self.root, now.cache_shared,
        )  # fmt: skip

    @property
    def bundle(self) -> Bundle | None:
        """The deployment bundle. Raises what :func:`open_bundle` raises."""
        now = self.settings
        if now.bundle is None:
            return None
        return self.resources.once(lambda: open_bundle(now), "bundle", now.bundle, now.trusted_keys, now.signing_key)

    @property
    def facts(self) -> ToolchainFacts:
        bundle, root, shared = self.bundle, self.root, self.settings.cache_shared

        def make() -> ToolchainFacts:
            if bundle is None:
                return ToolchainFacts(root, shared=shared, warp_toolkit=self.resources.warp_toolkit)
            return BundledFacts(bundle, root, shared=shared)

        return self.resources.once(make, "facts", root, shared, self.settings.bundle)

    @property
    def pool(self) -> CompilerPool:
        """The compiler processes; the setting ``jobs`` gives their number. With an executor, its workers compile."""
        from warp_tiles.compile.pool import CompilerPool, WorkerSlots

        jobs, others, of_executor = self.settings.jobs, current().jobs, self.resources.executor_pool
        if not self.settings.layer("jobs").startswith(OF_MODULE):  # it was hashed before the setting changed
            jobs = others

        def make() -> CompilerPool:
            if of_executor is not None:
                return of_executor(self.facts, jobs)
            files = TrustedFolder(self.root, shared=self.settings.cache_shared)
            slots = None if jobs else WorkerSlots(files)  # the user's number counts
            toolchain = self.try_toolchain()
            return CompilerPool(jobs, slots, () if toolchain is None else toolchain.paths)

        return self.resources.pool(jobs, others, make)

    @property
    def queue(self) -> DaemonThreads:
        """Threads that build ahead of launches, those of prefetches first. See :attr:`pool`."""
        jobs = self.pool.jobs
        return self.resources.once(lambda: DaemonThreads(jobs, "warp_tiles_queue"), "queue", jobs)

    def upstream(self, kind: str, key: CacheKey) -> AskUpstream | None:
        """The part of the bundle or of the remote store in a lookup; None without either, and without a toolchain."""
        from warp_tiles.store.cache import Upstream

        # signed statements name the toolchain, also those of modules that Warp's compiler alone has built
        if self.try_toolchain() is None:
            return None
        if (bundle := self.bundle) is not None:
            return lambda: Upstream(bundle.fetch(kind, key.digest, self.toolchain_text(kind)))
        if (remote := self.remote) is not None:
            return lambda: remote.upstream(kind, key.digest)
        return None

    @property
    def stores_modules(self) -> bool:
        """True if a linked module is to be stored. A store that does not answer must not cost the time of that."""
        if self.settings.modules != "auto" or self.settings.all_modules or self.settings.remote_push:
            return True
        return self.remote is not None and self.remote.is_up

    def toolchain_text(self, kind: str) -> str:
        """The compiler, and for modules the linker, with the beginnings of their digests. Signatures cover it.

        Records hold no code. Raises a ToolchainError for others without a toolchain.
        """
        if kind == RECORDS:
            return ANY_TOOLCHAIN
        toolchain = self.toolchain()
        text = f"NVRTC {dotted(toolchain.nvrtc_version)} {self.facts.compiler_digest()[:12]}"
        if kind == MODULE and toolchain.nvjitlink is not None:
            text += f", nvJitLink {dotted(toolchain.nvjitlink_version)} {self.facts.linker_digest()[:12]}"
        return text

    def toolchain(self) -> Toolchain:
        return self.facts.toolchain()

    @property
    def unlinkable_reason(self) -> str:
        """The reason why the module's linker cannot read the LTO-IR of the toolchain; empty if it can."""
        return unlinkable_reason(self.toolchain(), self.resources.warp_toolkit, self.linker_reason)

    def why_warp_links(self, arch: int, keywords: Mapping[str, Any], foreign_inputs: Sequence[str]) -> str:
        """The reason why Warp links a module; empty if warp_tiles does. See :func:`warp_link_reason`."""
        if self.settings.linker == "warp":
            return f"{self.settings.named('linker')} is 'warp'"
        toolchain = self.try_toolchain()
        if toolchain is not None and (reason := toolchain.reason_unsupported(arch)):
            return reason
        from warp_tiles.compile.module import warp_link_reason  # whose imports enable() does not need

        return warp_link_reason(keywords, toolchain=toolchain, foreign_inputs=foreign_inputs)

    def unreadable_ptx_reason(self, output: str) -> str:
        """The reason why a driver may refuse what nvJitLink writes; empty if it may not.

        Warp compiles to PTX for drivers that are not older than its own CUDA, and they read no PTX of a newer one.
        """
        toolchain, toolkit = self.try_toolchain(), self.resources.warp_toolkit
        version = toolchain.nvjitlink_version if toolchain is not None else None
        if output != "ptx" or toolkit is None or version is None or version <= toolkit:
            return ""
        return (
            f"the driver may not read the PTX of nvJitLink {dotted(version)}, which is newer than Warp's CUDA "
            f"{dotted(toolkit)}: set wp.config.cuda_output to 'cubin'"
        )

    def try_toolchain(self) -> Toolchain | None:
        return self.facts.try_toolchain()

    def submit(self, request: Request) -> Future[Compiled]:
        return self.pool.submit(request, ahead=self.ahead)

    @contextmanager
    def leased_module(
        self, key: CacheKey, phases: Phases, started_at_s: float, *, keeps: bool = True
    ) -> Iterator[BuildLease]:
        """Look up a module that was generated and, if it is kept, lock out others. Lookup and fetch are phases."""
        from warp_tiles.store.cache import BuildLease

        if not keeps:
            entry = self.modules.get(key)
            phases.add(LOOK_UP, started_at_s)
            yield BuildLease(entry, partial(self.modules.put, key))
            return
        upstream = self.upstream(MODULE, key)

        def asked() -> Upstream:
            assert upstream is not None
            phases.add(LOOK_UP, started_at_s)
            with phases.measured(FETCH):
                return upstream()

        with self.modules.lease(key, asked if upstream is not None else None) as lease:
            if FETCH not in {phase.name for phase in phases.found}:
                phases.add(LOOK_UP, started_at_s)
            if lease.found is not None and AHEAD in lease.found.manifest.info:
                self.modules.vouch(lease.found)
            yield lease

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

        with self.cache.lease(key, self.upstream(LTOIR, key)) as lease:
            if lease.found is not None:
                return lease.found.payload, True
            if not self.settings.rules.builds:
                raise LockedError(f"{request.subject} is not in the cache: {key.digest}")
            try:
                compiled = result_of(self.submit(request))
            except BuildError as error:
                raise BuildError(error.message, self._reproduction(request) or error.remedy, error.log) from error
            expected = f"NVRTC {dotted(self.toolchain().nvrtc_version)}"
            if compiled.compiler != expected:
                raise WorkerError(
                    f"the executor compiled with {compiled.compiler}, this process has {expected}",
                    "install the same packages where the executor runs",
                )
            self.compiled.append(Phase.of_process(COMPILE, compiled))
            return lease.keep(compiled.payload, info(compiled)).payload, False

    def _reproduction(self, request: CompileRequest) -> str:
        """Keep a rejected source, and return instructions for compiling it alone; empty if it cannot be kept."""
        name, shared = request.name.removesuffix(REJECTED_SOURCES.suffix), self.settings.cache_shared
        sources = Documents(self.root, REJECTED_SOURCES, lambda data, name: data, bytes, shared=shared)
        try:
            sources.store(name, request.text.encode("utf-8"))
        except unless_signalled(OSError):
            return ""
        return f"python -m warp_tiles.compile.worker --reproduce {sources.path(name)}"
