"""Measured configurations that the package ships, by GPU."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warp_tiles.heuristics.matmul_problem import MatmulConfig, Tier

FOLDER = Path(__file__).resolve().parent / "records"
_FILES = {(90, 132): "sm_90_132.json"}  # by compute capability and multiprocessors


@functools.cache
def records_for(arch: int | None, multiprocessors: int) -> Mapping[Tier, MatmulConfig]:
    """The shipped configurations of a GPU by tier; none for other GPUs and for the CPU."""
    name = _FILES.get((arch or 0, multiprocessors))
    return {} if name is None else parsed(json.loads((FOLDER / name).read_text("utf-8")))


def parsed(data: Mapping[str, Any]) -> dict[Tier, MatmulConfig]:
    """The configurations of a file's records by tier."""
    return {tuple(record["tier"]): MatmulConfig.from_json(record["config"]) for record in data["records"]}
