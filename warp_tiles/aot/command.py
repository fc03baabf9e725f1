"""``python -m warp_tiles.aot``, which ``CMakeLists.txt`` calls. It is not part of the ``warp-tiles`` command.

``variants`` prints JSON, because CMake reads it. The other commands print text.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from warp_tiles.aot import bundle as aot
from warp_tiles.aot import manifest
from warp_tiles.cli.output import human_bytes, print_json, script_output_to_stderr
from warp_tiles.codegen.prelude import MODULE_HEADER
from warp_tiles.errors import BuildError, WarpTilesError
from warp_tiles.gemm.dtypes import DTYPE_BYTES, DTYPES
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.gemm.variant import Arrangement, GemmVariant, Operand, Precision
from warp_tiles.heuristics.choose import choose
from warp_tiles.toolchain import sources
from warp_tiles.toolchain.search import require_linkable
from warp_tiles.toolchain.store import ToolchainStore

_DTYPES = {info.letter: info.name for info in DTYPES.values()}
_ARRANGEMENTS: dict[str, Arrangement] = {"r": "row_major", "c": "col_major"}
_DEVICE_SUFFIXES = (".cuh", ".cu", ".h", ".hpp")

# (M, N, K), dtypes and arrangements of A, B and C, alignments (0: one element), padding of the
# leading dimensions, precision, threads, arch. The purpose in the comment of each check was verified in its PTX.
_Check = tuple[tuple[int, int, int], str, str, tuple[int, int, int], tuple[int, int, int], Precision, int, int]

# cuBLASDx
_CUBLASDX_CHECKS: tuple[_Check, ...] = (
    # ldmatrix.x4 with and without .trans, fp32 accumulators
    ((64, 64, 64), "hhf", "rrr", (16, 16, 16), (0, 0, 0), "default", 128, 80),
    # stmatrix.x4 with and without .trans
    ((64, 64, 64), "hhh", "rcr", (16, 16, 16), (0, 0, 0), "default", 128, 90),
    ((64, 64, 64), "hhh", "ccc", (16, 16, 16), (0, 0, 0), "default", 128, 90),
    # ldmatrix.x2 and stmatrix.x2 with and without .trans
    ((16, 8, 16), "hhh", "rrr", (16, 16, 16), (0, 0, 0), "default", 32, 90),
    ((16, 8, 16), "hhh", "ccc", (16, 16, 16), (0, 0, 0), "default", 32, 90),
    # ldmatrix.x1 with and without .trans, the oldest architecture
    ((16, 8, 8), "hhf", "rrr", (16, 16, 16), (0, 0, 0), "default", 32, 75),
    ((16, 8, 8), "hhf", "rcr", (16, 16, 16), (0, 0, 0), "default", 32, 75),
    # bfloat16, padded leading dimensions, edges in every direction, idle warps
    ((24, 20, 18), "bbf", "rcr", (0, 0, 0), (8, 8, 4), "default", 256, 120),
    # less than one MMA: scalar FMA with predicates
    ((7, 5, 3), "fff", "rcr", (0, 0, 0), (0, 0, 0), "default", 32, 75),
    # packed FMA, which only sm_100 and sm_103 have, with units along columns and along rows
    ((64, 32, 16), "fff", "crc", (16, 16, 16), (0, 0, 0), "default", 128, 100),
    ((64, 32, 16), "fff", "rrr", (16, 16, 16), (0, 0, 0), "default", 128, 100),
    # tf32 by vector loads of interleaved repetitions, and by ldmatrix
    ((32, 32, 32), "fff", "crr", (16, 16, 16), (0, 0, 0), "tf32", 64, 80),
    ((32, 32, 32), "fff", "rcr", (16, 16, 16), (0, 0, 0), "tf32", 64, 120),
    # float64 by MMA, and operands of unequal dtypes as in adjoints
    ((16, 16, 16), "ddd", "crr", (16, 16, 16), (0, 0, 0), "default", 64, 90),
    ((16, 16, 16), "hfh", "rcr", (16, 16, 8), (0, 0, 0), "default", 64, 90),
)


# the provider mma: the same, and the tile configuration; None for the chooser's
_MMA_CHECKS: tuple[tuple[_Check, TileConfig | None], ...] = (
    # halves: lines along K and across it, C in vectors, more tiles than warps, every kind of swizzle
    (((64, 64, 64), "hhf", "rrr", (16, 16, 16), (0, 0, 0), "default", 128, 90), None),
    (
        ((64, 64, 64), "hhh", "ccr", (16, 16, 16), (0, 0, 0), "default", 32, 90),
        TileConfig("mma_m16n8k16", 32, 32, k_vector=8, k_unroll=2, swizzle_a=4, swizzle_b=2, swizzle_c=2, c_first=True),
    ),
    (
        ((64, 32, 64), "bbb", "rcr", (16, 16, 16), (0, 0, 0), "default", 64, 80),
        TileConfig("mma_m16n8k16", 16, 32, k_vector=8, swizzle_a=2, swizzle_c=2),
    ),
    # the tensor cores of sm_75, and a column-major result that is stored as C and as C^T
    (((32, 32, 32), "hhh", "crc", (16, 16, 16), (0, 0, 0), "default", 64, 75), None),
    (
        ((32, 32, 32), "hhf", "rrc", (16, 16, 16), (0, 0, 0), "default", 64, 75),
        TileConfig("mma_m16n8k8", 16, 16, k_vector=8),
    ),
    # tf32, fp32 split into two tf32 parts on either side, halves of two types as tf32
    (
        ((32, 32, 32), "fff", "rrr", (16, 16, 16), (0, 0, 0), "tf32", 64, 80),
        TileConfig("mma_m16n8k8", 32, 32, k_vector=4, swizzle_b=4),
    ),
    (((32, 32, 32), "fff", "ccr", (16, 16, 16), (0, 0, 0), "tf32", 64, 120), None),
    (((32, 32, 32), "hfh", "rcr", (16, 16, 16), (0, 0, 0), "default", 64, 90), None),
    (((32, 32, 32), "fbb", "crr", (16, 16, 16), (0, 0, 0), "default", 64, 90), None),
    (((32, 32, 32), "hbf", "rcr", (16, 16, 16), (0, 0, 0), "default", 64, 100), None),
    # float64, with each of its instructions
    (
        ((32, 32, 32), "ddd", "rrr", (16, 16, 16), (0, 0, 0), "default", 64, 80),
        TileConfig("mma_m8n8k4", 16, 16, k_vector=2),
    ),
    (
        ((32, 32, 32), "ddd", "crr", (16, 16, 16), (0, 0, 0), "default", 64, 90),
        TileConfig("mma_m16n8k8", 32, 32, k_vector=2, swizzle_a=2, swizzle_b=4, c_first=True),
    ),
    # without tensor cores: adjacent elements together, sums shared by lanes, swizzles
    (((64, 64, 64), "fff", "rrr", (16, 16, 16), (0, 0, 0), "default", 128, 120), None),
    (
        ((32, 32, 32), "fff", "rcr", (16, 16, 16), (0, 0, 0), "default", 64, 90),
        TileConfig("fma", 8, 8, lanes_m=4, lanes_n=4, lanes_k=2, k_vector=4, swizzle_a=2, swizzle_b=2),
    ),
    (
        ((32, 32, 32), "fff", "ccc", (16, 16, 16), (0, 0, 0), "default", 64, 90),
        TileConfig("fma", 16, 16, lanes_m=4, lanes_n=8, k_vector=2, c_first=True, transposed=True),
    ),
    (((32, 32, 32), "hfd", "rcr", (16, 16, 16), (0, 0, 0), "default", 64, 75), None),
    # sums shared by warps, on tensor cores and without
    (
        ((16, 16, 256), "hhf", "rrr", (16, 16, 16), (0, 0, 0), "default", 128, 90),
        TileConfig("mma_m16n8k16", 16, 16, warps_k=4, k_vector=8, swizzle_b=4),
    ),
    (
        ((16, 16, 64), "fff", "rrr", (16, 16, 16), (0, 0, 0), "default", 64, 90),
        TileConfig("fma", 16, 16, lanes_m=4, lanes_n=8, warps_k=2, k_vector=4),
    ),
    # edges in every direction, padded leading dimensions, no known alignment, idle warps
    (((24, 20, 18), "bbf", "rcr", (0, 0, 0), (8, 8, 4), "default", 256, 120), None),
    (((23, 21, 19), "hhh", "crr", (0, 0, 0), (0, 0, 0), "default", 64, 90), None),
    (((23, 21, 19), "fff", "crr", (0, 0, 0), (0, 0, 0), "tf32", 64, 80), None),
    (
        ((23, 21, 19), "ddd", "rcr", (0, 0, 0), (0, 0, 0), "default", 64, 90),
        TileConfig("mma_m16n8k8", 16, 16, k_vector=2),
    ),
    (((7, 5, 3), "fff", "rcr", (0, 0, 0), (0, 0, 0), "default", 32, 75), None),
    (((7, 5, 3), "bbb", "crc", (0, 0, 0), (0, 0, 0), "default", 32, 75), None),
)


def check_jobs() -> tuple[manifest.Job, ...]:
    """Functions that together compile every branch of the templates in ``kernels/``."""
    jobs = [manifest.Job("cublasdx", _variant(check)) for check in _CUBLASDX_CHECKS]
    for check, config in _MMA_CHECKS:
        variant = _variant(check)
        jobs.append(manifest.Job("mma", variant, config or choose(variant)))
    return tuple(jobs)


def _variant(check: _Check) -> GemmVariant:
    (m, n, k), dtypes, arrangements, alignments, padding, precision, threads, arch = check
    operands = []
    shapes = ((m, k), (k, n), (m, n))
    for (rows, columns), code, order, alignment, extra in zip(shapes, dtypes, arrangements, alignments, padding):
        dtype = _DTYPES[code]
        ld = (columns if order == "r" else rows) + extra
        operands.append(Operand(dtype, _ARRANGEMENTS[order], ld, alignment or DTYPE_BYTES[dtype]))
    a, b, c = operands
    return GemmVariant(m, n, k, a, b, c, precision, threads, arch)


def unchecked(store: ToolchainStore) -> tuple[str, ...]:
    """Device sources of ``kernels/`` that no check compiles, by relative path.

    The sources that are copied into Warp's modules do not count, because they need Warp's headers and belong to no
    variant.

    Raises:
        ToolchainError: Headers are missing.
    """
    top = sources.kernels_folder().resolve()
    files = {path.relative_to(top).as_posix() for path in top.rglob("*") if path.suffix in _DEVICE_SUFFIXES}
    copied = {path.relative_to(top).as_posix() for path in sources.include_closure(top / MODULE_HEADER, [top]).values()}
    return tuple(sorted(files - copied - set(aot.kernel_sources(store))))


_path = click.Path(path_type=Path)
_state = click.option("--state", type=_path, required=True, help="Folder that stores digests of the toolchain.")


@click.group()
def commands() -> None:
    """Build plans ahead of time. CMake calls this."""


@commands.command()
@click.option("--manifest", "plan", type=_path, help="Output of `warp-tiles plan --json`.")
@click.option("--archs", default="", help='Compute capabilities, e.g. "80;90"; by default the plan\'s own.')
@click.option("--checks", is_flag=True, help="The configurations of the kernel check, in place of a manifest.")
@click.option("--folder", type=_path, required=True, help="Folder for one file per variant.")
@_state
def variants(plan: Path | None, archs: str, checks: bool, folder: Path, state: Path) -> None:
    """Write one file per function, and print their names and dependencies."""
    store = ToolchainStore(state)
    if checks == (plan is not None):
        raise click.UsageError("give either --manifest or --checks")
    if plan is None:
        known = aot.known_targets(store)
        unknown = sorted({job.variant.arch for job in check_jobs()} - set(known))
        selection = manifest.Selection(
            tuple(job for job in check_jobs() if job.variant.arch in known),
            tuple(f"the kernel check leaves out sm_{arch}, which this NVRTC does not know" for arch in unknown),
        )
    else:
        selection = manifest.select(manifest.read_manifest(plan), manifest.parse_archs(archs))
    names = aot.write_variants(folder, selection.jobs, store)
    if plan is not None:
        with script_output_to_stderr(True):
            from warp_tiles import _warp

            require_linkable(store.toolchain(), _warp.toolkit_version())
    providers = sorted({job.provider for job in selection.jobs})
    kernels = [str(path) for path in aot.kernel_sources(store, providers).values()]
    watched = aot.watched(store, providers)
    print_json({"variants": names, "kernels": kernels, "watched": watched, "notes": list(selection.notes)})


@commands.command()
@click.argument("description", type=_path)
@click.option("-o", "--output", type=_path, required=True, help="LTO-IR to write.")
@click.option("--depfile", type=_path, help="Depfile to write, with all inputs of the LTO-IR.")
@click.option("--exact", is_flag=True, help="Do not fall back to a weaker promise about alignment.")
@_state
def build(description: Path, output: Path, depfile: Path | None, exact: bool, state: Path) -> None:
    """Compile one function to LTO-IR."""
    store = ToolchainStore(state)
    output.parent.mkdir(parents=True, exist_ok=True)
    job = aot.read_job(description)
    warning = aot.build(job, output, store, fallback=not exact)
    if warning:
        print(f"warp-tiles: {warning}", file=sys.stderr)
    if depfile is not None:
        aot.write_depfile(depfile, job, output, store)


@commands.command()
@click.argument("index", type=_path)
@click.option("-o", "--output", type=_path, required=True, help="Bundle to write.")
def pack(index: Path, output: Path) -> None:
    """Pack the LTO-IR beside INDEX into a bundle for `warp-tiles cache import`."""
    report = aot.pack(index, output)
    print(f"{output.name}: {report.added} variants, {human_bytes(report.payload_bytes)} of LTO-IR")


@commands.command()
@_state
def coverage(state: Path) -> None:
    """Fail if no check compiles a device source of kernels/."""
    missed = unchecked(ToolchainStore(state))
    if missed:
        raise BuildError(
            f"the kernel check compiles none of {', '.join(missed)}",
            remedy="include it from a provider's source and add its configuration to warp_tiles/aot/command.py",
        )


@commands.command()
def folder() -> None:
    """Print the folder of CMakeLists.txt, for `cmake -S`."""
    package = Path(aot.__file__).resolve().parents[1]
    for place in (package / "cmake", package.parent):
        if (place / "CMakeLists.txt").is_file():
            print(place)
            return
    raise BuildError(f"no CMakeLists.txt in {package / 'cmake'} or {package.parent}", remedy="install warp-tiles again")


def main() -> None:
    """Entry point. Errors of this package are printed as one message, with exit status 2."""
    try:
        commands(prog_name="python -m warp_tiles.aot")
    except WarpTilesError as error:
        print(f"warp-tiles: {error}", file=sys.stderr)
        sys.exit(2)
