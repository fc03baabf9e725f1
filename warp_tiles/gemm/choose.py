"""The chooser of the tile configuration of a GEMM variant. It is pure: every machine gets the same result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from warp_tiles.gemm.cost import cost
from warp_tiles.gemm.hardware import BANK_LINE_BYTES, LANES
from warp_tiles.gemm.problem import DTYPE_BYTES, GemmProblem, Operand
from warp_tiles.gemm.tile_config import (
    INSTRUCTION_MNK,
    Instruction,
    Side,
    TileConfig,
    computes_in_double,
    instructions,
    line_bytes,
    problem_of,
    registers,
    require_supported,
    result_vectors,
    sides,
    steps_over_k,
    transposed,
)

_UNROLLED_PRODUCTS = 64 * 64 * 16  # per warp tile: elements of C times elements of K that a lane holds
_UNROLLED_FMAS, _UNROLLED_FMAS_OF_LARGE_TILES = 2048, 1024
_LARGE_ACCUMULATORS = 64  # per lane
_C_FIRST_REGISTERS = 128
_MIN_SLICE = 32  # elements of K per warp with split-K
_MAX_SPLIT_THREADS = 256  # per block; with 512, split-K gains nothing in the mean (docs/templates.md)


def choose(variant: GemmProblem) -> TileConfig:
    """The tile configuration with the least estimated time, of all that fit.

    Raises:
        UnsupportedVariant: The templates cannot compute the variant. The message names the field.
    """
    return ranked(variant)[0]


def ranked(variant: GemmProblem) -> list[TileConfig]:
    """All candidates of a variant that fit, by estimated time, fastest first. There is always one.

    Raises:
        UnsupportedVariant: The templates cannot compute the variant. The message names the field.
    """
    require_supported(variant)
    flip = variant.c.arrangement == "col_major"
    view = transposed(variant) if flip else variant
    fitting = [config for config in candidates(view) if not problem_of(view, config)]
    if not fitting:  # with this many threads, registers are too few for tensor cores
        fitting = [config for config in fma_candidates(view) if not problem_of(view, config)]
    return [replace(config, transposed=flip) for config in sorted(fitting, key=lambda config: cost(view, config))]


def candidates(view: GemmProblem) -> Iterator[TileConfig]:
    """Candidates for a row-major C. They use tensor cores wherever these support the operands."""
    thin = min(view.m, view.n) < 4  # such a product leaves most of a tensor core idle
    on_tensor_cores = [i for i in instructions(view) if i != "fma" and not (thin and computes_in_double(view))]
    for instruction in on_tensor_cores:
        yield from mma_candidates(view, instruction)
    if not on_tensor_cores:
        yield from fma_candidates(view)


def _k_vector(view: GemmProblem, instruction: Instruction) -> int:
    """Elements of K that a lane reads at a time: up to 16 bytes, if K has them."""
    step = INSTRUCTION_MNK[instruction][2]
    widest = {16: 8, 8: 4, 4: 2}[step]
    if computes_in_double(view):
        widest = 2
    elif step == 8 and "float32" not in (view.a.dtype, view.b.dtype):
        widest = 8
    while widest > step // 4 and view.k % (4 * widest) and view.k <= 4 * widest * 4:
        widest //= 2
    return widest


def _tile_sizes(extent: int, step: int, most: int, in_double: bool) -> list[int]:
    """Rows or columns of a warp tile: powers of two, and 24 for fp64 if it divides C."""
    powers = [size for size in (8, 16, 32, 64, 128) if size % step == 0 and size <= most]
    fitting = [size for size in powers if size < extent + max(step, size // 4)]
    # for 16-bit elements, the cost model is wrong with three groups
    divides = in_double and 24 % step == 0 and extent % 24 == 0
    return [*fitting, 24] if divides else fitting


def mma_candidates(view: GemmProblem, instruction: Instruction) -> Iterator[TileConfig]:
    """Candidates for a row-major C on tensor cores."""
    rows = INSTRUCTION_MNK[instruction][0]
    vector = _k_vector(view, instruction)
    in_double = computes_in_double(view)
    sizes_m, sizes_n = _tile_sizes(view.m, rows, 64, in_double), _tile_sizes(view.n, 8, 128, in_double)
    for tile_m, tile_n in product(sizes_m, sizes_n):
        config = with_swizzle(view, TileConfig(instruction, tile_m, tile_n, k_vector=vector))
        blocks = max(side.blocks for side in sides(view, config))
        steps = steps_over_k(view, config)
        most = max(1, _UNROLLED_PRODUCTS // (tile_m * tile_n * vector * blocks))
        c_first = replace(config, k_unroll=min(steps, most), c_first=True)
        yield c_first if registers(view, c_first) <= _C_FIRST_REGISTERS else replace(c_first, c_first=False)
        for warps_k in _split_k_values(view):
            yield replace(config, warps_k=warps_k, k_unroll=max(1, min(steps // warps_k, most)))


def _split_k_values(view: GemmProblem) -> Iterator[int]:
    """Candidates for ``warps_k``. The block may have too few warps; :func:`check` refuses those."""
    if view.threads > _MAX_SPLIT_THREADS:
        return
    warps_k = 2
    while warps_k <= min(view.threads // LANES, view.k // _MIN_SLICE):
        yield warps_k
        warps_k *= 2


def with_swizzle(view: GemmProblem, config: TileConfig) -> TileConfig:
    """The configuration with the swizzle that avoids bank conflicts."""
    a, b = (_operand_swizzle(side, view.k, config.k_vector) for side in sides(view, config))
    return replace(config, swizzle_a=a, swizzle_b=b, swizzle_c=_result_swizzle(view.c, config.tile_n))


def _operand_swizzle(side: Side, k: int, vector: int) -> int:
    """The swizzle of A or B."""
    operand, line = side.operand, line_bytes(side.operand)
    if side.k_major:  # pairs of rows conflict; a swizzle exchanges two blocks of K
        return 2 if line % BANK_LINE_BYTES == 0 and k % (8 * vector) == 0 else 1
    if vector * line % BANK_LINE_BYTES:
        return 1
    # the four rows that lanes q = 0 to 3 read conflict
    size, groups, slots = DTYPE_BYTES[operand.dtype], side.tile // 8, side.slots(vector)
    unpadded = operand.leading_dimension == side.tile and line < BANK_LINE_BYTES
    distinct = slots if unpadded else slots // vector
    return _power_of_two_in(slots, min(2 if size == 8 and groups % 4 else 4, distinct))


def _result_swizzle(operand: Operand, tile_n: int) -> int:
    """The swizzle of a row-major C."""
    line, size = line_bytes(operand), DTYPE_BYTES[operand.dtype]
    if line % BANK_LINE_BYTES and BANK_LINE_BYTES % line:  # rows start in different banks
        return 1
    vectors = result_vectors(operand, tile_n)
    elements = tile_n // (4 * vectors)
    rows = max(1, BANK_LINE_BYTES // line)  # rows that fill the banks together
    return _power_of_two_in(vectors, BANK_LINE_BYTES // (4 * elements * size * rows))


def _power_of_two_in(count: int, most: int) -> int:
    """The largest power of two up to ``most`` that divides ``count``; at least 1."""
    power = 1
    while 2 * power <= most and count % (2 * power) == 0:
        power *= 2
    return power


def _shares(extent: int, most: int) -> list[int]:
    """Rows or columns of C that one lane may hold: powers of two, and three times powers of two if they divide C."""
    found = [share for share in (1, 2, 4, 8, 16) if share <= most]
    return sorted([*found, *(3 * share for share in found if extent % (3 * share) == 0 and 3 * share <= most)])


def fma_candidates(view: GemmProblem) -> Iterator[TileConfig]:
    """Candidates without tensor cores."""
    widest = 2 if computes_in_double(view) else 4
    both_k_major = view.a.arrangement == "row_major" and view.b.arrangement == "col_major"
    for lanes_k, lanes_n in product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32)):
        lanes_m = LANES // (lanes_k * lanes_n)
        vector = widest
        while vector > 1 and view.k % (vector * lanes_k):
            vector //= 2
        if lanes_m < 1 or lanes_k > max(1, view.k // 4):
            continue
        for rows, cols in product(_shares(view.m, 16), _shares(view.n, 8)):
            tile_m, tile_n = rows * lanes_m, cols * lanes_n
            if tile_m >= 2 * view.m + lanes_m or tile_n >= 2 * view.n + lanes_n:
                continue
            steps = -(-view.k // (vector * lanes_k))
            most = _UNROLLED_FMAS if rows * cols <= _LARGE_ACCUMULATORS else _UNROLLED_FMAS_OF_LARGE_TILES
            unroll = min(steps, max(1, most // (rows * cols * vector)))
            conflict = both_k_major and lanes_k == 1 and line_bytes(view.b) % BANK_LINE_BYTES == 0
            swizzle = _power_of_two_in(view.k // vector, min(4, lanes_n)) if conflict else 1
            yield TileConfig(
                "fma",
                tile_m,
                tile_n,
                lanes_m,
                lanes_n,
                lanes_k,
                k_vector=vector,
                k_unroll=unroll,
                swizzle_b=swizzle,
                c_first=lanes_k == 1,
            )
