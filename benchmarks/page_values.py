"""The computed tables and values of the pages: names with their texts, from ``benchmarks/results``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from statistics import geometric_mean
from typing import Any

from benchmarks import client_values, tile_values
from benchmarks.result_values import at, ratio, row, span, table

TYPES = ("fp16", "bf16", "tf32", "fp32", "fp64")
NAMES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}


# ---- compile times


def compile_times() -> dict[str, str]:
    rows = {found["name"]: found for found in at("compile_time/rows")}
    sides = {name: found.get("sides", {}) for name, found in rows.items()}

    def seconds(group: str, side: str, digits: int = 1) -> str:
        return f"{sides[group][side]['seconds']:.{digits}f} s" if side in sides[group] else ""

    def megabytes(side: str) -> str:
        return f"{sides['one'][side]['cubin_bytes'] / 1e6:.2f} MB"

    def share(group: str, ours: str, peer: str, field: str = "seconds") -> float:
        return float(sides[group][ours][field] / sides[group][peer][field])

    def cells(group: str) -> list[str]:
        of_warp = f"{share(group, 'own', 'warp'):.3f}" if "warp" in sides[group] else ""
        return [*(seconds(group, side) for side in ("warp", "scalar", "own")), of_warp, seconds(group, "cublasdx")]

    def architecture(name: str) -> list[str]:
        times, peers = ([one[side]["seconds"] for one in archs] for side in (name, "sm_90"))
        largest = max(time / peer for time, peer in zip(times, peers))
        return [name, f"{sum(times):.1f}", f"{sum(times) / sum(peers):.2f}", f"{largest:.2f}"]

    cold = {
        "one": "one differentiable fp16 64x64x64 kernel, cold",
        "headers": "... with the toolchain known and [headers precompiled](cache.md#precompiled-headers)",
        "cholesky": "Cholesky factor of 32x32 fp32, forward only, cold",
        "solve": "Cholesky solve of 32 rows, cold",
        "blocked": "blocked 16x16 kernel (product, Cholesky, two solves), cold",
        "forward": "forward only by kernel option, cold",
        "cached": "differentiable, LTO-IR cached, Warp's kernel cache cold",
        "eight": "eight kernels in one module, 24 functions, cold",
        "apart": "eight modules, 24 functions, cold",
    }
    sizes = [*map(megabytes, ("warp", "scalar", "own")), f"{share('one', 'own', 'warp', 'cubin_bytes'):.3f}",
             megabytes("cublasdx")]  # fmt: skip
    # of one function that Warp builds, products and solvers
    built = [found["warp"] for name, found in sides.items() if name != "cached" and "warp" in found]
    built = [found for found in built if found.get("lto_builds")]
    waits = [found["seconds"] / found["lto_builds"] for found in built]
    archs = [sides[name] for name in rows if name.startswith("arch ")]
    launch = at("compile_time/startup/launch_us")
    newton, blocked = (at(f"clients/{name}") for name in ("newton_featherstone", "tile_block_cholesky"))
    return {
        "libmathdx seconds": span(waits, ".0f"),
        "libmathdx megabytes": span((found["lto_bytes"] / found["lto_builds"] / 1e6 for found in built), ".0f"),
        "compile times": table(
            ["", "unmodified Warp 1.19 (cuBLASDx)", "its scalar path", "warp_tiles (`own`)", "ratio to cuBLASDx",
             "`provider=cublasdx`"],
            [*([text, *cells(group)] for group, text in cold.items()), ["size of the first cubin", *sizes]],
        ),
        "README cubin": f"{megabytes('own')} in place of {megabytes('warp')}",
        "overview": table(
            ["", "Warp", "warp_tiles"],
            [["first run of a differentiable fp16 64x64x64 kernel, two cores", seconds("one", "warp", 0),
              seconds("one", "own")],
             ["... of a kernel with `enable_backward=False`", f"{seconds('forward', 'warp', 0)}, adjoints included",
              f"{seconds('forward', 'own')}, adjoints skipped"],
             ["its cubin", megabytes("warp"), megabytes("own")],
             ["cold start of Newton's Featherstone solver, of Warp's block Cholesky example "
              "([clients](clients.md)), CPU time",
              *(f"{newton[side]['cpu_s']:.0f} s, {blocked[side]['cpu_s']:.0f} s" for side in ("warp", "tiles"))],
             ["GEMM loop over 4096 x 4096 x 4096 on an H200: fp16, tf32, fp32, fp64", "1", best_loops("loop")],
             ["... as a share of the speed of cuBLAS, the best form", "", shares_of_cublas("loop")],
             ["its backward pass", "1", best_loops("backward_loop")],
             ["... as a share of the speed of cuBLAS, the best form", "", shares_of_cublas("backward_loop")],
             ["Cholesky factors and solves of 4 to 96 rows on an H200, beside the faster of Warp's two paths: fp32, "
              "fp64", "1",
              ", ".join(ratio(solved(kind, "cholesky", *VECTORS)[0]) for kind in ("fp32", "fp64")) + " times as fast"],
             ],
        ),
        **{f"{name} ratio": f"{share(name, 'own', 'triton'):.2f}" for name in ("triton", "triton_later")},
        "nvrtc": f"{span((found['milliseconds'] for found in rows['variants']['variants']), '.0f')} ms",
        "lto": f"{span((found['lto_bytes'] / 1e3 for found in rows['variants']['variants']), '.0f')} KB",
        "launch us": f"{launch['tiles']:.1f} against {launch['warp']:.1f} µs",
        "architectures": table(
            ["", "seconds, all modules", "ratio to sm_90", "largest ratio of a module"],
            map(architecture, archs[0]),
        ),
    }  # fmt: skip


# ---- products and solvers beside Warp

VECTORS = ("cholesky_solve", "lower_solve", "upper_solve")


def summary(part: str, kind: str) -> Any:
    """The summary of a part of gemm.json for a type of operands."""
    return at(f"gemm/parts/{part}/summary").get(kind)


def best_loops(part: str) -> str:
    """Ratios of the best forms of loops."""
    best = (ratio(summary(part, kind)["best_ratio"]) for kind in TYPES if kind != "bf16")
    return f"{', '.join(best)} times as fast"


def shares_of_cublas(part: str) -> str:
    """Speed of the best forms of loops as a share of cuBLAS's."""
    return ", ".join(ratio(summary(part, kind)["to_cublas"]["greatest"]) for kind in TYPES if kind != "bf16")


