"""The problem and its configuration: which solver function a kernel needs, and how a block computes it.

A :class:`SolverProblem` holds everything that decides the machine code of one factorization or solve on shared-memory
tiles, and nothing else. Factors are lower triangles L: an upper factor U is the transpose of its L.
:func:`reason_unsupported` has the limits of the templates in ``kernels/solver``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from warp_tiles.gemm.hardware import LANES, MIN_ARCH, multiprocessor, resident_blocks
from warp_tiles.gemm.problem import (
    DTYPE_BYTES,
    DTYPES,
    Arrangement,
    DType,
    GemmProblem,
    Operand,
    Precision,
    Role,
    Target,
    TileOperand,
    layouts_json,
    layouts_text,
    leading_dimension,
    operand_of,
)
from warp_tiles.gemm.rejected import Rejected, refuse, rejectable
from warp_tiles.gemm.tile_config import TileConfig


@dataclass(frozen=True)
class SolverConfig:
    """The division of work among the threads of a block: the lanes that share a column of a triangular solve, or 1."""

    lanes: int = 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        """A short text for tables; empty for one lane per column."""
        return f"{self.lanes} lanes per column" if self.lanes > 1 else ""


Config = TileConfig | SolverConfig
"""The configuration of any device function."""

Function = Literal[
    "cholesky", "cholesky_solve", "lower_solve", "upper_solve",
    "cholesky_adjoint", "cholesky_solve_adjoint", "lower_solve_adjoint", "upper_solve_adjoint",
]  # fmt: skip

_FORWARD: tuple[Function, ...] = ("cholesky", "cholesky_solve", "lower_solve", "upper_solve")

SOLVERS = {f"tile_{name}{suffix}": name for name in _FORWARD for suffix in ("", "_inplace")}
"""Warp's solver builtins, and what each computes."""

_OF_SOLVE_ADJOINT = ("l", "x", "gx", "gy", "gl")

OPERANDS: dict[Function, tuple[str, ...]] = {
    "cholesky": ("a", "l"),
    "cholesky_solve": ("l", "y", "x"),
    "lower_solve": ("t", "y", "x"),
    "upper_solve": ("t", "y", "x"),
    "cholesky_adjoint": ("l", "g", "a"),
    "cholesky_solve_adjoint": _OF_SOLVE_ADJOINT,
    "lower_solve_adjoint": _OF_SOLVE_ADJOINT,
    "upper_solve_adjoint": _OF_SOLVE_ADJOINT,
}
"""Names of each function's operands, in the order in which it takes them; ``g`` marks a gradient."""

RIGHT_SIDES = frozenset(("y", "x", "gy", "gx"))
"""The operands with ``n`` rows and ``columns`` columns. All others are triangles with ``n`` rows and columns."""

ADJOINTS: dict[Function, Function] = {name: f"{name}_adjoint" for name in _FORWARD}  # type: ignore[misc]  # a Function
"""The adjoint of each function."""


@dataclass(frozen=True)
class SolverProblem:
    """One solver function.

    | function | computes |
    |---|---|
    | ``cholesky`` | L of A = L L^T |
    | ``cholesky_solve`` | X of L L^T X = Y |
    | ``lower_solve`` | X of T X = Y, T lower |
    | ``upper_solve`` | X of T X = Y, T upper |
    | ``cholesky_adjoint`` | adj_A += the gradient of A, from L and its gradient |
    | ``lower_solve_adjoint`` and so on | adj_Y and adj_L += the gradients of Y and the triangle, from L, X and adj_X |

    Attributes:
        n: Rows and columns of the triangle, in elements.
        columns: Columns of X and Y; ``n`` where there are none.
        operands: Its matrices, see :data:`OPERANDS`; all of one dtype.
        in_place: True if the result replaces the last input. The adjoint then restores this input, and its gradient
            replaces that of the result.
        threads: Threads of the block, one-dimensional, all of which take part.
        arch: Target compute capability, e.g. ``90``.
    """

    function: Function
    n: int
    columns: int
    operands: tuple[Operand, ...]
    in_place: bool
    threads: int
    arch: int

    @property
    def dtype(self) -> DType:
        return self.operands[0].dtype

    @property
    def is_adjoint(self) -> bool:
        return self.function.endswith("_adjoint")

    @property
    def has_right_sides(self) -> bool:
        return not RIGHT_SIDES.isdisjoint(OPERANDS[self.function])

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the device function's parameters: its operands, and ``w`` if it needs scratch memory."""
        return (*OPERANDS[self.function], *(("w",) if self.scratch_elements else ()))

    @property
    def scratch_elements(self) -> int:
        """Elements of shared memory that the function needs besides its operands."""
        if self.function == "cholesky_adjoint":
            return self.n * (self.n + 1)
        matrices = {"cholesky_solve_adjoint": 2, "lower_solve_adjoint": 1, "upper_solve_adjoint": 1}
        return matrices.get(self.function, 0) * (self.n | 1) * self.columns

    @property
    def scratch_bytes(self) -> int:
        return self.scratch_elements * DTYPE_BYTES[self.dtype]

    @property
    def symbol(self) -> str:
        """Name of the device function; it determines the problem and the other way round."""
        name = f"{self.function}_in_place" if self.in_place else self.function
        sizes = f"{self.n}_{self.columns}_{DTYPES[self.dtype].code}"
        return f"wt_{name}_{sizes}_{layouts_text(self.operands)}_t{self.threads}_sm{self.arch}"

    @property
    def size(self) -> str:
        """Sizes for tables, e.g. ``lower_solve 32x32, 4 columns, in place``."""
        columns = f", {self.columns} column{'s' * (self.columns > 1)}" if self.has_right_sides else ""
        return f"{self.function} {self.n}x{self.n}{columns}{', in place' * self.in_place}"

    @property
    def dtypes(self) -> str:
        """The element type, for tables."""
        return self.dtype

    def describe(self) -> str:
        """One line for messages, e.g. ``lower_solve of 32x32 float32 for 4 columns, 64 threads, sm_90``."""
        columns = f" for {self.columns} column{'s' * (self.columns > 1)}" if self.has_right_sides else ""
        what = f"{self.function} of {self.n}x{self.n} {self.dtype}{columns}{' in place' * self.in_place}"
        return f"{what}, {self.threads} threads, sm_{self.arch}"

    def to_json(self) -> dict[str, Any]:
        """The problem under the names that ``warp-tiles plan --json`` prints."""
        return {
            "solver": self.function,
            "n": self.n,
            "columns": self.columns,
            "dtype": self.dtype,
            "in_place": self.in_place,
            **layouts_json(self.operands),
            "threads": self.threads,
            "arch": self.arch,
        }


