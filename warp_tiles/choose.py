"""The chooser: from a GEMM variant to the tile configuration that computes it. Pure, and the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from warp_tiles.errors import SettingError, UnsupportedVariant
from warp_tiles.tile_config import Instruction, TileConfig
from warp_tiles.variant import DTYPE_BYTES, GemmVariant, Operand
from warp_tiles.wavefronts import wavefronts_of

MIN_ARCH = 75
TENSOR_CORES_ARCH = 80  # bf16, tf32 and fp64; fp16 is older
WIDE_DOUBLES_ARCH = 90  # m16n8k8 of fp64
LANES = 32
BANK_LINE_BYTES = 128
_REGISTERS = 65536
_INSTRUCTION_MNK: dict[Instruction, tuple[int, int, int]] = {
    "mma_m16n8k16": (16, 8, 16),
    "mma_m16n8k8": (16, 8, 8),
    "mma_m8n8k4": (8, 8, 4),
}


def transposed(variant: GemmVariant) -> GemmVariant:
    """``C^T = B^T A^T``: the same memory, with rows and columns exchanged."""
    return replace(
        variant,
        m=variant.n,
        n=variant.m,
        a=variant.b.transposed(),
        b=variant.a.transposed(),
        c=variant.c.transposed(),
    )


def computes_in_double(variant: GemmVariant) -> bool:
    """Whether sums are fp64: one operand is."""
    return "float64" in (variant.a.dtype, variant.b.dtype, variant.c.dtype)


def instructions(variant: GemmVariant) -> tuple[Instruction, ...]:
    """What can multiply this variant's operands on its architecture, tensor cores first."""
    a, b, c = variant.a.dtype, variant.b.dtype, variant.c.dtype
    arch = variant.arch
    found: list[Instruction] = []
    if computes_in_double(variant):
        if arch >= WIDE_DOUBLES_ARCH:
            found.append("mma_m16n8k8")
        if arch >= TENSOR_CORES_ARCH:
            found.append("mma_m8n8k4")
    elif a == b and DTYPE_BYTES[a] == 2:
        if arch >= TENSOR_CORES_ARCH:
            found.append("mma_m16n8k16")
        elif a == "float16":
            found.append("mma_m16n8k8")
    elif arch >= TENSOR_CORES_ARCH:
        exact = "float32" not in (a, b)  # fp16 and bf16 fit tf32
        in_two_parts = (a == "float32") != (b == "float32") and DTYPE_BYTES[c] == 2
        if variant.precision == "tf32" or exact or in_two_parts:
            found.append("mma_m16n8k8")
    return (*found, "fma")


def require_supported(variant: GemmVariant) -> None:
    """Check that the templates can compute a variant at all.

    Raises:
        UnsupportedVariant: The message names the field and its value.
    """
    if variant.threads < LANES or variant.threads % LANES or variant.threads > 1024:
        raise UnsupportedVariant(f"threads={variant.threads}: the block must have 32 to 1024 threads, in warps of 32")
    if variant.arch < MIN_ARCH:
        raise UnsupportedVariant(f"arch={variant.arch}: sm_{MIN_ARCH} is the oldest that is built for")


# ---- what a configuration needs


def _line_bytes(operand: Operand) -> int:
    return operand.leading_dimension * DTYPE_BYTES[operand.dtype]


def _pairs(operand: Operand, extent: int, groups: int, vector: int) -> bool:
    """Whether lanes read two neighbours across K at once, as ``kernels/tile/operand.cuh`` decides it."""
    size = DTYPE_BYTES[operand.dtype]
    enough = vector % 2 == 0 if size == 2 else size == 4
    even = groups % 2 == 0 and extent % 2 == 0 and operand.leading_dimension % 2 == 0
    return enough and even and operand.alignment >= 2 * size


def _slots(operand: Operand, extent: int, groups: int, vector: int) -> int:
    """What a lane reads of a block of K, along lines across K."""
    return vector * groups // (2 if _pairs(operand, extent, groups, vector) else 1)


