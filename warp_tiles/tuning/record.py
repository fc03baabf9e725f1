"""The result of a search: the timing or failure of every candidate, and the winner.

A record is JSON, in a file of its own or in an export of many. It is read as JSON and never unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

from warp_tiles.store.documents import FutureSchemaError, dump_json, refuse_constant
from warp_tiles.tuning.tuning_key import TuningKey
from warp_tiles.util.warn import shown

SCHEMA_VERSION = 1  # of the file; files of a later version are left alone
Config = Mapping[str, Any]  # JSON values by name
Status = Literal["ok", "dropped", "failed"]
STATUSES = get_args(Status)
#: The configuration that stands for no record, in records whose winner must be faster than it, by subject.
DEFAULTS: Mapping[str, Config] = {
    "loop": {"pipeline": "auto"},
    "function": {"provider": "auto"},
    "matmul": {"config": "auto"},
}
_MOST_DIGITS = 19  # of an integer of 64 bits, with its sign
_TYPES = {"config": dict, "samples": int, "shared_bytes": int, "reason": str, "unfinished": bool}  # of a timing
_NUMBERS = ("median_us", "low_us", "high_us")  # NaN in a timing and null in JSON without a measurement
GAIN = 0.99  # of the default's time; a winner needs less
_as_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def require_schema(data: Any, what: str) -> None:
    """Raise FutureSchemaError for data of a later schema, and ValueError for other data than objects of this schema."""
    schema = data.get("schema") if isinstance(data, dict) else None
    if type(schema) is int and schema > SCHEMA_VERSION:
        raise FutureSchemaError(f"it has schema {schema}, and this release reads schema {SCHEMA_VERSION}")
    if type(schema) is not int or schema != SCHEMA_VERSION:
        raise ValueError(f"not {what} of schema {SCHEMA_VERSION}")


def identity(config: Config) -> str:
    """Returns a configuration as text. The order of its names does not matter.

    Raises TypeError for a value that JSON cannot represent, and ValueError for a number that is not finite or a text
    with a lone surrogate, which cannot be printed.
    """
    text = _as_text(config)
    if r"\ud" in text:  # the beginning of every escaped surrogate
        json.dumps(config, ensure_ascii=False).encode()
    return text


@dataclass(frozen=True)
class Timing:
    """The measurement of one candidate.

    Attributes:
        status: ``ok`` if it was measured, ``dropped`` if it was too slow to win, or ``failed``.
        median_us: Median of one launch, in microseconds; NaN if it failed.
        low_us, high_us: 95 % confidence interval of the median; NaN if it failed.
        shared_bytes: Shared memory of a block, which decides between equally fast candidates.
        reason: Reason why it was dropped or failed.
        soft: The soft part of the environment (:meth:`Environment.soft`).
        unfinished: True if the search ended before the candidate had all its runs. The timing counts until a later
            search measures the candidate again.
    """

    config: Config
    status: Status
    median_us: float = math.nan
    low_us: float = math.nan
    high_us: float = math.nan
    samples: int = 0
    shared_bytes: int = 0
    reason: str = ""
    soft: Mapping[str, Any] = field(default_factory=dict)
    unfinished: bool = False

    @cached_property
    def identity(self) -> str:
        return identity(self.config)

    def to_json(self) -> dict[str, Any]:
        data = {**vars(self), "config": dict(self.config), "soft": dict(self.soft)}
        data |= {name: data[name] if math.isfinite(data[name]) else None for name in _NUMBERS}
        return {item.name: data[item.name] for item in fields(self) if item.name != "unfinished" or self.unfinished}

    @classmethod
    def from_json(cls, data: Any) -> Timing:
        """Reads :meth:`to_json`. Raises ValueError for a wrong field, and for a configuration without identity."""
        try:
            numbers = {name: math.nan if data[name] is None else float(data[name]) for name in _NUMBERS}
            timing = cls(**{**data, **numbers})
            valid = (
                all(isinstance(vars(timing)[name], kind) for name, kind in _TYPES.items())
                and isinstance(data["soft"], dict)
                and timing.status in STATUSES
                and (timing.status != "ok" or math.isfinite(timing.median_us))
                and not any(value < 0 for value in (*numbers.values(), timing.samples, timing.shared_bytes))
                and bool(timing.identity and identity(timing.soft))
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not a timing, {shown(error, 300)}: {shown(data, 300)}") from error
        if not valid:
            raise ValueError(f"not a timing, a field has an unknown value: {shown(data, 300)}")
        return timing


def settled(timings: Iterable[Timing], before: Iterable[Timing]) -> list[Timing]:
    """Returns timings. One that is unfinished a second time is marked finished, so it is not measured a third time."""
    twice = {timing.identity for timing in before if timing.unfinished}
    return [replace(timing, unfinished=False) if timing.identity in twice else timing for timing in timings]


@dataclass(frozen=True)
class Record:
    """Everything that was measured for one key."""

    key: TuningKey
    timings: tuple[Timing, ...] = ()

    def timing(self, config: Config) -> Timing | None:
        return next((timing for timing in self.timings if timing.identity == identity(config)), None)

    def among(self, names: Container[str]) -> Record:
        """Returns the record without configurations of other identities."""
        return replace(self, timings=tuple(timing for timing in self.timings if timing.identity in names))

    def merged(self, timings: Iterable[Timing]) -> Record:
        """Returns the record with newer timings in place of older ones of the same configuration.

        An unfinished timing does not replace a finished one that was measured in the same environment.
        """
        found = {timing.identity: timing for timing in self.timings}
        for timing in timings:
            known = found.get(timing.identity)
            is_replaceable = known is None or known.unfinished or known.status == "failed" or known.soft != timing.soft
            if is_replaceable or not timing.unfinished:
                found[timing.identity] = timing
        return replace(self, timings=tuple(found.values()))

    @property
    def default(self) -> Timing | None:
        config = DEFAULTS.get(self.key.subject)
        return None if config is None else self.timing(config)

    def winner(self) -> Timing | None:
        """Returns the candidate with the least shared memory, among the equally fast ones.

        Candidates are equally fast if no other candidate's confidence interval lies below their median. The candidate
        with the least median is one of them. The result does not depend on the order of the timings.

        With a default (:data:`DEFAULTS`), it is the fastest candidate if it gains more than 1 % and its confidence
        interval lies below that of the default; else the default. If the default was not measured, there is none.
        Timings without intervals, as 1.0.0rc1 shipped them for ``matmul``, are compared by their medians.
        """
        measured = [timing for timing in self.timings if timing.status == "ok"]
        if self.key.subject in DEFAULTS:
            return self._better_than_default(measured)
        if not measured:
            return None
        # the median counts as well, because a stored interval may not contain it
        reach = min(max(timing.median_us, timing.high_us) for timing in measured)
        equals = [timing for timing in measured if timing.median_us <= reach]
        return min(equals, key=lambda timing: (timing.shared_bytes, timing.median_us, timing.identity))

    def _better_than_default(self, measured: list[Timing]) -> Timing | None:
        default = self.default
        if default is None or not measured:
            return None
        best = min(measured, key=lambda timing: (timing.median_us, timing.identity))
        if default.status == "failed":
            return best
        overlap = best.high_us >= default.low_us  # False without intervals
        gains = not overlap and best.median_us < GAIN * default.median_us
        return best if gains else default

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION,
            "key": self.key.to_json(),
            "timings": [timing.to_json() for timing in self.timings],
        }

    @classmethod
    def from_json(cls, data: Any) -> Record:
        """Reads :meth:`to_json`. Raises FutureSchemaError for a later schema, and ValueError for anything else."""
        require_schema(data, "a tuning record")
        timings = data.get("timings")
        if not isinstance(timings, list):
            raise ValueError("not a tuning record, timings is not a list")
        return cls(TuningKey.from_json(data.get("key")), tuple(Timing.from_json(timing) for timing in timings))


# ---- records as bytes


def encode_record(record: Record) -> bytes:
    """The content of a record's file. Raises what :func:`identity` raises."""
    return _encode(_with_digest(record))


