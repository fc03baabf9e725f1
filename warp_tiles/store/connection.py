"""The connection to a remote store. It answers in time, or is not used again in this process.

No state of the store fails a build. A store that is down costs a process at most :data:`PATIENCE_S`; one that stops
answering costs it the setting ``remote_wait_s`` once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from warp_tiles.errors import RemoteError
from warp_tiles.store.client import Client
from warp_tiles.store.keys import require_cryptography
from warp_tiles.util.signals import raise_if_signalled
from warp_tiles.util.threads import DaemonThreads, wait_all
from warp_tiles.util.urls import without_password

log = logging.getLogger("warp_tiles")
T = TypeVar("T")
#: Seconds that a process waits, once, to learn whether a store answers at all. The question is asked much earlier.
PATIENCE_S = 0.02
#: A process asks no more after so many failures in a row.
MOST_FAILURES = 3
#: An answer that takes longer counts as lost time.
SLOW_S = 0.2
_THREADS = 32


class Connection:
    """A connection that is made in the background.

    Args:
        url: URL of the store.
        probe: Name of an object that is asked for first.
        wait_s: The longest time to wait for an answer.
    """

    def __init__(self, url: str, probe: str, wait_s: float) -> None:
        self.url = without_password(url)  # for messages
        self._given_url, self._probe, self.wait_s = url, probe, wait_s
        self._threads = DaemonThreads(_THREADS, "warp_tiles_remote")
        self._lock = threading.Lock()
        self._patience_s = PATIENCE_S
        self._failures = 0
        self._overspent_s = 0.0  # waits for answers, less the builds that they replace
        self._off = ""
        self._said: set[str] = set()
        self._opened: Future[Client] = self._threads.submit(self._open)

    @property
    def off(self) -> str:
        """The reason why this process asks no more; empty while it does."""
        return self._off

    @property
    def is_up(self) -> bool:
        """True if the store has answered, and is asked."""
        opened = self._opened
        return not self._off and opened.done() and not opened.cancelled() and opened.exception() is None

    def client(self, timeout_s: float | None = None) -> Client:
        """The client, as soon as it is connected. Raises the error of the connection."""
        return self._opened.result(timeout_s)

    def close(self) -> None:
        """End the threads. Requests in flight are abandoned."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def answer(self, request: Callable[[], T]) -> T | None:
        """The result of a request; None if it fails or takes too long. The first failure of each kind is logged."""
        if not self._becomes_up():
            return None
        start = time.perf_counter()
        try:
            future = self._threads.submit(request)
        except RuntimeError as closed:  # it was closed meanwhile
            raise_if_signalled(closed)
            return None
        wait_all([future], self.wait_s)
        if not future.done() or future.cancelled():
            future.cancel()
            self._turn_off(f"it did not answer within {self.wait_s:g} s")
            return None
        error = future.exception()
        if error is None:
            self._failures = 0
            return future.result()
        if isinstance(error, PermissionError):  # of an object; S3 also says so of a missing one
            self.say(f"it refuses a request: {error}", about="permission")
        elif time.perf_counter() - start >= self.wait_s:  # the client's own timer ended first
            self._turn_off(f"it did not answer within {self.wait_s:g} s")
        else:
            with self._lock:
                self._failures += 1
            if self._failures >= MOST_FAILURES:
                self._turn_off(f"{MOST_FAILURES} requests in a row failed: {error}")
            else:
                self.say(f"a request failed: {error}", about=f"failure: {type(error).__name__}")
        return None

    def count_wait(self, waited_s: float, saved_s: float = 0.0) -> None:
        """Count a slow answer and the build that it replaces. If answers cost more than they save, ask no more.

        Args:
            waited_s: Seconds until the answer. Those of requests side by side are added.
            saved_s: Seconds of the build; 0 without an entry.
        """
        if waited_s < SLOW_S:
            return
        with self._lock:
            self._overspent_s += waited_s - saved_s
        if self._overspent_s >= self.wait_s:
            self._turn_off(f"it is slow, and has cost {self._overspent_s:.1f} s more than it saved")

    def require(self) -> None:
        """Wait until the store answers.

        Raises:
            RemoteError: It does not answer in time.
        """
        with self._lock:
            self._patience_s = self.wait_s
        if not self._becomes_up():
            raise RemoteError(
                f"the remote store {self.url} is not usable: {self._off or 'no answer in time'}",
                remedy="check the setting remote, the network, and the credentials in the environment",
            )

    def _open(self) -> Client:
        require_cryptography()
        client = Client(self._given_url, self.wait_s)
        with suppress(PermissionError):  # it answers, and an object may be readable all the same
            client.exists(self._probe)
        return client

    def _becomes_up(self) -> bool:
        """True if the store has answered. The first call waits for a moment."""
        if self._off:
            return False
        with self._lock:
            patience_s, self._patience_s = self._patience_s, 0.0
        if not wait_all([self._opened], patience_s):
            if patience_s:
                self.say("it has not answered yet, so that builds go on without it", about="slow")
            return False
        error = RemoteError("it was closed") if self._opened.cancelled() else self._opened.exception()
        if error is not None:
            self._turn_off(error.message if isinstance(error, RemoteError) else f"it does not answer: {error}")
        return error is None

    def _turn_off(self, reason: str) -> None:
        with self._lock:
            first, self._off = not self._off, self._off or reason
        if first:
            self.say(f"{reason}. It is not used again in this process")

    def say(self, text: str, about: str = "", level: int = logging.WARNING) -> None:
        """Log a message, once for each subject that it is about; by default its text."""
        with self._lock:
            new = (about or text) not in self._said
            self._said.add(about or text)
        if new:
            log.log(level, "the remote store %s: %s", self.url, text)
