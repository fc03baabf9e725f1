"""Tensor copies and mbarriers on the emulator: boxes, swizzling, zero fill, a ring of stages, and faults."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.emulator.generated import emulated_kernels
from tests.emulator.memory import ARRAYS_ADDRESS, Memory, Values
from tests.emulator.module import EmulatedModule, Machine, Outcome
from tests.emulator.native import FOLDER
from tests.emulator.tensor_maps import box_bytes, tensor_map
from warp_tiles.compile.sources import flatten

THREADS, SHARED_BYTES = 128, 80 * 1024
WARP_HEADERS = f'#define WP_TILE_BLOCK_DIM {THREADS}\n#define WP_NO_CRT\n#include "builtin.h"\n'
KERNELS = "".join((FOLDER / "kernels" / name).read_text("utf-8") for name in ("tensor_copies.cu", "mbarriers.cu"))
HEADER = '#pragma once\n#include "arch/tensor_copy.cuh"\n#include "module/stage_buffers.cuh"\n'
FAULTS = {  # parts of the message; "..." is any text between them
    "read_in_flight": "load of 4 bytes at shared memory, byte 1024, where a tensor copy of thread 0 ...has not arrived",
    "written_in_flight": "thread 0 ...store of 4 bytes at shared memory, byte 1044...has not arrived",
    "copied_in_flight": "thread 0 ...tensor copy of 1024 bytes at shared memory, byte 1024...has not arrived",
    "copied_over_read_memory": "thread 32 ...tensor copy of 1024 bytes races at...byte 1060 with thread 9 "
    "...which read it",
    "waited_by_another_thread": "thread 32 ...load of 4 bytes...has arrived, but this thread has not waited for "
    "its mbarrier",
    "without_initialization": "thread 3 ...mbarrier.try_wait of 8 bytes at shared memory, byte 0, which is no mbarrier",
    "initialized_twice": "mbarrier.init of 8 bytes at shared memory, byte 0, which is an mbarrier already",
    "invalidated_in_flight": "mbarrier.inval of 8 bytes at shared memory, byte 0 while copies to it are in flight",
    "invalidated_while_threads_wait": "thread 1 ...mbarrier.inval of 8 bytes...while threads wait for it",
    "used_after_the_end": "mbarrier.arrive of 8 bytes at shared memory, byte 0, which is no mbarrier",
    "without_fence": "thread 0 (warp 0, lane 0) initialized the mbarrier at...without fence.mbarrier_init",
    "without_barrier": "mbarrier.try_wait of 8 bytes races at shared memory, byte 0 with thread 0 ...which wrote it",
    "too_many_arrivals": "mbarrier.arrive of 8 bytes...phase 0 has all its arrivals, and no thread has waited for it",
    "no_arrival": "thread 0 (warp 0, lane 0) waits for phase 0 of the mbarrier at shared memory, byte 0...which never "
    "completes: 1 arrivals and -1024 bytes are missing",
    "no_bytes_expected": "phase 0 of the mbarrier at...completes while a copy of thread 0 ...expects too few bytes",
    "bytes_of_one_of_two_copies": "phase 0 of the mbarrier at...completes while a copy of thread 0 ...too few bytes",
    "stored_to_an_mbarrier": "thread 1 ...store of 1 bytes at shared memory, byte 7, which is an mbarrier",
    "copied_over_an_mbarrier": "tensor copy of 1024 bytes at shared memory, byte 0, which is an mbarrier",
    "misaligned_tile": "tensor copy of 1024 bytes misaligned at shared memory, byte 1088",
    "misaligned_mbarrier": "mbarrier.init of 8 bytes misaligned at shared memory, byte 4",
    "past_shared_memory": "tensor copy of 1024 bytes out of bounds at 0 bytes past the end of shared memory",
    "other_rank": "tensor copy of 1024 bytes of 3 dimensions, with a map of 2",
    "no_map": "the address is not that of a tensor map",
    "modified_source": "thread 0 (warp 0, lane 0): the source of its tensor copy changed at x, byte 256",
    "ends_in_flight": "the kernel ends while tensor copies to the mbarrier at shared memory, byte 0 are in flight",
    "arrival_before_the_store": "thread 32 ...load of 4 bytes races...with thread 0 ...which wrote it",
    "barrier_of_a_missing_warp": "thread 0 ...waits at the barrier 3, where too few threads arrive: 32",
    "barrier_of_other_warps": "thread 64 ...load of 4 bytes races...with thread 0 ...which wrote it",
    "wrong_parity_value": "mbarrier.try_wait of 8 bytes for the parity 2",
}
RING_FAULTS = {  # in the order of `Change` in tensor_copies.cu
    "no_wait": "wgmma operand...where a tensor copy of thread 0 ...has not arrived, because no thread has waited",
    "warp_without_wait": "thread 64 ...wgmma operand...has arrived, but this thread has not waited for its mbarrier",
    "wrong_parity": "wgmma operand...where a tensor copy of thread 0 ...has not arrived, because no thread has waited",
    "too_few_bytes": "phase 0 of the mbarrier at shared memory, byte 0 expects 16368 bytes, fewer than the 16384 of",
    "too_many_bytes": "waits for phase 0 of the mbarrier...never completes: 0 arrivals and 16 bytes are missing",
    "loaded_too_early": "an operand of a wgmma was overwritten before it was complete",
    "no_barrier": "thread 32 ...waits for phase 2 of the mbarrier...This thread knows of 0 complete phases",
}


@pytest.fixture(scope="module")
def module(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> EmulatedModule:
    headers = header_text(tmp_path_factory.mktemp("tensor_copies") / "kernels", HEADER)
    return machine.module(f"{WARP_HEADERS}{headers}{KERNELS}", (), 90)


def header_text(folder: Path, includes: str) -> str:
    """The text of headers for the emulator. The folder is a new one for the device code."""
    emulated_kernels(folder)
    return flatten(includes, folder)


def pointer(address: int) -> bytes:
    return struct.pack("<Q", address)


def numbers(*values: int) -> list[bytes]:
    return [struct.pack("<i", value) for value in values]


def map_of(memory: Memory, name: str, values: Values, box: Sequence[int], swizzle: int = 0) -> bytes:
    """The map of an array whose last dimension is contiguous."""
    address = memory.add(name, values)
    return tensor_map(address, values.itemsize, values.shape[::-1], values.strides[-2::-1], box, swizzle)


def box_of(values: Values, start: Sequence[int], box: Sequence[int]) -> Values:
    """The elements of a box, with zeros outside of the array. Start and box begin with the innermost dimension."""
    result = np.zeros(box[::-1], dtype=values.dtype)
    for index in itertools.product(*map(range, box[::-1])):
        place = tuple(i + first for i, first in zip(index, start[::-1]))
        if all(0 <= i < size for i, size in zip(place, values.shape)):
            result[index] = values[place]
    return result


def swizzled(content: bytes, to: int, width: int) -> bytes:
    """What shared memory holds from an address on, for the bytes of a box in order."""
    result = bytearray(len(content))
    for offset, byte in enumerate(content):
        address = to + offset
        result[(address ^ (address >> 7 & width // 16 - 1) << 4 if width else address) - to] = byte
    return bytes(result)


def integers(*shape: int, dtype: str = "float32") -> Values:
    return np.random.default_rng(len(shape)).integers(1, 100, shape).astype(dtype)


def copied(
    module: EmulatedModule, values: Values, start: Sequence[int], box: Sequence[int], swizzle: int = 0, shift: int = 0
) -> Outcome:
    memory = Memory()
    encoded = map_of(memory, "x", values, box, swizzle)
    size = box_bytes(box, values.itemsize)
    out = memory.add("out", np.zeros(size, np.uint8))
    padding = [0] * (5 - len(start))
    arguments = [encoded, pointer(out), *numbers(len(box), size, shift, *start, *padding)]
    return module.launch("copied", 1, THREADS, arguments, memory, SHARED_BYTES)


@pytest.mark.parametrize(
    ("shape", "start", "box"),
    [
        ((20, 40), (8, 3), (16, 9)),
        ((20, 40), (33, 15), (16, 9)),  # past the end in both dimensions
        ((20, 40), (-5, -2), (16, 9)),
        ((20, 40), (-100, 3), (16, 9)),  # no element is inside
        ((3, 4), (-2, -1), (16, 8)),  # a box larger than the tensor
        ((6, 7, 24), (4, 5, 2), (12, 3, 2)),
        ((6, 7, 24), (20, -1, 5), (12, 3, 2)),
        ((3, 4, 5, 16), (-3, 3, 2, -1), (8, 3, 2, 3)),
        ((3, 2, 4, 5, 8), (3, -1, 2, 1, 2), (8, 3, 3, 2, 2)),
    ],
    ids=str,
)
def test_a_box_with_zeros_outside_of_the_tensor(
    module: EmulatedModule, shape: tuple[int, ...], start: tuple[int, ...], box: tuple[int, ...]
) -> None:
    values = integers(*shape)
    outcome = copied(module, values, start, box)
    assert outcome.error == ""
    assert outcome.arrays["out"].tobytes() == box_of(values, start, box).tobytes()


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float64"])
def test_rows_of_a_view(module: EmulatedModule, dtype: str) -> None:
    """Rows are longer than the tensor, whose bytes alone may be read."""
    values = integers(20, 96, dtype=dtype)[:, 16:75]
    outcome = copied(module, values, (50, 4), (16, 6))
    assert outcome.error == ""
    assert outcome.arrays["out"].tobytes() == box_of(values, (50, 4), (16, 6)).tobytes()


@pytest.mark.parametrize("shift", [0, 128, 640])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_vectors_are_permuted_by_their_address(module: EmulatedModule, swizzle: int, shift: int) -> None:
    values, box = integers(30, 48), ((swizzle or 128) // 4, 20)
    outcome = copied(module, values, (4, 12), box, swizzle, shift)
    assert outcome.error == ""
    expected = swizzled(box_of(values, (4, 12), box).tobytes(), shift, swizzle)
    assert outcome.arrays["out"].tobytes() == expected


@pytest.mark.parametrize(
    ("rows", "row_bytes", "swizzle"),
    [(16, 32, 32), (16, 96, 32), (24, 64, 64), (8, 192, 64), (64, 128, 128), (40, 384, 128)],
    ids=str,
)
def test_slots_have_the_layout_of_the_copies(module: EmulatedModule, rows: int, row_bytes: int, swizzle: int) -> None:
    values, columns = integers(70, 200, dtype="float16"), row_bytes // 2
    memory = Memory()
    encoded = map_of(memory, "x", values, (swizzle // 2, rows), swizzle)
    address = memory.add("map", np.frombuffer(encoded, np.uint8))
    out = memory.add("out", np.zeros((rows, columns), np.float16))
    arguments = [pointer(address), pointer(out), *numbers(12, 9, rows, row_bytes)]
    outcome = module.launch("slot", 1, THREADS, arguments, memory, SHARED_BYTES)
    assert outcome.error == ""
    assert np.array_equal(outcome.arrays["out"], box_of(values, (12, 9), (columns, rows)))


# ---- products


def product(module: EmulatedModule, steps: int, change: str = "") -> tuple[Outcome, Values]:
    """Multiply by three stages, correctly or with a fault. Returns the outcome and the exact product."""
    rng, k = np.random.default_rng(steps), 64 * steps
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((64, k), (k, 128)))
    memory = Memory()
    left = map_of(memory, "a", a, (64, 64), 128)
    row = b.strides[0]
    right = tensor_map(memory.add("b", b), 2, (64, k, 2), (row, 128), (64, 64, 2), 128)  # panel, K, N / panel
    c = memory.add("c", np.full((64, 128), np.nan, np.float32))
    arguments = [left, right, pointer(c), *numbers(steps, ["", *RING_FAULTS].index(change))]
    outcome = module.launch("ring", 1, THREADS, arguments, memory, SHARED_BYTES)
    return outcome, a.astype(np.float32) @ b.astype(np.float32)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 14])
def test_a_ring_of_stages(module: EmulatedModule, steps: int) -> None:
    outcome, expected = product(module, steps)
    assert outcome.error == ""
    assert np.array_equal(outcome.arrays["c"], expected)


@pytest.mark.parametrize("change", RING_FAULTS)
def test_faults_of_a_ring(module: EmulatedModule, change: str) -> None:
    outcome, _ = product(module, 8, change)
    assert outcome.error.startswith("ring: block 0, ")
    for part in RING_FAULTS[change].split("..."):
        assert part in outcome.error


# ---- faults

X = np.arange(8 * 64, dtype=np.float32).reshape(8, 64)


def launch(module: EmulatedModule, kernel: str) -> Outcome:
    memory = Memory()
    encoded = map_of(memory, "x", X, (32, 8))
    places = [pointer(ARRAYS_ADDRESS + memory.places["x"][0]), pointer(memory.add("y", np.zeros(THREADS, np.float32)))]
    return module.launch(kernel, 1, THREADS, [encoded, *places], memory, 8 * 1024)


@pytest.mark.parametrize("kernel", FAULTS)
def test_an_error_names_thread_and_location(module: EmulatedModule, kernel: str) -> None:
    error = launch(module, kernel).error
    assert error.startswith(f"{kernel}: block 0, ")
    for part in FAULTS[kernel].split("..."):
        assert part in error


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("expected_late", X[0, :1]),
        ("handed_over", X[0, 1:2]),  # an mbarrier and a barrier of two warps order accesses
        ("two_arrivals", 2 * X[:4, :32].ravel()),  # and one thread that waits
        ("initialized_again", X[:4, :32].ravel()),
    ],
)
def test_sound_kernels_pass(module: EmulatedModule, kernel: str, expected: Values) -> None:
    outcome = launch(module, kernel)
    assert outcome.error == ""
    assert np.array_equal(outcome.arrays["y"][: len(expected)], expected)


def test_copies_need_sm_90(machine: Machine, tmp_path: Path) -> None:
    header = header_text(tmp_path / "kernels", '#include "arch/tensor_copy.cuh"\n')
    source = header + 'extern "C" __global__ void early() { wt::arch::mbarrier_initialize(1024, 1); }'
    outcome = machine.module(source, (), 80).launch("early", 1, 32, [], Memory(), 1024)
    assert "thread 0 (warp 0, lane 0): mbarriers and tensor copies need sm_90" in outcome.error


# ---- maps and instructions

VALID = {"address": 256, "element_bytes": 2, "sizes": (100, 50), "strides": (208,), "box": (64, 8), "swizzle": 128}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"address": 264}, "the address 0x108 is not a multiple of 16"),
        ({"strides": (200,)}, "a stride of 200 bytes"),
        ({"strides": (1 << 40,)}, "a stride of"),
        ({"box": (128, 8)}, "rows of the box have 256 bytes, and the swizzle 128"),
        ({"box": (60, 8)}, "rows of the box have 120 bytes"),
        ({"box": (64, 257)}, "a box of 257 elements"),
        ({"box": (64, 0)}, "a box of 0 elements"),
        ({"sizes": (100, 0)}, "a size of 0"),
        ({"sizes": (100,), "strides": (), "box": (64,)}, "the rank is 1"),
        ({"sizes": (100, 50, 2)}, "different ranks"),
        ({"element_bytes": 3}, "elements of 3 bytes"),
        ({"swizzle": 16}, "a swizzle of 16 bytes"),
    ],
    ids=str,
)
def test_maps_that_the_driver_refuses(change: dict[str, object], problem: str) -> None:
    assert len(tensor_map(**VALID)) == 128
    with pytest.raises(ValueError, match=problem):
        tensor_map(**{**VALID, **change})
