"""The emulator itself: it reports each kind of fault and counts wavefronts correctly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.emulator.emulator import Count, Emulator, Function, Launch, Outcome
from tests.emulator.tiles import Matrix, Tile
from warp_tiles.gemm.choose import wavefronts_of

A_TILE = Tile(8, 7, "float32", "row_major", 12, 8)
FAULTS: dict[str, str] = {  # parts of the message; "..." is any text between them
    "past_the_end": "thread 3 (warp 0, lane 3): load of 4 bytes out of tile at 1 byte past the end of A",
    "before_the_start": "thread 3 (warp 0, lane 3): load of 4 bytes out of tile at 4 bytes before the start of B",
    "gap": "thread 3 ...load of 4 bytes out of tile at the gap after row 2 of A, byte 124",
    "half_in_gap": "load of 8 bytes out of tile at the gap after row 2 of A, byte 124, which starts at A row 2, "
    "column 6, byte 120",
    "gap_store": "store of 4 bytes out of tile at the gap after row 2 of C, byte 124",
    "unwritten": "load of 4 bytes of unwritten memory at C row 2, column 5, byte 116",
    "read_only": "store of 4 bytes to a read-only tile at B row 0, column 5, byte 20",
    "misaligned": "load of 8 bytes misaligned at A row 2, column 1, byte 100",
    "more_aligned_than_promised": "load of 16 bytes misaligned at A row 0, column 0, byte 0",
    "two_writers": "thread 40 (warp 1, lane 8): store of 4 bytes races at C row 0, column 1, byte 4 with thread "
    "3 (warp 0, lane 3), which wrote it since the last barrier",
    "missing_element": "no thread wrote C row 2, column 3, byte 108",
    "two_instructions": "divergent collective: thread 32 (warp 1, lane 0) is at shfl.sync.bfly of a double, but "
    "thread 35 (warp 1, lane 3) is at shfl.sync.bfly of a float",
    "lane_exited": "divergent collective...thread 35 (warp 1, lane 3) is at the end",
    "warp_exited": "divergent collective...is at bar.sync, but thread 31 (warp 0, lane 31) has ended",
    "barrier_in_half_a_warp": "divergent collective: thread 0 ...bar.sync, but thread 16 (warp 0, lane 16) is "
    "at the end",
    "newer_instruction": "mma.m16n8k16.f16 needs sm_80, but this is sm_75",
    "bypass": "thread 3 ...bypasses arch/memory.cuh at A row 0, column 0, byte 0",
    "array_bounds": "thread 3 ...undefined behaviour: an index out of an array's bounds",
    "deep_stack": "thread 3 ...the stack overflows",
    "null_pointer": "thread 3 ...invalid address (SIGSEGV)",
}
FAULTS_WITH_C: dict[str, str] = {
    "write_after_read": "thread 40 ...races at C row 0, column 1...thread 3 (warp 0, lane 3), which read it",
    "read_after_write": "thread 4 ...load of 4 bytes races at C row 0, column 1...which wrote it",
}


def fault(name: str, c: Matrix | None = None) -> Launch:
    """A launch of a function of ``kernels/faults.cuh``."""
    values = np.arange(56.0).reshape(8, 7)
    complete = name in ("missing_element", "barrier_between", "own_elements", "unset_register")
    function = Function(name, f"faults::{name}")
    return Launch(function, (A_TILE, A_TILE, A_TILE), 64, 75, (values, values, c), complete=complete)


@pytest.fixture(scope="module")
def faults(emulator: Emulator) -> dict[str, Outcome]:
    """Outcomes by function. Faulty and correct functions run in one process."""
    correct = ["barrier_between", "own_elements", "unset_register"]
    c = np.arange(56.0).reshape(8, 7)
    launches = [fault(name) for name in FAULTS] + [fault(name, c) for name in [*FAULTS_WITH_C, *correct]]
    outcomes = emulator.run(launches, ["kernels/faults.cuh"])
    return {launch.function.name: outcome for launch, outcome in zip(launches, outcomes)}


@pytest.mark.parametrize("name", [*FAULTS, *FAULTS_WITH_C])
def test_an_error_names_function_thread_and_location(faults: dict[str, Outcome], name: str) -> None:
    error = faults[name].error
    assert error.startswith(f"{name}: ")
    for part in {**FAULTS, **FAULTS_WITH_C}[name].split("..."):
        assert part in error


def test_correct_functions_pass_after_faulty_ones(faults: dict[str, Outcome]) -> None:
    assert faults["barrier_between"].error == ""
    assert np.array_equal(faults["barrier_between"].c.ravel(), np.arange(56.0)[::-1])
    assert faults["own_elements"].error == ""
    assert np.array_equal(faults["own_elements"].c.ravel(), np.arange(56.0) + 1)


def test_an_uninitialised_register_spoils_the_result(faults: dict[str, Outcome]) -> None:
    wrong = np.flatnonzero(faults["unset_register"].c.ravel() != 1.0)
    assert wrong.tolist() == [9]


def test_gaps_stay_unchanged(faults: dict[str, Outcome]) -> None:
    outcome = faults["own_elements"]
    assert A_TILE.gaps(outcome.c_bytes) == A_TILE.gaps(A_TILE.pack(np.zeros((8, 7))))


def test_a_crash_ends_only_its_own_launch(emulator: Emulator) -> None:
    crash = Function("crash", "[](auto...) { __builtin_abort(); }")
    launches = [replace(fault("gap"), function=crash), fault("barrier_between"), fault("gap")]
    first, second, third = emulator.run(launches, ["kernels/faults.cuh"])
    assert first.error == "crash: the process exited with status -6"
    assert second.error == ""
    assert "gap after row 2" in third.error


def test_a_function_that_does_not_compile_is_an_error(emulator: Emulator) -> None:
    launches = [replace(fault("gap"), function=Function("x", "faults::no_such")) for _ in range(2)]
    for outcome in emulator.run(launches, ["kernels/faults.cuh"]):
        assert outcome.error.startswith("x: the batch does not compile:")
        assert "no_such" in outcome.error


# ---- wavefronts

BANKS: dict[str, tuple[str, Count]] = {
    "banks::load<float, 1, 1>": ("A reads", Count(1, 1, 1)),
    "banks::load<float, 1, 2>": ("A reads", Count(1, 2, 1)),
    "banks::load<float, 1, 8>": ("A reads", Count(1, 8, 1)),
    "banks::load<float, 1, 32>": ("A reads", Count(1, 32, 1)),
    "banks::load<float, 1, 33>": ("A reads", Count(1, 1, 1)),
    "banks::load<float, 1, 0>": ("A reads", Count(1, 1, 1)),
    "banks::load<float, 1, 32, 8>": ("A reads", Count(1, 4, 1)),
    "banks::load<wt::f16, 1, 1>": ("A reads", Count(1, 1, 1)),
    "banks::load<wt::f16, 1, 2>": ("A reads", Count(1, 1, 1)),
    "banks::load<wt::f16, 1, 16>": ("A reads", Count(1, 8, 1)),
    "banks::load<float, 2, 2>": ("A reads", Count(1, 2, 2)),
    "banks::load<float, 2, 4>": ("A reads", Count(1, 4, 2)),
    "banks::load<double, 1, 16>": ("A reads", Count(1, 32, 2)),
    "banks::load<double, 1, 0>": ("A reads", Count(1, 1, 1)),
    "banks::load<float, 4, 4>": ("A reads", Count(1, 4, 4)),
    "banks::load<float, 4, 8>": ("A reads", Count(1, 8, 4)),
    "banks::load<float, 4, 32>": ("A reads", Count(1, 32, 4)),
    "banks::load<float, 4, 0>": ("A reads", Count(1, 2, 2)),
    "banks::load<float, 4, 4, 8>": ("A reads", Count(1, 4, 4)),
    "banks::load<float, 4, 4, 16>": ("A reads", Count(1, 2, 2)),
    "banks::store<float, 1, 1>": ("C writes", Count(1, 1, 1)),
    "banks::store<float, 1, 4>": ("C writes", Count(1, 4, 1)),
    "banks::store<float, 4, 4>": ("C writes", Count(1, 4, 4)),
    "banks::matrices<4, 8>": ("A reads", Count(1, 4, 4)),
    "banks::matrices<2, 8>": ("A reads", Count(1, 2, 2)),
    "banks::matrices<4, 16>": ("A reads", Count(1, 8, 4)),
    "banks::matrices<4, 64>": ("A reads", Count(1, 32, 4)),
    "banks::matrices<2, 64>": ("A reads", Count(1, 16, 2)),
    "banks::matrices<4, 72>": ("A reads", Count(1, 4, 4)),
    "banks::alternating<float>": ("A reads", Count(2, 2, 2)),
    "banks::realigned": ("A reads", Count(2, 17, 2)),
}


@pytest.fixture(scope="module")
def counts(emulator: Emulator) -> dict[str, Outcome]:
    """Outcomes by function of ``kernels/banks.cuh``."""
    tile = Tile(1, 4352, "float32", "row_major", 4352, 16)
    values = np.zeros((1, 4352))
    launches = [
        Launch(Function(name, name), (tile, tile, tile), 32, 90, (values, values, None), complete=False)
        for name in BANKS
    ]
    outcomes = emulator.run(launches, ["kernels/banks.cuh"])
    return {launch.function.name: outcome for launch, outcome in zip(launches, outcomes)}


@pytest.mark.parametrize("name", BANKS)
def test_known_bank_conflicts_are_counted(counts: dict[str, Outcome], name: str) -> None:
    role, expected = BANKS[name]
    assert counts[name].error == ""
    assert counts[name].counts[role] == expected
    assert all(count == Count(0, 0, 0) for other, count in counts[name].counts.items() if other != role)


def test_the_chooser_and_the_emulator_count_equal_wavefronts(emulator: Emulator) -> None:
    tile = Tile(1, 4352, "float32", "row_major", 4352, 16)
    values = np.zeros((1, 4352))
    random = np.random.default_rng(1)
    launches, expected = [], []
    for _ in range(60):
        elements = int(random.choice([1, 2, 4]))
        lanes = np.arange(32) & int(random.choice([31, 31, 30, 29, 28, 24, 3]))
        stride, step = random.choice([1, 2, 4, 8, 9, 32], 2)
        offsets = elements * ((lanes // 4) * stride + lanes % 4 * step)
        call = f"banks::gather<float, {elements}, {', '.join(map(str, offsets))}>"
        launches.append(
            Launch(Function(call, call), (tile, tile, tile), 32, 90, (values, values, None), complete=False)
        )
        expected.append(wavefronts_of(tuple(4 * int(offset) for offset in offsets), 4 * elements))
    outcomes = emulator.run(launches, ["kernels/banks.cuh"])
    assert [outcome.error for outcome in outcomes] == [""] * len(outcomes)
    assert [outcome.counts["A reads"].wavefronts for outcome in outcomes] == expected
    assert len(set(expected)) > 6
