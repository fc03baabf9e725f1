"""The result of a search: its key, the timing or failure of every candidate, and the winner.

A record is JSON, in a file of its own or in an export of many. It is read as JSON and never unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from warp_tiles.errors import ToolchainError, shown, suppressed
from warp_tiles.store.documents import FutureSchemaError, dump_json, refuse_constant
from warp_tiles.store.key import CacheKey
from warp_tiles.util.version import __version__
from warp_tiles.util.warn import warn

MEASUREMENT_VERSION = 1  # of the way of measuring; timings of different versions are not compared
_CPUINFO = Path("/proc/cpuinfo")
_CPUINFO_BYTES = 8192  # holds the first core
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_SLUG_LENGTH = 100
_COUNTS = ("arch", "multiprocessors", "measurement")  # fields of an environment

Scalar = str | int | float | bool | None
Values = tuple[tuple[str, Scalar], ...]


def slug(subject: str) -> str:
    """Returns the folder name of a subject. A prefix of the subject gives a prefix of the name."""
    text = _UNSAFE.sub("-", subject)[:_SLUG_LENGTH]
    return f"-{text[1:]}" if text.startswith(".") else text


def problem_digest(subject: str, values: Values) -> str:
    """SHA-256, in hexadecimal, of a problem without the machine and the sources."""
    return CacheKey.of({"subject": subject, **{f"value {name}": json.dumps(value) for name, value in values}}).digest


@dataclass(frozen=True)
class Environment:
    """The machine of a measurement.

    Attributes:
        device: Name of the GPU, or of the processor.
        arch: Compute capability, e.g. ``90``; None on the CPU.
        driver: CUDA version of the driver, e.g. ``13.0``; empty on the CPU.
    """

    device: str
    arch: int | None
    multiprocessors: int
    warp: str
    driver: str
    warp_tiles: str
    measurement: int = MEASUREMENT_VERSION

    def hard(self) -> dict[str, Scalar]:
        series = ".".join(self.warp.split(".")[:2])
        fields = asdict(self) | {"warp": series}
        del fields["driver"]
        return fields

    def soft(self) -> dict[str, Scalar]:
        """Fields that may differ: the driver, and Warp's patch release. They are stored with each timing."""
        return {"driver": self.driver, "warp": self.warp}


