"""The choice of ``warp_tiles.cholesky`` and ``warp_tiles.solve``: which threads compute a matrix. It is pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from warp_tiles.array_products.matmul_problem import DecidedBy, Gpu
from warp_tiles.gemm.hardware import shared_limit
from warp_tiles.gemm.problem import DTYPE_BYTES, DType

Form = Literal["thread", "block", "tiles"]
SolveBucket = tuple[tuple[str, str | int], ...]

# For matrices of at most so many rows: from how many on a thread for each is not slower than a block (docs/arrays.md).
LEAST_BATCHES = {4: 4_096, 8: 16_384, 12: 32_768, 16: 65_536}
_EARLIER = 4  # a solve of dense arrays gains from a quarter of them on; substitutions alone were not measured
_STRIDED_ROWS, _MOST_COLUMNS = 12, 4  # of a thread's matrix
_FEW_BYTES, _MOST_BYTES = 24 << 10, 48 << 10  # of shared memory, for a block of more than a warp, and of one
_MOST_ROWS = 256  # that the functions of one block serve
_TILE_ROWS = 64  # of tiles; a smaller matrix has only one
_CPU_ROWS, _CPU_BLOCK = 64, 32  # the CPU has 256 KiB for the tiles of a kernel


@dataclass(frozen=True)
class SolveProblem:
    """A factorization of a batch of n x n matrices, a solve, or a solve with their factors.

    Attributes:
        columns: Right-hand sides; 0 for a factorization.
        is_dense: True if the elements of each array follow one another in memory.
    """

    function: Literal["factor", "solve", "substitute"]
    dtype: DType
    n: int
    batch: int
    columns: int
    is_dense: bool = True

    @property
    def bucket(self) -> SolveBucket:
        """The key of a measured form, with sizes rounded to powers of two."""
        sizes = {f"log2_{name}": round(math.log2(max(1, getattr(self, name)))) for name in ("n", "batch", "columns")}
        return tuple(sorted({"function": self.function, "dtype": self.dtype, "dense": self.is_dense, **sizes}.items()))

    def describe(self) -> str:
        """In words, e.g. ``solve float32 1024 x 16x16, 1 right-hand side``."""
        text = f"{self.function} {self.dtype} {self.batch} x {self.n}x{self.n}"
        text += f", {self.columns} right-hand side{'s' * (self.columns > 1)}" if self.columns else ""
        return text + ", strided" * (not self.is_dense)


@dataclass(frozen=True)
class SolveConfig:
    """How a call is computed.

    Attributes:
        form: ``thread`` or ``block`` if one computes a matrix, or ``tiles`` if many blocks do.
        rows: Rows of a tile: of the whole matrix, or of a block on the diagonal.
        columns: Columns of a tile of right-hand sides; 0 without.
        step: Elements of K in an iteration of a loop of products.
    """

    form: Form
    rows: int
    columns: int
    threads: int
    step: int = 0


@dataclass(frozen=True)
class SolvePlan:
    """The configuration of a call, who decided about its form, and why. ``gpu`` is empty on the CPU."""

    table: ClassVar[str] = "solves"
    problem: SolveProblem
    config: SolveConfig
    decided_by: DecidedBy
    reason: str
    gpu: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "problem": self.problem.describe()}


def choose_solve(
    problem: SolveProblem,
    gpu: Gpu | None,
    records: Mapping[SolveBucket, Form] | None = None,
    *,
    forced: Form | None = None,
) -> SolvePlan:
    """The plan of a call on a GPU, or on the CPU. Records decide about the form first, then the sizes.

    Raises:
        ValueError: The forced form cannot compute it.
    """
    possible = configs(problem, gpu.arch if gpu else None)
    measured, name = (records or {}).get(problem.bucket), gpu.name if gpu else ""
    if forced is not None:
        if forced not in possible:
            raise ValueError(f"{problem.describe()} has no form {forced!r}, but {', '.join(possible)}")
        return SolvePlan(problem, possible[forced], "search", "a search forces the form", name)
    if measured in possible:
        reason = f"the records that {name} uses have a measured form for about this size"
        return SolvePlan(problem, possible[measured], "record", reason, name)
    least = least_batch(problem)
    form: Form = "block" if "block" in possible else "tiles"
    reason = "a matrix has too many rows for one block"
    if "thread" in possible and problem.batch >= least:
        form, reason = "thread", f"there are at least {least} matrices of this size"
    elif form == "block":
        reason = "a block has shared memory for a matrix and its right-hand sides"
        reason += f", and there are fewer than {least} for a thread each" * ("thread" in possible)
    return SolvePlan(problem, possible[form], "heuristic", reason, name)


def configs(problem: SolveProblem, arch: int | None) -> dict[Form, SolveConfig]:
    """The configuration of each form that can compute a call. ``arch`` is None for the CPU."""
    n, columns, size_bytes = problem.n, problem.columns, DTYPE_BYTES[problem.dtype]
    possible: dict[Form, SolveConfig] = {}
    if threads := _threads_of_matrices(problem):
        possible["thread"] = SolveConfig("thread", n, columns, threads)
    if arch is None:  # few shapes of tiles, because each of them compiles for a second
        small = n <= _CPU_ROWS
        rows, width = -(-n // 16) * 16 if small else _CPU_BLOCK, 8 if columns > 1 else columns
        form: Form = "block" if small else "tiles"
        return possible | {form: SolveConfig(form, rows, width, 1, _CPU_BLOCK)}
    rows = n if n <= 32 else -(-n // 8) * 8
    width = min(32, 1 << (columns - 1).bit_length()) if columns else 0
    threads = 32 if rows <= 48 else 128 if rows <= 128 else 256
    while width > 8 and rows * (rows + width) * size_bytes > shared_limit(arch, threads):
        width //= 2
    if rows <= _MOST_ROWS and rows * (rows + width) * size_bytes <= shared_limit(arch, threads):
        possible["block"] = SolveConfig("block", rows, width, threads)
    if n > _TILE_ROWS or "block" not in possible:
        step = 128 // size_bytes
        tiles = 2 * _TILE_ROWS * (_TILE_ROWS + step)  # two of the matrix, and what is subtracted
        rows = _TILE_ROWS if tiles * size_bytes <= shared_limit(arch, 128) else 32
        possible["tiles"] = SolveConfig("tiles", rows, rows if columns > 32 else min(width, rows), 128, step)
    return possible


def least_batch(problem: SolveProblem) -> int:
    """The number of matrices from which on a thread computes each; 0 if none does."""
    least = next((least for rows, least in LEAST_BATCHES.items() if problem.n <= rows), 0)
    return -(-least // _EARLIER) if problem.function == "solve" and problem.is_dense else least


def _threads_of_matrices(problem: SolveProblem) -> int:
    """Threads of a block that computes a matrix in each; 0 if that is not possible."""
    n, columns = problem.n, problem.columns
    if not least_batch(problem) or columns > _MOST_COLUMNS or (n > _STRIDED_ROWS and not problem.is_dense):
        return 0
    pitch = n * (n + 1) // 2 + n * columns | 1  # elements, odd so that threads use different banks
    matrix_bytes = pitch * DTYPE_BYTES[problem.dtype]
    fitting = [threads for threads in (128, 64) if threads * matrix_bytes <= _FEW_BYTES]
    return max(fitting, default=32 if 32 * matrix_bytes <= _MOST_BYTES else 0)
