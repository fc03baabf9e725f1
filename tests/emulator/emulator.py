"""Device functions on an emulated block: the host's compiler compiles them, the emulator checks and counts accesses.

``arch/`` shadows ``kernels/arch``, so templates compile unchanged. ``machine/`` emulates the warps.
``machine/shared_memory.h`` describes the checks, and ``machine/wavefronts.h`` the counts.
"""

from __future__ import annotations

import itertools
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.emulator.native import FOLDER, cached_folder, errors_of, locked
from tests.emulator.tiles import Matrix, Tile, to_bytes

KERNELS = FOLDER.parents[1] / "kernels"
ROLES = ("A reads", "B reads", "C reads", "C writes")
FLAGS = ["-std=c++17", "-ffp-contract=off", "-U_FORTIFY_SOURCE", f"-I{FOLDER}", f"-I{KERNELS}"]
# GCC 12 and Clang have these flags. Uninitialised variables, above all registers, hold a pattern that spoils results.
# An index out of an array's bounds, an oversized shift or an overflow is a trap, which the emulator reports.
STRICT_FLAGS = [
    "-ftrivial-auto-var-init=pattern",
    "-fsanitize=bounds,shift,signed-integer-overflow,integer-divide-by-zero",
    "-fsanitize-undefined-trap-on-error",
]
SECONDS_PER_LAUNCH = 20.0


@dataclass(frozen=True)
class Function:
    """A device function to emulate.

    Attributes:
        name: Its name in messages.
        call: C++ expression that takes ``(alpha, a, b, beta, c)``.
        declarations: C++ text that only this function sees.
    """

    name: str
    call: str
    declarations: str = ""


@dataclass(frozen=True)
class Launch:
    """One call of a function by all threads of a block.

    Attributes:
        function: The function.
        tiles: A, B and C.
        threads: Threads of the block.
        arch: Compute capability. Newer instructions are errors.
        values: A, B and C. If C is None, it is NaN and must not be read before it is written.
        alpha, beta: Scalars of C's dtype.
        complete: True if every element of C must be written.
    """

    function: Function
    tiles: tuple[Tile, Tile, Tile]
    threads: int
    arch: int
    values: tuple[Matrix, Matrix, Matrix | None]
    alpha: float = 1.0
    beta: float = 0.0
    complete: bool = True


@dataclass(frozen=True)
class Count:
    """Shared-memory instructions of warps, the wavefronts that they take, and the ideal number of wavefronts."""

    instructions: int
    wavefronts: int
    ideal: int


@dataclass(frozen=True)
class Outcome:
    """The result of a launch.

    Attributes:
        error: The function's error, or "".
        c: C afterwards.
        c_bytes: The bytes of C in memory.
        counts: Counts by role, see ``ROLES``.
    """

    error: str
    c: Matrix
    c_bytes: bytes
    counts: dict[str, Count]


