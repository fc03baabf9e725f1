"""The values of benchmark results that :mod:`tests.figures` compares with the pages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TYPES = ("fp16", "bf16", "tf32", "fp32", "fp64")


@cache
def result(name: str) -> Any:
    """The content of ``benchmarks/results/<name>.json``."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text("utf-8"))


def at(name: str, path: str) -> Any:
    """A value of a result, by its names with dots between."""
    value = result(name)
    for part in path.split("."):
        value = value[part]
    return value


def geometric_mean(values: Iterable[float]) -> float:
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))


# ---- gemm.json and solvers.json


def summaries(name: str, part: str, *fields: str, types: Sequence[str] = TYPES) -> list[float]:
    """Fields of the summary of a part, for each type of operands."""
    return [at(name, f"parts.{part}.summary.{kind}")[field] for kind in types for field in fields]


def with_outlier(part: str) -> list[float]:
    """Geometric means of a part for each type of operands; for fp32 also without the form on which the mean hangs."""
    means = summaries("gemm", part, "geometric_mean")
    outlier = at("gemm", f"parts.{part}.summary.fp32.outlier")
    return [*means[:4], outlier["mean_without"], outlier["ratio"], *means[4:]]


def rate_of_outlier(part: str) -> float:
    """Warp's rate at the form on which the mean of fp32 hangs, in TFLOP/s."""
    name = at("gemm", f"parts.{part}.summary.fp32.outlier")["name"]
    (row,) = (row for row in at("gemm", f"parts.{part}.rows") if row["name"] == name)
    return float(row["warp"]["tflops"])


def of_cublas(kind: str) -> list[float]:
    """Range of the speed of adjoints to that of cuBLAS: its time over ours."""
    ratios = at("gemm", f"parts.backward_loop.summary.{kind}.to_cublas")
    return [ratios["least"], ratios["greatest"]]


def rates_to_cublas(kind: str) -> list[float]:
    """Range of the rate of adjoints, with three products counted, to that of cuBLAS, with its two."""
    rows = [row for row in at("gemm", "parts.backward_loop.rows") if row["types"] == kind and "to_cublas" in row]
    ratios = [row["tiles"]["tflops"] / row["cublas"]["tflops"] for row in rows]
    return [min(ratios), max(ratios)]


def solved(*kinds: str, types: Sequence[str] = ("fp32", "fp64")) -> list[float]:
    """Geometric mean and least ratio of some solvers, for each type."""
    found: list[float] = []
    for kind in types:
        items = [at("solvers", f"summary.{name} {kind}") for name in kinds]
        total = sum(item["ratios"] for item in items)
        mean = exp(sum(item["ratios"] * log(item["geometric_mean"]) for item in items) / total)
        found += [mean, min(item["least"] for item in items)]
    return found


VECTORS = ("cholesky_solve", "lower_solve", "upper_solve")


def torch_solvers() -> list[float]:
    means = [item["geometric_mean"] for name, item in at("solvers", "torch.summary").items() if name != "all"]
    return [min(means), max(means), at("solvers", "torch.summary.all.least")]


def slower_solvers() -> list[float]:
    rows = [row for row in at("solvers", "rows") if row.get("ratio") is not None]
    return [sum(row["ratio"] < 1 for row in rows), len(rows)]


# ---- compile_time.json and policies.json


def compiled(group: str, *sides: str) -> list[float]:
    """Seconds of some sides of a group."""
    return [at("compile_time", f"groups.{group}.rows.{side}.seconds") for side in sides]


def compiled_row(group: str) -> list[float]:
    """Seconds of Warp, its scalar path and mma, and the ratio of the last to the first."""
    warp, scalar, mma = compiled(group, "warp", "scalar", "mma")
    return [warp, scalar, mma, mma / warp]


def megabytes(group: str, *sides: str) -> list[float]:
    return [at("compile_time", f"groups.{group}.rows.{side}.cubin_bytes") / 1e6 for side in sides]


def of_each_variant(field: str, scale: float = 1.0) -> list[float]:
    """Least and greatest of a field over the functions of the own templates."""
    values = [row[field] * scale for row in at("compile_time", "variants.rows")]
    return [min(values), max(values)]


def libmathdx_functions() -> list[float]:
    """Least and greatest seconds and megabytes of one function that Warp builds, products and solvers."""
    groups = [at("compile_time", f"groups.{name}.rows") for name in at("compile_time", "groups")]
    rows = [group["warp"] for group in groups if group.get("warp", {}).get("lto_builds")]
    cold = [row for row in rows if row is not at("compile_time", "groups.cached.rows.warp")]
    seconds = [row["seconds"] / row["lto_builds"] for row in cold]
    seconds.append(at("policies", "rows.off, cold.seconds") / 3)  # of the same three functions
    sizes = [row["lto_bytes"] / row["lto_builds"] / 1e6 for row in cold]
    return [min(seconds), max(seconds), min(sizes), max(sizes)]


