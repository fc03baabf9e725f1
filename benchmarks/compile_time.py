"""Compares the compile times of unmodified Warp and of warp_tiles in one run.

    python benchmarks/compile_time.py --json benchmarks/results/compile_time.json
    python -m benchmarks.figures

Each figure is the median of its repeats. Each repeat runs in a fresh process with its own caches. No GPU is needed.
`--only` selects groups. The file is written after each group and keeps the others. `--quick` leaves out Warp's builds
with cuBLASDx, which take minutes.

The builder `warp` is unmodified Warp with cuBLASDx and cuSolverDx, and `scalar` is unmodified Warp with the module
options `enable_mathdx_gemm=False` and `enable_mathdx_solver=False`. `mma`, `cublasdx` and `cublasdx, one process` are
warp_tiles with that provider. `triton` is Triton, whose groups are left out without it; `--triton PYTHON` names an
interpreter that has it. Their time begins when each side is imported. The builders without NVRTC are warp_tiles on a
machine that has neither NVRTC nor nvJitLink: with the functions of `mma` in the module's source, or with libmathdx
(`--only nvrtc_product nvrtc_float32 nvrtc_cholesky nvrtc_blocked --json benchmarks/results/without_nvrtc.json`).
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.machine import ROOT
from benchmarks.measure import Job, Kernel, build
from benchmarks.overheads import cache_hit, planning, startup
from benchmarks.processes import environment
from benchmarks.variant_times import variant_times
from warp_tiles.compile.search import dotted, find_toolchain, package_version

ONE = Kernel(64, 64, 64)
LOOP = Kernel(128, 128, 64)  # that of triton_gemm.py
EIGHT = [
    Kernel(16, 16, 16),
    Kernel(32, 32, 32),
    Kernel(64, 64, 32),
    Kernel(64, 64, 64),
    Kernel(128, 64, 32),
    Kernel(32, 64, 64),
    Kernel(32, 32, 32, "float32"),
    Kernel(64, 32, 16, "float32"),
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
@wp.kernel
def product(A: wp.array2d(dtype=wp.{0}), B: wp.array2d(dtype=wp.{0}), C: wp.array2d(dtype=wp.float32)):
    c = wp.tile_zeros(shape=({1}, {1}), dtype=wp.float32)
    wp.tile_matmul(wp.tile_load(A, shape=({1}, {1})), wp.tile_load(B, shape=({1}, {1})), c)
    wp.tile_store(C, c)
"""
SOLVER_LIMITS = (
    ("mma", "scalar", "seconds", 1.2),
    ("mma", "warp", "seconds", 1 / 8),
    ("mma", "scalar", "cubin_bytes", 3.0),
)
THREADS, ARCH = 128, 90
BUILDERS: dict[str, dict[str, str] | None] = {  # settings of warp_tiles; None for builders without it
    "warp": None,
    "scalar": None,
    "mma": {"WARP_TILES_PROVIDER": "mma"},
    "cublasdx": {"WARP_TILES_PROVIDER": "cublasdx"},
    "cublasdx, one process": {"WARP_TILES_PROVIDER": "cublasdx", "WARP_TILES_JOBS": "1"},
    "triton": None,
    "mma, no NVRTC": {},
    "libmathdx, no NVRTC": {"WARP_TILES_PROVIDER": "libmathdx"},
}
OVERHEADS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "startup": functools.partial(startup, repeats=7),
    "hit": cache_hit,
    "planning": functools.partial(planning, repeats=5),
}
VARIANT_LIMITS = {"milliseconds": 50.0, "lto_bytes": 40_000.0}


@dataclass(frozen=True)
class Group:
    """Modules that each builder builds.

    Attributes:
        title: The modules and the state of the caches.
        modules: Texts of Python modules.
        builders: The builders.
        limits: (ours, peer, field, largest ratio of the first to the second).
        again: True if LTO-IR is cached and only Warp's kernel cache is empty.
        before: Modules that are built before, each in a process of its own, so that warp_tiles knows the toolchain and
            has precompiled headers.
        peer_repeats: Largest number of builds by Warp with cuBLASDx.
        threads: Threads per block.
    """

    title: str
    modules: tuple[str, ...]
    builders: tuple[str, ...]
    limits: tuple[tuple[str, str, str, float], ...]
    again: bool = False
    before: tuple[str, ...] = ()
    peer_repeats: int = 100
    threads: int = THREADS


