"""JSON in an envelope that carries the SHA-256 of the body's bytes, and folders of such files.

    {"sha256":"<64 hex digits>","body":<compact JSON>}\\n

The file is plain JSON. Every byte of it is either fixed or covered by the digest.

The files save time and can be written again: facts about the toolchain, keys that missed, modules of earlier runs. A
damaged one is reported once and removed. If the folder cannot be used, nothing is remembered.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from warp_tiles.store.kinds import Kind
from warp_tiles.store.report import Problems
from warp_tiles.util.files import FileTooLargeError
from warp_tiles.util.threads import suppressed, unless_signalled
from warp_tiles.util.trusted_folder import RefusedFolderError, TrustedFolder

_HEAD = b'{"sha256":"'
_MIDDLE = b'","body":'
_TAIL = b"}\n"
_BODY_AT = len(_HEAD) + 64 + len(_MIDDLE)


class DamagedError(ValueError):
    """Stored bytes differ from the written ones. The message names the difference."""


def dump_json(value: object) -> bytes:
    """Compact, sorted, ASCII JSON.

    Raises:
        TypeError: A part has no JSON form.
        ValueError: A number is not finite, or a structure contains itself.
    """
    return json.dumps(value, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":")).encode("ascii")


def seal(body: Mapping[str, object]) -> bytes:
    """Serialise a JSON object with its digest. Raises what :func:`dump_json` raises."""
    data = dump_json(body)
    return b"".join((_HEAD, hashlib.sha256(data).hexdigest().encode("ascii"), _MIDDLE, data, _TAIL))


def unseal(data: bytes) -> dict[str, object]:
    """Verify and parse the output of :func:`seal`. Raises DamagedError if any byte differs."""
    return parse_object(sealed_body(data))


def sealed_body(data: bytes) -> bytes:
    """Verify the output of :func:`seal`, and return its JSON. Raises DamagedError if any byte differs."""
    body = data[_BODY_AT : -len(_TAIL)]
    expected = b"".join((_HEAD, hashlib.sha256(body).hexdigest().encode("ascii"), _MIDDLE))
    if data[:_BODY_AT] != expected or data[-len(_TAIL) :] != _TAIL:
        raise DamagedError(f"its {len(data)} bytes do not match the digest they carry")
    return body


def parse_object(data: bytes) -> dict[str, object]:
    """Parse a JSON object from untrusted bytes. Raises DamagedError if the bytes are not a JSON object."""
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedError(f"expected a JSON object, got {type(value).__name__}")
    return value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def read_bounded(files: TrustedFolder, name: str, most_bytes: int) -> tuple[bytes, os.stat_result]:
    """Read a file as :meth:`TrustedFolder.read` does. Raises DamagedError if it is larger than it can be."""
    try:
        return files.read(name, most_bytes)
    except FileTooLargeError as error:
        raise DamagedError(f"{error.strerror}") from error


class Documents:
    """The files of one kind.

    Args:
        shared: Accept a root that others can write.
    """

    def __init__(self, root: Path, kind: Kind, *, shared: bool = False) -> None:
        self.files = TrustedFolder(root, shared=shared, private=kind.private)
        self.kind = kind
        self.problems = Problems()

    def file(self, name: str) -> str:
        """The name of a document's file below the root."""
        return f"{self.kind.folder}/{name}{self.kind.suffix}"

    def read(self, name: str) -> dict[str, object] | None:
        """Returns a document, or None if it is missing, damaged or unreadable."""
        try:
            return self.load(name)
        except DamagedError as error:
            self.problems.damage(self.files.path(self.file(name)), str(error))
            with suppressed(OSError):
                self.files.remove(self.file(name))
        except RefusedFolderError as error:
            self._report(error)
        except unless_signalled(OSError):  # missing, or the cache itself reports that its folder cannot be used
            pass
        return None

    def load(self, name: str) -> dict[str, object]:
        """Returns a document.

        Raises:
            DamagedError: It is damaged. It stays.
            OSError: It is missing or unreadable, or the folder is refused.
        """
        return unseal(read_bounded(self.files, self.file(name), self.kind.most_bytes)[0])

    def write(self, name: str, body: Mapping[str, object]) -> None:
        """Store a document as :meth:`store` does. Does nothing if the folder cannot be used."""
        try:
            self.store(name, body)
        except RefusedFolderError as error:
            self._report(error)
        except unless_signalled(OSError):
            pass

    def store(self, name: str, body: Mapping[str, object]) -> None:
        """Store a document, and remove the oldest ones above the limit. Raises OSError."""
        self.files.write(self.file(name), seal(body), durable=False)  # its seal shows a partial file
        if self.kind.most_files:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        stored = [(status.st_mtime_ns, file) for file, status in self.files.files(self.kind.folder)]
        kept = sorted(item for item in stored if item[1].endswith(self.kind.suffix))
        for _, file in kept[: -self.kind.most_files]:
            self.files.remove(file)

    def names(self) -> list[str]:
        """The names of the stored documents, in order; none if the folder cannot be used."""
        with suppressed(OSError):
            found = (Path(file) for file, _ in self.files.files(self.kind.folder))
            return sorted(file.stem for file in found if file.suffix == self.kind.suffix)
        return []

    def damage(self) -> list[tuple[Path, str]]:
        """The damaged files, each with the fault. Nothing is changed.

        Raises:
            OSError: The folder cannot be used, or is refused.
        """
        self.files.folders(self.kind.folder)
        found = []
        for name in self.names():
            try:
                self.load(name)
            except DamagedError as error:
                found.append((self.files.path(self.file(name)), str(error)))
            except FileNotFoundError:
                pass  # removed meanwhile
        return found

    def _report(self, error: RefusedFolderError) -> None:
        if not self.files.shared:  # in a shared cache, these folders belong to the first user
            self.problems.folder(self.files.root, error)