Problem = GemmProblem | SolverProblem
"""Any device function that a kernel may need."""

_VALID: dict[str, Any] = {
    "dtype": DTYPES, "arrangement": get_args(Arrangement), "precision": get_args(Precision), "function": OPERANDS,
}  # fmt: skip
_MOST = 1 << 20


def problem_from_fields(data: Any) -> Problem:
    """Rebuild a problem from untrusted JSON, as ``asdict()`` wrote it. Raises a ValueError if a field is invalid."""

    def checked(fields: Any) -> dict[str, Any]:
        for name, value in fields.items():
            valid = _VALID.get(name)
            if name == "in_place":
                is_valid = isinstance(value, bool)
            elif valid is not None:
                is_valid = isinstance(value, str) and value in valid
            else:
                is_valid = isinstance(value, Operand | tuple) or (type(value) is int and 0 < value <= _MOST)
            if not is_valid:
                raise ValueError(f"{name} is {value!r}")
        return dict(fields)

    try:
        if "operands" in data:
            operands = tuple(Operand(**checked(operand)) for operand in data["operands"])
            solver = SolverProblem(**checked({**data, "operands": operands}))
            if len(operands) != len(OPERANDS[solver.function]):
                raise ValueError(f"{solver.function} has {len(operands)} operands")
            return solver
        return GemmProblem(**checked({**data, **{name: Operand(**checked(data[name])) for name in "abc"}}))
    except (TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"it is no device function: {error}") from error


def solvers(
    function: Function, tiles: Sequence[TileOperand], target: Target, *, upper: bool = False, in_place: bool = False
) -> dict[Role, SolverProblem] | Rejected:
    """The forward function of a call of a solver builtin, and its adjoint.

    Args:
        tiles: The square tile that is read: A of ``cholesky``, else the factor or triangle; the right-hand side Y,
            except of ``cholesky``; and the tile that is written, which is the last input of an in-place call.
        upper: True if factors are upper triangles.

    Returns:
        The problems by role, or the reason why no function of this project can serve the call.
    """
    names = ("the triangle", "the right-hand side", "the result") if len(tiles) == 3 else ("the triangle", "the result")
    operands: list[Operand] = []
    for name, tile in zip(names, tiles):
        derived = leading_dimension(tile)
        if derived is None:
            return Rejected("no_leading_dimension", (name, tile.shape, tile.strides))
        operands.append(operand_of(tile, *derived))
    assert target.arch is not None
    n, columns, arch = tiles[0].shape[0], tiles[-1].shape[1], target.arch
    if upper and function == "cholesky":
        operands = [operand.transposed() for operand in operands]
    elif upper and function == "cholesky_solve":
        operands[0] = operands[0].transposed()
    forward = SolverProblem(function, n, columns, tuple(operands), in_place, target.threads, arch)
    # a gradient lies as its tile does
    if function == "cholesky":
        a, factor = operands
        operands = [factor, factor, a]
    else:
        t, y, x = operands
        operands = [t, x, x, y, t]
    return {
        Role.FORWARD: forward,
        Role.ADJOINT: replace(forward, function=ADJOINTS[function], operands=tuple(operands)),
    }


# ---- the configuration, and limits

