"""The computed tables and values of docs/clients.md: names with their texts."""

from __future__ import annotations

from statistics import geometric_mean, median
from typing import Any

from benchmarks.drawing.cold_start import FIRST_STEPS, first_steps
from benchmarks.result_values import at, span, table


def whole_starts() -> dict[str, str]:
    """Starts with modules="all" beside Warp's: on a GPU, and the compilation on two cores."""
    titles = {name: f"MuJoCo Warp, {name}" for name in ("humanoid", "n_humanoid", "aloha_pot")}
    titles["kamino"] = "Newton, Kamino's solver"

    def line(title: str, warp_s: float, ratios: list[float | None]) -> list[str]:
        return [title, f"{warp_s:.1f}", *("not measured" if ratio is None else f"{ratio:.3g}" for ratio in ratios)]

    def on_gpu(name: str) -> list[str]:
        client = at(f"client_speed/starts {name}")
        warp_s = next(run["jit_s"] for run in client["runs"] if (run["side"], run["phase"]) == ("warp", "cold"))
        ratios = client["compared"]["jit_to_warp"]
        return line(titles[name], warp_s, [ratios.get(side) for side in ("all", "record", "store")])

    def on_two_cores(client: dict[str, Any]) -> list[str]:
        ratios = [client["ratios"].get(side) for side in ("first", "record", "store")]
        return line(client["title"], client["seconds"]["warp"], ratios)

    head = ["client", "Warp, s", "first start", "with a start list", "with a store"]
    starts = [row for row in at("clients/rows") if row["name"].startswith("starts ")]
    return {
        "whole starts": table(head, map(on_gpu, titles)),
        "whole starts on two cores": table(head, map(on_two_cores, starts)),
    }


def blocked_solvers() -> dict[str, str]:
    """Blocked factorizations and substitutions beside the faster of Warp's paths, by the number of matrices."""
    titles = {
        "blocked_cholesky": "factorization, lower",
        "blocked_cholesky_upper": "factorization, upper",
        "blocked_solve": "two substitutions, one right-hand side",
    }
    rows = [row for row in at("solvers/rows") if row.get("block")]

    def cell(function: str, types: str, batch: int) -> str:
        chosen = [row for row in rows if (row["function"], row["types"]) == (function, types)]
        found = [row if batch == 1024 else row["batches"].get(str(batch), {}) for row in chosen]
        ratios = [one["ratio"] for one in found if "ratio" in one]
        return f"{geometric_mean(ratios):.2f}; {min(ratios):.2f}"

    batches = (1, 32, 1024, 4096)
    lines = [
        [f"{title}, {types}", *(cell(function, types, batch) for batch in batches)]
        for function, title in titles.items()
        for types in ("fp32", "fp64")
    ]
    found = [one["ratio"] for row in rows for one in (row, *row["batches"].values()) if "ratio" in one]
    return {
        "blocked solvers": table(["matrices", *(f"{batch:,}" for batch in batches)], lines),
        "slower blocked": f"{sum(one < 1 for one in found)} of {len(found)}",
    }


def opted_out() -> dict[str, str]:
    """Speed of the calls that clients opt out of MathDx, relative to Warp's scalar path."""
    titles = {
        "transposed_product": "`c += wp.tile_matmul(wp.tile_transpose(a), b)` in a loop",
        "weighted_product": "the same with the rows of `a` scaled by weights, as MuJoCo Warp's JᵀDJ",
        "cholesky_inplace": "`tile_cholesky_inplace`",
        "lower_solve_inplace": "`tile_lower_solve_inplace`",
        "cholesky_solve_inplace": "`tile_cholesky_solve_inplace`",
    }
    found = {name: at(f"solvers/summary/{name} fp32") for name in titles}
    lines = [
        [title, f"{found[name]['geometric_mean']:.2f}", f"{found[name]['least']:.2f}"] for name, title in titles.items()
    ]
    return {"opted out": table(["kernel", "speed relative to Warp's scalar path: geometric mean", "least"], lines)}


def clients() -> dict[str, str]:
    def both(form: str, warp: float, tiles: float) -> str:
        return f"{warp:{form}}; {tiles:{form}}"

    def cold(client: Any) -> list[str]:
        sides = client["warp"], client["tiles"]
        builds, seconds, sizes = ([side[name] for side in sides] for name in ("mathdx_builds", "cpu_s", "cubin_bytes"))
        return [client["title"], both("", client["modules"], client["tile_modules"]["modules"]), both("", *builds),
                both(".1f", *seconds), f"{client['ratio']:.1f}", f"{client['tile_modules']['ratio']:.1f}",
                both(".2f", *(size / 1e6 for size in sizes))]  # fmt: skip

    cold_starts = first_steps(at("client_speed/rows"))

    def steps(value: float) -> str:
        return f"{value / 1e6:.2f} million" if value >= 1e6 else f"{round(value, -2):,.0f}"

    def speed(title: str) -> list[str]:
        worlds, row = FIRST_STEPS[title]
        cold, warm = at(f"client_speed/{row}/runs"), at(f"client_speed/speed {row.rpartition(' ')[2]}")
        sides = ("warp", "tiles")
        sizes = [next(run["cubin_bytes"] for run in cold if run["side"] == side) for side in sides]
        first = [cold_starts[title][side] for side in sides]
        rates = [
            median(run["steps_per_second"] for run in warm["runs"] if (run["side"], run["phase"]) == (side, "warm"))
            for side in sides
        ]
        return [title, f"{worlds:,}", both(".1f", *first), f"{first[1] / first[0]:.2f}",
                both(".1f", *(size / 1e6 for size in sizes)), "; ".join(map(steps, rates)),
                f"{warm['compared']['steps_to_warp']['tiles']:.2f}"]  # fmt: skip

    again = [run for run in at("client_speed/speed n_humanoid/runs") if run["phase"] == "cold"]
    repeated = [
        " and ".join(f"{run['jit_s']:.1f}" for run in again if run["side"] == side) for side in ("warp", "tiles")
    ]
    own_start = {run["side"]: run["jit_s"] for run in at("client_speed/own humanoid/runs") if run["phase"] == "cold"}
    newton = cold_starts["Newton, Featherstone"]
    warm = [run for run in at("client_speed/steps humanoid/runs") if run["phase"] == "warm"]
    return {
        **{
            f"warm starts {side}": span((run["jit_s"] for run in warm if run["side"] == side), ".2f")
            for side in ("all", "warp")
        },
        "clients": table(
            ["client", "modules; with functions", "LTO-IR builds by Warp: without, with warp_tiles",
             "CPU s: Warp; warp_tiles", "ratio", "ratio of modules with functions", "cubins, MB: Warp; warp_tiles"],
            map(cold, (row for row in at("clients/rows") if not row["name"].startswith("starts "))),
        ),
        "client speed": table(
            ["client", "worlds or problems", "seconds until the first step, caches empty: Warp; warp_tiles", "ratio",
             "cubins, MB: Warp; warp_tiles", "steps (solves) a second: Warp; warp_tiles", "ratio"],
            map(speed, FIRST_STEPS),
        ),
        "README cold start": f"{newton['tiles']:.0f} s in place of {newton['warp']:.0f} s",
        "repeated cold starts": f"{repeated[0]} s with Warp, {repeated[1]} s",
        "own first start": "{own:.1f} s with it, {tiles:.1f} s without it, and {warp:.1f} s".format(**own_start),
    }  # fmt: skip


PARTS = (whole_starts, blocked_solvers, opted_out, clients)