def find_compiler() -> str | None:
    """The host's C++ compiler, or None."""
    return next(
        filter(None, (shutil.which(name) for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"))), None
    )


def translation_unit(functions: Sequence[Function], includes: Sequence[str]) -> str:
    """C++ text of a batch: the functions, each in its own namespace, and their table."""
    lines = [f'#include "{include}"' for include in ("machine/machine.h", *includes)]
    for number, function in enumerate(functions):
        lines += [f"namespace {{ namespace function_{number} {{", function.declarations]
        lines.append("void run(void* alpha, void* a, void* b, void* beta, void* c)")
        lines += [f"{{ {function.call}(alpha, a, b, beta, c); }}", "} }"]
    table = ", ".join(f"function_{number}::run" for number in range(len(functions)))
    lines.append(f"namespace wt::emulator {{ const Kernel kernels[] = {{{table}}};")
    lines += [f"const int kernel_count = {len(functions)}; }}", ""]
    return "\n".join(lines)


class Emulator:
    """Builds and runs batches of launches in parallel.

    Args:
        folder: Folder for build outputs. Each emulator needs its own.
        compiler: The host's C++ compiler.
        batch: Launches per translation unit.
    """

    def __init__(self, folder: Path, compiler: str, batch: int = 96) -> None:
        self._folder = folder
        self._compiler = compiler
        self._batch = batch
        self._numbers = itertools.count()
        self._pool = ThreadPoolExecutor(os.cpu_count())
        self._device_flags = ["-O0", "-w", *filter(self._accepts, STRICT_FLAGS)]
        sources = sorted((FOLDER / "machine").glob("*.cpp"))
        compiled = cached_folder(folder, f"functions {compiler}")
        self._objects = [compiled / f"{source.stem}.o" for source in sources]
        with locked(compiled):
            if not all(path.exists() for path in self._objects):
                list(self._pool.map(self._compile_machine, sources, self._objects))

    def close(self) -> None:
        """Wait for running builds and launches."""
        self._pool.shutdown()

    def run(self, launches: Sequence[Launch], includes: Sequence[str]) -> list[Outcome]:
        """Compile the functions and call them.

        Args:
            launches: The launches.
            includes: Headers that the functions need.
        """
        # enough translation units to keep all cores busy
        size = max(1, min(self._batch, -(-len(launches) // (os.cpu_count() or 1))))
        batches = [launches[first : first + size] for first in range(0, len(launches), size)]
        outcomes = self._pool.map(lambda batch: self._run_batch(batch, list(includes)), batches)
        return list(itertools.chain.from_iterable(outcomes))

    def _compile(self, *arguments: str | Path) -> str:
        return errors_of(self._compiler, [*FLAGS, *map(str, arguments)])

    def _compile_machine(self, source: Path, target: Path) -> None:
        log = self._compile("-O2", "-c", source, "-o", target)
        if log:
            raise RuntimeError(f"{source} does not compile:\n{log}")

    def _accepts(self, flag: str) -> bool:
        return not self._compile(flag, "-Werror", "-fsyntax-only", "-x", "c++", os.devnull)

    def _run_batch(self, launches: Sequence[Launch], includes: list[str]) -> list[Outcome]:
        functions = list(dict.fromkeys(launch.function for launch in launches))
        folder = self._folder / f"batch_{next(self._numbers)}"
        folder.mkdir()
        source, program = folder / "batch.cpp", folder / "batch"
        source.write_text(translation_unit(functions, includes))
        log = self._compile(*self._device_flags, source, *self._objects, "-o", program)
        outcomes = [_failed(launch, f"the batch does not compile:\n{log}") for launch in launches if log]
        while len(outcomes) < len(launches):
            rest = launches[len(outcomes) :]
            outcomes += _run(program, rest, [functions.index(launch.function) for launch in rest])
        shutil.rmtree(folder)
        return outcomes


def _failed(launch: Launch, error: str) -> Outcome:
    """The outcome of a launch that did not end."""
    zeros = bytes(launch.tiles[2].span)
    return Outcome(f"{launch.function.name}: {error}", launch.tiles[2].unpack(zeros), zeros, {})


def _run(program: Path, launches: Sequence[Launch], numbers: Sequence[int]) -> list[Outcome]:
    """Outcomes up to and including the first launch that ends the process."""
    requests, outcomes = program.with_name("requests"), program.with_name("outcomes")
    requests.write_bytes(b"".join(_request(launch, number) for launch, number in zip(launches, numbers)))
    try:
        command = [str(program), str(requests), str(outcomes)]
        status = subprocess.run(command, check=False, timeout=SECONDS_PER_LAUNCH * len(launches)).returncode
        reason = f"the process exited with status {status}"
    except subprocess.TimeoutExpired:
        reason = "the process exceeded its time limit"
    found = _parse(outcomes.read_bytes(), launches)
    if len(found) < len(launches):
        found.append(_failed(launches[len(found)], reason))
    return found


def _request(launch: Launch, number: int) -> bytes:
    """A launch as ``machine/batch.cpp`` reads it."""
    a, b, c = launch.values
    initialised = c is not None
    parts = [struct.pack("<6i", number, launch.threads, launch.arch, initialised, launch.complete, 0)]
    for tile in launch.tiles:
        row_major = tile.arrangement == "row_major"
        parts.append(
            struct.pack(
                "<6i", tile.rows, tile.columns, tile.leading_dimension, tile.element_bytes, tile.alignment, row_major
            )
        )
    for scalar in (launch.alpha, launch.beta):
        parts.append(to_bytes(_matrix(scalar), launch.tiles[2].dtype).ljust(8, b"\0"))
    c_tile = launch.tiles[2]
    contents = (a, b, _matrix(float("nan"), c_tile.rows, c_tile.columns) if c is None else c)
    parts += [tile.pack(values) for tile, values in zip(launch.tiles, contents)]
    return b"".join(parts)


def _parse(data: bytes, launches: Sequence[Launch]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    at = 0
    numbers = struct.Struct(f"<{3 * len(ROLES)}Q")
    for launch in launches:
        tile = launch.tiles[2]
        if at + 4 > len(data):
            break
        (length,) = struct.unpack_from("<i", data, at)
        at += 4
        if at + length + tile.span + numbers.size > len(data):
            break
        error = data[at : at + length].decode()
        at += length
        c_bytes = data[at : at + tile.span]
        at += tile.span
        values = numbers.unpack_from(data, at)
        at += numbers.size
        counts = {role: Count(*values[3 * i : 3 * i + 3]) for i, role in enumerate(ROLES)}
        name = f"{launch.function.name}: " if error else ""
        outcomes.append(Outcome(name + error, tile.unpack(c_bytes), c_bytes, counts))
    return outcomes


def _matrix(value: float, rows: int = 1, columns: int = 1) -> Matrix:
    return np.full((rows, columns), value, dtype=np.float64)