MAX_ROWS = 256  # a larger triangle exceeds shared memory
LANE_BYTES = 128  # of a column that one lane holds in registers, at most, if several lanes share it

# These were fitted to benchmarks/solvers.py on an H200 and an H100.
FEW_COLUMNS = 8
FEW_THREADS = 128
LEAST_REGISTERS = 40  # besides those of a factor
LEAST_ADJOINT_REGISTERS = 56
LEAST_REGISTERS_OF_FEW_THREADS = 56  # also with 8-byte elements
REGISTERS_OF_ONE_LANE = 8  # more, if a lane has a row or a column alone; twice as many with few threads
REGISTERS_OF_ROWS = 64  # besides those of 32 elements, if a lane holds 32 words or more
REGISTERS_BESIDE_INDEXED = 32  # of an indexed load or store


@rejectable
def reason_unsupported(problem: SolverProblem) -> None:
    """The reason why the templates do not serve a problem; None if they do."""
    refuse(problem.arch < MIN_ARCH, "solver_arch", problem.arch, MIN_ARCH)
    are_warps = problem.threads % LANES == 0 and problem.threads <= multiprocessor(problem.arch).block_threads
    refuse(not are_warps, "solver_threads", problem.threads)
    refuse(problem.n > MAX_ROWS, "solver_rows", problem.n)


def _shared_elements(problem: SolverProblem) -> int:
    """Elements in shared memory of a block: its tiles and, for an adjoint, their gradients and the scratch memory."""
    names = OPERANDS[problem.function.removesuffix("_adjoint")]  # type: ignore[index]  # a Function
    tiles = sum(problem.n * (problem.columns if name in RIGHT_SIDES else problem.n) for name in names)
    return 2 * tiles + problem.scratch_elements if problem.is_adjoint else tiles


def register_limit(problem: SolverProblem) -> int:
    """Registers of a thread with which as many blocks are resident as shared memory has room for.

    A solver waits for its own results most of the time, so another resident block gains more than registers do. A
    factor of 32 rows is an exception: with 96 registers (float32) or 128 (float64) in place of 64 and 80, it takes 0.67
    and 0.79 of the time in blocks that are alone, and 0.88 and 0.98 where 4,096 blocks of 128 threads run (H200).
    """
    size = DTYPE_BYTES[problem.dtype]
    blocks = resident_blocks(problem.arch, problem.threads, shared_bytes=size * _shared_elements(problem))
    limits, threads = multiprocessor(problem.arch), max(1, blocks) * problem.threads
    words = min(problem.n, LANES) * size // 4  # a lane holds so many words of a factor, at most
    least = (LEAST_ADJOINT_REGISTERS if problem.is_adjoint else LEAST_REGISTERS) + words // 2 // 8 * 8
    few_threads = problem.threads < FEW_THREADS
    if not problem.is_adjoint and choose(problem).lanes == 1:
        least += REGISTERS_OF_ONE_LANE * (1 + few_threads)
    elif size == 8 or few_threads:
        least = max(least, LEAST_REGISTERS_OF_FEW_THREADS)
    if problem.function == "cholesky" and problem.n == LANES:
        least = max(least, registers_of_rows(problem))
    return max(least, min(limits.thread_registers, limits.registers // threads // 8 * 8))


def registers_of_rows(problem: SolverProblem) -> int:
    """Registers of a thread for a solver beside a loop of products, and for a factor of 32 rows.

    With fewer, a lane that holds a row or a column reads shared memory vector by vector and waits for each
    (docs/experiments.md).
    """
    size = DTYPE_BYTES[problem.dtype]
    alone = problem.n >= LANES or (not problem.is_adjoint and choose(problem).lanes == 1)
    holds_many = alone and problem.n * size // 4 >= LANES
    return REGISTERS_OF_ROWS + (LANES * size // 4 if holds_many else 0)


def registers_of_indexed(elements: int) -> int:
    """Registers of a thread with which an indexed load or store spills little, in a kernel that calls solvers.

    Each of its elements takes a register for its index and for its value, and two for its address. With fewer,
    the factorization of MuJoCo Warp's dense blocks (27 rows, 23 elements for each thread) spilled 544 bytes.
    """
    return -(-(REGISTERS_BESIDE_INDEXED + 4 * elements) // 8) * 8 if elements else 0


def choose(problem: SolverProblem) -> SolverConfig:
    """As many lanes for a column as one warp has for all columns, and as many as its rows need registers.

    A thread that has a column alone needs the fewest instructions, so several lanes pay only where columns are few.
    """
    if problem.function == "cholesky" or problem.columns > FEW_COLUMNS:
        return SolverConfig()
    lanes = 1
    while lanes < LANES and lanes < problem.n and 2 * lanes * problem.columns <= LANES:
        lanes *= 2
    rows = LANE_BYTES // DTYPE_BYTES[problem.dtype]
    while 1 < lanes < LANES and lanes * rows < problem.n:
        lanes *= 2
    return SolverConfig(lanes)
