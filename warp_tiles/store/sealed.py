"""JSON in an envelope that carries the SHA-256 of the body's bytes.

    {"sha256":"<64 hex digits>","body":<compact JSON>}\\n

The file is plain JSON. Every byte of it is either fixed or covered by the digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

_HEAD = b'{"sha256":"'
_MIDDLE = b'","body":'
_TAIL = b"}\n"
_BODY_AT = len(_HEAD) + 64 + len(_MIDDLE)


class DamagedError(Exception):
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
    """Verify and parse the output of :func:`seal`.

    Raises:
        DamagedError: Any byte differs.
    """
    body = data[_BODY_AT : -len(_TAIL)]
    expected = b"".join((_HEAD, hashlib.sha256(body).hexdigest().encode("ascii"), _MIDDLE))
    if data[:_BODY_AT] != expected or data[-len(_TAIL) :] != _TAIL:
        raise DamagedError(f"its {len(data)} bytes do not match the digest they carry")
    return parse_object(body)


def parse_object(data: bytes) -> dict[str, object]:
    """Parse a JSON object from untrusted bytes.

    Raises:
        DamagedError: The bytes are not a JSON object.
    """
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedError(f"expected a JSON object, got {type(value).__name__}")
    return value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
