"""Single flight: one thread of one process does the work under a lock file, and the others learn that it was done."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from warp_tiles.util.threads import raise_if_signalled
from warp_tiles.util.trusted_folder import TrustedFolder

log = logging.getLogger("warp_tiles")
POLL_S = 0.05


_searching = threading.local()  # the locks of the searches of this thread


@contextmanager
def single_flight(
    files: TrustedFolder, name: str, timeout_s: float | None, unusable: Callable[[OSError], None]
) -> Iterator[bool]:
    """Hold a lock for a search, or wait until the thread or process that holds it has ended its search.

    Args:
        files: The folder of the lock.
        name: The lock's file, which ends in ``.lock``. Its folder is created.
        timeout_s: Seconds to wait; None for no limit, 0 for no waiting.
        unusable: Called with the reason if searches cannot be coordinated.

    Yields:
        True if this thread holds the lock for the block, or nobody can. False if another search has ended meanwhile or
        still runs, or if this thread already searches for the key.
    """
    mine: set[Path] = vars(_searching).setdefault("mine", set())
    lock = files.path(name)
    with ExitStack() as held:
        may_search = lock not in mine
        if may_search:
            try:
                held.enter_context(files.lock(name, 0.0))
            except TimeoutError as busy:
                raise_if_signalled(busy)
                may_search = False
                try:
                    with files.lock(name, -1.0 if timeout_s is None else timeout_s, POLL_S, _say_waiting):
                        pass
                except OSError as error:
                    raise_if_signalled(error)
            except OSError as error:
                raise_if_signalled(error)
                unusable(error)
        if may_search:
            mine.add(lock)
            held.callback(mine.discard, lock)
        yield may_search


def searches(files: TrustedFolder, name: str) -> bool:
    """Returns True if this thread holds a lock of :func:`single_flight`."""
    return files.path(name) in vars(_searching).get("mine", ())


def _say_waiting(holder: str) -> None:
    log.warning("waiting for %s, which searches for the same configuration", holder)
