"""Locks between processes, as files. The system releases the locks of a process that dies."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
#: Seconds after which a waiting process says so.
PATIENCE_S = 5.0


class NoLocksError(OSError):
    """The file system has no locks."""


@contextmanager
def file_lock(
    path: Path,
    timeout_s: float,
    mode: int = 0o600,
    poll_s: float = 0.02,
    waiting: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Hold a lock across processes and threads.

    Args:
        path: The lock's file; its folder exists. It may stay when the lock is released.
        timeout_s: Seconds to wait; negative for no limit.
        mode: Permissions of the file.
        poll_s: Seconds between two attempts.
        waiting: Called once if the lock is not free after :data:`PATIENCE_S`.

    Raises:
        TimeoutError: Another thread or process still holds it after ``timeout_s``.
        NoLocksError: The file system has no locks.
        OSError: The file cannot be opened.
    """
    from filelock import FileLock, SoftFileLock, Timeout

    # if flock() fails with ENOSYS, filelock takes a lock that outlives a killed process; 4.0 has an option
    options: dict[str, Any] = {"fallback_to_soft": False} if hasattr(FileLock, "fallback_to_soft") else {}
    until = time.monotonic() + timeout_s
    try:
        held = FileLock(str(path), mode=mode, **options)
        try:
            held.acquire(timeout=timeout_s if 0 <= timeout_s < PATIENCE_S else PATIENCE_S, poll_interval=poll_s)
        except Timeout:
            if 0 <= timeout_s <= PATIENCE_S:
                raise
            if waiting is not None:
                waiting()
            left_s = max(0.0, until - time.monotonic()) if timeout_s >= 0 else -1
            held.acquire(timeout=left_s, poll_interval=poll_s)
    except Timeout:
        raise TimeoutError(f"the lock {path.stem} was held elsewhere for {timeout_s:g} s") from None
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            raise NoLocksError(error.errno, f"no lock on this file system: {error}") from error
        raise
    if isinstance(held, SoftFileLock):  # ENOSYS in filelock 3.24 to 3.29
        held.release()
        raise NoLocksError(errno.ENOSYS, "no lock on this file system: flock() is missing")
    try:
        yield
    finally:
        with suppress(OSError):
            held.release()
