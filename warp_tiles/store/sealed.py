"""JSON in an envelope that carries the SHA-256 of the body's bytes.

    {"sha256":"<64 hex digits>","body":<compact JSON>}\\n

The file is plain JSON. Every byte of it is either fixed or covered by the digest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, NoReturn

from warp_tiles.util.files import FileTooLargeError
from warp_tiles.util.trusted_folder import TrustedFolder

_HEAD = b'{"sha256":"'
_MIDDLE = b'","body":'
_TAIL = b"}\n"
_BODY_AT = len(_HEAD) + 64 + len(_MIDDLE)


class DamagedError(ValueError):
    """Stored bytes differ from the written ones. The message names the difference."""


class FutureSchemaError(ValueError):
    """A later release wrote the data, and this release cannot read it."""


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
