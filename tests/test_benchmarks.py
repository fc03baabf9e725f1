"""The parts of the benchmarks that need no GPU: bounds, cells and summaries."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import warp_tiles
from benchmarks import bounds, client_record, gemm, recorded, reverse_loops
from benchmarks.drawing.gemm import draw
from benchmarks.speed.cells import PARTS
from tests.integration.helpers import load
from warp_tiles.gemm.tile_config import TileConfig

SHARED_MEMORY_BYTES = 227 * 1024  # the limit of a block on sm_90
CLOCK_GHZ, MULTIPROCESSORS = 1.755, 132  # of the H200 for which the figures below were computed


@pytest.mark.parametrize(
    ("ab", "tf32", "tflops"), [("float16", False, 237), ("float32", True, 158)], ids=["fp16", "tf32"]
)
def test_bound_of_shared_memory(ab: str, tf32: bool, tflops: float) -> None:
    product = bounds.Product(64, 64, 64, ab, ab, "float32", tf32)
    bound = bounds.ideal(product, 128)
    assert bound.limit == "shared memory"
    assert bound.tflops(product.flops, MULTIPROCESSORS, CLOCK_GHZ) == pytest.approx(tflops, abs=1)
    assert bounds.ideal(product, 128, c_moves=0).clocks < bound.clocks


def test_the_best_warp_tiles_reach_the_bound() -> None:
    product = bounds.Product(64, 64, 64, "float16", "float16", "float32")
    square, tall, wide = (
        bounds.configured(product, TileConfig("mma_m16n8k16", *tile, transposed=flip).to_json())
        for tile, flip in (((32, 32), False), ((16, 64), True), ((64, 16), False))
    )
    assert square == bounds.ideal(product, 128)
    assert tall == wide
    assert tall.clocks > bounds.ideal(product, 128).clocks


def test_each_warp_with_split_k_moves_c_once() -> None:
    product = bounds.Product(16, 16, 64, "float16", "float16", "float32")
    alone, shared = (
        bounds.configured(product, TileConfig("mma_m16n8k16", 16, 16, warps_k=parts).to_json()) for parts in (1, 4)
    )
    assert shared.clocks - alone.clocks == 3 * 2 * 16 * 16 * 4 / 128


def test_adjoints_multiply_the_gradient_of_c() -> None:
    first, second = bounds.Product(16, 32, 64, "float16", "float16", "float32").adjoints()
    assert (first.m, first.n, first.k, first.a, first.c) == (16, 64, 32, "float32", "float16")
    assert (second.m, second.n, second.k, second.b, second.c) == (64, 32, 16, "float32", "float16")
    rates = {"fp16": 8.0, "tf32": 4.0, "fp32": 1.0, "fp64": 1.0}
    assert first.arithmetic(rates) == first.flops / 2  # two tf32 products in place of one


@pytest.mark.parametrize("part", PARTS.values(), ids=lambda part: part.name)
def test_cells_have_unique_names_and_fit_shared_memory(part: gemm.Part) -> None:
    assert len({entry.name for entry in part.entries}) == len(part.entries)
    for entry in part.entries:
        cell = entry.ours
        sizes = (cell.m * cell.k, cell.a), (cell.k * cell.n, cell.b), (cell.m * cell.n, cell.c)
        used = sum(elements * bounds.BYTES[dtype] for elements, dtype in sizes) * (2 if cell.backward else 1)
        assert used <= SHARED_MEMORY_BYTES, entry.name


def test_modules_are_named_after_side_and_cell() -> None:
    builds = {build for part in PARTS.values() for entry in part.entries for build in entry.builds.values()}
    assert len({build.module for build in builds}) == len(builds)
    for build in itertools.islice(builds, 20):
        compile(build.text, build.module, "exec")


def test_the_ratio_compares_with_the_fastest_peer() -> None:
    row = {"tiles": {"median_us": 10.0}, "warp": {"median_us": 40.0}, "scalar": {"median_us": 20.0}}
    gemm.add_ratios(row, ("warp", "scalar"))
    assert (row["fastest_peer"], row["ratio"]) == ("scalar", 2.0)


def test_adjoints_are_compared_without_the_replayed_product() -> None:
    row = {"tiles": {"median_us": 30.0, "forward_us": 10.0}, "warp": {"median_us": 100.0, "forward_us": 20.0}}
    gemm.add_ratios(row, ("warp",))
    assert row["adjoint_ratio"] == 4.0


def test_the_summary_counts_failed_rows_without_a_ratio() -> None:
    rows = [
        {"name": "one", "types": "fp16", "ratio": 2.0, "tiles": {"tflops": 4.0}, "warp": {"tflops": 2.0}},
        {"name": "two", "types": "fp16", "ratio": 8.0, "tiles": {"tflops": 3.0}, "warp": {"tflops": 3.0}},
        {"name": "three", "types": "fp16", "wrong": "c"},
    ]
    line = gemm.summary(rows, loop=True)["fp16"]
    assert (line["rows"], line["ratios"], line["geometric_mean"], line["least"]) == (3, 2, 4.0, 2.0)
    assert line["best_ratio"] == round(4.0 / 3.0, 3)


def test_a_recorded_launch_is_compared_with_its_bounds() -> None:
    times = {"wp.launch": 10.0, "Launch.launch()": 2.0, "recorded": 2.5}
    found = recorded.compared(times)
    assert (found["ratio_to_wp_launch"], found["us_above_launch"], found["within_bounds"]) == (0.25, 0.5, True)
    assert not recorded.compared({**times, "recorded": 2.6})["within_bounds"]
    assert not recorded.compared({**times, "wp.launch": 7.0})["within_bounds"]


def test_all_forms_of_a_training_step_compute_the_same() -> None:
    import warp as wp

    found = []
    for name in ("wp.launch + Tape", "recorded pairs"):
        problem = recorded.Problem(wp.get_device("cpu"))
        step = problem.steps()[name]
        for _ in range(3):
            step()
        found.append(
            [value.numpy().tolist() for value in (problem.weight, problem.bias, problem.y, problem.weight.grad)]
        )
    assert found[0] == found[1]
    assert found[0][0] != recorded.Problem(wp.get_device("cpu")).weight.numpy().tolist()


def test_a_long_part_keeps_short_rows_and_is_drawn(tmp_path: Path) -> None:
    part = PARTS["every_small"]
    assert part.on_request
    assert len(part.entries) == 7**3 * 2 * 3
    assert [entry.name for entry in part.entries] != sorted(entry.name for entry in part.entries)
    record = gemm.Record(tmp_path / "gemm.json", {"sources": "", "provider": "", "gpu": "GPU", "warp": "1.19.0"})
    for number, entry in enumerate(part.entries[:12]):
        side = {"median_us": 2.0, "tflops": 1.0, "clock_ghz": 1.9}
        row = {"name": entry.name, "types": entry.types, "m": 4, "tiles": side, "warp": side, "builds": []}
        record.put(part, gemm.brief(row | {"ratio": 1.0 + number, "fastest_peer": "warp"}))
    (row,) = [row for row in record.rows(part).values() if row["ratio"] == 1.0]
    assert row["tiles"] == {"median_us": 2.0, "tflops": 1.0}
    assert "m" not in row
    figure = draw("every_small", record.data["parts"]["every_small"], record.data["runs"][0])
    assert len(figure.axes[0].lines) == 7, "each dtype and number of threads, and 1"


def test_cold_runs_of_clients_are_compared_without_first_failed_and_simultaneous_ones() -> None:
    def run(side: str, jit_s: float, phase: str = "cold", together: int = 1, **more: object) -> dict[str, object]:
        return {"side": side, "phase": phase, "together": together, "jit_s": jit_s, **more}

    runs = [
        run("warp", 90.0, "first"),
        run("warp", 40.0, cubin_bytes=8),
        run("tiles", 10.0, cubin_bytes=2),
        run("tiles", 90.0, error="exit status 1"),
        run("warp", 50.0, together=2),
        run("tiles", 10.0, together=2),
        run("tiles", 1.0, "warm", steps_per_second=3.0, last={"mean": 2.5}),
    ]
    found = client_record.compared(runs)
    assert found["jit_to_warp"] == {"warp": 1.0, "tiles": 0.25}
    assert found["rough_jit_to_warp"]["tiles"] == 0.2
    assert found["cubins_to_warp"]["tiles"] == 0.25
    assert "steps_to_warp" not in found
    warm = run("warp", 1.0, "warm", steps_per_second=2.0, last={"mean": 2.0})
    found = client_record.compared([*runs, warm])
    assert found["steps_to_warp"]["tiles"] == 1.5
    assert found["last_differs_by"] == {"tiles": {"mean": 0.5}}


def test_the_record_of_clients_loses_no_run(tmp_path: Path) -> None:
    path = tmp_path / "client_speed.json"
    for sources, date in (("a", "monday"), ("a", "tuesday"), ("b", "tuesday")):
        record = client_record.Record(path)
        record.begin("ik", {"sources": sources, "date": date})
        run = {"side": "tiles", "phase": "cold", "together": 1}
        record.put("ik", run)
        run["jit_s"] = 2.0
        record.put("ik", run)
    data = client_record.Record(path).data
    assert len(data["clients"]["ik"]["runs"]) == 1
    assert [(entry["client"], len(entry["runs"])) for entry in data["earlier"]] == [("ik", 2)]


@pytest.mark.parametrize("row", reverse_loops.ROWS, ids=lambda row: str(row.name))
def test_measured_reverse_passes_have_stages(row: reverse_loops.Row) -> None:
    module = load(row.source, block_dim=row.threads).layer.module
    with warp_tiles.enabled():
        for main_loop, text in (("auto", "from stages"), ("double_buffered", "no stages: ")):
            with warp_tiles.override(main_loop=main_loop):
                (loop,) = warp_tiles.plan(module, arch=90, block_dim=row.threads).loops
            assert text in loop.reverse
            assert "no part of a product" in loop.gradients or "more than store" in loop.gradients
