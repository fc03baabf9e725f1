"""A folder whose files decide which code runs: other users cannot write it, and no operation follows a link below it.

Every operation opens the root, and then each inner folder relative to its parent (``openat``) without following links.
So a link that somebody planted below the root is refused, and never leads to another place. The root itself may be
reached through links, because the user chose it. Everything here raises ``OSError`` and nothing else.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from warp_tiles.errors import suppressed, unless_signalled
from warp_tiles.util.files import (
    described,
    make_private_folders,
    read_descriptor,
    temporary_name,
    this_process,
    write_descriptor,
)
from warp_tiles.util.warn import log, printable

_SUPPORTED = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_READ_FLAGS = os.O_RDONLY | _NO_LINK | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)  # FIFOs do not block
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | getattr(os, "O_CLOEXEC", 0)
_OTHERS_WRITE = 0o022
_HOLDER_BYTES = 512
_MISSING = (FileNotFoundError, NotADirectoryError)  # a file in the place of the root has no files either


_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
#: Seconds after which a process that waits for a lock says so.
PATIENCE_S = 5.0
#: Seconds to wait for the lock of a folder's changes. They take milliseconds, so a process that holds it has stopped.
WAIT_S = 60.0
#: Seconds to wait for a lock that this process waited for in vain before.
WAIT_AGAIN_S = 0.5

_timeouts: dict[Path, str] = {}  # the error of each lock that was not obtained; a forked child inherits them


class NoLocksError(OSError):
    """The file system has no locks."""


class RefusedFolderError(PermissionError):
    """A folder is refused, because others could choose its content or because it is a link."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(errno.EACCES, f"{path} is refused: {reason}", str(path))
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason)


