"""Records as bytes: the file of one record, and a bundle of many. Read as JSON, never unpickled."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

from warp_tiles.tuning.record import SCHEMA_VERSION, Record


class FutureSchemaError(ValueError):
    """Written by a later release, whose records this one cannot read."""


def encode_record(record: Record) -> bytes:
    """The content of a record's file.

    Raises:
        TypeError: A configuration holds something that JSON does not.
        ValueError: A configuration holds a number that is not finite.
    """
    return _encode(record.to_json())


def decode_record(data: bytes, digest: str) -> Record:
    """The record in a file that is named after a key.

    Args:
        data: The content of the file.
        digest: The key that the file is named after.

    Raises:
        FutureSchemaError: The file is of a later schema.
        ValueError: It is damaged, or holds another key's record.
    """
    record = Record.from_json(_decode(data))
    if record.key.digest != digest:
        raise ValueError(f"it holds the record of key {record.key.digest[:12]}")
    return record


def encode_bundle(records: Iterable[Record]) -> bytes:
    """Records as one file.

    Raises:
        TypeError, ValueError: See :func:`encode_record`.
    """
    return _encode({"schema": SCHEMA_VERSION, "records": [record.to_json() for record in records]})


def decode_bundle(data: bytes) -> list[Record]:
    """The records of a file that :func:`encode_bundle` wrote.

    Raises:
        FutureSchemaError: The file, or one of its records, is of a later schema.
        ValueError: It is no such file; the first record that is none is named.
    """
    content = _decode(data)
    found = content.get("records") if isinstance(content, dict) else None
    if found is None or content.get("schema") != SCHEMA_VERSION or not isinstance(found, list):
        raise ValueError(f"it is no export of schema {SCHEMA_VERSION}")
    records = []
    for place, item in enumerate(found):
        try:
            _refuse_future(item)
            records.append(Record.from_json(item))
        except FutureSchemaError as error:
            raise FutureSchemaError(f"record {place}: {error}") from error
        except ValueError as error:
            raise ValueError(f"record {place}: {error}") from error
    return records


def _encode(data: Any) -> bytes:
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode("utf-8")


def _decode(data: bytes) -> Any:
    """JSON of this schema.

    Raises:
        FutureSchemaError: It is of a later one.
        ValueError: It is not JSON.
    """
    try:
        content = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _refuse_future(content)
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _refuse_future(content: Any) -> None:
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and not isinstance(schema, bool) and schema > SCHEMA_VERSION:
        raise FutureSchemaError(f"it is of schema {schema}, this release reads schema {SCHEMA_VERSION}")
