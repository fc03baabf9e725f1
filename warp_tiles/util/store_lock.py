"""The lock for changes of a folder. A change takes milliseconds, so a process that holds it for long has stopped."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from warp_tiles.util.printable import printable
from warp_tiles.util.trusted_folder import TrustedFolder

WAIT_S = 60.0
#: Seconds to wait for a lock that this process waited for in vain before.
WAIT_AGAIN_S = 0.5

log = logging.getLogger("warp_tiles")
_timeouts: dict[Path, str] = {}  # the error of each lock that was not obtained; a forked child inherits them


@contextmanager
def store_lock(files: TrustedFolder, name: str) -> Iterator[None]:
    """Hold the lock for changes of a folder. A log message names the process that is waited for.

    After one timeout, later calls in this process wait only briefly, until the lock is obtained again.

    Args:
        files: The folder.
        name: The lock's file.

    Raises:
        TimeoutError: Another process holds it for too long. Repeated errors have the same text.
        NoLocksError: The file system has no locks.
        OSError: The lock cannot be created.
    """
    path = files.path(name)
    wait_s = min(WAIT_S, WAIT_AGAIN_S) if path in _timeouts else WAIT_S

    def waiting(holder: str) -> None:
        place = printable(str(files.root))
        log.warning("waiting for %s, which changes %s; this process waits %g s at most", holder, place, wait_s)

    with ExitStack() as held:
        try:
            held.enter_context(files.lock(name, wait_s, waiting=waiting))
        except TimeoutError as error:
            raise TimeoutError(_timeouts.setdefault(path, str(error))) from None
        _timeouts.pop(path, None)
        yield
