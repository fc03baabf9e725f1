"""A slow build that continues while its module runs on the fast path."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from warp_tiles.errors import WarpTilesError
from warp_tiles.util.warn import warn

if TYPE_CHECKING:
    from warp_tiles.build.module_build import ModuleBuild
    from warp_tiles.compile.module import ModuleSource

log = logging.getLogger("warp_tiles")


class BackgroundBuild:
    """Builds and links, on its own thread, the functions that a module would otherwise wait for.

    Args:
        name: The module, for messages.
        prepare: Creates the module's build. It tunes first if the policy requires it.
        ended: Called at the end, with True if the module is ready.
    """

    def __init__(self, name: str, prepare: Callable[[], ModuleBuild], ended: Callable[[bool], None]) -> None:
        self._name = name
        self._prepare = prepare
        self._ended = ended
        self._fast_path: Future[ModuleSource | None] = Future()
        self._lock = threading.Lock()
        self._cancelled = False

    def start(self) -> None:
        """Start without waiting."""
        threading.Thread(target=self._run, name=f"warp_tiles_background_{self._name}", daemon=True).start()

    def fast_path_loaded(self, module: ModuleSource | None) -> None:
        """Receive the source of the fast path, which the link reuses. None if Warp loaded the module from its cache."""
        with self._lock:
            if not self._fast_path.done():
                self._fast_path.set_result(module)

    def cancel(self) -> None:
        """Suppress the warning of a failure, and stop waiting for the source of the fast path."""
        self._cancelled = True
        self.fast_path_loaded(None)

    def _run(self) -> None:
        started = time.perf_counter()
        ready = False
        try:
            build = self._prepare()
            if build.build_ahead():
                if (module := self._fast_path.result()) is not None:
                    build.link_ahead(module)
                ready = True
        except Exception as error:  # the module keeps running after any failure
            self._warn(error)
        if ready:
            log.info("%s: ready after %.1f s in the background", self._name, time.perf_counter() - started)
        self._ended(ready)

    def _warn(self, error: Exception) -> None:
        if self._cancelled:
            return
        cause = str(error) if isinstance(error, WarpTilesError) else f"{type(error).__name__}: {error}"
        text = f"module {self._name} stays on the fast path, because its background build failed: {cause}"
        try:
            warn(text)
        except RuntimeWarning as warning:  # warnings are errors, but no caller can catch one on this thread
            log.error("%s", warning)
