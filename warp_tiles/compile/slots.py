"""Slots of running compilers, which all processes of a user on one host share: one for each core."""

from __future__ import annotations

import os

from warp_tiles.store.paths import LOCKS, SLOT_PREFIX
from warp_tiles.util.processes import host
from warp_tiles.util.threads import raise_if_signalled, suppressed
from warp_tiles.util.trusted_folder import TrustedFolder

try:
    import fcntl
except ImportError:  # not on Linux
    fcntl = None  # type: ignore[assignment]


class WorkerSlots:
    """The slots that a pool has taken. Each is a locked file, so those of a killed process are free.

    Args:
        files: The folder of all caches. If it cannot be used, every slot is free.
    """

    def __init__(self, files: TrustedFolder) -> None:
        self._files = files
        self._taken: set[int] = set()

    def take(self) -> int | None:
        """Take a slot, to be given to :meth:`release`; None if all are taken."""
        count = os.cpu_count() or 1  # those of the host, because processes may have different ones
        try:
            if fcntl is None:
                return -1
            self._files.make(LOCKS)
            for number in range(count):
                path = self._files.path(f"{LOCKS}/{SLOT_PREFIX}{host()}-{os.getuid()}-{number}.lock")
                slot = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, self._files.modes()[1])
                try:
                    fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(slot)
                    continue
                except OSError:
                    os.close(slot)
                    raise
                self._taken.add(slot)
                return slot
        except OSError as error:  # no locks, or a folder that is refused
            raise_if_signalled(error)
            return -1
        return None

    def release(self, slot: int | None) -> None:
        """Give a slot back."""
        if slot in self._taken:
            self._taken.discard(slot)
            with suppressed(OSError):
                fcntl.flock(slot, fcntl.LOCK_UN)  # a child that was forked meanwhile may have a copy
            os.close(slot)

    def after_fork(self) -> None:
        """Close what a forked child has of its parent's slots."""
        for slot in self._taken:
            with suppressed(OSError):
                os.close(slot)
        self._taken.clear()
