"""The computed tables and values of docs/clients.md: names with their texts."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.drawing.cold_start import FIRST_STEPS, first_steps
from benchmarks.result_values import at, table


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

    newton = cold_starts["Newton, Featherstone"]
    return {
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
    }  # fmt: skip


PARTS = (whole_starts, clients)
