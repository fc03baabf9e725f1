"""The measured tables and values of the pages: names with their texts, from ``benchmarks/results``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import exp, log
from statistics import geometric_mean
from typing import Any

from benchmarks.client_values import (
    blocked_solvers,
    client_kernels,
    clients,
    newton_kernels,
    opted_out,
    whole_starts,
)
from benchmarks.result_values import at, ratio, result, row, span, table
from benchmarks.tile_values import other_gpus, which_tiles

TYPES = ("fp16", "bf16", "tf32", "fp32", "fp64")
NAMES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}


# ---- compile times and policies


def without_nvrtc() -> dict[str, str]:
    groups = at("without_nvrtc", "groups")

    def cell(row: dict[str, Any]) -> str:
        return f"{row['seconds']:.1f} s, {row['cubin_bytes'] / 1e6:.2f} MB"

    return {
        "without nvrtc date": max(group["date"] for group in groups.values()),
        "without nvrtc": table(
            ["", "with NVRTC", "in the module's source", "libmathdx"],
            [[group["title"].partition(", ")[0], *map(cell, group["rows"].values())] for group in groups.values()],
        ),
    }


def compile_times() -> dict[str, str]:
    groups = at("compile_time", "groups")

    def seconds(group: str, side: str, digits: int = 1) -> str:
        found = groups[group]["rows"].get(side)
        return f"{found['seconds']:.{digits}f} s" if found else ""

    def megabytes(side: str) -> str:
        return f"{groups['one']['rows'][side]['cubin_bytes'] / 1e6:.2f} MB"

    def cells(group: str, against: str | None = "warp") -> list[str]:
        rows = groups[group]["rows"]
        share = f"{rows['mma']['seconds'] / rows[against]['seconds']:.3f}" if against else ""
        return [*(seconds(group, side) for side in ("warp", "scalar", "mma")), share, seconds(group, "cublasdx")]

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
    rows = groups["one"]["rows"]
    share = rows["mma"]["cubin_bytes"] / rows["warp"]["cubin_bytes"]
    sizes = [*map(megabytes, ("warp", "scalar", "mma")), f"{share:.3f}", megabytes("cublasdx")]
    # of one function that Warp builds, products and solvers
    built = [group["rows"]["warp"] for name, group in groups.items() if name != "cached" and "warp" in group["rows"]]
    built = [found for found in built if found.get("lto_builds")]
    waits = [found["seconds"] / found["lto_builds"] for found in built]
    waits.append(at("policies", "rows.off, cold.seconds") / 3)  # of the three functions of "one"
    bytes_of_each = [found["lto_bytes"] / found["lto_builds"] / 1e6 for found in built]
    variants = at("compile_time", "variants.rows")
    startup, hit = at("compile_time", "startup"), at("compile_time", "hit")
    policies = at("policies", "rows")
    locked = policies["locked, LTO-IR cached by auto"]["seconds"] / policies["auto, cold"]["seconds"]
    clients = {client["title"]: client for client in at("clients", "clients").values()}
    newton, blocked = clients["Newton, Featherstone"], clients["example_tile_block_cholesky"]
    return {
        "libmathdx seconds": span(waits, ".0f"),
        "libmathdx megabytes": span(bytes_of_each, ".0f"),
        "compile times": table(
            ["", "unmodified Warp 1.19 (cuBLASDx)", "its scalar path", "warp_tiles (`mma`)", "ratio to cuBLASDx",
             "`provider=cublasdx`"],
            [*([text, *cells(group, None if group == "headers" else "warp")] for group, text in cold.items()),
             ["size of the first cubin", *sizes]],
        ),
        "README cubin": f"{megabytes('mma')} in place of {megabytes('warp')}",
        "overview": table(
            ["", "Warp", "warp_tiles"],
            [["first run of a differentiable fp16 64x64x64 kernel, two cores", seconds("one", "warp", 0),
              seconds("one", "mma")],
             ["... of a kernel with `enable_backward=False`", f"{seconds('forward', 'warp', 0)}, adjoints included",
              f"{seconds('forward', 'mma')}, adjoints skipped"],
             ["its cubin", megabytes("warp"), megabytes("mma")],
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
        **{
            f"{name} ratio": f"{rows['mma']['seconds'] / rows['triton']['seconds']:.2f}"
            for name in ("triton", "triton_later")
            for rows in (groups[name]["rows"],)
        },
        "triton version": str(groups["triton"]["rows"]["triton"]["version"]),
        "triton date": str(groups["triton"]["date"]),
        "nvrtc": f"{span((row['milliseconds'] for row in variants), '.0f')} ms",
        "lto": f"{span((row['lto_bytes'] / 1e3 for row in variants), '.0f')} KB",
        "cold loops": span((row["ratio"] for row in at("cold_loops", "rows")), ".2f"),
        "enable ms": f"{startup['added_ms']:.0f} ms",
        "launch us": f"{startup['launch_us']['tiles']:.1f} against {startup['launch_us']['warp']:.1f} µs",
        "hit": f"{hit['bytes'] / 1e6:.0f} MB takes {hit['median_ms']:.1f} ms",
        "planning ms": f"{at('compile_time', 'planning.median_ms'):.0f} ms",
        "planning ratio": f"{at('planning', 'ratio'):.2f}",
        "policies": table(
            ["policy", "128 threads", "48 threads, which `mma` does not serve", "functions of 48 threads"],
            [["`off`", "as unmodified Warp", "", ""],
             ["`scalar`", "as Warp's scalar path", "", ""],
             ["`fast`", "as warp_tiles (`mma`)", f"{policies['fast, 48 threads, cold']['seconds']:.1f} s",
              "scalar path"],
             ["`auto`", "as `fast`, with the same work", f"{policies['auto, 48 threads, cold']['seconds']:.1f} s",
              "`cublasdx`"],
             ["`locked`, LTO-IR cached", f"{locked:.2f} of `auto`", "", ""],
             ["`max`", "as `auto`, and seconds of measurements per loop or function, once, on the GPU", "", ""]],
        ),
    }  # fmt: skip


# ---- products and solvers beside Warp

VECTORS = ("cholesky_solve", "lower_solve", "upper_solve")


def architectures() -> dict[str, str]:
    rows = at("architectures", "rows")
    return {
        "architectures": table(
            ["", "seconds, all modules", "ratio to sm_90", "largest ratio of a module"],
            [
                [f"sm_{row['arch']}", f"{row['seconds']:.1f}", f"{row['ratio']:.2f}", f"{row['slowest_ratio']:.2f}"]
                for row in rows
            ],
        ),
        "architectures date": at("architectures", "date")[:10],
        "architectures nvrtc": at("architectures", "nvrtc"),
    }


def summary(part: str, kind: str, result_name: str = "gemm") -> Any:
    """The summary of a part of gemm.json for a type of operands."""
    return at(result_name, f"parts.{part}.summary")[kind]


def best_loops(part: str) -> str:
    """Ratios of the best forms of loops."""
    best = (ratio(summary(part, kind)["best_ratio"]) for kind in TYPES if kind != "bf16")
    return f"{', '.join(best)} times as fast"


def shares_of_cublas(part: str) -> str:
    """Speed of the best forms of loops as a share of cuBLAS's."""
    return ", ".join(ratio(summary(part, kind)["to_cublas"]["greatest"]) for kind in TYPES if kind != "bf16")