def decode_record(data: bytes, name: str) -> Record:
    """Returns the record of a file that is named after the digest of a key, without or with its folder.

    Raises FutureSchemaError for a later schema, and ValueError for damage or the record of another key.
    """
    record = _checked(_decode(data))
    if record.key.digest != name.rpartition("/")[2]:
        raise ValueError(f"it holds the record of key {record.key.digest[:12]}")
    return record


def encode_records(records: Iterable[Record]) -> bytes:
    """Several records, as an export has them. Raises what :func:`identity` raises."""
    return _encode({"schema": SCHEMA_VERSION, "records": [_with_digest(record) for record in records]})


def decode_records(data: bytes) -> list[Record]:
    """Reads an export. Raises ValueError if it is none of this schema, with the number of the first invalid record."""
    content = _decode(data)
    require_schema(content, "an export")
    if not isinstance(content.get("records"), list):
        raise ValueError("not an export, records is not a list")
    records = []
    for place, item in enumerate(content["records"]):
        try:
            records.append(_checked(item))
        except ValueError as error:
            raise ValueError(f"record {place}: {error}") from error
    return records


def _with_digest(record: Record) -> dict[str, Any]:
    """The record as JSON, with the SHA-256 of the rest, so that a changed byte does not change a timing."""
    data = record.to_json()
    return {**data, "sha256": hashlib.sha256(dump_json(data)).hexdigest()}


def _checked(data: Any) -> Record:
    """A record whose digest matches. Raises ValueError if it is none."""
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
    """Parse JSON. Raises ValueError also for numbers that no use of them can bear."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=refuse_constant, parse_int=_integer, parse_float=_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"it contains a number of {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"it contains the number {text:.40}")
    return found