def registers(variant: GemmVariant, config: TileConfig) -> int:
    """Registers of a lane, estimated by what the templates keep: sums, fragments, C and addresses."""
    word = 2 if computes_in_double(variant) else 1
    view = transposed(variant) if config.transposed else variant
    lanes = LANES // config.lanes_k
    sums = config.tile_m * config.tile_n * word // lanes
    held_c = config.tile_m * config.tile_n * max(1, DTYPE_BYTES[view.c.dtype] // 4) // lanes if config.c_first else 0
    if config.instruction == "fma":
        rows, cols = config.tile_m // config.lanes_m, config.tile_n // config.lanes_n
        return sums + (rows + cols) * config.k_vector * word + 24
    along_a, along_b = view.a.arrangement == "row_major", view.b.arrangement == "col_major"
    blocks = max(config.rotation_a if along_a else 1, config.rotation_b if along_b else 1)
    halves = 1 if config.instruction == "mma_m16n8k16" else 2
    fragments = (config.tile_m + config.tile_n) // 8 * config.k_vector * blocks * halves // 2 * word
    return sums + fragments + held_c + 24


def sums_per_thread(variant: GemmVariant, config: TileConfig) -> int:
    """Sums that a thread would hold over a loop, of all its register tiles; 0 if they are more than registers hold."""
    view = transposed(variant) if config.transposed else variant
    tiles = -(-view.m // config.tile_m) * -(-view.n // config.tile_n)
    rounds = -(-tiles // (variant.threads // LANES))
    sums = config.tile_m * config.tile_n * config.lanes_k // LANES
    word = 2 if computes_in_double(variant) else 1
    needed = registers(variant, replace(config, c_first=False)) + (rounds - 1) * sums * word
    return rounds * sums if needed <= min(255, _REGISTERS // variant.threads) else 0


def check(variant: GemmVariant, config: TileConfig) -> None:
    """Refuse a configuration that cannot be built, or that no block could hold.

    Raises:
        UnsupportedVariant: The templates cannot compute the variant at all.
        SettingError: The configuration does not divide or does not fit; the message names the field.
    """
    require_supported(variant)
    problem = _problem(variant, config)
    if problem:
        raise SettingError(
            f"tile configuration {config.describe()} of {variant.describe()}: {problem}",
            remedy="change that field, or leave the choice to warp_tiles.choose.choose()",
        )


def _problem(variant: GemmVariant, config: TileConfig) -> str:
    """What is wrong with a configuration; empty if nothing is."""
    allowed = instructions(variant)
    if config.instruction not in allowed:
        return f"instruction is {config.instruction!r}, but the operands allow {', '.join(allowed)}"
    powers = ("lanes_m", "lanes_n", "lanes_k", "k_vector", "rotation_a", "rotation_b", "rotation_c")
    for name in ("tile_m", "tile_n", "k_unroll", *powers):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return f"{name} is {value!r}, not a positive number"
        if name in powers and value & (value - 1):
            return f"{name} is {value}, not a power of two"
    if config.k_vector > 8:
        return f"k_vector is {config.k_vector}, more than 8"
    for name in ("rotation_a", "rotation_b", "rotation_c"):
        if getattr(config, name) > 4:
            return f"{name} is {getattr(config, name)}, more than 4"
    problem = _fma_problem(variant, config) if config.instruction == "fma" else _mma_problem(variant, config)
    limit = min(255, _REGISTERS // variant.threads)
    needed = registers(variant, config)
    if not problem and needed > limit:
        problem = (
            f"needs about {needed} registers a thread, of which {limit} are left to each of {variant.threads} threads; "
            "take a smaller tile_m or tile_n"
        )
    return problem


def _fma_problem(variant: GemmVariant, config: TileConfig) -> str:
    lanes = config.lanes_m * config.lanes_n * config.lanes_k
    if lanes != LANES:
        return f"lanes_m * lanes_n * lanes_k is {lanes}, not {LANES}"
    if config.tile_m % config.lanes_m or config.tile_n % config.lanes_n:
        return "lanes_m must divide tile_m, and lanes_n tile_n"
    turns = max(config.rotation_a, config.rotation_b)
    if turns > 1 and variant.k % (config.k_vector * config.lanes_k * turns):
        return f"turns of {turns} steps of {config.k_vector * config.lanes_k} do not divide K = {variant.k}"
    return ""


def _mma_problem(variant: GemmVariant, config: TileConfig) -> str:
    view = transposed(variant) if config.transposed else variant
    m, n, k = _INSTRUCTION_MNK[config.instruction]
    if (config.lanes_m, config.lanes_n, config.lanes_k) != (1, 1, 1):
        return "lanes_m, lanes_n and lanes_k belong to the instruction fma"
    if config.tile_m % m or config.tile_n % n:
        return f"tile_m and tile_n must be multiples of {m} and {n}"
    if 4 * config.k_vector % k:
        return f"four lanes of k_vector {config.k_vector} do not fill an instruction's {k} elements of K"
    for name, operand, along, extent, tile in (
        ("rotation_a", view.a, view.a.arrangement == "row_major", view.m, config.tile_m),
        ("rotation_b", view.b, view.b.arrangement == "col_major", view.n, config.tile_n),
    ):
        ways = getattr(config, name)
        if not along and _slots(operand, extent, tile // 8, config.k_vector) % ways:
            return f"{name} is {ways}, which does not divide what a lane reads at a time"
    blocks = {config.rotation_a if view.a.arrangement == "row_major" else 1}
    blocks.add(config.rotation_b if view.b.arrangement == "col_major" else 1)
    if max(blocks) % min(blocks):
        return "one of rotation_a and rotation_b does not divide the other"
    return ""


# ---- the choice


def choose(variant: GemmVariant) -> TileConfig:
    """The tile configuration for a variant: of all that fit, the one whose estimated time is least.

    Raises:
        UnsupportedVariant: The templates cannot compute it; the message names the field.
    """
    require_supported(variant)
    flip = variant.c.arrangement == "col_major"
    view = transposed(variant) if flip else variant
    best = min((c for c in candidates(view) if not _problem(view, c)), key=lambda config: cost(view, config))
    return replace(best, transposed=flip)


def candidates(view: GemmVariant) -> Iterator[TileConfig]:
    """Configurations worth comparing for a row-major C; without tensor cores only where those are slow to start."""
    allowed = instructions(view)
    for instruction in allowed:
        if instruction != "fma":
            yield from mma_candidates(view, instruction)
    if allowed[0] == "fma" or computes_in_double(view):
        yield from fma_candidates(view)


def _k_vector(view: GemmVariant, instruction: Instruction) -> int:
    """Elements of K a lane takes at a time: up to 16 bytes' worth, where K has them."""
    step = _INSTRUCTION_MNK[instruction][2]
    widest = {16: 8, 8: 4, 4: 2}[step]
    if computes_in_double(view):
        widest = 2
    elif step == 8 and "float32" not in (view.a.dtype, view.b.dtype):
        widest = 8
    while widest > step // 4 and view.k % (4 * widest) and view.k <= 4 * widest * 4:
        widest //= 2
    return widest


def mma_candidates(view: GemmVariant, instruction: Instruction) -> Iterator[TileConfig]:
    """Configurations worth comparing for a row-major C on tensor cores."""
    rows = _INSTRUCTION_MNK[instruction][0]
    vector = _k_vector(view, instruction)
    sizes_m = [size for size in dict.fromkeys((rows, 16, 32, 64)) if size < view.m + max(rows, size // 4)]
    sizes_n = [size for size in (8, 16, 32, 64, 128) if size < view.n + max(8, size // 4)]
    for tile_m, tile_n in product(sizes_m, sizes_n):
        config = with_turns(view, TileConfig(instruction, tile_m, tile_n, k_vector=vector))
        blocks = max(
            config.rotation_a if view.a.arrangement == "row_major" else 1,
            config.rotation_b if view.b.arrangement == "col_major" else 1,
        )
        stages = -(-view.k // (4 * vector * blocks))
        config = replace(config, k_unroll=min(stages, max(1, _UNROLLED_BYTES // (tile_m * tile_n * vector * blocks))))
        early = replace(config, c_first=True)
        yield early if registers(view, early) <= _C_FIRST_REGISTERS else config


def with_turns(view: GemmVariant, config: TileConfig) -> TileConfig:
    """The configuration with as many turns as it takes to keep lanes out of each other's banks."""
    turns = {}
    for name, operand, along, extent, tile in (
        ("rotation_a", view.a, view.a.arrangement == "row_major", view.m, config.tile_m),
        ("rotation_b", view.b, view.b.arrangement == "col_major", view.n, config.tile_n),
    ):
        line = _line_bytes(operand)
        if along:  # two rows meet, and change places with the next block of K
            ways = 2 if line % BANK_LINE_BYTES == 0 and view.k % (8 * config.k_vector) == 0 else 1
        elif config.k_vector * line % BANK_LINE_BYTES:
            ways = 1
        else:  # the four rows of a group of lanes meet
            size, groups = DTYPE_BYTES[operand.dtype], tile // 8
            slots = _slots(operand, extent, groups, config.k_vector)
            whole_lines = operand.leading_dimension == tile and line < BANK_LINE_BYTES
            apart = slots if whole_lines else slots // config.k_vector
            most = 2 if size == 8 and groups % 4 else 4
            ways = 1
            while 2 * ways <= min(most, apart) and slots % (2 * ways) == 0:
                ways *= 2
        turns[name] = ways
    size = DTYPE_BYTES[view.c.dtype]
    wide = size < 8 and (config.tile_n // 8) % 2 == 0
    vectors = config.tile_n // (16 if wide else 8)
    most = BANK_LINE_BYTES // (4 * size * (4 if wide else 2))
    line = _line_bytes(view.c)
    while line < BANK_LINE_BYTES and most > 1 and line * 2 <= BANK_LINE_BYTES:
        most, line = most // 2, line * 2
    ways = 1
    while line % BANK_LINE_BYTES == 0 and 2 * ways <= most and vectors % (2 * ways) == 0:
        ways *= 2
    return replace(config, rotation_c=ways, **turns)


def fma_candidates(view: GemmVariant) -> Iterator[TileConfig]:
    """Configurations worth comparing without tensor cores."""
    widest = 2 if computes_in_double(view) else 4
    for lanes_k, lanes_n in product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32)):
        lanes_m = LANES // (lanes_k * lanes_n)
        vector = widest
        while vector > 1 and view.k % (vector * lanes_k):
            vector //= 2
        if lanes_m < 1 or lanes_k > max(1, view.k // 4):
            continue
        for rows, cols in product((1, 2, 4, 8, 16), (1, 2, 4, 8)):
            tile_m, tile_n = rows * lanes_m, cols * lanes_n
            if tile_m >= 2 * view.m + lanes_m or tile_n >= 2 * view.n + lanes_n:
                continue
            steps = -(-view.k // (vector * lanes_k))
            unroll = min(steps, max(1, _UNROLLED_FMAS // (rows * cols * vector)))
            both_along = view.a.arrangement == "row_major" and view.b.arrangement == "col_major"
            turns = 1
            while (
                both_along
                and lanes_k == 1
                and _line_bytes(view.b) % BANK_LINE_BYTES == 0
                and turns < min(4, lanes_n)
                and view.k % (vector * 2 * turns) == 0
            ):
                turns *= 2
            yield TileConfig(
                "fma",
                tile_m,
                tile_n,
                lanes_m,
                lanes_n,
                lanes_k,
                k_vector=vector,
                k_unroll=unroll,
                rotation_b=turns,
                c_first=lanes_k == 1,
            )


# ---- the estimate: cycles of one multiprocessor for one call, with as many blocks as it holds

_UNROLLED_BYTES = 64 * 64 * 16  # of multiplications, in elements of C times K
_UNROLLED_FMAS = 1024
_C_FIRST_REGISTERS = 128
_SHARED_BYTES = 227 * 1024
_MMA_CYCLES: dict[Instruction, int] = {"mma_m16n8k16": 6, "mma_m16n8k8": 6, "mma_m8n8k4": 16}


def _resident_blocks(view: GemmVariant, config: TileConfig) -> int:
    """Blocks of one multiprocessor, if shared memory holds A, B and C alone."""
    sizes = (view.m * view.k, view.k * view.n, view.m * view.n)
    tiles = sum(n * DTYPE_BYTES[o.dtype] for n, o in zip(sizes, (view.a, view.b, view.c)))
    by_registers = _REGISTERS // (min(255, 8 * registers(view, config) // 10) * view.threads)
    return max(1, min(_SHARED_BYTES // (tiles + 1024), by_registers, 2048 // view.threads, 32))


def cost(view: GemmVariant, config: TileConfig) -> float:
    """Estimated cycles: what shared memory, selects and arithmetic need, and latency that few blocks cannot hide.

    The weights were fitted to the times of some 1,500 kernels on an H200 (docs/design.md).
    """
    tiles = -(-view.m // config.tile_m) * -(-view.n // config.tile_n)
    rounds = -(-tiles // (view.threads // LANES))
    estimate = _fma_estimate if config.instruction == "fma" else _mma_estimate
    wavefronts, selects, arithmetic = estimate(view, config)
    busy = tiles * max(wavefronts, selects / 2, arithmetic / 4)
    serial = 680 + 2.2 * wavefronts + 16 * selects + 0.6 * arithmetic
    return 3.3 * busy + rounds * serial / _resident_blocks(view, config)


def _mma_estimate(view: GemmVariant, config: TileConfig) -> tuple[float, float, float]:
    """Of one register tile: wavefronts, selects a lane, and cycles of its tensor core."""
    m, n, k = _INSTRUCTION_MNK[config.instruction]
    line = BANK_LINE_BYTES
    a_bytes = config.tile_m * view.k * DTYPE_BYTES[view.a.dtype]
    b_bytes = config.tile_n * view.k * DTYPE_BYTES[view.b.dtype]
    c_bytes = config.tile_m * config.tile_n * DTYPE_BYTES[view.c.dtype]
    wavefronts = 2 * c_bytes / line
    selects = c_bytes / line * (config.rotation_c.bit_length() - 1)
    for operand, size, along, turns in (
        (view.a, a_bytes, view.a.arrangement == "row_major", config.rotation_a),
        (view.b, b_bytes, view.b.arrangement == "col_major", config.rotation_b),
    ):
        most = 2 if along else 4
        meets = (1 if along else config.k_vector) * _line_bytes(operand) % line == 0
        wavefronts += size / line * (most / turns if meets else 1)
        packs = 1 if not along and DTYPE_BYTES[operand.dtype] == 2 else 0
        selects += size / line * (turns.bit_length() - 1 + packs)
    count = config.tile_m / m * config.tile_n / n * -(-view.k // k)
    cycles = 32 if computes_in_double(view) and k == 8 else _MMA_CYCLES[config.instruction]
    return wavefronts, selects, count * cycles


def _fma_estimate(view: GemmVariant, config: TileConfig) -> tuple[float, float, float]:
    """Of one register tile: wavefronts, selects a lane, and cycles of its scheduler."""
    word = 2 if computes_in_double(view) else 1
    rows, cols = config.tile_m // config.lanes_m, config.tile_n // config.lanes_n
    steps = -(-view.k // (config.k_vector * config.lanes_k))
    lanes = [(i // (config.lanes_n * config.lanes_k), i // config.lanes_k % config.lanes_n) for i in range(LANES)]
    loads, wavefronts = 0, 0.0
    for operand, along, count, side in (
        (view.a, view.a.arrangement == "row_major", rows, 0),
        (view.b, view.b.arrangement == "col_major", cols, 1),
    ):
        size, line = DTYPE_BYTES[operand.dtype], _line_bytes(operand)
        most = max(1, min(16, operand.alignment) // size)
        wide = min(config.k_vector if along else count & -count, most)
        places = []
        for number, place in enumerate(lanes):
            k = (number % config.lanes_k) * config.k_vector + (place[1] & (config.rotation_b - 1)) * config.k_vector
            places.append(place[side] * line + k * size if along else k * line + place[side] * wide * size)
        one = wavefronts_of(tuple(places), wide * size)
        number_of_loads = steps * count * config.k_vector // wide
        loads += number_of_loads
        wavefronts += number_of_loads * one
    products = steps * rows * cols * config.k_vector * word * 1.2
    shuffles = rows * cols * 4 * word * (config.lanes_k.bit_length() - 1)
    wide_c = max(1, min(cols & -cols, 16 // DTYPE_BYTES[view.c.dtype]))
    accesses = 2 * rows * cols // wide_c
    return wavefronts + accesses * wide_c * word, 0.0, products + shuffles + 2 * (loads + accesses) + 2 * rows * cols
