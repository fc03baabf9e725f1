"""Durable, atomic, private files. Everything here raises ``OSError`` and nothing else."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

TEMP_PREFIX = ".tmp-"

_READ_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)  # this package writes no links
    | getattr(os, "O_NONBLOCK", 0)  # a FIFO must not hang the reader
)


def make_private_folders(path: Path, mode: int = 0o700) -> None:
    """Create a folder and its missing parents, each with ``mode`` (owner-only by default).

    Threads and processes may create the same folders at once. Each accepts the folders that another one created.
    """
    try:
        _make_folder(path, mode)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_private_folders(path.parent, mode)
        _make_folder(path, mode)  # raises if the file system allows no folder here


def _make_folder(path: Path, mode: int) -> None:
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way of the folder", str(path)) from None
        return
    if mode != 0o700 and hasattr(os, "fchmod"):
        os.chmod(path, mode)  # a shared folder keeps its group bits under any umask
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Sync a folder, so that the names in it survive a crash. Does nothing where a folder cannot be synced."""
    if os.name == "nt":
        return
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> os.stat_result:
    """Write a file atomically and durably.

    Args:
        path: The file; its folder exists.
        data: The content.
        mode: Its permissions.

    Returns:
        The written file's status.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=TEMP_PREFIX, dir=path.parent)
    try:
        try:
            rest = memoryview(data)
            while rest:
                written = os.write(descriptor, rest)
                if written <= 0:
                    raise OSError(errno.EIO, "a write took no bytes", str(path))
                rest = rest[written:]
            if mode != 0o600 and hasattr(os, "fchmod"):
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)
    return status


def read_whole(path: str | Path) -> tuple[bytes, os.stat_result]:
    """Read a regular file in one go, and return its content and its status."""
    descriptor = os.open(path, _READ_FLAGS)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        data = os.read(descriptor, status.st_size + 1)
        if len(data) != status.st_size:  # short read, or a file that changed while being read
            parts = [data]
            while part := os.read(descriptor, 1 << 20):
                parts.append(part)
            data = b"".join(parts)
        return data, status
    finally:
        os.close(descriptor)
