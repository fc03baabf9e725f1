"""Clusters of blocks on the emulator: loads that two blocks share, and faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.emulator.memory import Memory
from tests.emulator.module import EmulatedModule, Machine, Outcome
from tests.emulator.native import FOLDER
from tests.emulator.tensor_maps import tensor_map
from tests.emulator.test_tensor_copies import header_text, pointer

THREADS, CLUSTER, BLOCKS = 128, 2, 4
SOURCE = (FOLDER / "kernels" / "clusters.cu").read_text("utf-8")
HEADER = '#pragma once\n#include "arch/tensor_copy.cuh"\n#include "arch/cluster.cuh"\n'
X = np.arange(8 * 64, dtype=np.float32).reshape(8, 64)
FAULTS = {  # parts of the message; "..." is any text between them
    "without_the_first_barrier": "tensor copy with an mbarrier of 8 bytes races at shared memory of block 1, "
    "byte 0 with thread 128 ",
    "without_the_last_barrier": "uses the mbarrier at shared memory of block ...of another block, which may have ended",
    "arrival_at_the_own_block": "thread 128 ...tensor copy of 512 bytes at shared memory of block 0, byte 1536",
    "too_few_blocks": "waits for phase 0 of the mbarrier...never completes: 0 arrivals and 512 bytes are missing",
    "too_many_blocks": "a cluster of 2 blocks has no block 2",
    "half_of_the_bytes": "phase 0 of the mbarrier at shared memory of block 1, byte 0 completes while a copy of "
    "thread 128 ...because it expects too few bytes",
    "another_address": "thread 0 ...mbarrier.arrive of 8 bytes...which is no mbarrier",
    "arrives_twice": "thread 0 (warp 0, lane 0) arrives twice at the barrier of the cluster",
    "waits_alone": "thread 0 (warp 0, lane 0) waits at the barrier of the cluster, where it has not arrived",
    "never_waits": "thread 0 (warp 0, lane 0) ends without a wait at the barrier of the cluster",
    "a_block_is_missing": "waits at the barrier of the cluster, where too few threads arrive: 128",
    "a_warp_is_missing": "thread 32 (warp 1, lane 0) waits at the barrier 0, where too few threads arrive: 96",
    "races_between_blocks": "thread 128 ...store of 4 bytes races at y, byte 0 with thread 0 ",
}


@pytest.fixture(scope="module")
def module(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> EmulatedModule:
    headers = header_text(tmp_path_factory.mktemp("clusters") / "kernels", HEADER)
    return machine.module(headers + SOURCE, (), 90)


def launch(module: EmulatedModule, kernel: str, blocks: int = BLOCKS, cluster: int = CLUSTER) -> Outcome:
    memory = Memory()
    encoded = tensor_map(memory.add("x", X), 4, (64, 8, 1), (256, 2048), (32, 4, 1))
    y = pointer(memory.add("y", np.zeros((BLOCKS, 8, 32), np.float32)))
    return module.launch(kernel, blocks, THREADS, [encoded, y], memory, 4096, cluster)


def test_blocks_share_their_loads(module: EmulatedModule) -> None:
    outcome = launch(module, "shared_loads")
    assert outcome.error == ""
    expected = 2 * (X[:, :32] + X[:, 32:])
    assert np.array_equal(outcome.arrays["y"], np.broadcast_to(expected, (BLOCKS, 8, 32)))


@pytest.mark.parametrize("kernel", FAULTS)
def test_faults(module: EmulatedModule, kernel: str) -> None:
    error = launch(module, kernel).error
    for part in FAULTS[kernel].split("..."):
        assert part in error


@pytest.mark.parametrize(("blocks", "cluster", "error"), [
    (3, 2, "the blocks are not those of whole clusters"),
    (16, 16, "the emulator has no clusters of this size"),
])  # fmt: skip
def test_launches_without_whole_clusters(module: EmulatedModule, blocks: int, cluster: int, error: str) -> None:
    assert error in launch(module, "shared_loads", blocks, cluster).error


def test_clusters_need_sm_90(machine: Machine, tmp_path: Path) -> None:
    header = header_text(tmp_path / "kernels", '#include "arch/cluster.cuh"\n')
    source = header + 'extern "C" __global__ void early() { wt::arch::cluster_arrive(); wt::arch::cluster_wait(); }'
    outcome = machine.module(source, (), 80).launch("early", 2, 32, [], Memory(), 1024, 2)
    assert "clusters need sm_90" in outcome.error
