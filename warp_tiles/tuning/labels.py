"""Configurations and times as short texts for tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from warp_tiles.tuning.record import Config


def label(config: Config) -> str:
    """Returns a configuration on one line. A dot joins nested names: ``block_dim=128 tile.m=64``."""
    return " ".join(f"{name}={_text(value)}" for name, value in _flat(config, "")) or "-"


def _flat(config: Config, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, (int, float)) for item in value):
        return "x".join(_text(item) for item in value)
    return json.dumps(value, separators=(",", ":"))


def microseconds(time_us: float) -> str:
    """Returns a time with three or four digits and its unit; ``-`` for a time that is not finite."""
    if not math.isfinite(time_us):
        return "-"
    for limit, factor, unit in ((1e3, 1.0, "µs"), (1e6, 1e-3, "ms")):
        if time_us < limit:
            return f"{time_us * factor:.4g} {unit}"
    return f"{time_us * 1e-6:.4g} s"