def solved(kind: str, *names: str) -> tuple[float, float]:
    """Geometric mean and least ratio of some solvers."""
    items = [at("solvers", f"summary.{name} {kind}") for name in names]
    total = sum(item["ratios"] for item in items)
    product = sum(item["ratios"] * log(item["geometric_mean"]) for item in items)
    return exp(product / total), min(item["least"] for item in items)


def products() -> dict[str, str]:
    def cells(part: str, *fields: str, types: Sequence[str] = TYPES, source: str = "gemm") -> list[str]:
        found = {kind: summary(part, kind, source) for kind in types}
        return ["; ".join(ratio(found[kind][field]) for field in fields) if kind in found else "" for kind in TYPES]

    def with_adjoints(part: str, field: str) -> list[str]:
        cell = cells(part, field)
        outlier = summary(part, "fp32").get("outlier")
        if outlier:
            cell[3] += f"; {ratio(outlier['mean_without'])} without the form of {ratio(outlier['ratio'])}"
        return [cell[0], f"{cell[1]} (Warp: fp16)", *cell[2:]]

    def to_cublas(kind: str) -> str:
        found = summary("backward_loop", kind)["to_cublas"]
        return span([found["least"], found["greatest"]], ".2f")

    outlier = row("gemm", summary("backward_resident", "fp32")["outlier"]["name"], "parts.backward_resident.rows")
    every = len(at("gemm_every_small", "parts.every_small.rows"))
    wide, both = ("fp32", "fp64"), ("geometric_mean", "least")
    ratios = [found["ratio"] for found in at("solvers", "rows") if found.get("ratio") is not None]
    torch = at("solvers", "torch.summary")

    def solver(text: str, *names: str) -> list[str]:
        return [text, *("{:.2f}; {:.3f}".format(*solved(kind, *names)) for kind in wide)]

    before, since, again = (
        at(name, "summary") for name in ("against_before_stages", "against_b1241dc", "against_b1241dc_again")
    )
    oldest = at("against_1acdb96", "summary")
    slower = sum(found["ratio"] < 0.97 for found in at("against_1acdb96", "rows"))
    return {
        "products": table(
            ["", *TYPES],
            [["64 products of tiles in shared memory, geometric mean of 6 (fp64: 4) forms",
              *cells("resident", "geometric_mean")],
             ["... least ratio", *cells("resident", "least")],
             ["... with both adjoints", *with_adjoints("backward_resident", "geometric_mean")],
             ["16x16 to 32x32 tiles with K of 128 to 512, 18 forms; least ratio", *cells("deep", *both)],
             ["small products, 39 forms, against the faster of Warp's paths; least ratio",
              *cells("small", *both, types=wide)],
             ["... with both adjoints; least ratio", *cells("backward_small", *both, types=wide)],
             ["loop of a blocked solver, which subtracts its products from C, 9 forms, one H100; least ratio",
              *cells("update", *both, types=wide)],
             [f"M, N and K of 4, 6, 8, 12, 16, 24 or 32 with 32, 64 or 128 threads, all {every:,}; least ratio",
              *cells("every_small", *both, types=wide, source="gemm_every_small")],
             ["loop over 4096 x 4096 x 4096, the best form of each side", *cells("loop", "best_ratio")],
             ["adjoint of the loop, the best form of each side", *with_adjoints("backward_loop", "best_ratio")]],
        ),
        "README loop": f"{summary('loop', 'fp16')['best_ratio']:.0f} times as fast as Warp's, at "
        f"{summary('loop', 'fp16')['to_cublas']['greatest']:.2f} of cuBLAS",
        "outlier mean": ratio(summary("backward_resident", "fp32")["geometric_mean"]),
        "outlier rate": f"{outlier['warp']['tflops']:.1f} TFLOP/s",
        **{f"adjoints to cublas {kind}": to_cublas(kind) for kind in ("fp16", "bf16")},
        "before stages": f"{before['geometric_mean_of_timed']:.2f}",
        "before stages least": f"{100 * (1 - before['least']):.1f} %",
        "against": f"{since['rows']} speed ratios is {since['geometric_mean']:.3f}. The least is {since['least']:.3f}",
        "against again": f"{again['least']:.3f}",
        "against 1acdb96": f"{oldest['geometric_mean']:.3f}",
        "slower 1acdb96": f"{slower} are below 0.97, the least {oldest['least']:.3f}",
        "solvers": table(
            ["", "fp32: geometric mean; least", "fp64: geometric mean; least"],
            [solver("`tile_cholesky`", "cholesky"),
             solver("`tile_cholesky_solve`, `tile_lower_solve`, `tile_upper_solve`, a vector", *VECTORS),
             solver("`tile_lower_solve` of a square matrix", "lower_solve of a matrix"),
             solver("adjoints of `tile_cholesky` and `tile_lower_solve`", "cholesky backward",
                    "lower_solve backward")],
        ),
        "torch solvers": span((item["geometric_mean"] for name, item in torch.items() if name != "all"), ".1f"),
        "torch solvers least": f"{torch['all']['least']:.1f}",
        "slower solvers": f"{sum(found < 1 for found in ratios)} of the {len(ratios)}",
        "shared sums": "On {products} random products for which it does, it reached {geometric_mean:.2f} times the "
                       "speed in the geometric mean, from {least:.2f} to {greatest:.1f}; {slower} lost more than 3 %"
                       .format(**at("shared_sums", "summary.all")),
        "random kernels": "{equal} are equal bit for bit".format(**result("random_kernels")),
        "random kernels refused": str(at("random_kernels", "refused") + at("random_kernels", "crashed")),
        "mutations": "{killed} of {total} were killed ({date})".format(**result("mutations")),
    }  # fmt: skip


