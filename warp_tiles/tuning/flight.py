"""Single flight: of all threads and processes that want to search for one key, one does, and the others wait."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from warp_tiles.util.files import make_private_folders
from warp_tiles.util.locks import file_lock

POLL_S = 0.05


class _Searches:
    """Searches under way in this process, by the path of their lock."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.pid = os.getpid()
        self.changed = threading.Condition()
        self.thread_of: dict[Path, int] = {}
        self.unfinished: set[Path] = set()


_searches = _Searches()


@contextmanager
def single_flight(
    lock: Path, timeout_s: float | None, modes: Callable[[], tuple[int, int]], unusable: Callable[[OSError], None]
) -> Iterator[bool]:
    """Hold a lock for a search, or wait until whoever holds it has ended.

    A search leaves a mark beside its lock, which it removes when its block ends without an exception. So a process
    that waited for one that was killed or interrupted sees the mark, and takes over.

    Args:
        lock: The lock's file; its folder is made.
        timeout_s: How long to wait; None for as long as it takes, 0 for not at all.
        modes: Gives permissions of new folders and files.
        unusable: Told why there is no lock between processes; threads are coordinated all the same.

    Yields:
        True where this thread holds the lock for the block; False where another search has ended meanwhile or goes
        on, and in a search for the same key by this very thread.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    mark = lock.with_suffix(".searching")
    with ExitStack() as held:
        waited = _enter_in_process(held, lock, deadline)
        if waited is None:
            yield False
            return
        try:
            folder_mode, file_mode = modes()
            make_private_folders(lock.parent, folder_mode)
            waited = _enter_among_processes(held, lock, deadline, file_mode) or waited
            interrupted = mark.exists()
        except TimeoutError:
            held.close()
            yield False
            return
        except OSError as error:
            unusable(error)
            interrupted = False
        if waited and not interrupted and lock not in _searches.unfinished:
            held.close()
            yield False
            return
        _searches.unfinished.add(lock)
        with suppress(OSError):
            mark.touch(0o600)
        yield True
        _searches.unfinished.discard(lock)
        with suppress(OSError):
            mark.unlink()


def _enter_in_process(held: ExitStack, lock: Path, deadline: float | None) -> bool | None:
    """Whether this thread had to wait for another; None if it may not search."""
    if _searches.pid != os.getpid():
        _searches.reset()  # a forked child inherits searches whose threads it does not have
    changed, thread_of = _searches.changed, _searches.thread_of
    waited = False
    with changed:
        while lock in thread_of:
            if thread_of[lock] == threading.get_ident():
                return None
            waited = True
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            changed.wait(left_s)
        thread_of[lock] = threading.get_ident()
    held.callback(_leave_in_process, lock)
    return waited


def _leave_in_process(lock: Path) -> None:
    with _searches.changed:
        _searches.thread_of.pop(lock, None)
        _searches.changed.notify_all()


def _enter_among_processes(held: ExitStack, lock: Path, deadline: float | None, mode: int) -> bool:
    """Take the file lock; whether this process had to wait for another.

    Raises:
        TimeoutError: Another still holds it.
        OSError: No lock can be had here.
    """
    try:
        held.enter_context(file_lock(lock, 0.0, mode))
    except TimeoutError:
        left_s = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        held.enter_context(file_lock(lock, left_s, mode, POLL_S))
        return True
    return False
