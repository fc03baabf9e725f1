"""Measured configurations that the package ships, by GPU."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warp_tiles.heuristics.matmul_problem import MatmulConfig, Tier

FOLDER = Path(__file__).resolve().parent / "records"
# by compute capability, multiprocessors and name; an empty name stands for all other GPUs
_FILES = {(90, 132, ""): "sm_90_132.json", (90, 132, "NVIDIA H200"): "h200.json"}


@functools.cache
def records_for(arch: int | None, multiprocessors: int, name: str) -> Mapping[Tier, MatmulConfig]:
    """The shipped configurations of a GPU by tier. There are none for other GPUs and for the CPU.

    Args:
        arch: Compute capability, e.g. 90; None for the CPU.
        multiprocessors: Multiprocessors of the GPU.
        name: Its name. GPUs with equal multiprocessors can have different memory, as an H100 and an H200 have.
    """
    file = _FILES.get((arch or 0, multiprocessors, name), _FILES.get((arch or 0, multiprocessors, "")))
    return {} if file is None else parsed(json.loads((FOLDER / file).read_text("utf-8")))


def parsed(data: Mapping[str, Any]) -> dict[Tier, MatmulConfig]:
    """The configurations of a file's records by tier."""
    return {tuple(record["tier"]): MatmulConfig.from_json(record["config"]) for record in data["records"]}
