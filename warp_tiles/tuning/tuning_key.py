"""The key of a tuning record: named values that decide the result, and the machine of the measurement."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from warp_tiles.errors import ToolchainError
from warp_tiles.store.key import CacheKey
from warp_tiles.util.threads import suppressed
from warp_tiles.util.version import __version__
from warp_tiles.util.warn import shown, warn

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


def question_digest(subject: str, values: Values) -> str:
    """SHA-256, in hexadecimal, of a question without the machine and the sources."""
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
        subject: ``loop``, ``function``, ``matmul``, or ``kernel:`` and the name of the function that makes the kernel.
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
    def question(self) -> str:
        return question_digest(self.subject, self.values)

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
        found = {name: value for name, value in vars(environment).items() if value is not None or name != "arch"}
        are_valid = all(isinstance(text, str) for text in texts) and all(
            type(value) is (int if name in _COUNTS else str) for name, value in found.items()
        )
        if not are_valid or not all(isinstance(value, Scalar) for _, value in key.values):
            raise ValueError(f"not a tuning key, a field has another type: {shown(data, 300)}")
        return key


# ---- the machine, as Warp describes it


def environment_of(device: Any) -> Environment:
    """Returns the environment for which a measurement on a Warp device is valid, which may be given by name."""
    import warp as wp

    found = wp.get_device(device)
    if found.is_cpu:
        return Environment(processor(), None, os.cpu_count() or 1, wp.__version__, "", __version__)
    driver = ".".join(map(str, wp.get_cuda_driver_version() or ()))
    return Environment(found.name, found.arch, found.sm_count, wp.__version__, driver, __version__)


def alike(device: Any, others: Iterable[Any]) -> list[Any]:
    """The other GPUs of the same name, architecture and size, each once: a device's measurements hold for them.

    No CUDA context is made on those that differ.
    """
    kind = (device.name, device.arch, device.sm_count) if device.is_cuda else None
    found = {
        other.alias: other
        for other in others
        if other.is_cuda and other.alias != device.alias and (other.name, other.arch, other.sm_count) == kind
    }
    return list(found.values())


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
    found = [first, *alike(first, others)]
    for other in others if names else ():
        if other.alias not in {device.alias for device in found}:
            text = f"{other.alias} ({other.name}, {other.sm_count} multiprocessors) is not used for tuning"
            warn(f"{text}: {first.alias} is a different GPU ({first.name}, {first.sm_count})")
    return found


@lru_cache(maxsize=1)
def processor() -> str:
    with suppressed(OSError), _CPUINFO.open(encoding="utf-8", errors="replace") as file:
        for line in file.read(_CPUINFO_BYTES).splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "cpu"