def solved(kind: str, *names: str) -> tuple[float, float]:
    """Geometric mean and least ratio of some solvers."""
    items = [at(f"solvers/summary/{name} {kind}") for name in names]
    total = sum(item["ratios"] for item in items)
    product = sum(item["ratios"] * log(item["geometric_mean"]) for item in items)
    return exp(product / total), min(item["least"] for item in items)


def products() -> dict[str, str]:
    def cells(part: str, *fields: str) -> list[str]:
        found = [summary(part, kind) for kind in TYPES]
        return ["; ".join(ratio(one[field]) for field in fields) if one else "" for one in found]

    def with_adjoints(part: str, *fields: str) -> list[str]:
        fp16, bf16, *others = cells(part, *fields)
        return [fp16, f"{bf16} (Warp: fp16)", *others]

    def to_cublas(kind: str) -> str:
        found = summary("backward_loop", kind)["to_cublas"]
        return span([found["least"], found["greatest"]], ".2f")

    def solver(text: str, *names: str) -> list[str]:
        return [text, *("{:.2f}; {:.3f}".format(*solved(kind, *names)) for kind in ("fp32", "fp64"))]

    both, runs = ("geometric_mean", "least"), at("solvers/runs")
    whole = [found for found in at("solvers/rows") if not runs[found["run"]].get("note") and not found.get("block")]
    ratios = [found["ratio"] for found in whole if found["run"] == 0 and "ratio" in found]
    return {
        "products": table(
            ["", *TYPES],
            [["64 products of tiles in shared memory, geometric mean of 6 (fp64: 4) forms",
              *cells("resident", "geometric_mean")],
             ["... least ratio", *cells("resident", "least")],
             ["... with both adjoints; least ratio", *with_adjoints("backward_resident", *both)],
             ["16x16 to 32x32 tiles with K of 128 to 512, 18 forms; least ratio", *cells("deep", *both)],
             ["small products, 39 forms, against the faster of Warp's paths; least ratio", *cells("small", *both)],
             ["... with both adjoints; least ratio", *cells("backward_small", *both)],
             ["loop of a blocked solver, which subtracts its products from C, 9 forms, one H100; least ratio",
              *cells("update", *both)],
             ["loop over 4096 x 4096 x 4096, the best form of each side", *cells("loop", "best_ratio")],
             ["adjoint of the loop, the best form of each side", *with_adjoints("backward_loop", "best_ratio")]],
        ),
        "README loop": f"{summary('loop', 'fp16')['best_ratio']:.0f} times as fast as Warp's, at "
        f"{summary('loop', 'fp16')['to_cublas']['greatest']:.2f} of cuBLAS",
        **{f"adjoints to cublas {kind}": to_cublas(kind) for kind in ("fp16", "bf16")},
        "solvers": table(
            ["", "fp32: geometric mean; least", "fp64: geometric mean; least"],
            [solver("`tile_cholesky`", "cholesky"),
             solver("`tile_cholesky_solve`, `tile_lower_solve`, `tile_upper_solve`, a vector", *VECTORS),
             solver("`tile_lower_solve` of a square matrix", "lower_solve of a matrix"),
             solver("adjoints of `tile_cholesky` and `tile_lower_solve`", "cholesky backward", "lower_solve backward")],
        ),
        "slower solvers": f"{sum(found < 1 for found in ratios)} of the {len(ratios)}",
    }  # fmt: skip