GROUPS = {
    "one": Group(
        "differentiable, cold",
        (ONE.source(None),),
        ("warp", "scalar", "mma", "cublasdx"),
        (
            ("mma", "scalar", "seconds", 1.15),
            ("mma", "warp", "seconds", 1 / 12),
            ("mma", "scalar", "cubin_bytes", 3.0),
            ("cublasdx", "warp", "seconds", 0.5),
            ("cublasdx", "warp", "cubin_bytes", 0.1),
        ),
    ),
    "headers": Group(
        "differentiable, headers precompiled",
        (ONE.source(None),),
        ("scalar", "mma"),
        (("mma", "scalar", "seconds", 0.75),),
        before=(Kernel(16, 16, 16).source(None), Kernel(32, 32, 32).source(None)),
    ),
    "forward": Group(
        "forward only by kernel option, cold",
        (ONE.source(False),),
        ("warp", "scalar", "mma", "cublasdx"),
        (("cublasdx", "warp", "seconds", 0.35),),
    ),
    "cached": Group(
        "differentiable, LTO-IR cached",
        (ONE.source(None),),
        ("warp", "mma", "cublasdx"),
        (("cublasdx", "warp", "seconds", 0.35),),
        again=True,
    ),
    "eight": Group(
        "eight kernels in one module, cold",
        ("".join(kernel.source(None) for kernel in EIGHT),),
        ("warp", "scalar", "mma", "cublasdx", "cublasdx, one process"),
        (
            ("mma", "warp", "seconds", 1 / 25),
            ("cublasdx", "cublasdx, one process", "seconds", 1 / 1.8),
        ),
        peer_repeats=1,
    ),
    "apart": Group(
        "eight modules, cold",
        tuple(kernel.source(None) for kernel in EIGHT),
        ("warp", "scalar", "mma", "cublasdx", "cublasdx, one process"),
        (
            ("mma", "scalar", "seconds", 0.5),
            ("cublasdx", "cublasdx, one process", "seconds", 1 / 1.8),
        ),
        peer_repeats=1,
    ),
    "triton": Group(
        "fp16 loop of 256 threads, cold",
        (LOOP.source(False),),
        ("mma", "triton"),
        (("mma", "triton", "seconds", 1.0),),
        threads=256,
    ),
    "triton_later": Group(
        "fp16 loop of 256 threads, headers precompiled",
        (LOOP.source(False),),
        ("mma", "triton"),
        (("mma", "triton", "seconds", 0.7),),
        before=(Kernel(64, 64, 64).source(False), Kernel(128, 64, 64).source(False)),
        threads=256,
    ),
    **{
        name: Group(f"solver, {name}, cold", (text,), ("warp", "scalar", "mma"), SOLVER_LIMITS, peer_repeats=1)
        for name, text in SOLVERS.items()
    },
    **{
        f"nvrtc_{name}": Group(
            f"{title}, with and without NVRTC, cold",
            (text,),
            ("mma", "mma, no NVRTC", "libmathdx, no NVRTC"),
            (("mma, no NVRTC", "mma", "seconds", 1.3), ("mma, no NVRTC", "libmathdx, no NVRTC", "seconds", 0.5)),
        )
        for name, title, text in (
            ("product", "differentiable fp16 64x64x64", PRODUCT.format("float16", 64)),
            ("float32", "differentiable fp32 32x32x32", PRODUCT.format("float32", 32)),
            ("cholesky", "Cholesky factor of 32x32 fp32", SOLVERS["cholesky"]),
            ("blocked", "blocked 16x16 kernel", SOLVERS["blocked"]),
        )
    },
}


