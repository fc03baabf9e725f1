"""Documents: files of JSON of one kind, which are read, written, listed, bounded and repaired by the kind's rules.

A sealed one carries the SHA-256 of the body's bytes, so that every byte is either fixed or covered by the digest:

    {"sha256":"<64 hex digits>","body":<compact JSON>}\\n

Faults of the cache are logged once and kept for later queries; none is raised.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from warp_tiles.errors import suppressed, unless_signalled
from warp_tiles.store import Kind
from warp_tiles.util.files import FileTooLargeError
from warp_tiles.util.trusted_folder import RefusedFolderError, TrustedFolder, store_lock
from warp_tiles.util.warn import WarnedTexts, printable

_HEAD = b'{"sha256":"'
_MIDDLE = b'","body":'
_TAIL = b"}\n"
_BODY_AT = len(_HEAD) + 64 + len(_MIDDLE)


class DamagedError(ValueError):
    """Stored bytes differ from the written ones. The message names the difference."""


class FutureSchemaError(ValueError):
    """A later release wrote the data, and this release cannot read it."""


def dump_json(value: object) -> bytes:
    """Compact, sorted, ASCII JSON. Raises a TypeError or a ValueError for what has no such form."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":")).encode("ascii")


def seal(body: Mapping[str, object]) -> bytes:
    """Serialise a JSON object with its digest. Raises what :func:`dump_json` raises."""
    data = dump_json(body)
    return b"".join((_HEAD, hashlib.sha256(data).hexdigest().encode("ascii"), _MIDDLE, data, _TAIL))


def unseal(data: bytes) -> dict[str, Any]:
    """Verify and parse the output of :func:`seal`. Raises DamagedError if any byte differs."""
    body = data[_BODY_AT : -len(_TAIL)]
    expected = b"".join((_HEAD, hashlib.sha256(body).hexdigest().encode("ascii"), _MIDDLE))
    if data[:_BODY_AT] != expected or data[-len(_TAIL) :] != _TAIL:
        raise DamagedError(f"its {len(data)} bytes do not match the digest they carry")
    return parse_object(body)


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object from untrusted bytes. Raises DamagedError if the bytes are not a JSON object."""
    try:
        value = json.loads(data, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedError(f"expected a JSON object, got {type(value).__name__}")
    return value


def refuse_constant(name: str) -> NoReturn:
    """For ``parse_constant`` of ``json.loads()``. Raises ValueError for Infinity and NaN."""
    raise ValueError(f"{name} is not JSON")


def read_bounded(files: TrustedFolder, name: str, most_bytes: int) -> tuple[bytes, os.stat_result]:
    """Read a file as :meth:`TrustedFolder.read` does. Raises DamagedError if it is larger than it can be."""
    try:
        return files.read(name, most_bytes)
    except FileTooLargeError as error:
        raise DamagedError(f"{error.strerror}") from error


logger = logging.getLogger("warp_tiles.cache")

#: The kinds of faults: what each says about a reason, and what to do.
_TEXTS = {
    "folder": (
        "the cache folder cannot be used ({}), so nothing is cached there",
        "free space, fix the permissions, or choose another cache folder",
    ),
    "lock": (
        "builds are not coordinated between processes ({})",
        "check whether another process hangs, or choose a cache folder on a local file system",
    ),
    "damage": ("damaged file removed: {}", "none needed, it is made again"),
    "size": ("{}", "raise the bound: WARP_TILES_CACHE_MAX_BYTES"),
}
_logged = WarnedTexts()


def reason_of(error: Exception) -> str:
    """The message of the operating system, without path and number; of another error, its text."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@dataclass(frozen=True)
class Fault:
    """A fault that prevented caching, but not the build; ``kind`` is ``folder``, ``damage``, ``lock`` or ``size``."""

    kind: str
    path: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.reason}. Remedy: {self.remedy}", lines=True)


class Faults:
    """The faults of one cache. Each is kept once, and logged once per process."""

    def __init__(self) -> None:
        self._kept: dict[Fault, None] = {}
        self._lock = threading.Lock()

    def add(self, kind: str, path: Path, reason: str | OSError) -> None:
        """Keep a fault, and log a warning unless this process has already logged it."""
        text, remedy = _TEXTS[kind]
        reason = reason if isinstance(reason, str) else reason_of(reason)
        fault = Fault(kind, str(path), text.format(reason), remedy)
        with self._lock:
            self._kept.setdefault(fault)
        if _logged.add(str(fault)):
            logger.warning("%s", fault)

    def all(self) -> tuple[Fault, ...]:
        """The faults so far, oldest first."""
        with self._lock:
            return tuple(self._kept)


T = TypeVar("T")


