"""Compiles modules side by side, before their first launch.

A thread generates and compiles a module into Warp's kernel cache. It loads nothing on a device, so it disturbs no
capture of a graph. Afterwards it discards the module's hash, because the program may still change what the module
depends on. The launch hashes the module as usual, and finds the compiled file if nothing changed. A launch waits for
the thread that compiles its module.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import warp

from warp_tiles._warp.internals import find
from warp_tiles.settings import current
from warp_tiles.util.threads import DaemonThreads, raise_if_signalled, wait_all

log = logging.getLogger("warp_tiles")


class Prefetches:
    """The modules that are compiled ahead of their launches; launches look into ``pending``, which is by identity."""

    def __init__(
        self, compile_ahead: Callable[[Any, Any, int], None], pending: dict[int, tuple[Any, Future[None]]]
    ) -> None:
        self._compile_ahead = compile_ahead
        self._lock = threading.RLock()  # submit() makes the call itself if no thread can be started
        self._threads: DaemonThreads | None = None
        self._left: set[int] = set()  # modules whose remaining block sizes and devices are left to launches
        self.pending = pending

    def start(self, modules: Iterable[tuple[Any, Any, int]]) -> int:
        """Compiles modules on threads, as many as the setting ``jobs`` allows. Returns at once.

        Args:
            modules: Warp's modules, each with a device and a block size. Modules that cannot be compiled ahead are
                left out: the cache of kernels is off, or their names or hashes do not identify their content.

        Returns:
            The number of modules that are queued.
        """
        targets: dict[int, tuple[Any, dict[tuple[str, int], Any]]] = {}
        for module, device, block_dim in modules:
            if reusable(module):
                targets.setdefault(id(module), (module, {}))[1].setdefault((device.alias, block_dim), device)
        with self._lock:
            fresh = [(key, *target) for key, target in targets.items() if key not in self.pending]
            if fresh and self._threads is None:
                from warp_tiles.util.threads import available_cores

                self._threads = DaemonThreads(current().jobs or available_cores(), "warp_tiles_prefetch")
            for key, module, devices in fresh:
                assert self._threads is not None
                future = self._threads.submit(self._run, key, module, devices)
                if not future.done():  # the thread needs the lock to remove it
                    self.pending[key] = (module, future)
        return len(fresh)

    def _run(self, key: int, module: Any, devices: Mapping[tuple[str, int], Any]) -> None:
        try:
            for (_, block_dim), device in devices.items():
                if key in self._left:
                    break
                self._compile_ahead(module, device, block_dim)
        except BaseException as error:  # the launch meets the same error, and reports it
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            raise_if_signalled(error)
            log.debug("module %s was not compiled ahead: %r", module.name, error)
        finally:
            with self._lock:
                self.pending.pop(key, None)
                self._left.discard(key)

    def join(self, module: Any) -> None:
        """Waits for the running compilation of a module. The caller compiles what has not begun.

        A caller that holds the lock of Warp's code generator does not wait, because the thread may need that lock.
        """
        _, future = self.pending.get(id(module), (None, None))
        if future is None:
            return
        with self._lock:
            if id(module) in self.pending:
                self._left.add(id(module))
        if future.cancel():
            with self._lock:
                self.pending.pop(id(module), None)
                self._left.discard(id(module))
        elif not find("codegen._codegen_lock")._is_owned():
            wait_all([future])

    def stop(self) -> None:
        """Cancels what has not begun, and waits for the rest, because a compiler must not run while a process ends."""
        with self._lock:
            threads, self._threads = self._threads, None
            self._left.update(self.pending)
            running = [future for _, future in self.pending.values() if not future.cancel()]
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        wait_all(running)
        self.pending.clear()
        self._left.clear()

    def after_fork(self) -> None:
        """Resets a forked child, which has no threads of its parent."""
        self._lock = threading.RLock()
        self._threads = None
        self.pending.clear()
        self._left.clear()


def reusable(module: Any) -> bool:
    """True if a launch finds the file of an earlier compilation exactly if nothing changed in between.

    Warp evaluates deferred ``wp.static`` expressions when it first hashes a module, so it must not be hashed earlier.
    """
    return bool(
        warp.config.cache_kernels
        and not module.options.get("strip_hash")
        and not module.options.get("verify_autograd_array_access")
        and not warp.config.verify_autograd_array_access
        and not module.has_unresolved_static_expressions
    )