class TrustedFolder:
    """Files below one root, or below one folder in it. Paths below that are given as names with ``/`` between them.

    A name that begins with ``/`` or contains ``..`` is an error of the caller.

    Args:
        root: The folder. Nothing is created until something is written.
        folder: The folder of the files, by name below the root; empty for the root itself. It obeys the rules of inner
            folders.
        shared: Accept a root that others can write. Inner folders may then be as open as the root, and not more.
        private: Inner folders and files are for this user alone, also below a shared root.
        installed: The root holds Python packages, and the files belong to one. They are only read. This user or root
            owns them, and none is more open than the root, where whoever can write can replace Python's code.
    """

    def __init__(
        self, root: Path, folder: str = "", *, shared: bool = False, private: bool = False, installed: bool = False
    ) -> None:
        self.root = root
        self.folder = folder
        self.shared = shared
        self.installed = installed
        self.private = private or not shared
        self._root_writers = 0

    def path(self, name: str) -> Path:
        """The path of a file, for messages and for other programs."""
        return self.root / self.folder / name

    def check(self) -> None:
        """Check the root, and the folder of the files. Missing ones pass.

        Raises a RefusedFolderError if others can write one, or the folder of the files is a link.
        """
        with suppress(FileNotFoundError), self._opened(""):
            pass

    def modes(self) -> tuple[int, int]:
        """Permissions of new folders and files: for the owner only, or those of a shared root (OSError without one)."""
        if self.private:
            return 0o700, 0o600
        try:
            mode = stat.S_IMODE(os.stat(self.root).st_mode)
        except FileNotFoundError:
            return 0o700, 0o600
        return mode | 0o700, (mode & 0o666) | 0o600

    def make(self, folder: str) -> None:
        with self._opened(folder, create=True):
            pass

    def read(self, name: str, most_bytes: int) -> tuple[bytes, os.stat_result]:
        """Read a regular file, and return its content and its status. Raises an OSError if there is none.

        Raises a FileTooLargeError if it has more than ``most_bytes``.
        """
        with self._parent(name) as (parent, file):
            descriptor = os.open(file, _READ_FLAGS, dir_fd=parent)
        try:
            if self.installed:
                self._checked(self.path(name), os.fstat(descriptor), self._root_writers)
            return read_descriptor(descriptor, self.path(name), most_bytes)
        finally:
            os.close(descriptor)

    def write(self, name: str, data: bytes, *, durable: bool = True) -> os.stat_result:
        """Write a file atomically, and return its status. Its folder is created.

        Args:
            durable: Wait until it is on disk. Otherwise a crash of the system can leave an empty or a partial file.
        """
        _, mode = self.modes()
        temporary = temporary_name()
        with self._parent(name, create=True) as (parent, file):
            descriptor = os.open(temporary, _CREATE_FLAGS, 0o600, dir_fd=parent)
            try:
                status = write_descriptor(descriptor, data, mode if mode != 0o600 else None, durable=durable)
                os.replace(temporary, file, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppressed(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise
            if durable:
                _sync(parent)
        return status

    def remove(self, name: str) -> None:
        """Remove a file if it exists. A link is removed, and never its target."""
        with suppress(FileNotFoundError), self._parent(name) as (parent, file):
            os.unlink(file, dir_fd=parent)

    def remove_empty(self, folder: str) -> None:
        """Remove a folder and those in it, as far as they hold no file and this user may."""
        with suppressed(OSError):
            for inner in self.folders(folder):
                self.remove_empty(inner)
            with self._parent(folder) as (parent, name):
                os.rmdir(name, dir_fd=parent)

    def move(self, name: str, target: str) -> None:
        """Move a file to another folder, which is created. An existing target is replaced."""
        with self._parent(name) as (source, file), self._parent(target, create=True) as (destination, new):
            os.replace(file, new, src_dir_fd=source, dst_dir_fd=destination)

    def touch(self, name: str, time_ns: int | None = None) -> None:
        """Set a file's times; None for the system's own present time, which also a file of another user accepts."""
        with self._parent(name) as (parent, file):
            if time_ns is None:
                os.utime(file, dir_fd=parent, follow_symlinks=False)
            else:
                os.utime(file, ns=(time_ns, time_ns), dir_fd=parent, follow_symlinks=False)

    def sync(self, folder: str) -> None:
        """Sync a folder, so that the names in it survive a crash."""
        with self._opened(folder) as descriptor:
            _sync(descriptor)

    def files(self, folder: str = "") -> list[tuple[str, os.stat_result]]:
        """The names of a folder's files and links, each with its own status; none if the folder is missing."""
        files = []
        with suppress(*_MISSING), self._opened(folder) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed meanwhile
                    if not entry.is_dir(follow_symlinks=False):
                        files.append((_joined(folder, entry.name), entry.stat(follow_symlinks=False)))
        return files

    def folders(self, folder: str = "") -> list[str]:
        """The names of a folder's own folders, without links, in order; none if the folder is missing."""
        folders = []
        with suppress(*_MISSING), self._opened(folder) as descriptor, os.scandir(descriptor) as entries:
            folders = [_joined(folder, entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        return sorted(folders)

    @contextmanager
    def lock(
        self, name: str, timeout_s: float, poll_s: float = 0.02, waiting: Callable[[str], None] | None = None
    ) -> Iterator[None]:
        """Hold a lock across processes and threads. Its file and its folder are created, and may stay.

        Args:
            name: The lock's file, which ends in ``.lock``. A file that ends in ``.holder`` names the holder.
            timeout_s: Seconds to wait; negative for no limit.
            poll_s: Seconds between two attempts.
            waiting: Called once with the holder's name if the lock is not free after :data:`PATIENCE_S`.

        Raises:
            TimeoutError: Another thread or process still holds it after ``timeout_s``.
            NoLocksError: The file system has no locks.
            OSError: The lock cannot be created.
        """
        from filelock import FileLock, SoftFileLock, Timeout

        self.make(name.rpartition("/")[0])  # filelock opens the file by its path, and follows no link at its end
        # if flock() fails with ENOSYS, filelock takes a lock that outlives a killed process; 4.0 has an option
        options: dict[str, Any] = {"fallback_to_soft": False} if hasattr(FileLock, "fallback_to_soft") else {}
        held = FileLock(str(self.path(name)), mode=self.modes()[1], **options)
        holder = name.removesuffix(".lock") + ".holder"
        try:
            try:
                held.acquire(timeout=timeout_s if 0 <= timeout_s < PATIENCE_S else PATIENCE_S, poll_interval=poll_s)
            except Timeout:
                if 0 <= timeout_s <= PATIENCE_S:
                    raise
                if waiting is not None:
                    waiting(self._holder(holder))
                held.acquire(timeout=max(-1.0, timeout_s - PATIENCE_S), poll_interval=poll_s)
        except Timeout:
            text = f"the lock {held.lock_file} was held for {timeout_s:g} s by {self._holder(holder)}"
            raise TimeoutError(text) from None
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                raise NoLocksError(error.errno, f"no lock on this file system: {error}") from error
            raise
        if isinstance(held, SoftFileLock):  # ENOSYS in filelock 3.24 to 3.29
            held.release()
            raise NoLocksError(errno.ENOSYS, "no lock on this file system: flock() is missing")
        try:
            with suppressed(OSError):
                self.write(holder, this_process(), durable=False)
            yield
        finally:
            with suppressed(OSError):
                self.remove(holder)
            with suppressed(OSError):
                held.release()

    def _holder(self, name: str) -> str:
        """The process that holds a lock, for a message."""
        try:
            return described(self.read(name, _HOLDER_BYTES)[0])
        except unless_signalled(OSError):
            return described(b"")

    @contextmanager
    def _parent(self, name: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder of a file, see :meth:`_opened`. Yields it with the file's name in it."""
        folder, _, file = name.rpartition("/")
        with self._opened(folder, create=create) as descriptor:
            yield descriptor, file

    @contextmanager
    def _opened(self, folder: str, *, create: bool = False) -> Iterator[int]:
        """Open a folder by name, and check every folder on the way from the root. See :meth:`_checked`.

        Raises a FileNotFoundError if it is missing and ``create`` is not set.
        """
        parts = [*_parts(self.folder), *_parts(folder)]
        if not {".", ".."}.isdisjoint(parts):
            raise ValueError(f"{folder!r} leaves the folder {self.root}")
        if not _SUPPORTED:
            raise OSError(errno.ENOTSUP, "this system has no way to open folders without following links")
        if create:
            make_private_folders(self.root)
        try:
            descriptor = os.open(self.root, _FOLDER_FLAGS)
        except NotADirectoryError:
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way of the folder", str(self.root)) from None
        try:
            allowed = self._root_writers = self._checked(self.root, os.fstat(descriptor), None)
            path = self.root
            for part in parts:
                path = path / part
                child = self._child(descriptor, part, path, create)
                os.close(descriptor)
                descriptor = child
                self._checked(path, os.fstat(descriptor), allowed)
            yield descriptor
        finally:
            os.close(descriptor)

    def _child(self, parent: int, part: str, path: Path, create: bool) -> int:
        try:
            return os.open(part, _FOLDER_FLAGS | _NO_LINK, dir_fd=parent)
        except FileNotFoundError:
            if not create:
                raise
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise RefusedFolderError(path, "it is a link or a file, and not a folder") from None
            raise
        mode = self.modes()[0]
        with suppress(FileExistsError):  # another process created it
            os.mkdir(part, mode, dir_fd=parent)
            _sync(parent)
        descriptor = os.open(part, _FOLDER_FLAGS | _NO_LINK, dir_fd=parent)
        if not self.private and os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, mode)  # a shared folder keeps its group bits under any umask
        return descriptor

    def _checked(self, path: Path, status: os.stat_result, allowed: int | None) -> int:
        """Refuse a folder that others can write. Returns the write permissions of others that inner folders may have.

        ``allowed`` are those of the root; None if this is the root.
        """
        writers = status.st_mode & _OTHERS_WRITE
        if self.installed and status.st_uid not in (0, os.geteuid()):
            raise RefusedFolderError(path, f"it belongs to user {status.st_uid}, neither to root nor to this user")
        if self.installed or (self.shared and (allowed is None or not self.private)):
            if allowed is not None and writers & ~allowed:
                raise RefusedFolderError(path, f"its permissions {_shown(status)} are wider than those of {self.root}")
            return writers
        if status.st_uid != os.geteuid():
            raise RefusedFolderError(
                path, f"it belongs to user {status.st_uid}, this process runs as user {os.geteuid()}"
            )
        if writers:
            raise RefusedFolderError(path, f"its permissions {_shown(status)} let group or others write")
        return writers


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _parts(folder: str) -> list[str]:
    return folder.split("/") if folder else []


def _shown(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):#o}"


def _sync(descriptor: int) -> None:
    with suppressed(OSError):
        os.fsync(descriptor)


@contextmanager
def store_lock(
    files: TrustedFolder, name: str, unlocked: Callable[[OSError], None], wait_s: float | None = None
) -> Iterator[None]:
    """Hold the lock for changes of a folder. A log message names the process that is waited for.

    After one timeout, later calls in this process wait only briefly, until the lock is obtained again.

    Args:
        unlocked: Called with the TimeoutError if another process holds it for too long, or with the NoLocksError of a
            file system without locks. If it raises nothing, the block runs without the lock. Repeated timeouts have
            the same text.
        wait_s: Seconds until then; None for :data:`WAIT_S`.

    Raises:
        OSError: The lock cannot be created.
    """
    path = files.path(name)
    wait_s = WAIT_S if wait_s is None else wait_s
    wait_s = min(wait_s, WAIT_AGAIN_S) if path in _timeouts else wait_s

    def waiting(holder: str) -> None:
        root = printable(str(files.root))
        log.warning("waiting for %s, which changes %s; this process waits %g s at most", holder, root, wait_s)

    with ExitStack() as held:
        try:
            held.enter_context(files.lock(name, wait_s, waiting=waiting))
            _timeouts.pop(path, None)
        except unless_signalled(TimeoutError) as error:
            unlocked(TimeoutError(_timeouts.setdefault(path, str(error))))
        except NoLocksError as error:
            unlocked(error)
        yield