# ---- loops


def size_of(name: str) -> tuple[str, str, str, str, str]:
    """Type, size, tile, step and threads of a row of loops.json."""
    kind, size, tile, threads = re.match(r"(\w+) (\d+) (\S+) (\d+) threads", name).groups()  # type: ignore[union-attr]
    m, n, step = tile.split("x")
    return NAMES.get(kind, kind), size, f"{m}x{n}", step, threads


def loops() -> dict[str, str]:
    def cells(found: Any) -> list[str]:
        kind, size, tile, step, threads = size_of(found["name"])
        columns = "; columns of B contiguous" if found["name"].endswith("B columns") else ""
        chosen = re.search(r"threads, (\w+)", found["name"])[1]  # type: ignore[index]
        chosen = {"two_buffers": "double_buffered"}.get(chosen, chosen)  # results of before the rename
        transposed = kind == "tf32" and chosen == "auto" and not columns
        used = {
            "auto": {"fp16": "`wgmma`", "bf16": "`wgmma`", "tf32": "`wgmma`", "fp64": "`mma_m16n8k8`", "fp32": "`fma`"},
            "mma": {"fp16": "`mma_m16n8k16` (`main_loop=mma`)", "tf32": "`mma_m16n8k8` (`main_loop=mma`)"},
            "double_buffered": dict.fromkeys(TYPES, "double buffers (`main_loop=double_buffered`)"),
        }[chosen][kind] + (", B through registers" if transposed else "")
        return [f"{kind}, {size}", f"{tile}, {step}, {threads}{columns}", used, f"{found['tflops']['tiles']:.0f}",
                f"{found['to_cublas']:.2f}"]  # fmt: skip

    def counted(start: str, field: str = "tensor_pipe_percent") -> str:
        return f"{row('counters', start)[field]:.0f} %"

    def stalls(ours: str, theirs: str, reason: str) -> str:
        return ratio(row("counters", ours)["stalls"][reason] / row("counters", theirs)["stalls"][reason])

    every = {found["name"]: found for found in at("loops", "rows")}
    plain = [found for found in every.values() if not found["c_added"]]
    best: dict[tuple[str, str], Any] = {}  # of each type and each main loop that is not the default
    for found in plain:
        kind, chosen = found["name"].split()[0], found["name"].split("threads, ")[1].split(",")[0]
        if chosen != "auto":
            best[kind, chosen] = max(found, best.get((kind, chosen), found), key=lambda one: one["to_cublas"])
    shown = [found for found in plain if "threads, auto" in found["name"] or found in best.values()]
    rates = [found["tflops"]["cublas"] for found in plain if found["name"].startswith("float16 4096")]
    f32, f64 = "float32 4096 128x128x16 128", "float64 4096 128x64x16 128"
    bounds, shapes = [], ("64x64x64 64", "64x64x64 128", "64x64x64 256", "128x128x32 128", "128x128x32 256")
    for shape in shapes:
        limits = [row("gemm", f"{kind} {shape}", f"parts.{part}.rows")["bound"]
                  for kind in ("fp16", "bf16") for part in ("resident", "backward_resident")]  # fmt: skip
        bounds.append([shape.replace(" ", ", "), *(f"{100 * b['reached']:.0f} ({100 * b['kept_reached']:.0f})"
                                                   for b in limits)])  # fmt: skip
    counters = []
    for shape in shapes[:4]:
        found = row("counters", f"resident {shape}")
        counters.append([shape.replace(" ", ", "),
                         *(f"{found[f'{unit}_percent']:.0f}" for unit in ("tensor_pipe", "issue", "shared_memory")),
                         f"{100 * found['bank_conflicts'] / found['shared_wavefronts']:.0f}"])  # fmt: skip
    return {
        "loops": table(["operands, size", "tile of C, step, threads", "instruction", "TFLOP/s", "of cuBLAS"],
                       map(cells, shown)),
        "cublas fp16": span(rates, ".0f"),
        "loops from c": table(
            ["operands, 4096", "tile of C, step, threads", "of cuBLAS, before", "now"],
            [[NAMES.get(found["dtype"], found["dtype"]), f"{found['m']}x{found['n']}, {found['k']}, {found['threads']}",
              f"{found['to_cublas']:.2f}", f"{every[found['name']]['to_cublas']:.2f}"]
             for found in at("loops_c_added_before", "rows")],
        ),
        "tensor cores fp16": f"{counted('float16 4096 128x256x64')} of the cycles, and with cuBLAS in "
                             f"{counted('cublas float16')}",
        "tensor cores fp64": f"{counted(f64)} of the cycles with 128 threads, in "
                             f"{counted('float64 4096 128x64x16 256')} with 256, and with cuBLAS in "
                             f"{counted('cublas float64')}",
        "waits fp64": stalls(f64, "cublas float64", "short_scoreboard"),
        "issue fp32": counted(f32, "issue_percent"),
        "issue cublas fp32": counted("cublas float32", "issue_percent"),
        "dispatch": stalls(f32, "cublas float32", "dispatch_stall"),
        "l2": counted("float16 4096 64x64x64 128", "l2_bytes_percent"),
        "reverse loops": table(
            ["operands, size, tile and step", "TFLOP/s", "times without stages", "of cuBLAS"],
            [[found["name"], f"{found['tflops']['stages']:.0f}", f"{found['to_before']:.1f}",
              f"{found['to_cublas']:.2f}"] for found in at("reverse_loops", "rows")],
        ),
        "bounds": table(["tile, threads", "fp16", "fp16 with adjoints", "bf16", "bf16 with adjoints"], bounds),
        "resident counters": table(
            ["tile, threads", "tensor cores", "issue slots", "shared memory", "bank conflicts, of all wavefronts"],
            counters,
        ),
    }  # fmt: skip