# ---- loops


def loops() -> dict[str, str]:
    def cells(found: Any) -> list[str]:
        kind, chosen = NAMES.get(found["dtype"], found["dtype"]), found["name"].split("threads, ")[1].split(",")[0]
        chosen = {"two_buffers": "double_buffered"}.get(chosen, chosen)  # results of before the rename
        columns = "; columns of B contiguous" if found["b_columns"] else ""
        transposed = kind == "tf32" and chosen == "auto" and not columns
        used = {
            "auto": {"fp16": "`wgmma`", "bf16": "`wgmma`", "tf32": "`wgmma`", "fp64": "`mma_m16n8k8`", "fp32": "`fma`"},
            "mma": {"fp16": "`mma_m16n8k16` (`main_loop=mma`)", "tf32": "`mma_m16n8k8` (`main_loop=mma`)"},
            "double_buffered": dict.fromkeys(TYPES, "double buffers (`main_loop=double_buffered`)"),
        }[chosen][kind] + (", B through registers" if transposed else "")
        tile = f"{found['m']}x{found['n']}, {found['k']}, {found['threads']}{columns}"
        return [f"{kind}, {found['size']}", tile, used, f"{found['tflops']['tiles']:.0f}", f"{found['to_cublas']:.2f}"]

    def stalls(ours: str, theirs: str, reason: str) -> str:
        return ratio(row("counters", ours)["stalls"][reason] / row("counters", theirs)["stalls"][reason])

    every = at("loops/rows")
    plain = [found for found in every if "treatment" not in found and "to_before" not in found and "share" not in found]
    from_c = [found for found in plain if found["c_added"]]
    plain = [found for found in plain if not found["c_added"]]
    best: dict[tuple[str, str], Any] = {}  # of each type and each main loop that is not the default
    for found in plain:
        key = found["dtype"], found["name"].split("threads, ")[1].split(",")[0]
        if key[1] != "auto":
            best[key] = max(found, best.get(key, found), key=lambda one: one["to_cublas"])
    chosen = [found for found in plain if "threads, auto" in found["name"] or found in best.values()]
    rates = [found["tflops"]["cublas"] for found in plain if found["name"].startswith("float16 4096")]
    f32, f64 = "float32 4096 128x128x16 128", "float64 4096 128x64x16 128"
    counters = []
    for shape in ("64x64x64 64", "64x64x64 128", "64x64x64 256", "128x128x32 128"):
        found = row("counters", f"resident {shape}")
        units = [f"{found[f'{unit}_percent']:.0f}" for unit in ("tensor_pipe", "issue", "shared_memory")]
        conflicts = f"{100 * found['bank_conflicts'] / found['shared_wavefronts']:.0f}"
        counters.append([shape.replace(" ", ", "), *units, conflicts])
    return {
        "loops": table(["operands, size", "tile of C, step, threads", "instruction", "TFLOP/s", "of cuBLAS"],
                       map(cells, chosen)),
        "cublas fp16": span(rates, ".0f"),
        "loops from c": table(
            ["operands, 4096", "tile of C, step, threads", "of cuBLAS"],
            [[NAMES.get(found["dtype"], found["dtype"]), f"{found['m']}x{found['n']}, {found['k']}, {found['threads']}",
              f"{found['to_cublas']:.2f}"] for found in from_c],
        ),
        "waits fp64": stalls(f64, "cublas float64", "short_scoreboard"),
        "dispatch": stalls(f32, "cublas float32", "dispatch_stall"),
        "reverse loops": table(
            ["operands, size, tile and step", "TFLOP/s", "times without stages", "of cuBLAS"],
            [[found["name"].removeprefix("reverse "), f"{found['tflops']['stages']:.0f}", f"{found['to_before']:.1f}",
              f"{found['to_cublas']:.2f}"] for found in every if "to_before" in found],
        ),
        "resident counters": table(
            ["tile, threads", "tensor cores", "issue slots", "shared memory", "bank conflicts, of all wavefronts"],
            counters,
        ),
    }  # fmt: skip


