"""Compares the compile times of unmodified Warp and of warp_tiles in one run.

    python benchmarks/compile_time.py --json benchmarks/results/compile_time.json
    python benchmarks/compile_time.py --before ../before --json FILE

A row is a group of modules, and its sides are builders. Each build runs in a fresh process with its own caches,
builders alternate, and the median counts. No GPU is needed.

The builder `warp` is unmodified Warp with cuBLASDx and cuSolverDx, and `scalar` is unmodified Warp with the module
options `enable_mathdx_gemm=False` and `enable_mathdx_solver=False`. `own` and `cublasdx` are warp_tiles with that
provider. `triton` is Triton; `--triton PYTHON` names an interpreter that has it, and without it its groups are left
out. Their time begins when each side is imported. The builders of rows `arch *` are architectures: a row is bad if one
takes 3 times as long as sm_90 or longer, or if a module is left to Warp. With `--before`, a worktree of another state,
the builders are `before` and `own`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.loops import Row as Loop
from benchmarks.machine import cpu_record
from benchmarks.measure import Job, Kernel, build
from benchmarks.processes import environment, run_json
from benchmarks.runner import Row
from benchmarks.speed.cells import DTYPES
from warp_tiles.gemm.hardware import MULTIPROCESSORS

ONE = Kernel(64, 64, 64)
LOOP = Kernel(128, 128, 64)  # that of triton_gemm.py
EIGHT = [
    *(
        Kernel(*sizes)
        for sizes in ((16, 16, 16), (32, 32, 32), (64, 64, 32), (64, 64, 64), (128, 64, 32), (32, 64, 64))
    ),
    *(Kernel(*sizes, "float32") for sizes in ((32, 32, 32), (64, 32, 16))),
]
SOLVERS = {
    "cholesky": """
@wp.kernel(enable_backward=False)
def factor(A: wp.array2d(dtype=float), L: wp.array2d(dtype=float)):
    wp.tile_store(L, wp.tile_cholesky(wp.tile_load(A, shape=(32, 32))))
""",
    "solve": """
@wp.kernel(enable_backward=False)
def solve(L: wp.array2d(dtype=float), Y: wp.array(dtype=float), X: wp.array(dtype=float)):
    wp.tile_store(X, wp.tile_cholesky_solve(wp.tile_load(L, shape=(32, 32)), wp.tile_load(Y, shape=32)))
""",
    "blocked": """
@wp.kernel(enable_backward=False)
def blocked(A: wp.array2d(dtype=float), B: wp.array2d(dtype=float), X: wp.array2d(dtype=float)):
    a = wp.tile_load(A, shape=(16, 16))
    b = wp.tile_load(B, shape=(16, 16))
    wp.tile_matmul(b, wp.tile_transpose(b), a, alpha=-1.0)
    factor = wp.tile_cholesky(a)
    y = wp.tile_lower_solve(factor, b)
    wp.tile_store(X, wp.tile_upper_solve(wp.tile_transpose(factor), y))
""",
}
PRODUCT = """
@wp.kernel(enable_backward=False)
def product(A: wp.array2d(dtype=wp.{0}), B: wp.array2d(dtype=wp.{0}), C: wp.array2d(dtype=wp.{1})):
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.{1}, storage="shared")
    a = wp.tile_load(A, shape=(64, 32), storage="shared")
    wp.tile_matmul(a, wp.tile_load(B, shape=(32, 64), storage="shared"), c, precision="{2}")
    wp.tile_store(C, c)