# ---- matmul


def whole_products() -> dict[str, str]:
    by_name = {found["name"]: found["to_torch"] for found in at("matmul", "rows")}

    def of_torch(*names: str, other: str = "torch") -> str:
        return ", ".join(f"{by_name[name][other]:.2f}" for name in names)

    def square(kind: str, *sizes: int, batch: str = "") -> str:
        return of_torch(*(f"product {kind} {batch}{size}x{size}x{size}" for size in sizes))

    def of_kind(kind: str) -> list[dict[str, Any]]:
        return [found for found in at("matmul", "rows") if found["kind"] == kind]

    def drawn(kind: str, *depths: tuple[int, str]) -> str:
        rows = of_kind(kind)
        parts = [rows] if not depths else [[f for f in rows if (f["k"] > 1024) == more] for more, _ in depths]
        texts = [span((f["to_torch"]["torch"] for f in part), ".2f") for part in parts]
        words = [text + (f" {depths[i][1]}" if depths else "") for i, text in enumerate(texts)]
        return f"{at('matmul', 'geometric_means')[kind]:.2f} (geometric mean); {', '.join(words)}"

    backward, layer = "backward float16 4096x4096x4096", "layer float16 8192x4096x4096"
    alone = by_name[layer]["torch"] / by_name[layer]["torch linear alone"]
    by_late = {found["name"]: found["late"] for found in at("matmul", "rows")}
    late = by_late.values()
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
    waits = [f"{row('counters', f'{side} product tf32')['stalls']['short_scoreboard']:.1f}"
             for side in ("matmul", "torch")]  # fmt: skip
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
        "late calls": f"{sum(calls > 3 for calls in late)} of {len(late)} rows have more than three such calls, the "
                      f"layer has {by_late[layer]}, and the most is {max(late)}",
        "matmul counters": table(
            ["", "unit", "warp_tiles", "torch"],
            [[text, unit, *(f"{row('counters', f'{side} {name}')[units[unit]]:.0f}" for side in ("matmul", "torch"))]
             for text, unit, name in limits],
        ),
        "waits tf32": f"{waits[0]} warps of a scheduler in each cycle in which it issues, and {waits[1]} with cuBLAS",
    }  # fmt: skip


