"""Reads files of `warp-tiles tune contribute`. They come from elsewhere, so each field is checked before it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warp_tiles.cli.contribution import SUBJECTS, Fact
from warp_tiles.errors import RecordError, shown
from warp_tiles.gemm.hardware import MIN_ARCH
from warp_tiles.tuning.record import Environment, Record, decode_records
from warp_tiles.tuning.store import read_export

_MOST_TEXT = 200  # characters of a text of a file
_MOST_REASON = 600
_MOST_ITEMS = 100  # facts, values of a task, timings of a record
_MOST_MULTIPROCESSORS, _MOST_ARCH = 4096, 999
_MOST = 1e9  # of other numbers
_REMEDY = "give a file that `warp-tiles tune contribute` of this release wrote, and copy it unchanged"


@dataclass(frozen=True)
class Contribution:
    """What a file holds.

    Attributes:
        facts: Versions, driver, clocks and the length of the list, by name.
        records: One for each task that was reached, all of one machine and one compiler.
    """

    facts: Mapping[str, Fact]
    records: tuple[Record, ...]

    @property
    def environment(self) -> Environment:
        return self.records[0].key.environment

    @property
    def source(self) -> str:
        """See :func:`warp_tiles.tuning.tasks.source_of`."""
        return self.records[0].key.source


def read_contribution(path: Path) -> Contribution:
    """Read a file. Raises RecordError if that fails, or a field has a value that no measurement gives."""
    entries = read_export(path)
    try:
        if len(entries) != 1:
            raise ValueError(f"it has {len(entries)} sets of records, and a contribution has one")
        records = decode_records(entries[0].payload)
        if not records:
            raise ValueError("it has no records")
        facts: Any = {name: value for name, value in entries[0].manifest.info.items() if name != "records"}
        found = Contribution(facts, tuple(records))
        for record in records:
            if (record.key.environment, record.key.source) != (found.environment, found.source):
                digest = record.key.digest[:12]
                raise ValueError(f"the record {digest} is of another machine or compiler than the first one")
            _require(_record_rules(record))
        if len({record.key.digest for record in records}) < len(records):
            raise ValueError("it has two records of one task")
        _require([(len(facts) < _MOST_ITEMS, "the number of facts", len(facts)), *_fact_rules(facts.items())])
    except ValueError as error:
        raise RecordError(f"{path} is no contribution: {error}", _REMEDY) from error
    return found


_Rule = tuple[bool, str, object]  # what must hold of a value, and the value with its name


def _require(rules: Iterable[_Rule]) -> None:
    for holds, what, value in rules:
        if not holds:
            raise ValueError(f"{what} is {shown(value)}")


def _text_rules(texts: Iterable[tuple[str, object]]) -> Iterator[_Rule]:
    for name, value in texts:
        holds = isinstance(value, str) and len(value) <= _MOST_TEXT and value.isprintable()
        yield holds, f"{name}, a printable text of at most {_MOST_TEXT} characters,", value


def _fact_rules(facts: Iterable[tuple[str, object]]) -> Iterator[_Rule]:
    """Each is a short text, a finite number or None, and has a short name."""
    for name, value in facts:
        yield from _text_rules([("a name", name), *([(name, value)] if isinstance(value, str) else [])])
        is_number = isinstance(value, (int, float)) and -_MOST < value < _MOST  # False with NaN
        yield value is None or isinstance(value, str) or is_number, name, value


def _record_rules(record: Record) -> Iterator[_Rule]:
    key, where = record.key, record.key.environment
    yield from _text_rules((name, getattr(where, name)) for name in ("device", "warp", "driver", "warp_tiles"))
    yield bool(where.device), "the name of the GPU", where.device
    supported = f"the architecture of {where.device}, at least {MIN_ARCH} for a GPU that warp_tiles supports,"
    yield where.arch is not None and MIN_ARCH <= where.arch <= _MOST_ARCH, supported, where.arch
    yield 1 <= where.multiprocessors <= _MOST_MULTIPROCESSORS, "multiprocessors", where.multiprocessors
    yield key.subject in SUBJECTS, f"the subject, one of {', '.join(SUBJECTS)},", key.subject
    yield from _text_rules([("the digest of the sources", key.source)])
    yield 0 < len(key.values) <= _MOST_ITEMS, "the number of values of a task", len(key.values)
    yield from _fact_rules(key.values)
    yield 0 < len(record.timings) <= _MOST_ITEMS, "the number of timings", len(record.timings)
    identities = {timing.identity for timing in record.timings}
    yield len(identities) == len(record.timings), "the number of different configurations", len(identities)
    for timing in record.timings:
        yield len(timing.identity) <= _MOST_REASON, "the length of a configuration", len(timing.identity)
        yield len(timing.reason) <= _MOST_REASON, "the length of a reason", len(timing.reason)
        yield dict(timing.soft) == where.soft(), "the driver and Warp of a timing", dict(timing.soft)
        if timing.status != "failed":
            times = (timing.low_us, timing.median_us, timing.high_us)
            in_order = 0.0 < timing.low_us <= timing.median_us <= timing.high_us < _MOST  # False with NaN
            yield in_order, f"low, median and high, increasing times below {_MOST:g} us,", times
            yield 0 < timing.samples < _MOST, "the number of samples", timing.samples
            yield from _fact_rules([("shared_bytes", timing.shared_bytes)])
