"""The parts of the benchmarks that need no GPU: cells and summaries."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import warp as wp

from benchmarks import attention, client_speed, counters, gemm, runner
from benchmarks.result_values import at
from benchmarks.speed.builds import RECORD, Build, BuildStore, import_kernels
from benchmarks.speed.cells import BYTES, ENTRIES, PARTS, Entry, Part
from warp_tiles.codegen.loops import _SPEED_WITHOUT_STAGES
from warp_tiles.gemm import main_loop
from warp_tiles.gemm.problem import GemmProblem, dense_operand, faster_scalar_path

SHARED_MEMORY_BYTES = 227 * 1024  # the limit of a block on sm_90


@pytest.mark.parametrize("part", PARTS.values(), ids=lambda part: part.name)
def test_cells_have_unique_names_and_fit_shared_memory(part: Part) -> None:
    assert len({entry.name for entry in part.entries}) == len(part.entries)
    for entry in part.entries:
        cell = entry.ours
        sizes = (cell.m * cell.k, cell.a), (cell.k * cell.n, cell.b), (cell.m * cell.n, cell.c)
        used = sum(elements * BYTES[dtype] for elements, dtype in sizes) * (2 if cell.backward else 1)
        assert used <= SHARED_MEMORY_BYTES, entry.name


def test_a_kernel_that_the_earlier_state_could_not_build_is_a_row_with_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = Build(ENTRIES[0].ours, "tiles", before="0" * 12)
    entry, store = replace(ENTRIES[0], peers=(("before", earlier),)), BuildStore(tmp_path)
    folder = store.folder(earlier)
    folder.mkdir(parents=True)
    (folder / f"tiles_{earlier.label}.py").write_text(earlier.text)
    (folder / RECORD).write_text('{"error": "no block fits"}')
    monkeypatch.setattr(gemm.timing, "time_alternately", lambda launches, repeats: {})
    row = gemm.measure(entry, SimpleNamespace(before=earlier.before, store=store, torch=None, repeats=1))  # type: ignore[arg-type]
    assert (row["tiles"]["error"], row["before"]["error"]) == ("not built", "no block fits")
    assert not {"same_code", "ratio"} & row.keys()


# ---- attention


@pytest.mark.parametrize("form", attention.FORMS)
def test_attention_computes_what_the_benchmark_expects(form: str, tmp_path: Path) -> None:
    cell = attention.Cell(form, 32, 16, 32, 64)
    path = tmp_path / f"attention_{form.replace(' ', '_')}.py"
    path.write_text(cell.text("warp"))
    operands = [np.random.default_rng(seed).standard_normal((2, 64, 32)).astype(np.float16) for seed in range(3)]
    out = wp.zeros((2, 64, 32), dtype=wp.float16, device="cpu")
    inputs = [*(wp.array(values, device="cpu") for values in operands), 0.2, out]
    kernel = import_kernels(path, path.stem).attention
    wp.launch_tiled(kernel, dim=[2, 4], inputs=inputs, block_dim=cell.threads, device="cpu")
    expected = attention.expected(cell, [values.astype(np.float64) for values in operands], 0.2)
    assert runner.difference(out.numpy().astype(np.float64), expected) < attention.LARGEST_DIFFERENCE


# ---- products that opt out of MathDx


def _is_left_to_warp(entry: Entry) -> bool:
    cell, operands = entry.ours, {}
    for name, dtype, shape in (
        ("a", cell.a, (cell.m, cell.k)), ("b", cell.b, (cell.k, cell.n)), ("c", cell.c, (cell.m, cell.n))
    ):  # fmt: skip
        is_view = name == cell.transposed  # whose base is not known to be aligned
        operand = dense_operand(dtype, *shape, transposed=is_view)  # type: ignore[arg-type]
        operands[name] = replace(operand, alignment=BYTES[dtype]) if is_view else operand
    sizes = {"m": cell.m, "n": cell.n, "k": cell.k, "threads": cell.threads, "arch": entry.arch}
    product = GemmProblem(**sizes, **operands, precision="default")  # type: ignore[arg-type]
    return faster_scalar_path(product, held=cell.form != "resident", differentiated=cell.backward) is not None


def _opted_out_title(entry: Entry) -> str:
    where = "with adjoints" if entry.ours.backward else "alone" if entry.ours.form == "resident" else "in loops"
    return f"{'float32' if entry.types == 'fp32' else 'other types'} {where}"


def test_no_measured_product_that_opts_out_is_slower_by_own_templates() -> None:
    entries, built, left = {entry.name: entry for entry in ENTRIES}, defaultdict(list), defaultdict(list)
    for row in at("opted_out/rows"):
        entry = entries[row["name"]]
        (left if _is_left_to_warp(entry) else built)[_opted_out_title(entry)].append(row["ratio"])
    assert min(min(ratios) for ratios in built.values()) >= 1
    for title, ratios in built.items():
        others = left[title]
        assert at(f"opted_out/summary/{title}") == {
            "measured": len(ratios) + len(others),
            "built": len(ratios),
            "geometric_mean": runner.geometric_mean(ratios),
            "least": min(ratios),
            "slower": sum(ratio < 1 for ratio in others),
        }


def test_cold_runs_of_clients_are_compared_without_first_and_failed_ones() -> None:
    def run(side: str, jit_s: float, phase: str = "cold", **more: object) -> dict[str, object]:
        return {"side": side, "phase": phase, "jit_s": jit_s, **more}

    runs = [
        run("warp", 90.0, "first"),
        run("warp", 40.0, cubin_bytes=8),
        run("tiles", 10.0, cubin_bytes=2),
        run("tiles", 90.0, error="exit status 1"),
        run("tiles", 1.0, "warm", steps_per_second=3.0, last={"mean": 2.5}),
    ]
    found = client_speed.compared(runs)
    assert found["jit_to_warp"] == {"warp": 1.0, "tiles": 0.25}
    assert found["cubins_to_warp"]["tiles"] == 0.25
    assert "steps_to_warp" not in found
    warm = run("warp", 1.0, "warm", steps_per_second=2.0, last={"mean": 2.0})
    found = client_speed.compared([*runs, warm])
    assert found["steps_to_warp"]["tiles"] == 1.5
    assert found["last_differs_by"] == {"tiles": {"mean": 0.5}}


def test_the_plan_quotes_the_least_share_without_stages() -> None:
    """``codegen/loops.py`` says what a loop loses with cuBLASDx; each figure is one of the file, rounded down."""
    shares: dict[str, list[float]] = {}
    for row in at("loops/rows"):
        if "share" in row:
            kind = "fma" if row["instruction"] == "fma" else "tensor cores"
            shares.setdefault(kind, []).append(row["share"])
    assert {kind: int(100 * min(found)) / 100 for kind, found in shares.items()} == _SPEED_WITHOUT_STAGES


def test_the_loops_cite_the_measured_ranges() -> None:
    """The comments of ``gemm/main_loop.py`` that name a file of results have its numbers."""
    text = " ".join(Path(main_loop.__file__).read_text("utf-8").replace("#", " ").split())

    def cited(ratios: list[float]) -> bool:
        return f"{min(ratios):.2f} to {max(ratios):.2f} times" in text

    blocked = [row for row in at("solvers/rows") if "tiles_us_by_main_loop" in row]
    times = {row["name"]: row["tiles_us_by_main_loop"] for row in blocked}
    slower = {name: us["auto"] / us["double_buffered"] for name, us in times.items()}
    in_double = [ratio for name, ratio in slower.items() if "fp64" in name]
    assert cited([ratio for ratio in in_double if ratio > 1])
    assert [ratio > 1 for ratio in in_double].count(True) == len(in_double) - 1 == 5
    assert cited([ratio for name, ratio in slower.items() if "cholesky fp32" in name and "block16" in name])
    assert max(ratio for name, ratio in slower.items() if "cholesky fp32" in name and "block32" in name) < 0.505
    rows = {row["name"]: row["us"]["tiles"] for row in at("loops/rows") if "tiles" in row["us"]}
    pairs = [
        (us, rows[name.replace("two_buffers", "auto")])
        for name, us in rows.items()
        if name.startswith("float32") and name.endswith("two_buffers")
    ]
    assert cited([buffers / stages for buffers, stages in pairs])


COLUMNS = ["ID", "Kernel Name", *counters.METRICS.values(), *counters.STALLS.values()]


def line(number: object, kernel: str, value: str) -> str:
    """A line of ncu's table, with one value in every column of a metric."""
    return ",".join(f'"{cell}"' for cell in (number, kernel, *[value] * (len(COLUMNS) - 2)))


def output(*kernels: tuple[str, str], names: tuple[str, ...]) -> str:
    """What ncu and the script print: kernels with their values, behind the names of calls."""
    table = [",".join(f'"{column}"' for column in COLUMNS), line("", "", "unit")]
    table += [line(number, kernel, value) for number, (kernel, value) in enumerate(kernels)]
    return "\n".join(["==PROF== Connected", *(f"counting: {name}" for name in names), *table])


def test_kernels_belong_to_the_call_before_them() -> None:
    text = output(
        ("separator_1", "1"), ("gemm", "2000"), ("separator_1", "1"), ("one", "1,234,000"), ("two", "3000.5"),
        names=("a", "b"),
    )  # fmt: skip
    rows = counters.rows_of(text)
    assert [(row["name"], row["kernel"], row["time_us"]) for row in rows] == [
        ("a", "gemm", 2.0),
        ("b", "one", 1234.0),
        ("b, kernel 2", "two", 3.0),
    ]
    assert rows[0]["stalls"]["barrier"] == 2000.0