def dense_solves() -> dict[str, str]:
    """Factors and solutions beside the faster of torch's calls."""
    rows = at("dense_solves", "rows")
    small, large = (4, 8, 16, 32, 64, 128), (256, 512, 1024, 2048, 4096)

    def cell(kind: str, dtype: str, n: int, batch: int) -> str:
        found = (r["to_torch"] for r in rows if (r["kind"], r["dtype"], r["n"], r["batch"]) == (kind, dtype, n, batch))
        return next((ratio(value) for value in found), "")

    def line(kind: str, dtype: str, sizes: Sequence[int], batch: int) -> list[str]:
        return [f"{kind}, {NAMES[dtype]}, batch of {batch:,}", *(cell(kind, dtype, n, batch) for n in sizes)]

    both = [(kind, dtype) for kind in ("factor", "solve") for dtype in ("float32", "float64")]
    return {
        "dense solves small": table(["", *map(str, small)], [line(*one, small, 1024) for one in both]),
        "dense solves large": table(
            ["", *map(str, large)],
            [line(*one, large, batch) for one in both for batch in (1, 32)],
        ),
    }


# ---- clusters, stores, recordings and tuning


def clusters_and_stores() -> dict[str, str]:
    sets = {
        "functions, used": "16 GEMM functions",
        "modules, used": "eight modules with their functions",
        "functions, fresh": "16 functions, fresh processes and workers",
        "modules, fresh": "eight modules, fresh processes and workers",
    }
    results, limit = at("cluster", "results"), at("cluster", "limit")
    fresh = results["functions, fresh"]["medians"]
    cases = at("remote", "cases")
    spread = max(max(case["all_seconds"]["local"]) - min(case["all_seconds"]["local"]) for case in cases)
    away = max(max(case["away_s"].values()) for case in cases)
    one, eight = (case["store_to_local"] for case in cases)
    return {
        "cluster": table(
            ["set", "own processes", "Dask", "ratio"],
            [[text, *(f"{results[name]['medians'][side]:.2f} s" for side in ("own", "dask")),
              f"{results[name]['ratio']:.2f}" + (", above the limit" if results[name]["ratio"] > limit else "")]
             for name, text in sets.items()],
        ),
        "cluster limit": str(limit),
        "fresh workers": f"{fresh['dask'] - fresh['own']:.1f} s",
        "remote": f"{one:.2f} of the time of a local build for one differentiable fp16 64x64x64 module, and "
                  f"{eight:.2f} for eight modules",
        "store away": f"{away:.1f} s at most, and builds without one by {spread:.1f} s",
    }  # fmt: skip