def build_once(group: Group, builder: str, folder: Path, triton: str = sys.executable) -> dict[str, Any]:
    """Build once with empty caches, with cached LTO-IR, or after other modules. ``triton`` is a Python with Triton."""
    if builder == "triton":
        command = [triton, "benchmarks/triton_gemm.py"]
        environ = environment(TRITON_CACHE_DIR=folder)
        run = subprocess.run(command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        return dict(json.loads(run.stdout))
    settings = BUILDERS[builder]
    runs: list[tuple[tuple[str, ...], str]] = [
        ((text,), f"before{number}") for number, text in enumerate(group.before) if settings is not None
    ]
    runs += [(group.modules, "first"), *([(group.modules, "second")] if group.again else [])]
    result: dict[str, Any] = {}
    for modules, out in runs:
        job = Job(
            modules,
            settings is not None,
            ARCH,
            group.threads,
            str(folder / "warp"),
            str(folder / "tiles"),
            str(folder / out),
            tuple((settings or {}).items()),
            scalar=builder == "scalar",
            imported="triton" in group.builders,
            compiler=not builder.endswith("no NVRTC"),
        )
        result = build(job)
    return result


def median_of(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The result with the median time."""
    return sorted(results, key=lambda result: float(result["seconds"]))[len(results) // 2]


def compare(name: str, ratio: float, limit: float) -> dict[str, Any]:
    """Print and return one line of the table."""
    reached = ratio <= limit
    print(f"  {name}: {ratio:.3f}, at most {limit:.3f}: {'reached' if reached else 'MISSED'}", flush=True)
    return {"name": name, "ratio": round(ratio, 4), "limit": round(limit, 4), "reached": reached}


def run_group(group: Group, repeats: int, quick: bool, triton: str, scratch: Path) -> dict[str, Any]:
    """Build a group with all builders alternately, so that a slow phase of the machine affects all of them."""
    print(group.title, flush=True)
    results: dict[str, list[dict[str, Any]]] = {}
    for repeat in range(repeats):
        for builder in group.builders:
            if builder == "warp" and (quick or repeat >= group.peer_repeats):
                continue
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                results.setdefault(builder, []).append(build_once(group, builder, Path(folder), triton))
    rows = {builder: median_of(found) for builder, found in results.items()}
    for builder, row in rows.items():
        print(f"    {builder:22} {json.dumps(row)}", flush=True)
    lines = [
        compare(f"{ours} to {peer}, {field}", rows[ours][field] / rows[peer][field], limit)
        for ours, peer, field, limit in group.limits
        if ours in rows and peer in rows
    ]
    repeated = {builder: len(found) for builder, found in results.items()}
    return {"title": group.title, "rows": rows, "repeats": repeated, "limits": lines}


def run_variants() -> dict[str, Any]:
    """Measure single functions of the provider mma."""
    print("single functions of the provider mma", flush=True)
    rows = variant_times()
    failed = [f"{row['types']} {row['size']} {row['role']}" for row in rows if "error" in row]
    lines = [compare(f"functions that cannot be built ({', '.join(failed) or 'none'})", len(failed), 0)]
    rows = [row for row in rows if "error" not in row]
    for field, limit in VARIANT_LIMITS.items():
        worst = max(rows, key=lambda row: float(row[field]))
        name = f"largest {field}: {worst[field]} ({worst['types']} {worst['size']} {worst['role']}), of {limit:g}"
        lines.append(compare(name, worst[field] / limit, 1.0))
    return {"rows": rows, "limits": lines}


def machine() -> dict[str, Any]:
    """The machine and the versions for which the figures hold."""
    toolchain = find_toolchain()
    libraries = {"NVRTC": dotted(toolchain.nvrtc_version), "nvJitLink": dotted(toolchain.nvjitlink_version)}
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {"cores": len(os.sched_getaffinity(0)), "processor": platform.machine(), "gpu": None},
        "python": platform.python_version(),
        "versions": {name: package_version(name) for name in ("warp-lang", "nvidia-mathdx")} | libraries,
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="leave out Warp's builds with cuBLASDx")
    parser.add_argument("--triton", default=sys.executable, metavar="PYTHON", help="an interpreter that has Triton")
    parser.add_argument("--only", nargs="+", choices=[*GROUPS, "variants", *OVERHEADS], help="groups to run")
    arguments = parser.parse_args()
    path: Path | None = arguments.json
    record = json.loads(path.read_text()) if path and path.exists() else {}
    if "groups" not in record:
        record = {"groups": {}}
    _run(arguments, record, path)


def _run(arguments: argparse.Namespace, record: dict[str, Any], path: Path | None) -> None:
    """Measure the chosen groups, and write the record after each."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        runs: dict[str, Callable[[], dict[str, Any]]] = {"variants": run_variants}
        for name, group in GROUPS.items():
            runs[name] = functools.partial(
                run_group, group, arguments.repeats, arguments.quick, arguments.triton, scratch
            )
        runs |= {name: functools.partial(measure, scratch) for name, measure in OVERHEADS.items()}
        has_triton = subprocess.run([arguments.triton, "-c", "import triton"], capture_output=True).returncode == 0
        for name in arguments.only or runs:
            if name in GROUPS and "triton" in GROUPS[name].builders and not has_triton:
                print(f"{GROUPS[name].title}: left out, because {arguments.triton} has no Triton", flush=True)
                continue
            result = {**machine(), **runs[name]()}
            if name in GROUPS:
                record["groups"][name] = result
            else:
                record[name] = result
            if path:
                path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
