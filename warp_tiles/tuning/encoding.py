"""Records as bytes: the file of one record, or an export of many. They are read as JSON and never unpickled."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

from warp_tiles.store.sealed import dump_json
from warp_tiles.tuning.record import SCHEMA_VERSION, FutureSchemaError, Record, require_schema

_MOST_DIGITS = 19  # of an integer of 64 bits, with its sign


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


def encode_records(records: Iterable[Record]) -> bytes:
    """Several records, as an export has them.

    Raises:
        TypeError, ValueError: See :func:`encode_record`.
    """
    return _encode({"schema": SCHEMA_VERSION, "records": [_with_digest(record) for record in records]})


def decode_records(data: bytes) -> list[Record]:
    """Returns the records of an export.

    Raises:
        FutureSchemaError: The export, or one of its records, has a later schema.
        ValueError: It is not an export, or a record is invalid; the message names the first such record.
    """
    content = _decode(data)
    require_schema(content, "an export")
    if not isinstance(content.get("records"), list):
        raise ValueError("not an export, records is not a list")
    records = []
    for place, item in enumerate(content["records"]):
        try:
            records.append(_checked(item))
        except ValueError as error:
            kind = FutureSchemaError if isinstance(error, FutureSchemaError) else ValueError
            raise kind(f"record {place}: {error}") from error
    return records


def _with_digest(record: Record) -> dict[str, Any]:
    """The record as JSON, with the SHA-256 of the rest, so that a changed byte does not change a timing."""
    data = record.to_json()
    return {**data, "sha256": hashlib.sha256(dump_json(data)).hexdigest()}


def _checked(data: Any) -> Record:
    """Rebuild a record.

    Raises:
        ValueError: It is not one, or its digest does not match.
    """
    try:
        record = Record.from_json(data)
        rest = {name: value for name, value in data.items() if name != "sha256"}
        digest = hashlib.sha256(dump_json(rest)).hexdigest()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if data.get("sha256") != digest:
        raise ValueError("it does not match the digest that it carries")
    return record


def _encode(data: Any) -> bytes:
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode("utf-8")


def _decode(data: bytes) -> Any:
    """Parse JSON without numbers that no use of them can bear.

    Raises:
        ValueError: It is not such JSON.
    """
    try:
        return json.loads(
            data.decode("utf-8"), parse_constant=_refuse_constant, parse_int=_integer, parse_float=_number
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"it contains a number of {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"it contains the number {text:.40}")
    return found
