"""Single flight: of several threads that want one key, one builds and the others take its result."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from warp_tiles.errors import CacheError

T = TypeVar("T")


class Flights(Generic[T]):
    """Calls under way in this process, by key."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._under_way: dict[str, tuple[int, Future[T]]] = {}

    def run(self, key: str, call: Callable[[], T]) -> tuple[T, bool]:
        """Run ``call`` unless another thread already does for this key; then wait for its result.

        Returns:
            The result, and whether this thread ran the call.

        Raises:
            CacheError: The call for a key asked for the same key again.
            Exception: What the call raised, in every thread that waited for it.
        """
        if self._pid != os.getpid():
            self._reset()  # a forked child inherits flights whose threads it does not have
        while True:
            with self._lock:
                known = self._under_way.get(key)
                if known is None:
                    future: Future[T] = Future()
                    self._under_way[key] = (threading.get_ident(), future)
            if known is None:
                return self._lead(key, future, call), True
            if known[0] == threading.get_ident():
                raise CacheError(
                    f"the build of key {key} asked the cache for its own key",
                    remedy="a build must not depend on its own result",
                )
            try:
                return known[1].result(), False
            except Exception:
                raise
            except BaseException:  # the other thread was interrupted, not the build: take its place
                if not known[1].done() or not _interrupted(known[1]):
                    raise  # this thread itself was interrupted

    def _lead(self, key: str, future: Future[T], call: Callable[[], T]) -> T:
        try:
            result = call()
        except BaseException as error:
            self._forget(key)
            future.set_exception(error)
            raise
        self._forget(key)
        future.set_result(result)
        return result

    def _forget(self, key: str) -> None:
        with self._lock:
            self._under_way.pop(key, None)


def _interrupted(future: Future[T]) -> bool:
    error = future.exception()
    return error is not None and not isinstance(error, Exception)
