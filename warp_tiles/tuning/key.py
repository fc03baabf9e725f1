"""The key of a tuning record: named values that decide the result, and the machine of the measurement."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from warp_tiles.store.key import CacheKey
from warp_tiles.util.warn import shown

MEASUREMENT_VERSION = 1  # of the way of measuring; timings of different versions are not compared

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Environment:
    """The machine of a measurement.

    Attributes:
        device: Name of the GPU, or of the processor.
        arch: Compute capability, e.g. ``90``; None on the CPU.
        multiprocessors: Number of multiprocessors of the GPU, or of cores of the CPU.
        driver: CUDA version of the driver, e.g. ``13.0``; empty on the CPU.
        warp_tiles: Version of this package.
        measurement: Version of the way of measuring.
    """

    device: str
    arch: int | None
    multiprocessors: int
    warp: str
    driver: str
    warp_tiles: str
    measurement: int = MEASUREMENT_VERSION

    def hard(self) -> dict[str, Scalar]:
        """Fields that must be equal for a record to be valid. They are part of the key."""
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
        subject: ``gemm``, or ``kernel:`` and the qualified name of the function that makes the kernel.
        values: Named values that decide the result (shapes, dtypes, layouts), sorted by name.
        source: SHA-256 of the source of the candidates, and of the constants that it closes over.
    """

    subject: str
    values: tuple[tuple[str, Scalar], ...]
    source: str
    environment: Environment

    @classmethod
    def of(cls, subject: str, values: Mapping[str, Scalar], source: str, environment: Environment) -> TuningKey:
        """Returns the key of these values. Their order does not matter.

        Raises:
            TypeError: A value is not a string, a number, a boolean or None.
            ValueError: A number is not finite.
        """
        for name, value in values.items():
            if not isinstance(value, Scalar):
                raise TypeError(f"the key value {name!r} is {value!r}; it must be a string, number, boolean or None")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"the key value {name!r} is {value!r}; it must be finite")
        return cls(subject, tuple(sorted(values.items())), source, environment)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, over every labelled field; soft parts of the environment do not count."""
        # as JSON, so that a key has the same digest after it is written and read back
        fields = {f"value {name}": json.dumps(value) for name, value in self.values}
        fields |= {f"environment {name}": json.dumps(value) for name, value in self.environment.hard().items()}
        return CacheKey.of({**fields, "subject": self.subject, "source": self.source}).digest

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return {
            "subject": self.subject,
            "values": dict(self.values),
            "source": self.source,
            "environment": asdict(self.environment),
        }

    @classmethod
    def from_json(cls, data: Any) -> TuningKey:
        """Returns the key that :meth:`to_json` wrote.

        Raises:
            ValueError: A field is missing or of another type.
        """
        try:
            environment = Environment(**data["environment"])
            key = cls.of(data["subject"], data["values"], data["source"], environment)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a tuning key, {error!r}: {shown(data, 300)}") from error
        texts = [key.subject, key.source, environment.device, environment.warp, environment.driver]
        texts += [environment.warp_tiles, *(name for name, _ in key.values)]
        counts = [environment.multiprocessors, environment.measurement]
        counts += [] if environment.arch is None else [environment.arch]
        if not all(isinstance(text, str) for text in texts) or not all(type(count) is int for count in counts):
            raise ValueError(f"not a tuning key, a field has another type: {shown(data, 300)}")
        return key
