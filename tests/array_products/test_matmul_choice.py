"""The choice of tiles, threads, split-K and copies for products of whole matrices."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warp_tiles.array_products.matmul_choice import (
    candidates,
    choose_matmul,
    loop_candidate,
    rates_name,
    shared_bytes,
)
from warp_tiles.array_products.matmul_problem import (
    STRIDED,
    Gpu,
    MatmulConfig,
    MatmulProblem,
    MeasuredConfigs,
    Operand,
    copies_us,
    unaligned_us,
)
from warp_tiles.gemm.hardware import BLOCK_THREADS, LANES, multiprocessor
from warp_tiles.gemm.main_loop import LoopPlan
from warp_tiles.gemm.pipeline import PipelineOverrides
from warp_tiles.gemm.problem import DTYPE_BYTES
from warp_tiles.gemm.rejected import Rejected

ARCHS = [75, 80, 86, 90, 100, 120]
H200 = Gpu(90, 132)


def problem(m: int, n: int, k: int, dtype: Any = "float16", **options: Any) -> MatmulProblem:
    tf32 = dtype == "tf32"
    stored = "float32" if tf32 else dtype
    return MatmulProblem(m, n, k, a=stored, b=stored, out=stored, tf32=tf32, **options)


def laid_out(sizes: tuple[int, int, int, int], layout: str, dtype: Any = "float16") -> MatmulProblem:
    """A product of packed arrays: batch, m, n and k; "t" for an operand that is transposed."""
    (batch, m, n, k), size = sizes, DTYPE_BYTES[dtype]
    a, b = (letter == "t" for letter in layout)
    lines = {"a": m if a else k, "b": k if b else n, "c": n}
    alignments = {f"{name}_alignment": math.gcd(16, size * line) for name, line in lines.items()}
    return problem(m, n, k, dtype, batch=batch, a_transposed=a, b_transposed=b, **alignments)


def chosen(*arguments: Any, **options: Any) -> MatmulConfig:
    return choose_matmul(problem(*arguments, **options), H200).config


def configs(question: MatmulProblem, gpu: Gpu = H200) -> list[MatmulConfig]:
    """Those of all loops."""
    return [one.config for one in candidates(question, gpu) if not one.config.tensor_copies]


problems = st.builds(
    problem,
    st.integers(1, 9000),
    st.integers(1, 9000),
    st.integers(0, 20000),
    st.sampled_from(["float16", "bfloat16", "tf32", "float32", "float64"]),
    batch=st.sampled_from([1, 7, 1024]),
    summed=st.booleans(),
)


@given(problems, st.builds(Gpu, st.sampled_from(ARCHS), st.integers(1, 200)))
def test_every_choice_fits_the_gpu(question: MatmulProblem, gpu: Gpu) -> None:
    config = choose_matmul(question, gpu).config
    assert shared_bytes(question, config) <= multiprocessor(gpu.arch).block_shared_bytes
    assert config.threads % LANES == 0
    assert 0 < config.threads <= BLOCK_THREADS
    assert all(side % 16 == 0 for side in (config.tile_m, config.tile_n, config.tile_k))
    assert config.group >= 1
    steps = -(-question.k // config.tile_k)
    assert 1 <= config.split_k <= max(1, steps), "each slice has a step"
    assert config == choose_matmul(question, gpu).config


@given(problems)
def test_the_choice_has_the_least_cost(question: MatmulProblem) -> None:
    best = loop_candidate(question, choose_matmul(question, H200).config, H200).time_us
    assert all(best <= one.time_us for one in candidates(question, H200) if not one.config.tensor_copies)


@given(problems)
def test_each_candidate_is_another_one(question: MatmulProblem) -> None:
    configs = [one.config for one in candidates(question, H200)]
    assert len(set(configs)) == len(configs)


@given(problems)
@example(problem(200, 200, 2080, "float32"))  # 65 steps in 16 slices have room in 13
def test_no_slice_of_a_launch_is_empty(question: MatmulProblem) -> None:
    for one in candidates(question, H200):
        assert one.slices.split == 0 or (one.slices.count - 1) * one.slices.stages * one.config.tile_k < question.k


def test_float64_has_smaller_tiles_if_warp_always_writes_a_loop() -> None:
    question = replace(problem(4096, 4096, 4096, "float64"), always_loops=True)
    found = {(one.tile_m, one.tile_n) for one in configs(question)}
    assert max(map(max, found)) == 64
    config = choose_matmul(question, H200).config
    assert (config.tile_m, config.tile_n, config.threads) == (64, 64, 128)
    records = {question.bucket: MeasuredConfigs(MatmulConfig(128, 128, 16, 256))}
    assert choose_matmul(question, H200, records).config == config


@pytest.mark.parametrize("arch", [80, 86, 89, 90, 100, 120])
def test_tiles_that_were_measured_on_sm_90_are_its_own(arch: int) -> None:
    small, large = problem(64, 64, 64, "float32", batch=1024), problem(4096, 4096, 4096, "float64")
    depths = {one.tile_k for one in configs(small, Gpu(arch, 132)) if one.tile_m == one.tile_n == 64}
    assert depths == ({16, 32} if arch == 90 else {32})
    sides = {max(one.tile_m, one.tile_n) for one in configs(large, Gpu(arch, 132))}
    assert max(sides) == (128 if arch == 90 else 64)


@pytest.mark.parametrize("side", [16, 32, 64, 128])
@pytest.mark.parametrize("k", [4096, 16384])
def test_skinny_products_have_blocks_for_all_multiprocessors(side: int, k: int) -> None:
    for m, n in ((side, 4096), (4096, side)):
        config = chosen(m, n, k)
        blocks = -(-m // config.tile_m) * -(-n // config.tile_n) * config.split_k
        # 64 blocks of 16x64x256 took 11.0 us for 16x4096x4096 on an H200, and 128 blocks of two slices 10.9
        least = 0.4 if (side, k) == (16, 4096) else 0.9
        assert 132 * least <= blocks <= 4 * 132
        assert (config.tile_m if m == side else config.tile_n) <= side


@pytest.mark.parametrize(
    ("sizes", "layout", "tile"),
    [
        ((570, 296, 184, 216), "nt", (128, 256, 64, 256, 1)),  # 105 us; 154 with 64x64 tiles
        ((1, 688, 232, 784), "tn", (64, 32, 128, 128, 1)),  # 8.8 us; 10.0 with 32x64 tiles, which have no wgmma
        ((1, 1024, 1024, 1024), "nn", (64, 128, 128, 128, 1)),  # H200: 8.4 us; 9.0 with steps of 64, 9.4 with 64x64
        ((1, 48, 424, 2744), "nt", (32, 32, 128, 128, 4)),  # 10.9 us; 15.2 without slices
        ((1, 1056, 176, 1240), "nt", (64, 32, 256, 128, 1)),  # H200, nn: 8.8 us; 9.1 with half of the step
    ],
)
def test_choices_of_float16_that_were_fast_on_an_h100_or_an_h200(
    sizes: tuple[int, int, int, int], layout: str, tile: tuple[int, ...]
) -> None:
    config = choose_matmul(laid_out(sizes, layout), H200).config
    assert (config.tile_m, config.tile_n, config.tile_k, config.threads, config.split_k) == tile


# us on one H200 (not on record): of a loop, and of the kernel with tensor copies
@pytest.mark.parametrize(
    ("sizes", "layout", "dtype"),
    [
        ((1783, 94, 134, 26), "tt", "float16"),  # 56; 99
        ((603, 72, 163, 108), "tn", "float16"),  # 46; 70
        ((535, 312, 98, 432), "tt", "bfloat16"),  # 84; 104
        ((284, 40, 313, 288), "tn", "bfloat16"),  # 60; 71
    ],
)
def test_loops_of_small_products_whose_elements_the_kernel_would_store_one_by_one(
    sizes: tuple[int, int, int, int], layout: str, dtype: Any
) -> None:
    plan = choose_matmul(laid_out(sizes, layout, dtype), H200)
    assert plan.rejection == Rejected("loop_faster", ("1.2",))


# us on one H200 (not on record): of this loop, and of that with 128 threads, which has no stages, or along K has them
@pytest.mark.parametrize(
    ("sizes", "layout", "tile"),
    [
        ((1916, 24, 158, 320), "tn", (32, 32, 32)),  # 239; 528
        ((960, 19, 279, 216), "nn", (32, 32, 32)),  # 176; 325
        ((1499, 24, 388, 81), "nn", (32, 64, 64)),  # 130; 254
        ((900, 22, 310, 150), "nn", (32, 64, 64)),  # 116; 219
        ((1851, 200, 24, 176), "nt", (32, 32, 32)),  # 175; 233
    ],
)
def test_threads_of_many_thin_tiles_of_float32_have_accumulators_for_stages(
    sizes: tuple[int, int, int, int], layout: str, tile: tuple[int, int, int]
) -> None:
    plan = choose_matmul(laid_out(sizes, layout, "float32"), H200)
    assert (plan.config.tile_m, plan.config.tile_n, plan.config.threads) == tile
    assert isinstance(plan.loop, LoopPlan)
    assert plan.loop.accumulators == 32


def test_few_thin_tiles_of_float32_keep_their_threads() -> None:
    assert {one.threads for one in configs(problem(32, 4096, 4096, "float32"))} == {128}


def test_batches_of_float64_with_rows_of_odd_length_may_have_tiles_of_80_lines_along_k() -> None:
    odd = laid_out((400, 218, 392, 409), "nt", "float64")  # 1,162 us on an H200; 1,407 with 64x64
    config = choose_matmul(odd, H200).config
    assert (*config.tile, config.threads) == (64, 80, 16, 128)
    for other in (replace(odd, batch=1), replace(odd, k=410, a_alignment=16, b_alignment=16)):
        assert not any(80 in one.tile for one in configs(other))
    for layout in ("nn", "tn", "tt"):  # threads would share the vectors of a row of 80 elements unevenly
        assert not any(80 in one.tile for one in configs(laid_out((400, 217, 391, 409), layout, "float64")))


@pytest.mark.parametrize(("layout", "blocks"), [("nn", 1), ("tt", 1), ("nt", 2)])
def test_an_operand_in_registers_leaves_room_for_one_block_of_256_threads(layout: str, blocks: int) -> None:
    # on an H200, 2048x2048x2048 took 66 us with 128 threads and 86 with 256 (nn), 51 and 53 along K (nt)
    question = problem(2048, 2048, 2048, "tf32", a_transposed=layout[0] == "t", b_transposed=layout[1] == "t")
    loops = [loop_candidate(question, MatmulConfig(128, 128, 32, threads), H200) for threads in (128, 256)]
    assert [loop.resident_blocks for loop in loops] == [2, blocks]
    assert (loops[0].time_us < loops[1].time_us) == (blocks == 1)


def test_float16_has_other_rates_for_blocks_without_wgmma() -> None:
    names = [rates_name(problem(64, 64, 64, "bfloat16"), arch) for arch in ARCHS]
    assert names == ["float16" if arch == 90 else "float16 without wgmma" for arch in ARCHS]


SQUARE, DEEP, LARGE = (MatmulConfig(*tile) for tile in ((64, 64, 64, 128), (64, 64, 128, 128), (128, 256, 64, 256)))


@pytest.mark.parametrize(
    ("question", "config", "arch", "pipeline"),
    [
        (problem(512, 1024, 4096), SQUARE, 90, "blocks=1"),
        (problem(1024, 1024, 4096), SQUARE, 90, "blocks=2"),
        (problem(1024, 1024, 4096), SQUARE, 80, "blocks=2"),
        (problem(2048, 1024, 4096), SQUARE, 90, ""),
        (problem(2048, 2048, 4096), LARGE, 90, ""),  # no two blocks are resident in any case
        (problem(4096, 2048, 4096), LARGE, 90, ""),
        (problem(64, 64, 64, batch=1024), SQUARE, 90, "stages=2"),
        (problem(64, 64, 128, batch=1024), SQUARE, 90, "stages=3"),
        (problem(64, 64, 512, batch=1024), SQUARE, 90, "stages=3"),
        (problem(64, 64, 513, batch=1024), SQUARE, 90, ""),
        (problem(64, 64, 128, batch=1024), DEEP, 90, "stages=2"),
        (problem(64, 64, 64, batch=1024), replace(SQUARE, tile_k=32), 90, ""),  # keeps products in flight
        (problem(64, 64, 64, batch=1024), replace(SQUARE, tile_m=32), 90, ""),  # without wgmma
        (problem(64, 64, 64, batch=1024), SQUARE, 80, ""),
        (problem(64, 64, 64, "float32", batch=1024), SQUARE, 90, ""),
        (problem(64, 64, 64, "float32", batch=1024), replace(SQUARE, tile_k=16), 90, "stages=3"),
        (problem(64, 64, 16, "float32", batch=1024), replace(SQUARE, tile_k=16), 90, "stages=2"),
        (problem(64, 64, 129, "float32", batch=1024), replace(SQUARE, tile_k=16), 90, ""),
        (problem(64, 64, 64, "float32", batch=1024), replace(SQUARE, tile_k=16), 80, ""),
        (problem(4096, 4096, 128), LARGE, 90, ""),
        (problem(64, 64, 0, batch=1024), SQUARE, 90, ""),
        (problem(512, 1024, 4096, "float64"), replace(SQUARE, tile_k=16), 90, "blocks=1"),
        (problem(512, 1024, 4096, "tf32"), MatmulConfig(128, 128, 32, 256), 90, "blocks=1"),  # registers for one block
        (problem(512, 1024, 4096, "tf32"), replace(SQUARE, tile_k=32), 90, "blocks=1"),
        (problem(512, 1024, 4096, "float32"), replace(SQUARE, tile_k=32), 90, ""),  # may keep double buffers
    ],
)
def test_what_a_launch_fixes_of_its_pipeline(
    question: MatmulProblem, config: MatmulConfig, arch: int, pipeline: str
) -> None:
    plan = choose_matmul(question, Gpu(arch, 132), forced=config)
    assert plan.main_loop == PipelineOverrides.parse(pipeline or "auto")


@pytest.mark.parametrize(
    ("dtype", "batch", "arch", "depths"),
    [
        ("float16", 1, 90, {64, 128, 256}),
        ("float16", 1024, 90, {64, 128}),
        ("float16", 1, 86, {64}),
        ("float64", 1, 90, {16, 32}),
        ("float64", 1024, 90, {16}),
        ("float32", 1, 90, {16, 32}),
    ],
)
def test_small_tiles_may_have_deep_steps(dtype: str, batch: int, arch: int, depths: set[int]) -> None:
    found = configs(problem(64, 64, 1024, dtype, batch=batch), Gpu(arch, 132))
    assert {config.tile_k for config in found if config.tile_m * config.tile_n >= 1024} == depths


@pytest.mark.parametrize(
    ("question", "arch", "expected"),
    [
        (problem(4096, 32, 1024), 90, {(64, 32, 256), (128, 32, 128)}),
        (problem(4096, 32, 1024, "bfloat16"), 90, {(64, 32, 256), (128, 32, 128)}),
        (problem(16, 4096, 4096), 90, {(16, 64, 256), (16, 128, 128)}),
        (problem(256, 4096, 4096), 90, {(64, 128, 128), (32, 128, 128), (128, 64, 128), (128, 32, 128)}),
        (problem(4096, 32, 128), 90, {(128, 32, 128)}),  # another tile has one step of 128
        (problem(8192, 4096, 1024), 90, set()),  # many blocks
        (problem(256, 4096, 4096), 80, set()),  # no wgmma
        (problem(4096, 32, 1024, "tf32"), 90, set()),
        (problem(4096, 32, 1024, "float64"), 90, set()),
    ],
)
def test_few_blocks_of_wgmma_may_have_deeper_steps(
    question: MatmulProblem, arch: int, expected: set[tuple[int, int, int]]
) -> None:
    tiles = {(one.tile_m, one.tile_n, one.tile_k) for one in configs(question, Gpu(arch, 132))}
    usual = {"float16": 64, "tf32": 32, "float64": 16}[question.kind]
    assert {(m, n, k) for m, n, k in tiles if k > (usual if max(m, n) > 64 else 2 * usual)} == expected


def test_tiles_are_not_larger_than_small_matrices() -> None:
    config = chosen(10, 20, 8, batch=1024)
    assert (config.tile_m, config.tile_n, config.tile_k) == (16, 32, 16)


def test_mixed_types_take_the_wider_ones_arithmetic() -> None:
    mixed = replace(problem(64, 64, 64), a="float32")
    assert (mixed.kind, problem(64, 64, 64, "bfloat16").kind, problem(1, 1, 1, "tf32").kind) == (
        *("float32", "float16", "tf32"),
    )
    assert mixed.accumulator == "float32"


# ---- records


def test_a_record_of_the_tier_decides() -> None:
    question = problem(1000, 1000, 1000)
    measured = MatmulConfig(64, 64, 64, 128, split_k=3, group=2)
    records = {problem(1024, 1024, 1024).bucket: MeasuredConfigs(measured)}
    plan = choose_matmul(question, H200, records)
    assert (plan.config, plan.decided_by) == (measured, "record")
    assert choose_matmul(problem(1000, 1000, 1000, "bfloat16"), H200, records).config == measured
    for other in (
        problem(4096, 1000, 1000),
        problem(1000, 1000, 1000, "tf32"),
        problem(1000, 1000, 1000, a_transposed=True),
        problem(1000, 1000, 1000, batch=4),
        replace(question, out="float32"),
        replace(question, summed=True),
    ):
        assert choose_matmul(other, H200, records) == choose_matmul(other, H200)


def test_a_record_has_at_most_the_slices_that_k_has() -> None:
    question = problem(64, 64, 1024)
    records = {question.bucket: MeasuredConfigs(MatmulConfig(64, 64, 64, 128, split_k=64))}
    assert choose_matmul(question, H200, records).config.split_k == 4


def test_a_record_that_does_not_fit_is_ignored() -> None:
    question = problem(4096, 4096, 4096)
    records = {question.bucket: MeasuredConfigs(MatmulConfig(128, 256, 64, 256))}
    assert choose_matmul(question, H200, records).config.tile_n == 256
    plan = choose_matmul(question, Gpu(86, 84), records)
    assert plan == choose_matmul(question, Gpu(86, 84))
    assert plan.decided_by == "heuristic"


def test_a_record_does_not_decide_where_its_tiles_waste_more_than_where_it_was_measured() -> None:
    measured = MatmulConfig(128, 128, 64, 256, split_k=2)  # of 4096x256x16384: 128 blocks on 132 multiprocessors
    alike, other = (problem(*sizes, b_transposed=True) for sizes in ((4096, 256, 16000), (3072, 192, 12288)))
    assert alike.bucket == other.bucket
    records = {alike.bucket: MeasuredConfigs(measured)}
    assert choose_matmul(alike, H200, records).chosen.config.tile == measured.tile
    assert choose_matmul(other, H200, records) == choose_matmul(other, H200)  # H200: 35 us, and 52 as the record has it


def test_a_loops_record_is_compared_with_loops_alone_where_the_kernel_is_refused() -> None:
    question = problem(4368, 200, 22232, "tf32", b_transposed=True, has_beta=True, c_alignment=4)
    assert choose_matmul(question, H200).rejection == Rejected("kernel_alignment")
    assert choose_matmul(question.of_bucket, H200).rejection is None
    records = {question.bucket: MeasuredConfigs(MatmulConfig(128, 256, 32, 256, split_k=4))}
    # by estimate, this loop takes 462 us, and one with 7 slices 288; at the measured size, none is faster
    assert choose_matmul(question, H200, records) == choose_matmul(question, H200)
    aligned = replace(question.of_bucket, c_alignment=4)
    assert choose_matmul(aligned, H200, records).decided_by == "record"


# ---- copies of operands


HALF = MatmulProblem(4096, 64, 4096, a="float16", b="float16", a_alignment=2)


def is_copied(problem: MatmulProblem, steps_us: float, vectors: float, operand: Operand = "a") -> bool:
    return copies_us(problem, [operand]) < unaligned_us(problem, operand, steps_us, vectors)


@pytest.mark.parametrize("alignment", [2, 4, 8, STRIDED])
def test_long_products_copy_and_short_ones_do_not(alignment: int) -> None:
    problem = replace(HALF, a_alignment=alignment)
    assert is_copied(problem, 500.0, 2500.0)
    assert not is_copied(problem, 5.0, 25.0)


def test_each_operand_has_lines_of_its_own() -> None:
    wide = MatmulProblem(64, 4096, 4096, a="float16", b="float16", a_alignment=8, b_alignment=8)
    assert is_copied(wide, 0.0, 100.0)
    assert not is_copied(wide, 0.0, 100.0, "b")


def test_tensor_cores_wait_for_each_piece_that_a_thread_loads() -> None:
    for alignment, pieces, piece_us in ((2, 8, 0.055), (STRIDED, 8, 0.055), (4, 4, 0.04), (8, 2, 0.04)):
        problem = replace(HALF, a_alignment=alignment)
        assert unaligned_us(problem, "a", 500.0, 100.0) == pytest.approx(100 * pieces * piece_us)
        if alignment > 2:
            tf32 = replace(problem, tf32=True, a="float32")
            assert unaligned_us(tf32, "a", 500.0, 100.0) == pytest.approx(100 * pieces * 0.04)


def test_float32_along_k_is_copied_only_with_gaps() -> None:
    problem = MatmulProblem(4096, 64, 4096, a_alignment=4, b_alignment=4)
    assert not is_copied(problem, 1e9, 1e9)
    assert is_copied(replace(problem, a_alignment=STRIDED), 3000.0, 0.0)
    assert is_copied(replace(problem, a_transposed=True), 3000.0, 0.0)
    assert is_copied(replace(problem, tf32=True), 0.0, 500.0)
    b = replace(problem, m=64, n=4096)
    assert is_copied(b, 3000.0, 0.0, "b")
    assert not is_copied(replace(b, b_transposed=True), 1e9, 1e9, "b")


@pytest.mark.parametrize("a_alignment", [2, 16])
@pytest.mark.parametrize("b_alignment", [2, 16])
def test_the_choice_has_a_copy_of_each_unaligned_operand(a_alignment: int, b_alignment: int) -> None:
    problem = MatmulProblem(
        4096, 4096, 4096, a="float16", b="float16", a_alignment=a_alignment, b_alignment=b_alignment
    )
    config = choose_matmul(problem, H200).config
    copies = {"copies_a": a_alignment < 16, "copies_b": b_alignment < 16}
    aligned = replace(problem, a_alignment=16, b_alignment=16)
    assert config == replace(choose_matmul(aligned, H200).config, **copies)


def test_the_size_of_a_copy() -> None:
    lines = replace(HALF, m=1 << 20, k=9)  # 18 bytes of a line become 32
    us = 5.0 + 2 * 32 * (1 << 20) / 3.7e6
    assert copies_us(lines, ["a"]) == pytest.approx(us)
    large = replace(lines, batch=8)  # 256 MiB are kept, and more is allocated in each call
    assert copies_us(replace(lines, batch=9), ["a"]) > 9 / 8 * copies_us(large, ["a"]) + 300
    assert is_copied(replace(HALF, m=2**27 - 1, k=8), 1e6, 1e6)
    assert not is_copied(replace(HALF, m=2**27, k=8), 1e6, 1e6), "strides have 32 bits"


def test_an_operand_that_a_batch_shares_is_copied_once() -> None:
    problem = MatmulProblem(256, 256, 255, 1024, "float16", "float16", "float16", a_alignment=2, b_alignment=16)
    assert not is_copied(problem, 30.0, 160.0)
    assert is_copied(replace(problem, a_shared=True), 30.0, 160.0)
    assert choose_matmul(replace(problem, a_shared=True), H200).config.copies_a


@pytest.mark.parametrize(
    ("sizes", "layout", "copies"),
    [
        ((1, 4800, 1184, 95), "nt", (True, True)),  # on an H100, 42 us without copies and about 20 with them
        ((1, 832, 113, 5595), "nt", (True, True)),  # 65 us without a copy of A, and about 30 with it
        ((441, 160, 503, 120), "nn", (False, True)),  # 245 us without copies, and about 130 with one
    ],
)
def test_products_that_are_slow_without_copies(
    sizes: tuple[int, int, int, int], layout: str, copies: tuple[bool, bool]
) -> None:
    config = choose_matmul(laid_out(sizes, layout), H200).config
    assert (config.copies_a, config.copies_b) == copies


@pytest.mark.parametrize(("sizes", "out", "alignment"), [
    ((17, 17, 17), "float32", 2),
    ((4096, 4096, 60), "float16", 4),  # a large product gains nothing from wider copies
])  # fmt: skip
def test_a_product_of_one_step_copies_nothing(sizes: tuple[int, int, int], out: Any, alignment: int) -> None:
    problem = MatmulProblem(*sizes, 1, "float16", "float16", out, a_alignment=alignment, b_alignment=alignment)
    config = choose_matmul(problem, H200).config
    assert (config.copies_a, config.copies_b) == (False, False)


def test_records_without_copies_are_read() -> None:
    config = MatmulConfig(128, 256, 64, 256, 2, 4, copies_b=True)
    values = config.to_json()
    assert MatmulConfig(**values) == config
    del values["copies_a"], values["copies_b"]
    assert MatmulConfig(**values) == replace(config, copies_b=False)