class Documents(Generic[T]):
    """The documents of one kind, each with a name.

    ``decode`` reads one from untrusted bytes and its name. It raises FutureSchemaError if a later release wrote it, and
    another ValueError if it is damaged.
    """

    #: Of changes, by name below the folder.
    lock_name = ".locks/store.lock"

    def __init__(
        self,
        root: Path,
        kind: Kind,
        decode: Callable[[bytes, str], T],
        encode: Callable[[T], bytes],
        *,
        shared: bool = False,
    ) -> None:
        self.files = TrustedFolder(root, kind.folder, shared=shared, private=kind.private)
        self.kind = kind
        self.decode, self.encode = decode, encode
        self.most_bytes = kind.most_bytes
        self.faults = Faults()

    def file(self, name: str) -> str:
        return f"{name}{self.kind.suffix}"

    def path(self, name: str) -> Path:
        return self.files.path(self.file(name))

    def read(self, name: str) -> T | None:
        """Returns a document, and notes its use; None if it is missing, damaged or unreadable."""
        try:
            document = self.load(name)
        except FileNotFoundError:
            return None
        except FutureSchemaError as error:
            self._unusable(name, error)
        except unless_signalled(ValueError) as error:
            return self._repaired(name, error)
        except unless_signalled(OSError) as error:
            self._unusable(name, error)
        else:
            if self.kind.most_files:
                self.touch(name)
            return document
        return None

    def load(self, name: str) -> T:
        """Returns a document, and changes nothing.

        Raises a ValueError if it is damaged, or of a later release, and an OSError if it cannot be read.
        """
        return self.decode(read_bounded(self.files, self.file(name), self.most_bytes)[0], name)

    def load_for_change(self, name: str) -> T | None:
        """Returns a document; None if there is none. A damaged one is put away, so the caller must hold the lock.

        Raises an OSError if a later release wrote it, or if it cannot be read or put away.
        """
        try:
            return self.load(name)
        except FileNotFoundError:
            return None
        except FutureSchemaError as error:
            raise OSError(errno.EPERM, f"{self.path(name)} is left alone: {error}") from error
        except unless_signalled(ValueError) as error:
            if self.kind.aside:
                self.files.move(self.file(name), f"{name}{self.kind.aside}")
            else:
                self.files.remove(self.file(name))
            self._damaged(name, error)
            return None

    def touch(self, name: str) -> None:
        """Note a use, for the order of eviction, as far as permissions allow."""
        try:
            self.files.touch(self.file(name), time.time_ns())  # finer than the kernel's own clock tick
        except PermissionError:  # another user's file in a shared cache: only "now" may be set
            with suppressed(OSError):
                self.files.touch(self.file(name))
        except unless_signalled(OSError):
            pass

    def write(self, name: str, document: T) -> None:
        """Store a document as :meth:`store` does. Does nothing if the folder cannot be used."""
        try:
            self.store(name, document)
        except unless_signalled(OSError) as error:
            self._unusable(name, error)

    def store(self, name: str, document: T) -> None:
        """Store a document, and remove the least recently used ones above the limit. Nothing is written twice.

        Raises an OSError if it cannot be written, or is larger than what is read.
        """
        data, file = self.encode(document), self.file(name)
        if len(data) > self.most_bytes:
            raise OSError(errno.EFBIG, f"it has {len(data)} bytes, and at most {self.most_bytes} are read")
        if self.kind.merged:
            with suppressed(OSError):
                if self.files.read(file, len(data))[0] == data:  # a new file would change fingerprints
                    return
        self.files.write(file, data, durable=self.kind.merged)  # elsewhere a seal shows a partial file
        if self.kind.most_files:
            stored = ((status.st_mtime_ns, name) for name, status in self.files.files())
            kept = sorted(item for item in stored if item[1].endswith(self.kind.suffix))
            for _, oldest in kept[: -self.kind.most_files]:
                self.files.remove(oldest)

    def changing(self, wait_s: float | None = None) -> AbstractContextManager[None]:
        """Hold the lock of changes, also where the file system has none.

        Raises an OSError if the folder cannot be used, or another process holds the lock for ``wait_s``, by default a
        minute.
        """
        return store_lock(self.files, self.lock_name, self._unlocked, wait_s)

    def names(self) -> list[str]:
        """The names of the stored documents, in order. Raises OSError if the folder cannot be used, or is refused."""
        suffix = self.kind.suffix
        return sorted(file.removesuffix(suffix) for file, _ in self.files.files() if file.endswith(suffix))

    # ---- what is reported

    def _repaired(self, name: str, error: ValueError) -> T | None:
        """Put a damaged document away. Returns what another process has written in its place meanwhile."""
        try:
            with self.changing() if self.kind.merged else nullcontext():
                return self.load_for_change(name)
        except unless_signalled(OSError) as fault:
            self._damaged(name, error, fault)
            return None

    def _damaged(self, name: str, error: ValueError, fault: OSError | None = None) -> None:
        """Report a damaged document that was put away, or why it could not be."""
        self.faults.add("damage", self.path(name), str(error))

    def _unusable(self, name: str, error: Exception) -> None:
        """Report a document that stays and is not used. Of a folder that cannot be used, the cache itself tells."""
        # in a shared cache, these folders belong to the first user
        if isinstance(error, RefusedFolderError) and not self.files.shared:
            self.faults.add("folder", self.files.root, error)

    def _unlocked(self, error: OSError) -> None:
        """Report that there are no locks. Raises the error of one that others hold."""
        if isinstance(error, TimeoutError):
            raise error
        self.faults.add("lock", self.files.root, error)


def sealed_documents(root: Path, kind: Kind, *, shared: bool = False) -> Documents[Mapping[str, object]]:
    """Documents that save time and can be made again, such as facts about the toolchain. If one is lost, time is."""
    return Documents(root, kind, lambda data, name: unseal(data), seal, shared=shared)
