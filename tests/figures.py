"""The measured figures of the pages, and where the results of benchmarks hold them.

A figure has one place: docs/measured.md and the pages of single features state it, and README.md repeats the most
important ones. Each is listed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.measured_values import (
    ROOT,
    VECTORS,
    adjoint_counter,
    at,
    client_seconds,
    compiled,
    compiled_row,
    extremes,
    gpu_tests,
    late_calls,
    later_gpu_tests,
    libmathdx_functions,
    matmul,
    megabytes,
    of_cublas,
    of_each_variant,
    rate_of_outlier,
    rates_to_cublas,
    recorded,
    slower_solvers,
    solved,
    speed_of_model,
    speed_of_newton,
    summaries,
    torch_solvers,
    training_step,
    tuned_gemm,
    with_outlier,
)


@dataclass(frozen=True)
class Figures:
    """Some figures of a page.

    Attributes:
        page: Its path.
        text: The text around them. ``{}`` stands for a number, a space for any white space; the rest is literal.
        values: The measured values, in the order of the text and in its units.
    """

    page: str
    text: str
    values: Callable[[], Sequence[float]]


def loop_rows() -> list[Figures]:
    """The table of docs/loops.md, whose rows name the rows of loops.json."""
    names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
    by_name = {row["name"]: row for row in at("loops", "rows")}
    found = []
    pattern = (
        r"^(\| (\w+), (\d+) \| (\d+x\d+), (\d+), (\d+)(; columns of B contiguous)? \| (.*?) \|) [\d.]+ \| [\d.]+ \|$"
    )
    for match in re.finditer(pattern, (ROOT / "docs" / "loops.md").read_text("utf-8"), re.MULTILINE):
        start, kind, size, tile, step, threads, columns, used = match.groups()
        chosen = re.search(r"main_loop=(\w+)", used)
        name = (
            f"{names.get(kind, kind)} {size} {tile}x{step} {threads} threads, {chosen.group(1) if chosen else 'auto'}"
        )
        row = by_name[name + (", B columns" if columns else "")]
        values = [row["tflops"]["tiles"], row["to_cublas"]]
        found.append(Figures("docs/loops.md", f"{start} {{}} | {{}} |", lambda values=values: values))
    return found


def c_added_rows() -> list[Figures]:
    """The table of loops that begin with their tile of C, in docs/loops.md."""
    names = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}
    found = []
    for row in at("loops_c_added_before", "rows"):
        kind = next((short for short, name in names.items() if name == row["dtype"]), row["dtype"])
        now = next(other for other in at("loops", "rows") if other["name"] == row["name"])
        values = [row["to_cublas"], now["to_cublas"]]
        text = f"| {kind} | {row['m']}x{row['n']}, {row['k']}, {row['threads']} | {{}} | {{}} |"
        found.append(Figures("docs/loops.md", text, lambda values=values: values))
    return found


def client_rows() -> list[Figures]:
    """The table of cold starts in docs/clients.md."""
    found = []
    for client in at("clients", "clients").values():
        sides = client["warp"], client["tiles"]
        values = [
            *(client["modules"], client["tile_modules"]["modules"]),
            *(side["mathdx_builds"] for side in sides),
            *(side["cpu_s"] for side in sides),
            *(client["ratio"], client["tile_modules"]["ratio"]),
            *(side["cubin_bytes"] / 1e6 for side in sides),
        ]
        text = f"| {client['title']} | {{}}; {{}} | {{}}; {{}} | {{}}; {{}} | {{}} | {{}} | {{}}; {{}} |"
        found.append(Figures("docs/clients.md", text, lambda values=values: values))
    return found


README, MEASURED, POLICY = "README.md", "docs/measured.md", "docs/policy.md"
API, COMMANDS = "docs/api.md", "docs/commands.md"
FIGURES = [
    Figures(README, "Each takes {} to {} seconds and {} to {} MB.", libmathdx_functions),
    Figures(README, "fp16 64x64x64 kernel, two cores | {} s | {} s |", lambda: compiled("one", "warp", "mma")),
    Figures(README, "| {} s, adjoints included | {} s, adjoints skipped |", lambda: compiled("forward", "warp", "mma")),
    Figures(README, "| its cubin | {} MB | {} MB |", lambda: megabytes("one", "warp", "mma")),
    Figures(README, "CPU time | {} s, {} s | {} s, {} s |",
            lambda: client_seconds("Newton, Featherstone", "example_tile_block_cholesky")),
    Figures(README, "fp16, tf32, fp32, fp64 | 1 | {}, {}, {}, {} times as fast |",
            lambda: summaries("gemm", "loop", "best_ratio", types=("fp16", "tf32", "fp32", "fp64"))),
    Figures(README, "| ... its backward pass | 1 | {}, {}, {}, {} times as fast |",
            lambda: summaries("gemm", "backward_loop", "best_ratio", types=("fp16", "tf32", "fp32", "fp64"))),
    Figures(README, "faster of Warp's two paths: fp32, fp64 | 1 | {}, {} times as fast |",
            lambda: solved("cholesky", *VECTORS)[::2]),
    Figures(API, "in {} to {} of the host time",
            lambda: [recorded("cpu", "adjoint")[-1], recorded("gpu", "forward")[-1]]),
    # compile times
    Figures(MEASURED, "kernel, cold | {} s | {} s | {} s | {} | {} s |",
            lambda: [*compiled_row("one"), *compiled("one", "cublasdx")]),
    Figures(MEASURED, "#precompiled-headers) |  | {} s | {} s |  |  |", lambda: compiled("headers", "scalar", "mma")),
    Figures(MEASURED, "forward only, cold | {} s | {} s | {} s | {} |", lambda: compiled_row("cholesky")),
    Figures(MEASURED, "Cholesky solve of 32 rows, cold | {} s | {} s | {} s | {} |",
            lambda: compiled_row("solve")),
    Figures(MEASURED, "two solves), cold | {} s | {} s | {} s | {} |", lambda: compiled_row("blocked")),
    Figures(MEASURED, "forward only by kernel option, cold | {} s | {} s | {} s | {} | {} s |",
            lambda: [*compiled_row("forward"), *compiled("forward", "cublasdx")]),
    Figures(MEASURED, "Warp's kernel cache cold | {} s |  | {} s | {} | {} s |",
            lambda: [*compiled("cached", "warp", "mma"),
                     compiled("cached", "mma")[0] / compiled("cached", "warp")[0],
                     *compiled("cached", "cublasdx")]),
    Figures(MEASURED, "eight kernels in one module, 24 functions, cold | {} s | {} s | {} s | {} | {} s |",
            lambda: [*compiled_row("eight"), *compiled("eight", "cublasdx")]),
    Figures(MEASURED, "eight modules, 24 functions, cold | {} s | {} s | {} s | {} | {} s |",
            lambda: [*compiled_row("apart"), *compiled("apart", "cublasdx")]),
    Figures(MEASURED, "size of the first cubin | {} MB | {} MB | {} MB | {} | {} MB |",
            lambda: [*megabytes("one", "warp", "scalar", "mma"),
                     megabytes("one", "mma")[0] / megabytes("one", "warp")[0],
                     *megabytes("one", "cublasdx")]),
    Figures(MEASURED, "NVRTC takes {} to {} ms for a function", lambda: of_each_variant("milliseconds")),
    Figures(MEASURED, "which has {} to {} KB of LTO-IR", lambda: of_each_variant("lto_bytes", 1e-3)),
    Figures(MEASURED, "libmathdx takes {} to {} s and {} to {} MB for each", libmathdx_functions),
    Figures(MEASURED, "`enable()` adds {} ms", lambda: [at("compile_time", "startup.added_ms")]),
    Figures(MEASURED, "to a launch ({} against {} µs)",
            lambda: [at("compile_time", "startup.launch_us.tiles"), at("compile_time", "startup.launch_us.warp")]),
    Figures(MEASURED, "A cache hit of {} MB takes {} ms",
            lambda: [at("compile_time", "hit.bytes") / 1e6, at("compile_time", "hit.median_ms")]),
    Figures(MEASURED, "one of the {} modules that `tests/loop_forms.py` then had takes {} ms",
            lambda: [at("compile_time", "planning.modules"), at("compile_time", "planning.median_ms")]),
    Figures("warp_tiles/providers/fallbacks.py", "which takes {} to {} s and {} to {} MB of LTO-IR for each function",
            libmathdx_functions),
    # products
    Figures(MEASURED, "geometric mean of 6 (fp64: 4) forms | {} | {} | {} | {} | {} |",
            lambda: summaries("gemm", "resident", "geometric_mean")),
    Figures(MEASURED, "| ... least ratio | {} | {} | {} | {} | {} |", lambda: summaries("gemm", "resident", "least")),
    Figures(MEASURED, "| ... with both adjoints | {} | {} (Warp: fp16) | {} | {}; {} without the form of {} | {} |",
            lambda: with_outlier("backward_resident")),
    Figures(MEASURED, "The mean of {} hangs on one form, 128x128x32 with 128 threads, where Warp reaches {} TFLOP/s",
            lambda: [with_outlier("backward_resident")[3], rate_of_outlier("backward_resident")]),
    Figures(MEASURED, "18 forms; least ratio | {}; {} | {}; {} | {}; {} | {}; {} | {}; {} |",
            lambda: summaries("gemm", "deep", "geometric_mean", "least")),
    Figures(MEASURED, "the faster of Warp's paths; least ratio | | | | {}; {} | {}; {} |",
            lambda: summaries("gemm", "small", "geometric_mean", "least", types=("fp32", "fp64"))),
    Figures(MEASURED, "| ... with both adjoints; least ratio | | | | {}; {} | {}; {} |",
            lambda: summaries("gemm", "backward_small", "geometric_mean", "least", types=("fp32", "fp64"))),
    Figures(MEASURED, "all {}; least ratio | | | | {}; {} | {}; {} |",
            lambda: [len(at("gemm_every_small", "parts.every_small.rows")),
                     *summaries("gemm_every_small", "every_small", "geometric_mean", "least", types=("fp32", "fp64"))]),
    Figures(MEASURED, "| loop over 4096 x 4096 x 4096, the best form of each side | {} | {} | {} | {} | {} |",
            lambda: summaries("gemm", "loop", "best_ratio")),
    Figures(MEASURED, "| adjoint of the loop, the best form of each side | {} | {} (Warp: fp16) | {} | {} | {} |",
            lambda: summaries("gemm", "backward_loop", "best_ratio")),
    Figures(MEASURED, "They are {} to {} times as fast as cuBLAS for fp16, and {} to {} times for bf16",
            lambda: [*of_cublas("fp16"), *of_cublas("bf16")]),
    Figures(MEASURED, "their rate is {} to {} of that of cuBLAS for fp16, and {} to {} for bf16",
            lambda: [*rates_to_cublas("fp16"), *rates_to_cublas("bf16")]),
    Figures(MEASURED, "adjoints with other code are {} times as fast",
            lambda: [at("against_before_stages", "summary.geometric_mean_of_timed")]),
    Figures(MEASURED, "threads, by {} %", lambda: [100 * (1 - at("against_before_stages", "summary.least"))]),
    Figures(MEASURED, "mean of {} speed ratios is {}. The least is {}",
            lambda: [at("against_b1241dc", f"summary.{name}") for name in ("rows", "geometric_mean", "least")]),
    Figures(MEASURED, "mean of {} ratios was {} on an H100, and {} were below 0.97, the least {}",
            lambda: [*(at("against_1acdb96", f"summary.{name}") for name in ("rows", "geometric_mean")),
                     sum(row["ratio"] < 0.97 for row in at("against_1acdb96", "rows")),
                     at("against_1acdb96", "summary.least")]),
    # solvers
    Figures(MEASURED, "| `tile_cholesky` | {}; {} | {}; {} |", lambda: solved("cholesky")),
    Figures(MEASURED, "a vector | {}; {} | {}; {} |", lambda: solved(*VECTORS)),
    Figures(MEASURED, "of a square matrix | {}; {} | {}; {} |", lambda: solved("lower_solve of a matrix")),
    Figures(MEASURED, "| adjoints of `tile_cholesky` and `tile_lower_solve` | {}; {} | {}; {} |",
            lambda: solved("cholesky backward", "lower_solve backward")),
    Figures(MEASURED, "is {} to {} times as fast in the geometric means of the four functions, and at least {} times",
            torch_solvers),
    Figures(MEASURED, "{} of the {} ratios are below 1", slower_solvers),
    # tests and other commands
    Figures(MEASURED, "Of {} GPU tests, {} passed", gpu_tests),
    Figures(MEASURED, "Then {} tests of `matmul`, of whole products, of loops with stages and of forms of loops ran "
            "again, and {} passed.", later_gpu_tests),
    Figures(MEASURED, "and another `wp.tid()`, {} of {} others passed.",
            lambda: [at("gpu_tests", f"later.with_another_tid.{name}") for name in ("passed", "run")]),
    Figures(MEASURED, "was cut off after {} of {} tests",
            lambda: [at("gpu_tests", f"later.cut_off.{name}") for name in ("passed", "tests")]),
    Figures(MEASURED, "Of {} random kernels, {} ran: {} were equal to the results on the CPU, none differed, and {}",
            lambda: [at("gpu_tests", f"later.random_kernels.{key}") for key in ("asked", "done", "equal", "refused")]),
    Figures(MEASURED, "An H200 gives {} for it", lambda: [at("against_1acdb96_again", "summary.least")]),
    Figures(MEASURED, "busy in {} % of the time in place of {} %.", lambda: adjoint_counter("busy_percent")),
    Figures(MEASURED, "in {} % of the cycles in place of {} %.", lambda: adjoint_counter("shared_memory_percent")),
    Figures(MEASURED, "{} are equal bit for bit", lambda: [at("random_kernels", "equal")]),
    Figures(MEASURED, "{} could not be compared",
            lambda: [at("random_kernels", "refused") + at("random_kernels", "crashed")]),
    Figures(MEASURED, "it is {} of that at commit", lambda: [at("planning", "ratio")]),
    Figures(MEASURED, "takes {} to {} of its time at commit",
            lambda: [edge(row["ratio"] for row in at("cold_loops", "rows")) for edge in (min, max)]),
    Figures("CONTRIBUTING.md", "{} of {} were killed", lambda: [at("mutations", "killed"), at("mutations", "total")]),
    # policies
    Figures(POLICY, "| `fast` | as warp_tiles (`mma`) | {} s |",
            lambda: [at("policies", "rows.fast, 48 threads, cold.seconds")]),
    Figures(POLICY, "| `auto` | as `fast`, with the same work | {} s |",
            lambda: [at("policies", "rows.auto, 48 threads, cold.seconds")]),
    Figures(POLICY, "| {} s to the first launch; the slow build is in use {} s after the start, and the launch that "
            "loads it takes {} ms |",
            lambda: [at("policies", "rows.background, 48 threads, cold.seconds"),
                     at("policies", "rows.background, 48 threads, cold.swapped_after_seconds"),
                     1e3 * at("policies", "rows.background, 48 threads, cold.swap_seconds")]),
    Figures(POLICY, "| `locked`, LTO-IR cached | {} of `auto` |",
            lambda: [at("policies", "rows.locked, LTO-IR cached by auto.seconds")
                     / at("policies", "rows.auto, cold.seconds")]),
    # pages of features
    *loop_rows(),
    *c_added_rows(),
    Figures("docs/remote.md", "took {} of the time of a local build for one differentiable fp16 64x64x64 module, and "
            "{} for eight modules", lambda: [case["store_to_local"] for case in at("remote", "cases")]),
    Figures("docs/matmul.md", "{} of {} rows have more than three such calls, and at most {} of them", late_calls),
    Figures("docs/matmul.md", "| fp16: 2048, 4096, 8192 | {}, {}, {} |",
            lambda: matmul(*(f"product float16 {n}x{n}x{n}" for n in (2048, 4096, 8192)))),
    Figures("docs/matmul.md", "| bf16: 2048, 4096, 8192 | {}, {}, {} |",
            lambda: matmul(*(f"product bfloat16 {n}x{n}x{n}" for n in (2048, 4096, 8192)))),
    Figures("docs/matmul.md", "| tf32, fp32, fp64: 4096 | {}, {}, {} |",
            lambda: matmul(*(f"product {kind} 4096x4096x4096" for kind in ("tf32", "float32", "float64")))),
    Figures("docs/matmul.md", "| both gradients, fp16, 4096 | {}; {} of torch adding",
            lambda: [*matmul("backward float16 4096x4096x4096"),
                     *matmul("backward float16 4096x4096x4096", other="torch adding")]),
    Figures("docs/matmul.md", "| {} of eager, {} of `torch.compile`; torch's product alone is {} times as fast",
            lambda: [*matmul("layer float16 8192x4096x4096"),
                     *matmul("layer float16 8192x4096x4096", other="torch.compile"),
                     matmul("layer float16 8192x4096x4096")[0]
                     / matmul("layer float16 8192x4096x4096", other="torch linear alone")[0]]),
    Figures("docs/matmul.md", "64, 128, 256 wide: fp16 | {}, {}, {} |",
            lambda: matmul(*(f"product float16 1024 x {n}x{n}x{n}" for n in (64, 128, 256)))),
    Figures("docs/matmul.md", "| ... fp32 | {}, {}, {} |",
            lambda: matmul(*(f"product float32 1024 x {n}x{n}x{n}" for n in (64, 128, 256)))),
    Figures("docs/matmul.md", "sizes, types and layouts | {} (geometric mean); {} to {} |",
            lambda: [at("matmul", "geometric_means.drawn"), *extremes("drawn")]),
    Figures("docs/matmul.md", "batches of such products | {} (geometric mean); {} to {} |",
            lambda: [at("matmul", "geometric_means.drawn_batch"), *extremes("drawn_batch")]),
    Figures("docs/matmul.md", "| {} (geometric mean); {} to {} for K 1024, {} to {} for more |",
            lambda: [at("matmul", "geometric_means.skinny"), *extremes("skinny", 1024),
                     *extremes("skinny", 4096, 8192, 16384)]),
    Figures("docs/recorded.md", "| forward | {} | {} | {} | {} | | adjoint | {} | {} | {} | {} | | training step: two",
            lambda: [*recorded("cpu", "forward"), *recorded("cpu", "adjoint")]),
    Figures("docs/recorded.md", "two updates | {} (with `wp.Tape`) |  | {} | {} |", lambda: training_step("cpu")),
    Figures("docs/recorded.md", "| forward | {} | {} | {} | {} |  |\n| adjoint | {} | {} | {} | {} |  |",
            lambda: [*recorded("gpu", "forward"), *recorded("gpu", "adjoint")]),
    Figures("docs/recorded.md", "| training step | {} (with `wp.Tape`) |  | {} | {} | {} |",
            lambda: training_step("gpu")),
    Figures("docs/recorded.md", "`set` of an array takes {} µs",
            lambda: [at("recorded", "cpu.set_us")["recorded set(), forward and adjoint"]]),
    *client_rows(),
    Figures("docs/clients.md", "| 8,192 | {}; {} | {} | {}; {} | {} million; {} million | {} |",
            lambda: [value / 1e6 if value > 1e5 else value for value in speed_of_model("humanoid")]),
    Figures("docs/clients.md", "| 1,024 | {}; {} | {} | {}; {} | {}; {} | {} |",
            lambda: [round(value, -2) if value > 1e5 else value for value in speed_of_model("n_humanoid")]),
    Figures("docs/clients.md", "Featherstone | 4,096 | {}; {} | {} | {}; {} | {} million; {} million | {} |",
            lambda: speed_of_newton("featherstone")),
    Figures("docs/clients.md", "(LM) | 4,096 | {}; {} | {} | {}; {} | {} million; {} million solves | {} |",
            lambda: speed_of_newton("ik")),
    Figures("docs/tuning.md", "takes {} us more ({} against {} us)",
            lambda: [at("tuning", f"later_launches.{name}") for name in ("added_us", "plain_us", "tuned_us")]),
    Figures("docs/tuning.md", "finds a record takes {} ms more ({} against {} ms)",
            lambda: [at("tuning", f"first_launch.{name}") for name in ("added_ms", "plain_ms", "tuned_ms")]),
    Figures("docs/tuning.md", "built in {} s one by one and in {} s in parallel, {} times faster",
            lambda: [at("tuning", f"later_search.build_s.{name}") for name in ("serial", "side_by_side", "ratio")]),
    Figures("docs/tuning.md", "{} s one by one, {} s in parallel, {} times faster",
            lambda: [at("tuning", f"first_search.build_s.{name}") for name in ("serial", "side_by_side", "ratio")]),
    Figures("docs/tuning.md", "together run {} times as fast as with the default",
            lambda: [at("autotune_gemm", "geometric_mean")]),
    Figures("docs/tuning.md", "| geometric mean | {} | {} | {} |", lambda: tuned_gemm("mean")),
    Figures("docs/tuning.md", "| least | {} | {} | {} |", lambda: tuned_gemm("least")),
    Figures("docs/tuning.md", "| most | {} | {} | {} |", lambda: tuned_gemm("most")),
    Figures("docs/tuning.md", "| seconds of search, ten shapes | {} | {} | {} |", lambda: tuned_gemm("seconds")),
    Figures("docs/templates.md", "{} times the speed in the geometric mean, from {} to {}; {} lost more than 3 %",
            lambda: [at("shared_sums", f"summary.all.{name}")
                     for name in ("geometric_mean", "least", "greatest", "slower")]),
]  # fmt: skip
