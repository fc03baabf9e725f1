"""The measured figures of the pages about clusters, remote stores, clients, loops and the device code.

See :mod:`tests.figures`, which has those of the other pages.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

from tests.figures import Figures
from tests.measured_values import at

CLUSTER, LOOPS, TEMPLATES = "docs/cluster.md", "docs/loops.md", "docs/templates.md"
CLUSTER_SETS = {
    "functions, used": "16 GEMM functions",
    "modules, used": "eight modules with their functions",
    "functions, fresh": "16 functions, fresh processes and workers",
    "modules, fresh": "eight modules, fresh processes and workers",
}


def of_set(name: str) -> list[float]:
    """Seconds of own processes and of Dask for a set, and their ratio."""
    found = at("cluster", f"results.{name}")
    return [found["medians"]["own"], found["medians"]["dask"], found["ratio"]]


def cluster_rows() -> list[Figures]:
    """The table of docs/cluster.md."""
    return [
        Figures(CLUSTER, f"| {text} | {{}} s | {{}} s | {{}}", lambda name=name: of_set(name))
        for name, text in CLUSTER_SETS.items()
    ]


def fresh_workers() -> list[float]:
    own, dask, _ = of_set("functions, fresh")
    return [dask - own]


def farthest_away() -> list[float]:
    """The greatest difference of medians between a store that is away and none, and the greatest spread without."""
    cases = at("remote", "cases")
    spreads = [max(case["all_seconds"]["local"]) - min(case["all_seconds"]["local"]) for case in cases]
    return [max(max(case["away_s"].values()) for case in cases), max(spreads)]


def reverse_rows() -> list[Figures]:
    """The table of adjoint kernels in docs/loops.md, whose rows have the names of those of reverse_loops.json."""
    return [
        Figures(
            LOOPS,
            f"| {row['name']} | {{}} | {{}} | {{}} |",
            lambda row=row: [row["tflops"]["stages"], row["to_before"], row["to_cublas"]],
        )
        for row in at("reverse_loops", "rows")
    ]


F32_LOOP, F64_LOOP = "float32 4096 128x128x16 128", "float64 4096 128x64x16 128"


def cublas_rates() -> list[float]:
    rows = (row for row in at("loops", "rows") if row["name"].startswith("float16 4096") and not row["c_added"])
    rates = [row["tflops"]["cublas"] for row in rows]
    return [min(rates), max(rates)]


def counted(name: str, *fields: str) -> list[float]:
    """Counters of a row, in per cent."""
    (row,) = (row for row in at("counters", "rows") if row["name"].startswith(name))
    values: dict[str, Any] = {**row, "conflicts": 100 * row["bank_conflicts"] / row["shared_wavefronts"]}
    return [values[field] for field in fields]


def stalls() -> list[float]:
    """Stalls in dispatch of the fp32 loop, as a ratio to those of cuBLAS."""
    ours, theirs = (counted(name, "stalls")[0]["dispatch_stall"] for name in (F32_LOOP, "cublas float32"))
    return [ours / theirs]


def waits_of_fp64() -> list[float]:
    """Stalls of the fp64 loop at the short scoreboard, as a ratio to those of cuBLAS."""
    ours, theirs = (counted(name, "stalls")[0]["short_scoreboard"] for name in (F64_LOOP, "cublas float64"))
    return [ours / theirs]


def of_the_bound(shape: str) -> list[float]:
    """Per cent of the bound, and with kept sums, for fp16 and bf16, without and with adjoints."""
    found = []
    for kind in ("fp16", "bf16"):
        for part in ("resident", "backward_resident"):
            (row,) = (row for row in at("gemm", f"parts.{part}.rows") if row["name"] == f"{kind} {shape}")
            found += [100 * row["bound"]["reached"], 100 * row["bound"]["kept_reached"]]
    return found


def bound_rows() -> list[Figures]:
    """The table of templates.md with the limits of resident tiles."""
    shapes = ("64x64x64 64", "64x64x64 128", "64x64x64 256", "128x128x32 128", "128x128x32 256")
    return [
        Figures(TEMPLATES, f"| {shape.replace(' ', ', ')} | {' | '.join(['{} ({})'] * 4)} |",
                lambda shape=shape: of_the_bound(shape))
        for shape in shapes
    ]  # fmt: skip


def counter_rows() -> list[Figures]:
    """The table of templates.md with the counters of resident tiles."""
    fields = ("tensor_pipe_percent", "issue_percent", "shared_memory_percent", "conflicts")
    shapes = ("64x64x64 64", "64x64x64 128", "64x64x64 256", "128x128x32 128")
    return [
        Figures(TEMPLATES, f"| {shape.replace(' ', ', ')} | {{}} | {{}} | {{}} | {{}} |\n",
                lambda shape=shape: counted(f"resident {shape}", *fields))
        for shape in shapes
    ]  # fmt: skip


def shared_sums() -> list[float]:
    found = at("shared_sums", "summary.all")
    return [found[name] for name in ("products", "geometric_mean", "least", "greatest", "slower")]


def tile_kernels() -> list[float]:
    """Times of the kernels with tile functions as ratios to Warp's, for inverse kinematics and Featherstone."""
    return [at("client_speed", f"clients.{name}.compared.tile_kernel_to_warp.tiles") for name in ("ik", "featherstone")]


def repeated_cold_starts() -> list[float]:
    """Seconds of the repeated cold starts of n_humanoid, with Warp and then with warp_tiles."""
    runs = [run for run in at("client_speed", "clients.n_humanoid.runs") if run["phase"] == "cold"]
    return [run["jit_s"] for side in ("warp", "tiles") for run in runs if run["side"] == side]