def recordings_and_tuning() -> dict[str, str]:
    def recorded(side: str, what: str) -> list[str]:
        times = at("recorded", f"{side}.{what}.us")
        replay = times["recorded"]
        return [what, *(f"{times[name]:.1f}" for name in ("wp.launch", "Launch.launch()")),
                f"{replay:.{1 if replay >= 1 else 2}f}", f"{replay / times['wp.launch']:.2g}"]  # fmt: skip

    def step(side: str) -> list[str]:
        times = at("recorded", f"{side}.training_step_us")
        tape, pairs = times["wp.launch + Tape"], times["recorded pairs"]
        return [f"{tape:.0f} (with `wp.Tape`)", "", f"{pairs:.1f}", f"{pairs / tape:.2g}"]

    def tuned(value: Callable[[list[Any]], str]) -> list[str]:
        rows = at("autotune_gemm", "rows")
        return [value([found for found in rows if found["precision"] == kind]) for kind in ("fp16", "tf32", "fp32")]

    graph = at("recorded", "gpu.training_step_us")["CUDA graph of recorded pairs"]
    share = [at("recorded", f"{side}.{what}.us") for side, what in (("cpu", "adjoint"), ("gpu", "forward"))]
    least, most = (f"{times['recorded'] / times['wp.launch']:.1g}" for times in share)
    head = ["`wp.launch`", "`Launch.launch()`", "recorded", "ratio to `wp.launch`"]
    others, listed = at("tune_loops", "summary.others"), at("tune_loops_listed", "summary.listed")
    gains = (
        "{cells} loops with short K, few blocks or odd sizes ran {geometric_mean:.2f} times as fast as by default "
        "(geometric mean, {least:.3f} to {greatest:.2f})"
    ).format(**others)
    gains += ", and the {cells} loops of `benchmarks/loops.py` {least:.3f} to {greatest:.2f} times".format(**listed)
    return {
        "tuned loops": gains,
        "recorded cpu": table(["µs", *head], [
            recorded("cpu", "forward"), recorded("cpu", "adjoint"),
            ["training step: two kernels, their adjoints, two updates", *step("cpu")]]),
        "recorded gpu": table(["µs of host time", *head, "CUDA graph of recorded pairs"], [
            [*recorded("gpu", "forward"), ""], [*recorded("gpu", "adjoint"), ""],
            ["training step", *step("gpu"), f"{graph:.1f}"]]),
        "recorded share": f"{least} to {most}",
        "recorded set": f"{at('recorded', 'cpu.set_us')['recorded set(), forward and adjoint']:.0f} µs",
        "later launches": "{added_us:.1f} us more ({plain_us:.1f} against {tuned_us:.1f} us)"
                          .format(**at("tuning", "later_launches")),
        "first launch": "{added_ms:.1f} ms more ({plain_ms:.1f} against {tuned_ms:.1f} ms)"
                        .format(**at("tuning", "first_launch")),
        "search": "{serial:.1f} s one by one and in {side_by_side:.1f} s in parallel, {ratio:.1f} times faster"
                  .format(**at("tuning", "search.build_s")),
        "tuned gemm": table(["", "fp16", "tf32", "fp32"], [
            ["geometric mean", *tuned(lambda rows: f"{geometric_mean(found['ratio'] for found in rows):.2f}")],
            ["least", *tuned(lambda rows: f"{min(found['ratio'] for found in rows):.2f}")],
            ["most", *tuned(lambda rows: f"{max(found['ratio'] for found in rows):.2f}")],
            ["seconds of search, ten shapes", *tuned(lambda rows: f"{sum(f['search_s'] for f in rows):.0f}")]]),
        "tuned mean": f"{at('autotune_gemm', 'geometric_mean'):.2f}",
    }  # fmt: skip


def values() -> dict[str, str]:
    """Every name that a page may mark, with its text."""
    parts = (
        compile_times, without_nvrtc, architectures, products, loops, whole_products, dense_solves, clients,
        whole_starts, client_kernels, newton_kernels, blocked_solvers, opted_out, clusters_and_stores,
        recordings_and_tuning, which_tiles, other_gpus,
    )  # fmt: skip
    return {name: text for part in parts for name, text in part().items()}
