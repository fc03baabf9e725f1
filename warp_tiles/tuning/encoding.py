"""Records as bytes: the file of one record, or a bundle of many. They are read as JSON and never unpickled."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

from warp_tiles.cache.sealed import dump_json
from warp_tiles.tuning.record import SCHEMA_VERSION, Record

_MOST_DIGITS = 19  # of an integer of 64 bits, with its sign


class FutureSchemaError(ValueError):
    """A later release wrote the file, and this release cannot read it."""


def encode_record(record: Record) -> bytes:
    """The content of a record's file.

    Raises:
        TypeError: A configuration holds something that JSON does not.
        ValueError: A configuration holds a number that is not finite.
    """
    return _encode(_with_digest(record))


def decode_record(data: bytes, digest: str) -> Record:
    """Returns the record of a file that is named after a key.

    Args:
        data: The content of the file.
        digest: The key that the file is named after.

    Raises:
        FutureSchemaError: The file has a later schema.
        ValueError: It is damaged, or holds the record of another key.
    """
    record = _checked(_decode(data))
    if record.key.digest != digest:
        raise ValueError(f"it holds the record of key {record.key.digest[:12]}")
    return record


def encode_bundle(records: Iterable[Record]) -> bytes:
    """The content of a bundle file.

    Raises:
        TypeError, ValueError: See :func:`encode_record`.
    """
    return _encode({"schema": SCHEMA_VERSION, "records": [_with_digest(record) for record in records]})


def decode_bundle(data: bytes) -> list[Record]:
    """Returns the records of a bundle file.

    Raises:
        FutureSchemaError: The file, or one of its records, has a later schema.
        ValueError: The file is not a bundle, or a record is invalid; the message names the first such record.
    """
    content = _decode(data)
    found = content.get("records") if isinstance(content, dict) else None
    if found is None or content.get("schema") != SCHEMA_VERSION or not isinstance(found, list):
        raise ValueError(f"it is not an export of schema {SCHEMA_VERSION}")
    records = []
    for place, item in enumerate(found):
        try:
            _refuse_future(item)
            records.append(_checked(item))
        except FutureSchemaError as error:
            raise FutureSchemaError(f"record {place}: {error}") from error
        except ValueError as error:
            raise ValueError(f"record {place}: {error}") from error
    return records


def _with_digest(record: Record) -> dict[str, Any]:
    """The record as JSON, with the SHA-256 of the rest, so that a changed byte does not change a timing."""
    data = record.to_json()
    return {**data, "sha256": _digest(data)}


def _checked(data: Any) -> Record:
    """Rebuild a record.

    Raises:
        ValueError: It is not one, or its digest does not match.
    """
    if not isinstance(data, dict):
        raise ValueError("not a tuning record")
    rest = {name: value for name, value in data.items() if name != "sha256"}
    try:
        record, digest = Record.from_json(rest), _digest(rest)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if data.get("sha256") != digest:
        raise ValueError("it does not match the digest that it carries")
    return record


def _digest(data: dict[str, Any]) -> str:
    return hashlib.sha256(dump_json(data)).hexdigest()


def _encode(data: Any) -> bytes:
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode("utf-8")


def _decode(data: bytes) -> Any:
    """Parse JSON of this schema.

    Raises:
        FutureSchemaError: The data has a later schema.
        ValueError: It is not JSON.
    """
    try:
        content = json.loads(
            data.decode("utf-8"), parse_constant=_refuse_constant, parse_int=_integer, parse_float=_number
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _refuse_future(content)
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _integer(text: str) -> int:
    """An integer that any use of it can bear."""
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"it contains a number of {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"it contains the number {text:.40}")
    return found


def _refuse_future(content: Any) -> None:
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and not isinstance(schema, bool) and schema > SCHEMA_VERSION:
        raise FutureSchemaError(f"it has schema {schema}, and this release reads schema {SCHEMA_VERSION}")