def own_templates() -> list[float]:
    """Steps a second with ``without_mathdx="own"`` as ratios to Warp's, for both models of MuJoCo Warp."""
    models = [at("client_speed", f"models.{name}.warm") for name in ("humanoid", "n_humanoid")]
    return [median(model["own"]["steps_per_second"]) / median(model["warp"]["steps_per_second"]) for model in models]


def limits() -> list[Figures]:
    """The table of matmul.md with the counters of kernels that are slower than torch's."""
    rows = {
        "bf16, 4096": ("product bfloat16 4096x", "tensor_pipe_percent"),
        "fp16, 8192": ("product float16 8192x", "tensor_pipe_percent"),
        "tf32, 4096": ("product tf32", "tensor_pipe_percent"),
        "fp32, 4096": ("product float32 4096x", "issue_percent"),
        "fp64, 4096": ("product float64 4096x", "tensor_pipe_percent"),
        "gradient of A, fp16, 4096": ("backward float16", "tensor_pipe_percent"),
        "batch of 1024, 128 wide, fp16": ("product float16 1024 x 128x", "memory_percent"),
        "... 256 wide": ("product float16 1024 x 256x", "memory_percent"),
        "... 256 wide, fp32": ("product float32 1024 x 256x", "issue_percent"),
        **{
            f"fp16, {shape}": (f"skinny float16 {shape}", "tensor_pipe_percent")
            for shape in ("64x4096x4096", "256x4096x4096", "4096x256x8192")
        },
        "layer with bias and GELU, fp16": ("layer float16", "tensor_pipe_percent"),
    }
    units = {"tensor_pipe_percent": "tensor cores", "issue_percent": "issue slots", "memory_percent": "memory"}

    def both(name: str, field: str) -> list[float]:
        found = (
            (row for row in at("counters", "rows") if row["name"].startswith(f"{side} {name}"))
            for side in ("matmul", "torch")
        )
        return [float(next(rows)[field]) for rows in found]

    return [
        Figures("docs/matmul.md", f"| {words} | {units[field]} | {{}} | {{}}", partial(both, name, field))
        for words, (name, field) in rows.items()
    ]


def issue_slots() -> list[float]:
    """The least and the greatest share of issue slots in products of 16-bit types: cuBLAS's, then ours."""
    sides: dict[str, list[float]] = {"torch": [], "matmul": []}
    for row in at("counters", "rows"):
        side, _, name = row["name"].partition(" ")
        if side in sides and "float16" in name and "elementwise" not in row["kernel"]:
            sides[side].append(row["issue_percent"])
    return [edge(shares) for shares in sides.values() for edge in (min, max)]


DESIGN_FIGURES = [
    *limits(),
    Figures("docs/matmul.md", "issue in {} to {} % of the cycles, ours in {} to {} %", issue_slots),
    *cluster_rows(),
    *reverse_rows(),
    Figures(CLUSTER, "the limit of {}.", lambda: [at("cluster", "limit")]),
    Figures(CLUSTER, "need {} s more than two own processes", fresh_workers),
    Figures("docs/remote.md", "by {} s at most, and builds without one by {} s among themselves", farthest_away),
    Figures("docs/clients.md", "takes {} of Warp's time, that of Featherstone {}.", tile_kernels),
    Figures("docs/clients.md", "took {} and {} s with Warp, {} and {} s with warp_tiles", repeated_cold_starts),
    Figures("docs/clients.md", "humanoid reached {} of Warp's steps a second and n_humanoid {},", own_templates),
    Figures(LOOPS, "cuBLAS reached {} to {} TFLOP/s for fp16 of 4096", cublas_rates),
    Figures(LOOPS, "of 128x256, tensor cores work in {} % of the cycles, and\nwith cuBLAS in {} %",
            lambda: [*counted("float16 4096 128x256x64", "tensor_pipe_percent"),
                     *counted("cublas float16", "tensor_pipe_percent")]),
    Figures(LOOPS, "For fp64 and tiles of 128x64, tensor cores work in {} % of the cycles with 128 threads, in {} % "
            "with 256, and with cuBLAS in {} %",
            lambda: [value for name in (F64_LOOP, "float64 4096 128x64x16 256", "cublas float64")
                     for value in counted(name, "tensor_pipe_percent")]),
    Figures(LOOPS, "warps of a scheduler wait {} times as often for shared memory", waits_of_fp64),
    Figures(LOOPS, "schedulers issue in {} % of the cycles with tiles of 128x128 and of 128x256, and with cuBLAS in "
            "{} %",
            lambda: [*counted(F32_LOOP, "issue_percent"), *counted("cublas float32", "issue_percent")]),
    Figures("docs/matmul.md", "from shared memory: {} warps of a scheduler in each cycle in which it issues, and {} "
            "with cuBLAS",
            lambda: [counted(f"{side} product tf32", "stalls")[0]["short_scoreboard"] for side in ("matmul", "torch")]),
    Figures(LOOPS, "Stalls in dispatch are {} times as frequent", stalls),
    Figures(LOOPS, "use {} % of the L2 cache's", lambda: counted("float16 4096 64x64x64 128", "l2_bytes_percent")),
    *bound_rows(),
    *counter_rows(),
    Figures(TEMPLATES, "On {} random products for which it does, it reached {} times the speed in the geometric mean, "
            "from {} to {}; {} lost more than 3 %", shared_sums),
]  # fmt: skip