# ---- matmul and solves


def whole_products() -> dict[str, str]:
    rows = at("matmul/rows")
    by_name = {found["name"]: found["to_torch"] for found in rows}

    def of_torch(*names: str, other: str = "torch") -> str:
        return ", ".join(f"{by_name[name][other]:.2f}" for name in names)

    def square(kind: str, *sizes: int, batch: str = "") -> str:
        return of_torch(*(f"product {kind} {batch}{size}x{size}x{size}" for size in sizes))

    def of_kind(kind: str) -> list[dict[str, Any]]:
        return [found for found in rows if found["kind"] == kind]

    def drawn(kind: str, *depths: tuple[bool, str]) -> str:
        parts = [[f for f in of_kind(kind) if (f["k"] > 1024) == more] for more, _ in depths] or [of_kind(kind)]
        texts = [span((f["to_torch"]["torch"] for f in part), ".2f") for part in parts]
        words = [f"{text} {word}" for text, (_, word) in zip(texts, depths)] or texts
        return f"{at('matmul/geometric_means')[kind]:.2f} (geometric mean); {', '.join(words)}"

    backward, layer = "backward float16 4096x4096x4096", "layer float16 8192x4096x4096"
    alone = by_name[layer]["torch"] / by_name[layer]["torch linear alone"]
    late = {found["name"]: found["late"] for found in rows}
    units = {"tensor cores": "tensor_pipe_percent", "issue slots": "issue_percent", "memory": "memory_percent"}
    limits = [
        ("bf16, 4096", "tensor cores", "product bfloat16 4096x"),
        ("fp16, 8192", "tensor cores", "product float16 8192x"),
        ("tf32, 4096", "tensor cores", "product tf32"),
        ("fp32, 4096", "issue slots", "product float32 4096x"),
        ("fp64, 4096", "tensor cores", "product float64 4096x"),
        ("gradient of A, fp16, 4096", "tensor cores", "backward float16"),
        ("batch of 1024, 256 wide, fp16", "memory", "product float16 1024 x 256x"),
        ("... fp32", "issue slots", "product float32 1024 x 256x"),
        *((f"fp16, {shape}", "tensor cores", f"skinny float16 {shape}")
          for shape in ("64x4096x4096", "256x4096x4096")),
        ("layer with bias and GELU, fp16 (torch: the product alone)", "tensor cores", "layer float16"),
    ]  # fmt: skip
    return {
        "matmul": table(
            ["", "of torch"],
            [["fp16: 2048, 4096, 8192", square("float16", 2048, 4096, 8192)],
             ["bf16: 2048, 4096, 8192", square("bfloat16", 2048, 4096, 8192)],
             ["tf32, fp32, fp64: 4096", ", ".join(square(kind, 4096) for kind in ("tf32", "float32", "float64"))],
             ["both gradients, fp16, 4096",
              f"{of_torch(backward)}; {of_torch(backward, other='torch adding')} of torch adding to earlier gradients, "
              "as a tape does"],
             ["`gelu(x @ w.T + bias)`, fp16, 8192x4096x4096",
              f"{of_torch(layer)} of eager, {of_torch(layer, other='torch.compile')} of `torch.compile`; torch's "
              f"product alone is {alone:.2f} times as fast as eager. The error function of a tile runs while the next "
              "tile is multiplied"],
             ["batches of 1024, 64, 128, 256 wide: fp16", square("float16", 64, 128, 256, batch="1024 x ")],
             ["... fp32", square("float32", 64, 128, 256, batch="1024 x ")],
             ["20 skinny fp16 products, 16 to 256 by 4096, K 1024 to 16384",
              drawn("skinny", (False, "for K 1024"), (True, "for more"))],
             [f"{len(of_kind('drawn'))} products of random sizes, types and layouts", drawn("drawn")],
             [f"{len(of_kind('drawn_batch'))} batches of such products", drawn("drawn_batch")]],
        ),
        "late calls": f"{sum(calls > 3 for calls in late.values())} of {len(late)} rows have more than three such "
                      f"calls, the layer has {late[layer]}, and the most is {max(late.values())}",
        "matmul counters": table(
            ["", "unit", "warp_tiles", "torch"],
            [[text, unit, *(f"{row('counters', f'{side} {name}')[units[unit]]:.0f}" for side in ("matmul", "torch"))]
             for text, unit, name in limits],
        ),
    }  # fmt: skip


