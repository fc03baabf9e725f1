"""Durable, atomic files. Everything here raises ``OSError`` and nothing else.

Files whose content decides which code runs lie below a :class:`warp_tiles.util.trusted_folder.TrustedFolder`. The
functions here serve inputs and outputs that the user names.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from warp_tiles.errors import suppressed, unless_signalled
from warp_tiles.util.warn import warn_once

if TYPE_CHECKING:
    from io import BufferedReader

_READ_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a FIFO must not hang the reader
)
_CREATE_FLAGS = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
)  # O_EXCL follows no link
TEMP_PREFIX = ".tmp-"
DAY_S = 86400.0
_MOST_OUTPUT_BYTES = 1 << 30
_DIGESTS_SUFFIX = ".sha256"
_staged: set[Path] = set()
_PASSES, _PASS_S = 10, 0.005


class FileTooLargeError(OSError):
    """A file is larger than a reader accepts."""


def make_private_folders(path: Path) -> None:
    """Create a folder and its missing parents, each for the owner only.

    Threads and processes may create the same folders at once. Each accepts the folders that another one created.
    """
    if os.path.isdir(path) or path.parent == path:
        return
    make_private_folders(path.parent)
    try:
        os.mkdir(path, 0o700)
    except (FileExistsError, NotADirectoryError):
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way of the folder", str(path)) from None
    else:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Sync a folder, so that the names in it survive a crash. Does nothing where a folder cannot be synced."""
    if os.name == "nt":
        return
    with suppressed(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_descriptor(descriptor: int, data: bytes, mode: int | None = None, *, durable: bool = True) -> os.stat_result:
    """Write a new file, with permissions if any, and return its status. The descriptor is closed in any case.

    If it is ``durable``, the content is on disk.
    """
    try:
        rest = memoryview(data)
        while rest:
            written = os.write(descriptor, rest)
            if written <= 0:
                raise OSError(errno.EIO, "a write took no bytes")
            rest = rest[written:]
        if mode is not None and hasattr(os, "fchmod"):
            os.fchmod(descriptor, mode)
        if durable:
            os.fsync(descriptor)
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, durably; whole or not at all. An existing one is never replaced."""
    descriptor = os.open(path, _CREATE_FLAGS, 0o600)
    try:
        write_descriptor(descriptor, data)
    except BaseException:
        with suppressed(OSError):
            os.unlink(path)
        raise


@contextmanager
def open_output(path: Path) -> Iterator[BinaryIO]:
    """Open an output that the user names: whole or not at all, so an error in the block changes no file.

    A new file has the permissions that the umask allows, and a file that is replaced keeps its own. A link is followed,
    and the file behind it is replaced. A FIFO, a device or an open file (``/dev/stdout``, ``/dev/fd/3``) is
    written to, and never replaced. An OSError names ``path``.
    """
    special = _special(path)
    if special is not None:
        with open(special, "ab") as stream:
            yield stream
        return
    target = Path(os.path.realpath(path))
    temporary = target.parent / temporary_name()
    with _named(path):
        descriptor = os.open(temporary, _CREATE_FLAGS, 0o666)
    with open(descriptor, "wb") as stream:
        try:
            yield stream
            with _named(path):
                stream.flush()
                with suppressed(OSError):
                    os.fchmod(stream.fileno(), stat.S_IMODE(os.stat(target).st_mode))
                os.fsync(stream.fileno())
                os.replace(temporary, target)
        except BaseException:
            with suppressed(OSError):
                os.unlink(temporary)
            raise
    sync_folder(target.parent)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the user's path in errors, in place of a temporary file."""
    try:
        yield
    except unless_signalled(OSError) as error:
        raise type(error)(error.errno, error.strerror or str(error), str(path)) from error


def write_output(path: Path, data: bytes) -> None:
    with open_output(path) as stream:
        stream.write(data)


def _special(path: Path) -> Path | int | None:
    """What to open for an output that is written to in place: a path, or a copy of an open file. None for a file.

    Raises an IsADirectoryError for a folder.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    named = [int(path.name)] if path.parent.name == "fd" and path.name.isdecimal() else []
    for number in (*named, 1, 2):
        with suppressed(OSError, OverflowError):  # it is not open
            if os.path.samestat(status, os.fstat(number)):
                return os.dup(number)  # which keeps its place in the file
    return None if stat.S_ISREG(status.st_mode) else path


def require_replaceable(path: Path) -> None:
    """Raise an OSError unless a path is free for a new file: it is missing, or a regular file, or a link to one."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "it is not a regular file, and is not replaced by one", str(path))


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A folder inside ``folder``, for files that are then moved there. It is removed after the block.

    Those that killed processes left are removed, too.
    """
    for left in folder.glob(f"{TEMP_PREFIX}*"):
        with suppressed(OSError):
            if is_leftover(left.name, left.stat().st_mtime):
                shutil.rmtree(left, ignore_errors=True)
    staged = folder / temporary_name()
    _staged.add(staged)
    try:
        staged.mkdir(parents=True)
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        _staged.discard(staged)


def remove_staged() -> None:
    """Remove the folders of :func:`staging` of all threads, before the process is killed."""
    for number in range(_PASSES):  # other threads still write
        if number:
            time.sleep(_PASS_S)
        for staged in tuple(_staged):
            shutil.rmtree(staged, ignore_errors=True)


def read_whole(path: str | Path, most_bytes: int) -> tuple[bytes, os.stat_result]:
    """Read a regular file in one go, and return its content and its status. Links are followed.

    Raises a FileTooLargeError if it has more than ``most_bytes``, and an OSError if it is no such file.
    """
    descriptor = os.open(path, _READ_FLAGS)
    try:
        return read_descriptor(descriptor, Path(path), most_bytes)
    finally:
        os.close(descriptor)


def sha256_of(path: str | os.PathLike[str], most_bytes: int | None = None) -> str:
    """SHA-256 of a regular file of at most ``most_bytes``, hex. Links are followed. Raises as :func:`read_whole`."""
    hasher = hashlib.sha256()
    with open_input(Path(path)) as stream:
        size = os.fstat(stream.fileno()).st_size
        if most_bytes is not None and size > most_bytes:
            raise _too_large(most_bytes, path)
        while part := stream.read(1 << 20):
            hasher.update(part)
    return hasher.hexdigest()


def open_input(path: Path) -> BufferedReader:
    """Open a regular file for reading. Links are followed, and opening a FIFO does not block: it is an OSError."""
    descriptor = os.open(path, _READ_FLAGS)
    try:
        _require_regular(descriptor, path)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(descriptor: int, path: Path) -> os.stat_result:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return status


def read_descriptor(descriptor: int, path: Path, most_bytes: int) -> tuple[bytes, os.stat_result]:
    """Read an open regular file in one go, see :func:`read_whole`. The path serves messages."""
    status = _require_regular(descriptor, path)
    parts: list[bytes] = []
    left = most_bytes + 1
    size = min(status.st_size + 1, left)
    while left > 0 and (part := os.read(descriptor, size)):
        parts.append(part)
        left -= len(part)
        if len(parts) == 1 and len(part) == status.st_size:  # a file that does not change while it is read
            break
        size = min(1 << 20, left)
    if left <= 0:
        raise _too_large(most_bytes, path)
    return parts[0] if len(parts) == 1 else b"".join(parts), status


def _too_large(most_bytes: int, path: str | os.PathLike[str]) -> FileTooLargeError:
    reason = f"it has more than {most_bytes} bytes, the largest size that is read"
    return FileTooLargeError(errno.EFBIG, reason, os.fspath(path))


# ---- digests of outputs, in a file beside them that ``sha256sum -c`` reads


def digests_of(output: Path) -> Path:
    return output.with_name(output.name + _DIGESTS_SUFFIX)


def write_digests(output: Path, others: Sequence[Path]) -> None:
    """Write the digests of an output, and of files that belong to it, to ``<output>.sha256``."""
    lines = [f"{sha256_of(path, _MOST_OUTPUT_BYTES)}  {path.name}\n" for path in (output, *others)]
    write_output(digests_of(output), "".join(lines).encode("utf-8", "surrogateescape"))


def matches(output: Path, others: Sequence[Path] = ()) -> bool:
    """Returns True if the output and the other files are as they were when their digests were written."""
    with suppressed(OSError, ValueError):
        data, _ = read_whole(digests_of(output), 1 << 20)
        lines = data.decode("utf-8", "surrogateescape").splitlines()
        known = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        return all(known.get(path.name) == sha256_of(path, _MOST_OUTPUT_BYTES) for path in (output, *others))
    return False


def is_kept(output: Path, others: Sequence[Path] = ()) -> bool:
    """Returns True if an output of an earlier build can be kept. Warns once of one that has changed since."""
    if matches(output, others):
        return True
    if digests_of(output).is_file() and output.is_file():
        warn_once(f"{output} or its metadata does not match {digests_of(output).name}, so it is built again")
    return False


# ---- the processes that write files and hold locks, in names and messages


def temporary_name() -> str:
    """A name for a temporary file, which shows the process that writes it."""
    return f"{TEMP_PREFIX}{host()}-{os.getpid()}-{os.urandom(16).hex()}"


def _is_abandoned(name: str) -> bool:
    """True if the process that wrote a temporary file has ended. False also if that cannot be known."""
    parts = name.removeprefix(TEMP_PREFIX).split("-")
    if len(parts) != 3 or parts[0] != host() or not parts[1].isdecimal():
        return False
    try:
        os.kill(int(parts[1]), 0)
    except ProcessLookupError:
        return True
    except unless_signalled(OSError, OverflowError):
        pass
    return False


def is_leftover(name: str, modified_s: float) -> bool:
    """True for a temporary file that is no longer written: its process has ended, or it is a day old."""
    return name.startswith(TEMP_PREFIX) and (_is_abandoned(name) or time.time() - modified_s > DAY_S)


def _node() -> str:
    return os.uname().nodename if hasattr(os, "uname") else ""


@lru_cache(maxsize=1)
def host() -> str:
    """A short text for the start of the host, and on Linux for the namespace of process numbers (of a container)."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except unless_signalled(OSError):
        namespace = ""
    boot = b""
    with suppressed(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return f"{zlib.crc32(f'{_node()} {namespace}'.encode('utf-8', 'replace') + boot):08x}"


def this_process() -> bytes:
    """A text that :func:`described` reads in other processes: the number of this process and its host."""
    return f"{os.getpid()} {_node()}".encode("utf-8", "replace")


def described(data: bytes) -> str:
    """A process for a message, e.g. ``process 1234 on 'node7'``, from :func:`this_process`."""
    number, _, node = data.decode("utf-8", "replace").partition(" ")
    if not (number.isascii() and number.isdigit() and len(number) < 20):
        return "another process"
    return f"process {number} on {node[:80]!r}"