@dataclass(frozen=True)
class TuningKey:
    """The key of a record.

    Attributes:
        subject: ``loop``, ``function``, ``matmul``, ``solve``, or ``kernel:`` and the name of the function that makes
            the kernel.
        values: Named values that decide the result (shapes, dtypes, layouts), sorted by name.
        source: SHA-256 of the source of the candidates, and of the constants that it closes over.
    """

    subject: str
    values: Values
    source: str
    environment: Environment

    @classmethod
    def of(cls, subject: str, values: Mapping[str, Scalar], source: str, environment: Environment) -> TuningKey:
        return cls(subject, tuple(sorted(values.items())), source, environment)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, over every labelled field; soft parts of the environment do not count."""
        # as JSON, so that a key has the same digest after it is written and read back
        fields = {f"value {name}": json.dumps(value) for name, value in self.values}
        fields |= {f"environment {name}": json.dumps(value) for name, value in self.environment.hard().items()}
        return CacheKey.of({**fields, "subject": self.subject, "source": self.source}).digest

    @cached_property
    def problem_digest(self) -> str:
        return problem_digest(self.subject, self.values)

    @property
    def file(self) -> str:
        """The name of its record in a folder of records, without suffix."""
        return f"{slug(self.subject) or '-'}/{self.digest}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"values": dict(self.values)}

    @classmethod
    def from_json(cls, data: Any) -> TuningKey:
        """Reads :meth:`to_json`. Raises ValueError if a field is missing or of another type."""
        try:
            environment = Environment(**data["environment"])
            key = cls.of(data["subject"], data["values"], data["source"], environment)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a tuning key, {error!r}: {shown(data, 300)}") from error
        texts = [key.subject, key.source, *(name for name, _ in key.values)]
        fields = {name: value for name, value in vars(environment).items() if value is not None or name != "arch"}
        are_valid = all(isinstance(text, str) for text in texts) and all(
            type(value) is (int if name in _COUNTS else str) for name, value in fields.items()
        )
        if not are_valid or not all(isinstance(value, Scalar) for _, value in key.values):
            raise ValueError(f"not a tuning key, a field has another type: {shown(data, 300)}")
        return key


# ---- the machine, as Warp describes it


def environment_of(device: Any) -> Environment:
    """Returns the environment for which a measurement on a Warp device is valid, which may be given by name."""
    import warp as wp

    device = wp.get_device(device)
    if device.is_cpu:
        return Environment(processor(), None, os.cpu_count() or 1, wp.__version__, "", __version__)
    driver = ".".join(map(str, wp.get_cuda_driver_version() or ()))
    return Environment(device.name, device.arch, device.sm_count, wp.__version__, driver, __version__)


def alike(device: Any, others: Iterable[Any]) -> list[Any]:
    """The other GPUs of the same name, architecture and size, each once: a device's measurements hold for them.

    No CUDA context is made on those that differ.
    """
    kind = (device.name, device.arch, device.sm_count) if device.is_cuda else None
    by_alias = {
        gpu.alias: gpu
        for gpu in others
        if gpu.is_cuda and gpu.alias != device.alias and (gpu.name, gpu.arch, gpu.sm_count) == kind
    }
    return list(by_alias.values())


def sharing_gpus(names: Sequence[str] = ()) -> list[Any]:
    """Returns the GPUs that tune together. The first is the one to tune for; those unlike it are left out.

    Args:
        names: Warp's names; one that is left out causes a warning. Empty for Warp's default GPU and all like it.

    Raises:
        ToolchainError: There is no GPU, or none with a given name.
    """
    import warp as wp

    wp.init()
    present = {device.alias: device for device in wp.get_cuda_devices()}
    if not present:
        seen = ", ".join(f"{device.alias} ({device.name})" for device in wp.get_devices())
        raise ToolchainError(
            f"tuning needs an NVIDIA GPU, and Warp found none: {seen}",
            remedy="run it on the machine whose GPU is to be tuned, and copy its records with `warp-tiles tune export`",
        )
    if unknown := [name for name in names if name not in present]:
        raise ToolchainError(
            f"there is no GPU {', '.join(unknown)}",
            remedy=f"name some of {', '.join(present)}; CUDA_VISIBLE_DEVICES says which ones programs see",
        )
    default = present.get(wp.get_device().alias)  # the CPU may be the default device
    first, *others = [present[name] for name in names] or [*filter(None, (default,)), *present.values()]
    gpus = [first, *alike(first, others)]
    for gpu in others if names else ():
        if gpu.alias not in {device.alias for device in gpus}:
            text = f"{gpu.alias} ({gpu.name}, {gpu.sm_count} multiprocessors) is not used for tuning"
            warn(f"{text}: {first.alias} is a different GPU ({first.name}, {first.sm_count})")
    return gpus


@lru_cache(maxsize=1)
def processor() -> str:
    with suppressed(OSError), _CPUINFO.open(encoding="utf-8", errors="replace") as file:
        for line in file.read(_CPUINFO_BYTES).splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "cpu"


SCHEMA_VERSION = 1  # of the file; files of a later version are left alone
Config = Mapping[str, Any]  # JSON values by name
Status = Literal["ok", "dropped", "failed"]
STATUSES = get_args(Status)
#: The configuration that stands for no record, in records whose winner must be faster than it, by subject.
DEFAULTS: Mapping[str, Config] = {
    "loop": {"pipeline": "auto"},
    "function": {"provider": "auto"},
    "matmul": {"config": "auto"},
    "solve": {"form": "auto"},
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
        merged = {timing.identity: timing for timing in self.timings}
        for timing in timings:
            known = merged.get(timing.identity)
            is_replaceable = known is None or known.unfinished or known.status == "failed" or known.soft != timing.soft
            if is_replaceable or not timing.unfinished:
                merged[timing.identity] = timing
        return replace(self, timings=tuple(merged.values()))

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
    for number, item in enumerate(content["records"]):
        try:
            records.append(_checked(item))
        except ValueError as error:
            raise ValueError(f"record {number}: {error}") from error
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
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it contains the number {text:.40}")
    return number


# ---- the records of the package

#: The records that the package ships, by subject and GPU.
SHIPPED_RECORDS = Path(__file__).resolve().parent / "records"


def shipped_file(subject: str, gpu: str) -> Path:
    return SHIPPED_RECORDS / slug(subject) / f"{slug(gpu)}.json"


@cache
def shipped_records(subject: str, gpu: str, kind: tuple[int | None, int] | None = None) -> tuple[Record, ...]:
    """The records of a subject that the package ships for a GPU. Compilers and versions do not count.

    GPUs with equal multiprocessors can have different memory, as an H100 and an H200 have. ``kind`` is the architecture
    and the multiprocessors, which must be those of the records; None if only the name of the GPU is known.
    """
    path = shipped_file(subject, gpu)
    records = decode_records(path.read_bytes()) if path.is_file() else []
    machines = [(record, record.key.environment) for record in records]
    return tuple(
        record for record, on in machines if on.device == gpu and kind in (None, (on.arch, on.multiprocessors))
    )
