"""The module emulator reports the fault of each faulty kernel, and lets correct kernels pass."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.emulator.emulator import FOLDER
from tests.emulator.memory import Memory
from tests.emulator.module import EmulatedModule, Machine, Outcome

FAULTS = {  # parts of the message; "..." is any text between them
    "static_race": "thread 1 ...store of 4 bytes races at static memory...thread 0 (warp 0, lane 0), which read it",
    "dynamic_race": "thread 1 ...load of 4 bytes races at shared memory, byte 0...thread 0 ...which wrote it",
    "array_race": "thread 1 (warp 0, lane 1): store of 4 bytes races at y, byte 0 with thread 0 (warp 0, lane 0)",
    "block_race": "block 1, thread 0 (warp 0, lane 0): store of 4 bytes races at y, byte 0...of another block",
    "without_release": "block 1, thread 5 (warp 0, lane 5): load of 4 bytes races at y, byte 4...of another block",
    "without_acquire": "block 1, thread 5 (warp 0, lane 5): load of 4 bytes races at y, byte 4...of another block",
    "unwritten": "load of 4 bytes of unwritten memory at shared memory, byte 0",
    "past_shared_memory": "thread 63 ...store of 4 bytes out of bounds at 0 bytes past the end of shared memory",
    "past_the_array": "thread 63 ...load of 4 bytes out of bounds at 0 bytes past the end of x",
    "far_past_the_array": "thread 0 ...invalid address (SIGSEGV)",
    "misaligned": "thread 1 ...store of 8 bytes misaligned at y, byte 4",
    "misaligned_copy": "asynchronous load of 16 bytes misaligned at x, byte 4",
    "misaligned_target": "asynchronous store of 16 bytes misaligned at shared memory, byte 4",
    "copy_past_the_array": "asynchronous load of 4 bytes out of bounds at 0 bytes past the end of x",
    "copy_without_wait": "load of 4 bytes at shared memory, byte 0, where a copy of thread 0 ...has not arrived",
    "copy_without_barrier": "thread 1 ...load of 4 bytes races at shared memory, byte 0 with thread 0 ...which "
    "wrote it",
    "copy_over_read_memory": "asynchronous store of 4 bytes races at shared memory...which read it",
    "copy_of_modified_source": "thread 1 (warp 0, lane 1): the source of its copy changed at x, byte 4",
    "thread_exited": "divergent collective...bar.sync...thread 5 (warp 0, lane 5) is at the end",
    "some_lanes": "a collective of only some lanes of a warp is not emulated",
    "other_instruction": "not emulated: ex2.approx.f32",
    "failed_assertion": "thread 10 (warp 0, lane 10): the assertion failed: x[threadIdx.x] < 10.0f",
}
OF_TWO_BLOCKS = ("block_race", "without_release", "without_acquire")
X = np.arange(64, dtype=np.float32)


@pytest.fixture(scope="module")
def module(machine: Machine) -> EmulatedModule:
    return machine.module((FOLDER / "kernels" / "module_faults.cu").read_text(), (), 90)


def launch(module: EmulatedModule, kernel: str, blocks: int = 1) -> Outcome:
    memory = Memory()
    x, y = memory.add("x", X), memory.add("y", np.zeros(64, np.float32))
    return module.launch(kernel, blocks, 64, [struct.pack("<Q", x), struct.pack("<Q", y)], memory, 256)


@pytest.mark.parametrize("kernel", FAULTS)
def test_an_error_names_thread_and_location(module: EmulatedModule, kernel: str) -> None:
    error = launch(module, kernel, 2 if kernel in OF_TWO_BLOCKS else 1).error
    assert error.startswith(f"{kernel}: block ")
    for part in FAULTS[kernel].split("..."):
        assert part in error


@pytest.mark.parametrize(
    ("kernel", "blocks", "expected"),
    [
        ("reversed", 1, X[::-1]),
        ("copied", 1, X * (np.arange(64) % 2)),
        ("summed", 1, [2016, 496, 1520, 0, 32]),
        ("last_block", 2, [2.0]),  # fences and atomic operations order blocks
    ],
)
def test_correct_kernels_pass(module: EmulatedModule, kernel: str, blocks: int, expected: list[float]) -> None:
    outcome = launch(module, kernel, blocks)
    assert outcome.error == ""
    assert outcome.arrays["y"][: len(expected)].tolist() == list(expected)
    assert np.array_equal(outcome.arrays["x"][:63], X[:63])  # the last one counts blocks
