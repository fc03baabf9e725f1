"""Fake GPUs and measurements, which workers import."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from tests.tuning.gemm_fakes import H200, timing
from warp_tiles.build.installation import Fact
from warp_tiles.tuning.cluster_worker import Batch, ClusterGpu, Measured
from warp_tiles.tuning.record import identity

H100 = replace(H200, device="NVIDIA H100", multiprocessors=114)


def equal_gpus() -> list[ClusterGpu]:
    """One H200 for each worker."""
    return [ClusterGpu("cuda:0", f"GPU-{os.environ['TEST_SLOT']}", H200, 90)]


def different_gpus() -> list[ClusterGpu]:
    """An H200 for the first worker, an H100 for the second."""
    return [ClusterGpu("cuda:0", f"GPU-{os.environ['TEST_SLOT']}", (H200, H100)[int(os.environ["TEST_SLOT"])], 90)]


def measure(batch: Batch, log: Path, seconds: float = 0.0) -> Measured:
    """Note each candidate in a file, and return times that depend on the candidates alone."""
    time.sleep(seconds)
    with open(log, "a", encoding="utf-8") as file:
        for config in batch.configs:
            file.write(f"{os.getpid()} {batch.variant.symbol} {identity(config)}\n")
    return Measured(batch.expected, tuple(timing(config, 10.0 + len(identity(config)) % 7) for config in batch.configs))


def measure_elsewhere(batch: Batch) -> Measured:
    """The answer of a worker with other packages."""
    return Measured(tuple((name, Fact("0" * 64, "1.0")) for name, _ in batch.expected))