# ---- other results


def matmul(*names: str, other: str = "torch") -> list[float]:
    by_name = {row["name"]: row["to_torch"] for row in at("matmul", "rows")}
    return [by_name[name][other] for name in names]


def extremes(kind: str, *depths: int) -> list[float]:
    rows = [row for row in at("matmul", "rows") if row["kind"] == kind and (not depths or row["k"] in depths)]
    ratios = [row["to_torch"]["torch"] for row in rows]
    return [min(ratios), max(ratios)]


def recorded(side: str, what: str) -> list[float]:
    times = at("recorded", f"{side}.{what}.us")
    return [times["wp.launch"], times["Launch.launch()"], times["recorded"], times["recorded"] / times["wp.launch"]]


def training_step(side: str) -> list[float]:
    times = at("recorded", f"{side}.training_step_us")
    tape, pairs = times["wp.launch + Tape"], times["recorded pairs"]
    return [tape, pairs, pairs / tape, *([times["CUDA graph of recorded pairs"]] if side == "gpu" else [])]


def client_seconds(*titles: str) -> list[float]:
    """CPU time of cold starts, of all clients with Warp, and then with warp_tiles."""
    clients = {client["title"]: client for client in at("clients", "clients").values()}
    return [clients[title][side]["cpu_s"] for side in ("warp", "tiles") for title in titles]


def speed_of_model(model: str) -> list[float]:
    """The row of a model of MuJoCo Warp: medians of each side, and ratios."""
    cold, later = at("client_speed", f"models.{model}.cold"), at("client_speed", f"clients.{model}")
    first = [median(run["jit_s"] for run in cold if run["side"] == side) for side in ("warp", "tiles")]
    size = [next(run["cubin_bytes"] / 1e6 for run in cold if run["side"] == side) for side in ("warp", "tiles")]
    return [*first, first[1] / first[0], *size, *steps(later["runs"]), later["compared"]["steps_to_warp"]["tiles"]]


def speed_of_newton(client: str) -> list[float]:
    found = at("client_speed", f"clients.{client}")
    cold = [next(r for r in found["runs"] if (r["side"], r["phase"]) == (s, "cold")) for s in ("warp", "tiles")]
    compared = found["compared"]
    return [
        *(run["jit_s"] for run in cold), compared["rough_jit_to_warp"]["tiles"],
        *(run["cubin_bytes"] / 1e6 for run in cold), *(value / 1e6 for value in steps(found["runs"])),
        compared["steps_to_warp"]["tiles"],
    ]  # fmt: skip


def steps(runs: list[dict[str, Any]]) -> list[float]:
    """The median of the steps a second of both sides."""
    warm = [run for run in runs if run["phase"] == "warm"]
    return [median(run["steps_per_second"] for run in warm if run["side"] == side) for side in ("warp", "tiles")]


def tuned_gemm(field: str) -> list[float]:
    found = []
    for precision in ("fp16", "tf32", "fp32"):
        rows = [row for row in at("autotune_gemm", "rows") if row["precision"] == precision]
        ratios = [row["ratio"] for row in rows]
        every = {"mean": geometric_mean(ratios), "least": min(ratios), "most": max(ratios)}
        found.append({**every, "seconds": sum(row["search_s"] for row in rows)}[field])
    return found


def late_calls() -> list[float]:
    """Rows of matmul.json with more than three late calls, all its rows, and the most late calls of a row."""
    late = [row["late"] for row in at("matmul", "rows")]
    return [sum(calls > 3 for calls in late), len(late), max(late)]


def later_gpu_tests() -> list[float]:
    """Tests that ran on a GPU with later sources, and those that passed."""
    return [at("gpu_tests", f"later.{name}") for name in ("run", "passed")]


def adjoint_counter(counter: str) -> list[float]:
    """A counter of the adjoint that is slower than at commit 1acdb96: now and before."""
    name = "adjoint of resident 32x32x32 of float64, 128 threads"
    rows = {row["name"]: row for row in at("counters", "rows")}
    return [rows[name][counter], rows[f"{name}, commit 1acdb96"][counter]]


def gpu_tests() -> list[float]:
    run = at("gpu_tests", "pytest")
    left_out = len(run["deselected"])
    passed = run["counts"]["tests"] - run["counts"]["skipped"]
    return [run["counts"]["tests"] + left_out, passed]
