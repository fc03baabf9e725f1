"""Configurations and times as short texts for tables and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from warp_tiles.tuning.record import Config


def flat(config: Config) -> dict[str, str]:
    """Returns names and values as text. A dot joins nested names: ``{"tile": {"m": 64}}`` gives ``tile.m``."""
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= {f"{name}.{inner}": text for inner, text in flat(value).items()}
        else:
            found[str(name)] = _text(value)
    return found


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, (int, float)) for item in value):
        return "x".join(_text(item) for item in value)
    return json.dumps(value, separators=(",", ":"))


def label(config: Config, without: Iterable[str] = ()) -> str:
    """Returns a configuration on one line, e.g. ``block_dim=128 tile.m=64``, without the names in ``without``."""
    left_out = set(without)
    return " ".join(f"{name}={value}" for name, value in flat(config).items() if name not in left_out) or "-"


def aligned(configs: Sequence[Config], without: Iterable[str] = ()) -> list[str]:
    """Returns one line per configuration, padded so that equal names form columns."""
    left_out = set(without)
    found = [{name: value for name, value in flat(config).items() if name not in left_out} for config in configs]
    widths: dict[str, int] = {}
    for values in found:
        for name, value in values.items():
            widths[name] = max(widths.get(name, 0), len(value))

    def cell(values: Mapping[str, str], name: str) -> str:
        return f"{name}={values[name]:<{widths[name]}}" if name in values else " " * (len(name) + 1 + widths[name])

    return [" ".join(cell(values, name) for name in widths) or "-" for values in found]


def common(configs: Iterable[Config]) -> dict[str, str]:
    """Returns the names and values that several configurations have in common."""
    found = [flat(config) for config in configs]
    if len(found) < 2:
        return {}
    return {name: value for name, value in found[0].items() if all(other.get(name) == value for other in found[1:])}


def shortened(text: str, length: int) -> str:
    """Returns a text on one line, cut to a length."""
    line = " ".join(text.splitlines())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def microseconds(time_us: float) -> str:
    """Returns a time with three or four digits and its unit; ``-`` for a time that is not finite."""
    if not math.isfinite(time_us):
        return "-"
    for limit, factor, unit in ((1e3, 1.0, "µs"), (1e6, 1e-3, "ms")):
        if time_us < limit:
            return f"{time_us * factor:.4g} {unit}"
    return f"{time_us * 1e-6:.4g} s"
