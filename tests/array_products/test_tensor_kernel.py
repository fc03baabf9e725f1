"""The kernel with tensor copies: which products it computes, its tiles, memory and source."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.nightly import some
from warp_tiles import settings
from warp_tiles.array_products.matmul_choice import candidates, choose_matmul, kernel_rejection, loop_candidate
from warp_tiles.array_products.matmul_problem import (
    Candidate,
    Gpu,
    MatmulConfig,
    MatmulPlan,
    MatmulProblem,
    MeasuredConfigs,
)
from warp_tiles.array_products.tensor_kernel import (
    REGISTER_TILES,
    STEPS_OF_SLICE,
    THREADS,
    TILES,
    Slices,
    TensorKernel,
    in_slices,
)
from warp_tiles.array_products.tensor_matmul import built_kernel
from warp_tiles.build.engine import Engine
from warp_tiles.compile.sources import kernels_folder
from warp_tiles.errors import LockedError
from warp_tiles.gemm.hardware import multiprocessor
from warp_tiles.gemm.pipeline import AUTO
from warp_tiles.gemm.rejected import Rejected

HALF = MatmulProblem(4096, 4096, 4096, 1, "float16", "float16", "float16")
TF32 = MatmulProblem(4096, 4096, 4096, tf32=True, b_transposed=True)
LARGE = MatmulConfig(128, 256, 64, 256)
DISABLED = Rejected("not_enabled")
H200 = Gpu(90, 132, "GPU")


ODD = replace(HALF, m=3000, n=3000, k=3000)  # rows are odd multiples of 16 bytes


def kernel_of(plan: MatmulPlan) -> TensorKernel:
    assert plan.chosen.kernel is not None
    return plan.chosen.kernel


def launches_of(problem: MatmulProblem) -> list[Candidate]:
    return [one for one in candidates(problem, H200) if one.config.tensor_copies]


@pytest.mark.parametrize("problem", [HALF, replace(HALF, a="bfloat16", b="bfloat16", out="bfloat16"), TF32], ids=str)
def test_large_products_have_it(problem: MatmulProblem) -> None:
    plan = choose_matmul(problem, H200)
    kernel, shown = kernel_of(plan), plan.to_json()
    assert (shown["shared_bytes"], shown["resident_blocks"]) == (kernel.shared_bytes, 1)
    assert shown["kernel"] == kernel.name
    assert shown["config"]["threads"] == THREADS
    assert "the kernel with tensor copies" in shown["reason"]


@pytest.mark.parametrize(("change", "arch", "rejected"), [
    ({}, 80, Rejected("gpu_without_wgmma")),
    ({}, 100, Rejected("gpu_without_wgmma")),
    ({"a": "float32", "b": "float32"}, 90, Rejected("kernel_dtypes", ("float32",))),
    ({"a": "float64", "b": "float64", "out": "float32"}, 90, Rejected("kernel_dtypes", ("float64",))),
    ({"k": 0}, 90, Rejected("no_products")),
    ({"summed": True}, 90, Rejected("kernel_sums")),
    ({"split_operand": "a"}, 90, Rejected("kernel_sums")),
    ({"c_alignment": 0}, 90, Rejected("kernel_alignment")),
    ({"c_alignment": 8, "has_beta": True}, 90, Rejected("kernel_alignment")),
    ({"a_alignment": 2, "m": 1 << 18}, 90, Rejected("kernel_copies")),
    ({"b_alignment": 0, "n": 1 << 18}, 90, Rejected("kernel_copies")),
    ({"a_alignment": 2, "m": 14_900_000, "k": 65}, 90, Rejected("kernel_copies")),  # by lines of 128 bytes
    ({"m": 16}, 90, Rejected("kernel_side", (33,))),
    ({"a": "float32", "b": "float32", "out": "float32", "k": 127}, 90, Rejected("kernel_depth", ("float32", 128))),
], ids=str)  # fmt: skip
def test_why_a_loop_computes_a_product(change: dict[str, Any], arch: int, rejected: Rejected) -> None:
    plan = choose_matmul(replace(HALF, **change), Gpu(arch, 132, "GPU"), forced=LARGE)
    assert plan.rejection == rejected
    assert f"no kernel with tensor copies: {rejected}" in plan.reason
    shown = plan.to_json()
    assert (shown["kernel"], shown["codes"][0]) == ("", rejected.code)


@pytest.mark.parametrize(("layout", "in_registers", "computes_transpose", "copies"), [
    ("nt", False, False, (False, False)),
    ("nn", True, True, (False, False)),
    ("tt", True, False, (False, False)),
    ("tn", True, True, (True, False)),  # of A, which is smaller
], ids=str)  # fmt: skip
def test_operands_of_tf32_that_are_not_along_k(
    layout: str, in_registers: bool, computes_transpose: bool, copies: tuple[bool, bool]
) -> None:
    problem = replace(TF32, m=3072, a_transposed=layout[0] == "t", b_transposed=layout[1] == "t")
    plan = choose_matmul(problem, H200)
    kernel, config = kernel_of(plan), plan.chosen.config
    assert (kernel.in_registers, kernel.computes_transpose) == (in_registers, computes_transpose)
    assert (config.copies_a, config.copies_b) == copies
    assert kernel.lines == ((kernel.tile_n, kernel.tile_m) if computes_transpose else (kernel.tile_m, kernel.tile_n))
    assert kernel.boxes[2] == (32, 32 if computes_transpose else 64)
    tiles = REGISTER_TILES if in_registers else TILES
    assert {one.kernel.lines for one in launches_of(problem) if one.kernel} == set(tiles)
    swapped = replace(problem, m=problem.n, n=problem.m)
    assert choose_matmul(swapped, H200).chosen.config.copies_b == (layout == "tn")


def test_a_copy_along_k_pays_for_large_products() -> None:
    problem = replace(TF32, a_transposed=True, b_transposed=False)
    assert choose_matmul(problem, H200).chosen.kernel
    small = choose_matmul(replace(problem, m=512, n=512, k=512), H200)
    assert small.rejection == Rejected("loop_faster", ("1.4",))
    batch = replace(problem, m=1024, n=1024, k=1024, batch=16)
    shared, own = (launches_of(replace(batch, a_shared=is_shared))[0].time_us for is_shared in (True, False))
    assert own - shared > 15 * 2 * 4 * 1024**2 / 3.7e6, "and the memory of the others"


def test_settings_and_products_of_few_elements_keep_the_loop() -> None:
    assert kernel_rejection(HALF, 90, DISABLED) == DISABLED
    assert kernel_rejection(HALF, 90, AUTO) == Rejected("loop_asked")
    deep = replace(HALF, m=64, n=64, k=1 << 18)  # a loop has up to 64 slices of K
    plan = choose_matmul(deep, H200)
    assert plan.rejection == Rejected("loop_faster", ("1.2",))
    assert plan.config.split_k > 8


# sizes whose best tile was measured, the first five on an H200 and the others on an H100 (not on record)
@pytest.mark.parametrize(("sizes", "tile", "slices"), [
    ((4096, 4096, 4096), (128, 256), Slices(512)),
    ((8192, 8192, 8192), (128, 192), Slices(2752)),
    ((3072, 3072, 3072), (128, 192), Slices(384)),
    ((2048, 2048, 2048), (128, 256), Slices(128)),
    ((768, 6608, 3368), (256, 160), Slices(63)),  # of clusters of 1x2
    ((256, 4096, 4096), (64, 128), Slices(128)),
    ((2048, 768, 3072), (64, 192), Slices(128)),
    ((128, 4096, 4096), (64, 64), Slices(128)),
    ((512, 512, 8192), (64, 64), Slices(0, 64, 2, 64)),
], ids=str)  # fmt: skip
def test_the_launch_with_the_least_estimated_time(
    sizes: tuple[int, int, int], tile: tuple[int, int], slices: Slices
) -> None:
    m, n, k = sizes
    plan = choose_matmul(replace(HALF, m=m, n=n, k=k), H200)
    assert (kernel_of(plan).tile_m, kernel_of(plan).tile_n) == tile
    assert plan.chosen.slices == slices
    assert plan.to_json()["config"]["split_k"] == slices.count


KERNEL = MatmulConfig(64, 128, 64, THREADS, 4, tensor_copies=True)
SKINNY = replace(HALF, m=128, k=16384)


def test_a_record_decides_between_the_loop_and_the_kernel() -> None:
    found = choose_matmul(SKINNY, H200, {SKINNY.bucket: MeasuredConfigs(KERNEL)})
    kernel = kernel_of(found)
    assert (kernel.tile_m, kernel.tile_n, found.decided_by) == (64, 128, "record")
    assert found.chosen.slices == Slices(0, 64, 2, 128), "64 tiles on 132 multiprocessors have at most two slices"
    assert "estimated" not in found.reason
    assert not found.config.tensor_copies, "a device that refuses tensor maps needs a loop"
    loop = MatmulConfig(128, 64, 64, 128, 2)
    found = choose_matmul(SKINNY, H200, {SKINNY.bucket: MeasuredConfigs(loop)})
    assert (found.config, found.chosen.config, found.decided_by) == (loop, loop, "record")
    assert found.rejection == Rejected("loop_configured")


@pytest.mark.parametrize(("change", "pipeline"), [
    ({"a_alignment": 2, "a_transposed": True, "m": 1 << 18}, None),
    ({}, DISABLED),
    ({}, AUTO),
], ids=str)  # fmt: skip
def test_a_record_of_the_kernel_does_not_serve_other_products(change: dict[str, Any], pipeline: Any) -> None:
    problem = replace(SKINNY, **change)
    records = {problem.bucket: MeasuredConfigs(KERNEL)}
    found = choose_matmul(problem, H200, records, pipeline=pipeline)
    assert found == choose_matmul(problem, H200, pipeline=pipeline)
    assert not found.config.tensor_copies
    loop = MatmulConfig(128, 64, 64, 128, 2)
    records = {problem.bucket: MeasuredConfigs(KERNEL, loop)}
    found = choose_matmul(problem, H200, records, pipeline=pipeline)
    assert replace(found.config, copies_a=False) == loop
    assert found.decided_by == ("setting" if pipeline is AUTO else "record")


@pytest.mark.parametrize("change", [{"a_alignment": 2}, {"b_alignment": 8}, {"c_alignment": 4}], ids=str)
def test_a_record_of_aligned_rows_does_not_decide_about_others(change: dict[str, Any]) -> None:
    problem = replace(SKINNY, **change)
    assert choose_matmul(problem, H200, {problem.bucket: MeasuredConfigs(KERNEL)}).decided_by == "heuristic"


@pytest.mark.parametrize(("k", "has_kernel"), [(1024, True), (1 << 18, False)])
def test_after_a_record_of_loops_estimates_choose_between_loop_and_kernel(k: int, has_kernel: bool) -> None:
    problem, loop = replace(SKINNY, m=64, n=64, k=k), MatmulConfig(64, 64, 64, 128, split_k=64 if k > 4096 else 1)
    found = choose_matmul(problem, H200, {problem.bucket: MeasuredConfigs(loop=loop)})
    assert (found.chosen.kernel is not None) == has_kernel
    assert (found.config, found.decided_by) == (loop, "heuristic" if has_kernel else "record")


def test_the_kernel_is_preferred_unless_a_loop_is_estimated_much_faster() -> None:
    problem = replace(HALF, m=128, n=512, k=16384)
    plan = choose_matmul(problem, H200)
    loop = loop_candidate(problem, plan.config, H200)
    assert loop.time_us < plan.chosen.time_us < 1.5 * loop.time_us
    assert "estimates prefer the kernel with tensor copies" in plan.reason


def test_large_arrays_take_the_time_that_memory_needs() -> None:
    kernel = TensorKernel("float16", "float16", 64, 64)
    short, long = (kernel.launch_us(Slices(64), 1024, (2048, 2048), size, 132) for size in (1 << 20, 1 << 30))
    assert short < 20
    assert long > 200


def test_elements_are_stored_at_the_rate_of_their_warpgroups_or_of_memory() -> None:
    def longer_us(dtype: Any, tile_n: int) -> float:
        """The time that the elements of a tile take longer than tensor copies of them."""
        kernels = (TensorKernel(dtype, dtype, 128, tile_n, has_map=has_map) for has_map in (True, False))
        copied_us, stored_us = (kernel.launch_us(Slices(132 * 100), 64, (128, 128), 0, 132) for kernel in kernels)
        return (stored_us - copied_us) / 100

    of_a_warpgroup = 128 * 128 / 4.0e3
    assert longer_us("float16", 128) == pytest.approx(of_a_warpgroup - 2 * 128 * 128 / 5.0e4)
    assert longer_us("float16", 256) == pytest.approx(of_a_warpgroup - 2 * 128 * 256 / 5.0e4), "each stores half"
    assert longer_us("float32", 256) == pytest.approx(4 * 128 * 256 / 1.7e4 - 4 * 128 * 256 / 5.0e4)


def test_a_record_of_a_tile_that_leaves_a_function_no_registers() -> None:
    problem = replace(HALF, has_function=True)
    large = replace(KERNEL, tile_m=192, split_k=1)
    found = kernel_of(choose_matmul(problem, H200, {problem.bucket: MeasuredConfigs(large)}))
    assert (found.tile_m, found.tile_n) == (128, 128)


@pytest.mark.parametrize("problem", [HALF, TF32, SKINNY, replace(HALF, m=512, n=512, k=8192), ODD], ids=str)
def test_a_search_can_force_each_launch(problem: MatmulProblem) -> None:
    plan = choose_matmul(problem, H200)
    assert MatmulConfig(**plan.to_json()["config"]) == plan.chosen.config
    for launch in launches_of(problem):
        forced = choose_matmul(problem, H200, forced=launch.config)
        assert (forced.chosen, forced.decided_by) == (launch, "search")
        rows = launch.config.tile_m * launch.config.cluster_m
        assert launch.config.group * rows > min(512, problem.m - 1)
        with pytest.raises(ValueError, match="it is built for sm_90 alone"):
            choose_matmul(problem, Gpu(80, 132), forced=launch.config)
    loop = choose_matmul(problem, H200, forced=LARGE)
    assert (loop.chosen.config, loop.rejection) == (LARGE, Rejected("loop_configured"))


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_rows_that_begin_within_lines_of_the_caches_take_longer(tile: tuple[int, int]) -> None:
    kernel = TensorKernel("float16", "float16", *tile, b_along_n=True)

    def time_us(n: int, k: int) -> float:
        return kernel.launch_us(Slices(132), k, (2 * k, 2 * n), 0, 132)

    lines, sectors, vectors = time_us(1024, 1024), time_us(1040, 976), time_us(1032, 968)  # of 16 steps each
    assert lines < time_us(1056, 992) == sectors < vectors
    assert lines <= time_us(1032, 1024) <= vectors
    assert time_us(1024, 961) == time_us(1024, 968), "the array's rows may be longer"


@pytest.mark.parametrize(("problem", "has_clusters"), [
    (ODD, True),
    (replace(TF32, k=3012), True),
    (replace(HALF, k=3000), True),
    (replace(HALF, n=3000), True),
    (replace(HALF, n=3000, b_transposed=True), False),
    (replace(HALF, m=3000), False),
    (replace(HALF, m=3000, a_transposed=True), True),
    (replace(HALF, k=3008), False),
    (replace(TF32, m=3001, n=3001), False),
], ids=str)  # fmt: skip
def test_blocks_share_loads_of_rows_that_lie_in_two_lines_each(problem: MatmulProblem, has_clusters: bool) -> None:
    found = {(one.config.cluster_m, one.config.cluster_n) for one in launches_of(problem)}
    assert (len(found) > 1) == has_clusters
    if problem == ODD:
        assert kernel_of(choose_matmul(problem, H200)).cluster > 1


# us on one H200 (not on record): one block, and the pair
@pytest.mark.parametrize(("sizes", "pairs"), [
    ((4096, 256, 8192), {(64, 128, 1, 2), (128, 128, 1, 2)}),  # 37 and 32; 41 and 38 with slices
    ((4096, 128, 8192), {(64, 64, 1, 2), (128, 64, 1, 2)}),  # 31 and 27; 34 and 30 with slices
    ((128, 4096, 16384), {(64, 64, 2, 1), (64, 128, 2, 1)}),  # 64x128 with slices: 48 and 43
    ((4096, 64, 8192), set()),  # one tile reads A
    ((4096, 512, 8192), {(128, 256, 1, 2)}),
    ((4096, 256, 4096), set()),  # A fits the L2 cache
    ((4096, 128, 1024), set()),
], ids=str)  # fmt: skip
def test_both_tiles_that_read_a_large_operand_may_form_a_cluster(
    sizes: tuple[int, int, int], pairs: set[tuple[int, int, int, int]]
) -> None:
    m, n, k = sizes
    configs = [one.config for one in launches_of(replace(HALF, m=m, n=n, k=k))]
    found = {(one.tile_m, one.tile_n, one.cluster_m, one.cluster_n) for one in configs}
    clusters = {one for one in found if one[2:] != (1, 1)}
    assert pairs <= clusters
    assert bool(pairs) == bool(clusters)
    assert all((n <= 2 * one[1]) if one[3] == 2 else (m <= 2 * one[0]) for one in clusters)


@pytest.mark.parametrize(("sizes", "is_shared"), [
    ((4096, 256, 8192), "always"), ((128, 4096, 16384), "by estimate"), ((4096, 256, 4096), "never"),
], ids=str)  # fmt: skip
def test_pairs_share_a_large_a_always_and_a_large_b_by_estimate(sizes: tuple[int, int, int], is_shared: str) -> None:
    m, n, k = sizes
    configs = [one.config for one in launches_of(replace(HALF, m=m, n=n, k=k))]
    found = {(one.tile_m, one.tile_n): set[tuple[int, int]]() for one in configs}
    for one in configs:
        found[one.tile_m, one.tile_n].add((one.cluster_m, one.cluster_n))
    pairs = {"always": {(1, 2)}, "by estimate": {(1, 1), (2, 1)}, "never": {(1, 1)}}[is_shared]
    for (tile_m, tile_n), clusters in found.items():
        are_two = -(-n // tile_n) == 2 if is_shared == "always" else -(-m // tile_m) == 2
        assert clusters == (pairs if are_two else {(1, 1)})


def test_a_record_of_other_rows_does_not_decide_about_clusters() -> None:
    measured = MeasuredConfigs(MatmulConfig(128, 128, 64, THREADS, tensor_copies=True))
    found = choose_matmul(ODD, H200, {ODD.bucket: measured})
    assert found == choose_matmul(ODD, H200)
    assert choose_matmul(HALF, H200, {HALF.bucket: measured}).decided_by == "record"


@pytest.mark.parametrize("problem", [ODD, replace(ODD, m=64, k=4104), replace(ODD, batch=3)], ids=str)
def test_the_work_of_clusters(problem: MatmulProblem) -> None:
    for one in launches_of(problem):
        kernel, work = one.kernel, one.slices
        assert kernel is not None
        rows, columns = kernel.tile_m * kernel.cluster_m, kernel.tile_n * kernel.cluster_n
        assert work.whole + work.split == problem.batch * -(-problem.m // rows) * -(-problem.n // columns)
        assert one.config.group == max(1, min(-(-problem.m // rows), 1024 // rows))
        if work.split:
            assert work.split * work.count * kernel.cluster <= 132
            assert (
                kernel.workspace_bytes(work)
                == kernel.cluster * work.split * work.count * 4 * kernel.tile_m * kernel.tile_n
            )


@pytest.mark.parametrize(("steps", "tiles", "resident", "expected"), [
    (128, 116, 132, 115),  # 16 multiprocessors compute 116 slices of 13 stages, at most 8 of them each
    (128, 232, 264, 115),
    (128, 132 + 116, 132, 115),  # behind whole tiles
    (128, 66, 132, 64),  # there is room for all even slices
    (128, 131, 132, 64),  # second slices would be too short
    (128, 210, 396, 64),  # some multiprocessors would have a block less than others, and room for one more
    (9, 70, 132, 5),
], ids=str)  # fmt: skip
def test_two_slices_are_uneven_if_few_blocks_are_free(steps: int, tiles: int, resident: int, expected: int) -> None:
    split = tiles % resident
    is_uneven = expected > -(-steps // 2)
    assert in_slices(tiles, 2, steps, resident, 132) == Slices(tiles - split, split, 2, expected, is_uneven)
    assert in_slices(tiles, 3, steps, resident, 132) == Slices(tiles - split, split, 3, -(-steps // 3))


@given(st.integers(4, 2000), st.integers(0, 2000), st.integers(1, 4), st.integers(1, 200))
@example(128, 116, 1, 132)
def test_second_slices_end_with_the_first_ones_if_they_are_uneven(
    steps: int, tiles: int, blocks: int, multiprocessors: int
) -> None:
    resident = blocks * multiprocessors
    work = in_slices(tiles, 2, steps, resident, multiprocessors)
    assert work.is_uneven == (work.stages > -(-steps // 2))
    if work.is_uneven:
        assert steps - work.stages >= STEPS_OF_SLICE
        of_one_block = -(-work.split // (resident - work.split))  # each second slice with a stage more
        assert of_one_block * (steps - work.stages + 1) <= work.stages


def test_products_with_a_function_leave_it_registers() -> None:
    kernel = kernel_of(choose_matmul(replace(HALF, m=8192, n=8192, has_function=True), H200))
    assert kernel.has_function
    assert (kernel.tile_m, kernel.tile_n) == (128, 128)


@pytest.mark.parametrize(("tiles", "steps", "expected"), [
    (264, 64, [Slices(264)]),
    (270, 64, [Slices(270), *(Slices(264, 6, count, -(-64 // count)) for count in range(2, 9))]),
    (40, 64, [Slices(40), Slices(0, 40, 2, 32), Slices(0, 40, 3, 22)]),
    (40, 9, [Slices(40), Slices(0, 40, 2, 5)]),
    (100, 64, [Slices(100)]),
], ids=str)  # fmt: skip
def test_tiles_that_are_left_may_have_slices(tiles: int, steps: int, expected: list[Slices]) -> None:
    problem = replace(HALF, m=128 * tiles, n=128, k=64 * steps)
    launches = [one for one in launches_of(problem) if (one.config.tile_m, one.config.tile_n) == (128, 128)]
    kernel, found = launches[0].kernel, [one.slices for one in launches]
    assert kernel is not None
    assert all(one.kernel == replace(kernel, has_slices=one.slices.split > 0) for one in launches)
    assert found == expected
    assert all(
        one.config.split_k == 1 for one in launches_of(problem) if one.config.tile_n == 192 and one.config.tile_m == 128
    )
    assert all(one.items <= tiles + 132 for one in found)
    assert kernel.workspace_bytes(found[-1]) == found[-1].split * found[-1].count * 128 * 128 * 4


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("a", ["float16", "float32"])
def test_stages_fit_and_are_as_the_device_code_lays_them_out(a: Any, tile: tuple[int, int]) -> None:
    kernel = TensorKernel(a, a, *tile)
    stage_bytes = sum(tile) * 128
    chunk_bytes = 64 * (64 if a == "float16" and tile[1] % 64 else 128)
    assert kernel.shared_bytes == kernel.stages * (stage_bytes + 16) + 2 * 2 * chunk_bytes + 1024 + 3 * 16 + 8
    assert kernel.shared_bytes <= multiprocessor(90).block_shared_bytes < kernel.shared_bytes + stage_bytes
    assert kernel.stages >= (3 if tile == (256, 160) else 4)
    text = (kernels_folder() / "matmul/tensor_tiles.cuh").read_text("utf-8")
    found = {name: int(value) for name, value in re.findall(r"constexpr int (\w+) = (\d+);", text)}
    assert found["MULTIPLYING"] * 2 * 64 * found["ROW_BYTES"] == 2 * 2 * 64 * 128
    assert (found["CHUNKS"], found["ROWS"], found["ALIGNMENT"]) == (2, 64, 1024)
    (rows, columns) = re.findall(r"MOST_OWN_SUMS = (\d+) \* (\d+);", text)[0]
    assert (kernel.warps[0] > 4) == (tile[0] * tile[1] > int(rows) * int(columns))


def test_equal_constants_give_equal_sources_and_others_do_not() -> None:
    kernel = TensorKernel("float16", "float32", 128, 192, True, False, True, "float16")
    assert kernel.name == "matmul_float16_float32_mk_128x192_c_float16"
    assert "Config<wt::f16, float, wt::f16, void, 128, 192, 4, true, false, true, false, false>" in kernel.source()
    changes: list[dict[str, Any]] = [
        {"a": "bfloat16"}, {"out": "float16"}, {"tile_m": 192}, {"tile_n": 128}, {"a_along_m": False},
        {"b_along_n": True}, {"has_beta": False}, {"bias": None}, {"bias": "float32"}, {"has_slices": True},
        {"has_map": False}, {"cluster_m": 2}, {"cluster_n": 2}, {"cluster_m": 2, "cluster_n": 4},
    ]  # fmt: skip
    others = [replace(kernel, **change) for change in changes]
    assert len({one.source() for one in (kernel, *others)}) == len({one.name for one in (kernel, *others)}) == 15
    assert "__cluster_dims__" not in kernel.source()
    assert "true, false, true, false, false, 2, 4>" in others[-1].source()
    assert "__cluster_dims__(8, 1, 1)" in others[-1].source()
    called = replace(kernel, has_function=True)
    assert called.name not in {one.name for one in (kernel, *others)}
    assert "wt::f16, Function, 128" in called.source("gelu", "float gelu(float);")


@pytest.mark.usefixtures("toolchain")
@pytest.mark.parametrize("kernel", some([
    TensorKernel("float16", "float16", 128, 128, False, True),
    TensorKernel("bfloat16", "float32", 128, 192, True, False, True, "bfloat16"),
    TensorKernel("float32", "float32", 192, 128, False, False, False, "float32"),
    TensorKernel("float16", "float16", 64, 128, True, True, has_slices=True, cluster_m=2, cluster_n=2),
], 1, "slow"), ids=lambda kernel: kernel.name)  # fmt: skip
def test_it_is_built_once_and_kept(kernel: TensorKernel, tmp_path: Path) -> None:
    with settings.override(cache_dir=tmp_path):
        now = settings.current()
        engine = Engine()
        try:
            with pytest.raises(LockedError, match=f"kernel {kernel.name} is not in the cache"):
                built_kernel(engine, kernel, replace(now, policy="locked"))
            code = built_kernel(engine, kernel, now)[0].payload
            assert code[:4] == b"\x7fELF"
            assert kernel.name.encode() in code
            assert built_kernel(engine, kernel, replace(now, policy="locked"))[0].payload == code
        finally:
            engine.close()