def dense_solves() -> dict[str, str]:
    """Factors and solutions beside the faster of torch's calls."""
    found = {(r["kind"], r["dtype"], r["n"], r["batch"]): ratio(r["to_torch"]) for r in at("dense_solves/rows")}
    small, large = (4, 8, 16, 32, 64, 128), (256, 512, 1024, 2048, 4096)

    def line(kind: str, dtype: str, sizes: Sequence[int], batch: int) -> list[str]:
        return [f"{kind}, {NAMES[dtype]}, batch of {batch:,}", *(found.get((kind, dtype, n, batch), "") for n in sizes)]

    late = [min(r["us"]["torch"], r["us"]["cusolver"]) for r in at("dense_solves/rows")
            if r["kind"] == "solve" and r["n"] <= 64]  # fmt: skip
    both = [(kind, dtype) for kind in ("factor", "solve") for dtype in ("float32", "float64")]
    return {
        "late solves": span(late, ".0f"),
        "dense solves small": table(["", *map(str, small)], [line(*one, small, 1024) for one in both]),
        "dense solves large": table(
            ["", *map(str, large)],
            [line(*one, large, batch) for one in both for batch in (1, 32)],
        ),
    }


# ---- tuning, and Warp's own tests


def own_tests(part: str, *words: str) -> str:
    """How many of Warp's own tests pass with warp_tiles."""
    chosen = [counts for name, counts in at(f"gpu_tests/{part}/counts").items() if any(word in name for word in words)]
    return f"{sum(one['with']['passed'] for one in chosen)} of {sum(one['without']['passed'] for one in chosen)}"


def tuning_and_tests() -> dict[str, str]:
    def tuned(value: Callable[[list[Any]], str]) -> list[str]:
        rows = at("autotune_gemm/rows")
        return [value([found for found in rows if found["precision"] == kind]) for kind in ("fp16", "tf32", "fp32")]

    return {
        "contributed": "{questions} products and loops {geometric_mean:.2f} times as fast as the package's choices "
                       "(geometric mean; the least {least:.2f})".format(**at("contributed/summary")),
        "tuned gemm": table(["", "fp16", "tf32", "fp32"], [
            ["geometric mean", *tuned(lambda rows: f"{geometric_mean(found['ratio'] for found in rows):.2f}")],
            ["least", *tuned(lambda rows: f"{min(found['ratio'] for found in rows):.2f}")],
            ["most", *tuned(lambda rows: f"{max(found['ratio'] for found in rows):.2f}")],
            ["seconds of search, ten shapes", *tuned(lambda rows: f"{sum(f['search_s'] for f in rows):.0f}")]]),
        "own tests": own_tests("warp_own_tests", "matmul", "mlp"),
        "own solver tests": own_tests("warp_own_solver_tests", ""),
    }  # fmt: skip


PARTS: tuple[Callable[[], dict[str, str]], ...] = (
    compile_times, products, loops, whole_products, dense_solves, tuning_and_tests,
    *client_values.PARTS, *tile_values.PARTS,
)  # fmt: skip


def values() -> dict[str, str]:
    """Every computed name that a page may mark, with its text."""
    return {name: text for part in PARTS for name, text in part().items()}
