"""The chooser of a loop's pipeline. It is pure: every machine gets the same result."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from warp_tiles.gemm.hardware import (
    LANES,
    REGISTERS,
    RESERVED_SHARED_BYTES,
    THREAD_REGISTERS,
    block_shared_bytes,
    multiprocessor_shared_bytes,
)
from warp_tiles.gemm.main_loop import STAGE_ALIGNMENT, LoopInstruction, MainLoop, StagedProduct
from warp_tiles.gemm.variant import DTYPE_BYTES, GemmVariant, Operand

WARPGROUP = 4 * LANES  # threads
LEAST_STAGES, MOST_STAGES = 2, 4
_OTHER_REGISTERS = 56  # of a thread besides its sums: addresses, descriptors and the loop itself
_SYSTEM_BYTES = 1024  # static shared memory of Warp's headers, at most, apart from four bytes for each thread


def panel_elements(operand: Operand, columns: int) -> int:
    """Elements in a row of a panel of a slot (``SlotLayout`` in ``kernels/module/slots.cuh``).

    Args:
        operand: The operand.
        columns: Contiguous elements of its tile.
    """
    size = DTYPE_BYTES[operand.dtype]
    return next(width for width in (128, 64, 32) if columns * size % width == 0) // size


def staged_product(variant: GemmVariant, instructions: Collection[LoopInstruction]) -> StagedProduct | str:
    """How a block multiplies tiles in slots, or the reason why it cannot.

    Args:
        variant: The forward product.
        instructions: The instructions that may be used.
    """
    if variant.a.dtype != variant.b.dtype or variant.a.dtype not in ("float16", "bfloat16"):
        return "stages hold float16 or bfloat16 tiles"
    if variant.c.dtype != "float32" or variant.c.arrangement != "row_major" or not variant.is_dense:
        return "stages need dense tiles and a row-major float32 C"
    if variant.m % 16 or variant.n % 16 or variant.k % 16:
        return f"{variant.size} is not a multiple of 16 in each dimension"
    if "wgmma" in instructions and (grids := list(_warpgroup_grids(variant))):
        return StagedProduct("wgmma", *grids[0], _sums(variant))
    if "mma_m16n8k16" in instructions and (grids := list(_warp_grids(variant))):
        return StagedProduct("mma_m16n8k16", *grids[0], _sums(variant))
    return f"{variant.threads} threads cannot share {variant.size} among their tensor cores"


def _sums(variant: GemmVariant) -> int:
    return variant.m * variant.n // variant.threads


def _fit_registers(variant: GemmVariant) -> bool:
    available = min(THREAD_REGISTERS, REGISTERS // variant.threads)
    return _sums(variant) + _OTHER_REGISTERS <= available


def _warpgroup_grids(variant: GemmVariant) -> Iterator[tuple[int, int]]:
    """Grids of warpgroups, the one with the widest instructions first. Its operands are K-major or MN-major panels."""
    if variant.arch != 90 or variant.threads % WARPGROUP or variant.m % 64 or not _fit_registers(variant):
        return
    groups = variant.threads // WARPGROUP
    for groups_m in range(groups, 0, -1):
        groups_n = groups // groups_m
        if groups % groups_m or variant.m // 64 % groups_m or variant.n % (16 * groups_n):
            continue
        columns = variant.n // groups_n
        if variant.b.arrangement == "row_major" and columns % panel_elements(variant.b, variant.n):
            continue  # a group's columns begin in the middle of a panel
        yield groups_m, groups_n


def _warp_grids(variant: GemmVariant) -> Iterator[tuple[int, int]]:
    """Grids of warps, the one that reads the least shared memory first."""
    if variant.arch < 80 or variant.threads % LANES or not _fit_registers(variant):
        return
    warps = variant.threads // LANES
    grids = [
        (warps_m, warps // warps_m)
        for warps_m in range(1, warps + 1)
        if warps % warps_m == 0 and variant.m % (16 * warps_m) == 0 and variant.n % (16 * (warps // warps_m)) == 0
    ]
    yield from sorted(grids, key=lambda grid: variant.m // grid[0] + variant.n // grid[1])


def main_loop(
    products: Sequence[tuple[GemmVariant, StagedProduct]],
    stage_bytes: int,
    *,
    tile_bytes: int,
    idle_bytes: int,
    at_end: bool,
    around_bytes: int = 0,
) -> MainLoop | str:
    """The pipeline of a loop, or the reason why shared memory does not suffice.

    Two resident blocks cover the time in which one of them waits, so they come before more stages. A block that is
    alone keeps the products of one iteration in flight instead, which takes one stage.

    Args:
        products: The products of the loop.
        stage_bytes: Bytes of a stage.
        tile_bytes: Bytes of all tiles of the function.
        idle_bytes: Bytes of neighbouring tiles that are idle in the loop; the stages may lie there.
        at_end: True if these tiles are the last ones of the function, so that extra memory continues them.
        around_bytes: Bytes of the tiles of functions that call this one.
    """
    variant, product = products[0]
    arch, threads = variant.arch, variant.threads
    limit = block_shared_bytes(arch) - _SYSTEM_BYTES - 4 * threads
    registers = -(-(max(p.sums for _, p in products) + _OTHER_REGISTERS) // 8) * 8
    found = []
    for stages in range(LEAST_STAGES, MOST_STAGES + 1):
        extra = _extra_bytes(stages * stage_bytes, idle_bytes, at_end)
        total = around_bytes + tile_bytes + extra
        if total > limit:
            continue
        by_memory = multiprocessor_shared_bytes(arch) // (total + _SYSTEM_BYTES + 4 * threads + RESERVED_SHARED_BYTES)
        blocks = max(1, min(by_memory, REGISTERS // (registers * threads)))
        in_flight = int(product.instruction == "wgmma" and blocks == 1 and stages > LEAST_STAGES)
        found.append(MainLoop(product.instruction, stages, in_flight, stage_bytes, extra, blocks))
    if not found:
        needed = around_bytes + tile_bytes + _extra_bytes(LEAST_STAGES * stage_bytes, idle_bytes, at_end)
        return (
            f"{LEAST_STAGES} stages of {stage_bytes} bytes need {needed} bytes of shared memory, and there are {limit}"
        )
    return max(found, key=lambda loop: (min(loop.blocks, 2), loop.stages))


def _extra_bytes(ring_bytes: int, idle_bytes: int, at_end: bool) -> int:
    """Bytes that stages need beyond idle tiles. The first stage may begin up to an alignment later."""
    needed = ring_bytes + STAGE_ALIGNMENT
    if needed <= idle_bytes:
        return 0
    return needed - idle_bytes if at_end else needed