"""
THREADS, ARCH = 128, 90
SLOWEST = 3.0  # of an architecture, in place of sm_90
_OWN = {"WARP_TILES_PROVIDER": "own"}
BUILDERS: dict[str, dict[str, str] | None] = {  # settings of warp_tiles; None for builders without it
    "warp": None,
    "scalar": None,
    "own": _OWN,
    "cublasdx": {"WARP_TILES_PROVIDER": "cublasdx"},
    "triton": None,
    "before": {},
    **{f"sm_{arch}": _OWN for arch in MULTIPROCESSORS},
}


@dataclass(frozen=True)
class Group:
    """Modules that each builder builds.

    Attributes:
        name: The name of the row.
        title: The modules and the state of the caches.
        modules: Texts of Python modules.
        builders: The builders.
        later: True if the toolchain is known, because a process before has built another module.
        slow_repeats: Largest number of builds by the builders that take minutes.
        threads: Threads per block.
    """

    name: str
    title: str
    modules: tuple[str, ...]
    builders: tuple[str, ...]
    later: bool = False
    slow_repeats: int = 100
    threads: int = THREADS

    def measured(self, options: argparse.Namespace) -> Row:
        """The median builds by all builders."""
        sides = {builder: partial(build_once, self, builder, options) for builder in self.builders}
        found = runner.alternately(sides, options.repeats, most={"warp": self.slow_repeats})
        medians = {
            side: sorted(rows, key=lambda row: float(row["seconds"]))[len(rows) // 2] for side, rows in found.items()
        }
        return {"title": self.title, "sides": medians, "repeats": {side: len(rows) for side, rows in found.items()}}


_FOUR = ("warp", "scalar", "own", "cublasdx")
_BOTH, _FORWARD = (ONE.source(None),), (LOOP.source(False),)  # with and without adjoints
_EIGHT = [kernel.source(None) for kernel in EIGHT]
_TRITON = ("own", "triton")


def of_architectures() -> Iterator[Group]:
    """A product and a loop of each type, and Cholesky factors, for each architecture."""
    builders = tuple(builder for builder in BUILDERS if builder.startswith("sm_"))
    for types, (ab, c) in DTYPES.items():
        precision = "tf32" if types == "tf32" else "default"
        loop = Loop("tf32" if types == "tf32" else ab, 4096, 64, 64, 32, THREADS, "auto")
        texts = {"product": PRODUCT.format(ab, c, precision), "loop": loop.source}
        if c == ab and types != "tf32":
            texts["cholesky"] = SOLVERS["cholesky"].replace("dtype=float", f"dtype=wp.{ab}")
        for kind, text in texts.items():
            yield Group(f"arch {kind} {types}", f"{kind} {types}, cold, by architecture", (text,), builders)


GROUPS = (
    Group("one", "differentiable, cold", _BOTH, _FOUR),
    Group("forward", "forward only by kernel option, cold", (ONE.source(False),), _FOUR),
    Group("eight", "eight kernels in one module, cold", ("".join(_EIGHT),), _FOUR, slow_repeats=1),
    Group("triton", "fp16 loop of 256 threads, cold", _FORWARD, _TRITON, threads=256),
    Group("triton_later", "fp16 loop of 256 threads, toolchain known", _FORWARD, _TRITON, later=True, threads=256),
    *(Group(name, f"solver, {name}, cold", (text,), _FOUR[:3], slow_repeats=1) for name, text in SOLVERS.items()),
    *of_architectures(),
)  # fmt: skip


def build_once(group: Group, builder: str, options: argparse.Namespace) -> Row:
    """Build once with empty caches, but for what is known of the toolchain."""
    with tempfile.TemporaryDirectory() as folder:
        if builder == "triton":
            return dict(run_json([options.triton, "benchmarks/triton_gemm.py"], environment(TRITON_CACHE_DIR=folder)))
        settings, root = BUILDERS[builder], str(options.before.resolve()) if builder == "before" else ""
        arch = int(builder[3:]) if builder.startswith("sm_") else ARCH
        job = Job(
            group.modules, settings is not None, arch, group.threads, f"{folder}/warp", f"{folder}/tiles",
            f"{folder}/measured", tuple((settings or {}).items()), builder == "scalar", "triton" in group.builders,
            root,
        )  # fmt: skip
        if group.later and settings is not None:
            build(replace(job, modules=_BOTH, out=f"{folder}/before"))
        return build(job)


def is_bad(row: Row) -> bool:
    """True if an architecture takes too long, or if Warp links a module of it."""
    peer = row.get("sides", {}).get(f"sm_{ARCH}")
    return peer is not None and any(
        side["seconds"] >= SLOWEST * peer["seconds"] or side["linkers"] != ["warp_tiles"]
        for side in row["sides"].values()
    )


def cases(options: argparse.Namespace) -> list[Group]:
    if options.before:
        return [replace(group, builders=("before", "own")) for group in GROUPS if "own" in group.builders]
    has_triton = subprocess.run([options.triton, "-c", "import triton"], capture_output=True).returncode == 0
    return [group for group in GROUPS if has_triton or "triton" not in group.builders]


main = runner.command(
    __doc__,
    cases,
    lambda case, options: case.measured(options),
    lambda options: cpu_record(),
    options={
        "--before": {"type": Path, "help": "a worktree of another state, to compare with it"},
        "--triton": {"default": sys.executable, "metavar": "PYTHON", "help": "an interpreter that has Triton"},
    },
    repeats=3,
    is_bad=is_bad,
)


if __name__ == "__main__":
    sys.exit(main())
