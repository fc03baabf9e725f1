"""Fake GPUs and measurements, which workers import."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from tests.tuning.place_fakes import H200
from warp_tiles.cli.cluster_tuning import ClusterGpu, Done, Task
from warp_tiles.tuning.record import identity

H100 = replace(H200, device="NVIDIA H100", multiprocessors=114)


def equal_gpus() -> list[ClusterGpu]:
    """One H200 for each worker."""
    return [ClusterGpu("cuda:0", f"GPU-{os.environ['TEST_SLOT']}", H200, 90)]


def different_gpus() -> list[ClusterGpu]:
    """An H200 for the first worker, an H100 for the second."""
    return [ClusterGpu("cuda:0", f"GPU-{os.environ['TEST_SLOT']}", (H200, H100)[int(os.environ["TEST_SLOT"])], 90)]


def perform(task: Task, log: Path, seconds: float = 0.0) -> Done:
    """Note each task in a file, and return times that depend on the answers alone."""
    time.sleep(seconds)
    name = identity(task.config)
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {task.place[:8]} {task.runs} {name}\n")
    return Done(tuple([10.0 + len(name) % 7] * task.runs), shared_bytes=1024)
