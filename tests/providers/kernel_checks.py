"""The kernel check: functions that together compile every branch of the templates in ``kernels/``.

A new provider or template gets its configurations here.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warp_tiles import settings
from warp_tiles.array_products.lane_kernel import LaneKernel
from warp_tiles.array_products.tensor_kernel import TensorKernel
from warp_tiles.build.engine import Engine
from warp_tiles.codegen.prelude import REVERSED_HEADER, SOLVER_HEADER
from warp_tiles.compile import sources
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.problem import DTYPE_BYTES, Arrangement, DType, GemmProblem, Operand, Precision
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.providers.base import NvrtcProvider
from warp_tiles.providers.cublasdx import CublasdxProvider
from warp_tiles.providers.own import OwnProvider, SolverProvider
from warp_tiles.solver.problem import OPERANDS, RIGHT_SIDES, Config, Function, Problem, SolverConfig, SolverProblem

_DTYPES: dict[str, DType] = {"h": "float16", "b": "bfloat16", "f": "float32", "d": "float64"}
_ARRANGEMENTS: dict[str, Arrangement] = {"r": "row_major", "c": "col_major"}
_DEVICE_SUFFIXES = (".cuh", ".cu", ".h", ".hpp")

# The purpose in the comment of each check was verified in its PTX.

ONE_ELEMENT = (0, 0, 0)


def _gemm(
    sizes: tuple[int, int, int], dtypes: str, arrangements: str, threads: int, arch: int, *,
    alignments: tuple[int, int, int] = (16, 16, 16), padding: tuple[int, int, int] = (0, 0, 0),
    precision: Precision = "default",
) -> GemmProblem:  # fmt: skip
    """A problem, with dtypes, arrangements, alignments, and padding of the leading dimensions of A, B and C."""
    m, n, k = sizes
    operands = []
    shapes = ((m, k), (k, n), (m, n))
    for (rows, columns), code, order, alignment, extra in zip(shapes, dtypes, arrangements, alignments, padding):
        dtype = _DTYPES[code]
        ld = (columns if order == "r" else rows) + extra
        operands.append(Operand(dtype, _ARRANGEMENTS[order], ld, alignment or DTYPE_BYTES[dtype]))
    a, b, c = operands
    return GemmProblem(m, n, k, a, b, c, precision, threads, arch)


# cuBLASDx
_CUBLASDX_CHECKS = (
    # ldmatrix.x4 with and without .trans, fp32 accumulators
    _gemm((64, 64, 64), "hhf", "rrr", 128, 80),
    # stmatrix.x4 with and without .trans
    _gemm((64, 64, 64), "hhh", "rcr", 128, 90),
    _gemm((64, 64, 64), "hhh", "ccc", 128, 90),
    # ldmatrix.x2 and stmatrix.x2 with and without .trans
    _gemm((16, 8, 16), "hhh", "rrr", 32, 90),
    _gemm((16, 8, 16), "hhh", "ccc", 32, 90),
    # ldmatrix.x1 with and without .trans, the oldest architecture
    _gemm((16, 8, 8), "hhf", "rrr", 32, 75),
    _gemm((16, 8, 8), "hhf", "rcr", 32, 75),
    # bfloat16, padded leading dimensions, edges in every direction, idle warps
    _gemm((24, 20, 18), "bbf", "rcr", 256, 120, alignments=ONE_ELEMENT, padding=(8, 8, 4)),
    # less than one MMA: scalar FMA with predicates
    _gemm((7, 5, 3), "fff", "rcr", 32, 75, alignments=ONE_ELEMENT),
    # packed FMA, which only sm_100 and sm_103 have, with units along columns and along rows
    _gemm((64, 32, 16), "fff", "crc", 128, 100),
    _gemm((64, 32, 16), "fff", "rrr", 128, 100),
    # tf32 by vector loads of interleaved repetitions, and by ldmatrix
    _gemm((32, 32, 32), "fff", "crr", 64, 80, precision="tf32"),
    _gemm((32, 32, 32), "fff", "rcr", 64, 120, precision="tf32"),
    # float64 by MMA, and operands of unequal dtypes as in adjoints
    _gemm((16, 16, 16), "ddd", "crr", 64, 90),
    _gemm((16, 16, 16), "hfh", "rcr", 64, 90, alignments=(16, 16, 8)),
)


# the provider own: the same, and the tile configuration; None for the chooser's
_MMA_CHECKS: tuple[tuple[GemmProblem, TileConfig | None], ...] = (
    # halves: lines along K and across it, C in vectors, more tiles than warps, every kind of swizzle
    (_gemm((64, 64, 64), "hhf", "rrr", 128, 90), None),
    (
        _gemm((64, 64, 64), "hhh", "ccr", 32, 90),
        TileConfig("mma_m16n8k16", 32, 32, k_vector=8, k_unroll=2, swizzle_a=4, swizzle_b=2, swizzle_c=2, c_first=True),
    ),
    (
        _gemm((64, 32, 64), "bbb", "rcr", 64, 80),
        TileConfig("mma_m16n8k16", 16, 32, k_vector=8, swizzle_a=2, swizzle_c=2),
    ),
    # the tensor cores of sm_75, and a column-major result that is stored as C and as C^T
    (_gemm((32, 32, 32), "hhh", "crc", 64, 75), None),
    (_gemm((32, 32, 32), "hhf", "rrc", 64, 75), TileConfig("mma_m16n8k8", 16, 16, k_vector=8)),
    # tf32, fp32 split into two tf32 parts on either side, halves of two types as tf32
    (
        _gemm((32, 32, 32), "fff", "rrr", 64, 80, precision="tf32"),
        TileConfig("mma_m16n8k8", 32, 32, k_vector=4, swizzle_b=4),
    ),
    (_gemm((32, 32, 32), "fff", "ccr", 64, 120, precision="tf32"), None),
    (_gemm((32, 32, 32), "hfh", "rcr", 64, 90), None),
    (_gemm((32, 32, 32), "fbb", "crr", 64, 90), None),
    (_gemm((32, 32, 32), "hbf", "rcr", 64, 100), None),
    # float64, with each of its instructions
    (_gemm((32, 32, 32), "ddd", "rrr", 64, 80), TileConfig("mma_m8n8k4", 16, 16, k_vector=2)),
    (
        _gemm((32, 32, 32), "ddd", "crr", 64, 90),
        TileConfig("mma_m16n8k8", 32, 32, k_vector=2, swizzle_a=2, swizzle_b=4, c_first=True),
    ),
    # without tensor cores: adjacent elements together, accumulators shared by lanes, swizzles
    (_gemm((64, 64, 64), "fff", "rrr", 128, 120), None),
    (
        _gemm((32, 32, 32), "fff", "rcr", 64, 90),
        TileConfig("fma", 8, 8, lanes_m=4, lanes_n=4, lanes_k=2, k_vector=4, swizzle_a=2, swizzle_b=2),
    ),
    (
        _gemm((32, 32, 32), "fff", "ccc", 64, 90),
        TileConfig("fma", 16, 16, lanes_m=4, lanes_n=8, k_vector=2, c_first=True, transposed=True),
    ),
    (_gemm((32, 32, 32), "hfd", "rcr", 64, 75), None),
    # accumulators shared by warps, on tensor cores and without
    (
        _gemm((16, 16, 256), "hhf", "rrr", 128, 90),
        TileConfig("mma_m16n8k16", 16, 16, warps_k=4, k_vector=8, swizzle_b=4),
    ),
    (_gemm((16, 16, 64), "fff", "rrr", 64, 90), TileConfig("fma", 16, 16, lanes_m=4, lanes_n=8, warps_k=2, k_vector=4)),
    # edges in every direction, padded leading dimensions, no known alignment, idle warps
    (_gemm((24, 20, 18), "bbf", "rcr", 256, 120, alignments=ONE_ELEMENT, padding=(8, 8, 4)), None),
    (_gemm((23, 21, 19), "hhh", "crr", 64, 90, alignments=ONE_ELEMENT), None),
    (_gemm((23, 21, 19), "fff", "crr", 64, 80, alignments=ONE_ELEMENT, precision="tf32"), None),
    (_gemm((23, 21, 19), "ddd", "rcr", 64, 90, alignments=ONE_ELEMENT), TileConfig("mma_m16n8k8", 16, 16, k_vector=2)),
    (_gemm((7, 5, 3), "fff", "rcr", 32, 75, alignments=ONE_ELEMENT), None),
    (_gemm((7, 5, 3), "bbb", "crc", 32, 75, alignments=ONE_ELEMENT), None),
)

# solvers of the provider own: function, n, columns, dtype, arrangements, True for all the alignment that the leading
# dimensions allow (False: one element), True in place, threads, arch, lanes of a column
_SolverCheck = tuple[Function, int, int, str, str, bool, bool, int, int, int]
_SOLVER_CHECKS: tuple[_SolverCheck, ...] = (
    # a factor in one thread, in one warp with a column and with a row in each lane
    ("cholesky", 4, 4, "f", "rc", True, False, 32, 75, 1),
    ("cholesky", 32, 32, "f", "rr", True, False, 32, 90, 1),
    ("cholesky", 24, 24, "d", "cc", True, True, 64, 80, 1),
    # panels: whole tiles and vectors, edges with another arrangement of the result, in place
    ("cholesky", 64, 64, "f", "rr", True, False, 128, 90, 1),
    ("cholesky", 37, 37, "d", "rc", False, False, 64, 120, 1),
    ("cholesky", 50, 50, "f", "rr", False, True, 96, 75, 1),
    # a column in one thread, in both orders and arrangements, with and without an incomplete block of rows
    ("lower_solve", 32, 32, "f", "rrr", True, False, 128, 90, 1),
    ("upper_solve", 23, 40, "d", "crr", False, False, 64, 75, 1),
    ("cholesky_solve", 20, 20, "f", "rcc", True, False, 64, 120, 1),
    # several lanes of a column
    ("lower_solve", 33, 3, "d", "ccc", False, True, 64, 80, 8),
    ("upper_solve", 16, 1, "f", "rcc", True, True, 32, 90, 16),
    ("cholesky_solve", 48, 1, "d", "crr", False, True, 32, 80, 32),
    # adjoints with tiles of 1, 2 and 4 rows
    ("cholesky_adjoint", 8, 8, "f", "rrr", True, False, 128, 90, 1),
    ("cholesky_adjoint", 32, 32, "d", "ccr", False, False, 64, 75, 1),
    ("cholesky_adjoint", 64, 64, "f", "rrc", True, False, 64, 120, 4),
    ("lower_solve_adjoint", 8, 3, "f", "rrrrr", True, False, 64, 90, 1),
    ("lower_solve_adjoint", 37, 5, "d", "crrcc", False, False, 64, 80, 4),
    ("lower_solve_adjoint", 48, 48, "f", "rcccr", True, False, 64, 120, 1),
    # adjoints of upper triangles, of a Cholesky solve, and in place
    ("lower_solve_adjoint", 20, 4, "f", "rrrrr", True, True, 32, 80, 4),
    ("upper_solve_adjoint", 24, 3, "d", "crrrc", True, True, 64, 75, 2),
    ("upper_solve_adjoint", 32, 16, "f", "rcccr", True, False, 96, 90, 1),
    ("cholesky_solve_adjoint", 37, 4, "f", "rrrrr", True, False, 64, 90, 4),
    ("cholesky_solve_adjoint", 16, 20, "d", "ccccc", True, True, 32, 80, 1),
    ("cholesky_adjoint", 37, 37, "f", "rrr", True, True, 64, 90, 1),
)


@dataclass(frozen=True)
class Check:
    """One function of the kernel check, with its tile configuration if the provider has any."""

    provider: type[NvrtcProvider[Any]]
    problem: Problem
    tile_config: Config | None = None


def all_checks() -> tuple[Check, ...]:
    """Functions that together compile every branch of the templates in ``kernels/``."""
    found = [Check(CublasdxProvider, problem) for problem in _CUBLASDX_CHECKS]
    found += [Check(OwnProvider, problem, config or choose(problem)) for problem, config in _MMA_CHECKS]
    found += [Check(SolverProvider, _solver(check), SolverConfig(lanes=check[-1])) for check in _SOLVER_CHECKS]
    return tuple(found)


def _solver(check: _SolverCheck) -> SolverProblem:
    function, n, columns, code, arrangements, aligned, in_place, threads, arch, _ = check
    dtype = _DTYPES[code]
    size = DTYPE_BYTES[dtype]
    operands = []
    for name, order in zip(OPERANDS[function], arrangements):
        width = columns if name in RIGHT_SIDES else n
        ld = width if order == "r" else n
        operands.append(Operand(dtype, _ARRANGEMENTS[order], ld, math.gcd(16, ld * size) if aligned else size))
    return SolverProblem(function, n, columns, tuple(operands), in_place, threads, arch)


def unchecked() -> tuple[str, ...]:
    """Device sources of ``kernels/`` that no check compiles, by relative path.

    The sources that are copied into Warp's modules do not count, because they need Warp's headers and belong to no
    problem. Nor do those of matmul's own kernel, which tests/array_products/test_tensor_kernel.py compiles.

    Raises:
        ToolchainError: Headers are missing.
    """
    top = sources.kernels_folder().resolve()
    facts = Engine().build_context(settings.current()).facts
    found = [path for path in top.rglob("*") if path.suffix in _DEVICE_SUFFIXES]
    providers = (provider(facts) for provider in {check.provider for check in all_checks()})
    compiled = {Path(path).resolve() for provider in providers for path in facts.closure(provider.source()).values()}
    for header in (REVERSED_HEADER, SOLVER_HEADER, TensorKernel.header, LaneKernel.header):
        compiled.update(path.resolve() for path in sources.include_closure(top / header, [top]).values())
    return tuple(sorted(path.relative_to(top).as_posix() for path in found if path not in compiled))
