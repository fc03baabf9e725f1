"""The forms of ``warp_tiles.cholesky`` and ``warp_tiles.solve`` as tasks of a search, and those that are listed for
``warp-tiles tune contribute``."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import warp as wp

from warp_tiles.array_products.call import lower_view, right_sides
from warp_tiles.array_products.matmul_problem import Gpu
from warp_tiles.array_products.prepared_solves import PreparedSolve, SolveCall, prepare_solve
from warp_tiles.array_products.solve_choice import SolveProblem, choose_solve, configs
from warp_tiles.errors import ToolchainError, TuningError, unless_signalled
from warp_tiles.gemm.problem import DType
from warp_tiles.tuning.launches import is_usable
from warp_tiles.tuning.measure import Candidate, SearchDevice, clock_for
from warp_tiles.tuning.record import DEFAULTS, Config
from warp_tiles.tuning.tasks import TuningTask

SOLVE = "solve"  # subject of records
_TOLERANCES = {"float32": 1e-3, "float64": 1e-9}


@dataclass(eq=False)
class _Call(Candidate):
    """A prepared call with arrays, whose last result has to be the expected one."""

    prepared: PreparedSolve
    arrays: tuple[Any, ...]
    result: Any
    expected: Any

    def run(self) -> None:
        self.prepared.run(*self.arrays)

    def prepare(self) -> None:
        self.result.zero_()
        self.run()
        last, tolerance = self.result[-1:].numpy()[0], _TOLERANCES[self.prepared.plan.problem.dtype]
        if not np.allclose(last, self.expected, rtol=0.0, atol=tolerance):
            raise TuningError(f"its result differs by {np.abs(last - self.expected).max():.3g}")


def solve_task(problem: SolveProblem, arch: int, gpus: Sequence[Any] = ()) -> TuningTask:
    """The task of a call, with all forms that can compute it. They are measured on the GPUs, which are alike.

    A call with one form has no rival. Its time is that of the solvers of its kernel.
    """
    default = choose_solve(problem, Gpu(arch, 0)).config.form
    others = ({"form": form} for form in configs(problem, arch) if form != default)
    devices = functools.partial(_devices, problem, default, gpus) if gpus else None
    return TuningTask(SOLVE, problem.bucket, problem.describe(), (DEFAULTS[SOLVE], *others), devices=devices)


@contextmanager
def _devices(
    problem: SolveProblem, default: Any, gpus: Sequence[Any], asked: Sequence[Config]
) -> Iterator[list[SearchDevice]]:
    """Enter a block with the first GPU as the device of a search.

    Raises ToolchainError if it has no memory for the arrays.
    """
    gpu, n, dtype = gpus[0], problem.n, getattr(wp, problem.dtype)
    matrix = 2.0 * np.eye(n) + 1.0 / n
    sides = np.ones((n, problem.columns))
    given = (matrix, sides) if problem.columns else (matrix, matrix)
    try:
        a, b = (wp.array(np.broadcast_to(x, (problem.batch, *x.shape)), dtype=dtype, device=gpu) for x in given)
        out = wp.zeros_like(b)
        clock = clock_for(gpu)
    except unless_signalled(RuntimeError, MemoryError) as error:
        raise ToolchainError(
            f"there is no memory on {gpu} for the arrays of {problem.describe()}: {error}",
            remedy="free the GPU's memory, and run the same command again: it continues",
        ) from error
    if problem.columns:
        call = SolveCall(lower_view(a, upper=False), b=right_sides(b, a), x=right_sides(out, a))
        arrays, expected = (a, None, b, out, None), np.linalg.solve(matrix, sides)
    else:
        call = SolveCall(lower_view(a, upper=False), lower_view(out, upper=False))
        arrays, expected = (a, out, None, None, None), np.linalg.cholesky(matrix)

    def build(config: Config) -> _Call:
        form = default if config == DEFAULTS[SOLVE] else config["form"]
        return _Call(prepare_solve(call, gpu, form), arrays, out, expected)

    yield [SearchDevice(build, clock, str(gpu.alias), functools.partial(is_usable, gpu))]


def _listed() -> Iterator[SolveProblem]:
    """Small matrices in batches around those from which a thread computes each, and larger ones with and without a
    choice: 32 and 64 rows have one form, in which a block runs ``tile_cholesky`` and the triangular solves; 512 rows,
    and 192 of float64, have tiles alone."""
    dtypes: tuple[DType, ...] = ("float32", "float64")
    small = [(n, least // part) for n, least in ((4, 4_096), (8, 16_384), (16, 65_536)) for part in (16, 4, 1)]
    for n, batch in (*small, (32, 1024), (64, 1024), (128, 1), (128, 64), (192, 64), (512, 1)):
        for dtype in dtypes:
            yield SolveProblem("factor", dtype, n, batch, 0)
            yield SolveProblem("solve", dtype, n, batch, 1)


SOLVES = tuple(_listed())
