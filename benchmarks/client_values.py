"""The computed tables and values of docs/clients.md: names with their texts."""

from __future__ import annotations

from typing import Any

from benchmarks.client_speed import medians
from benchmarks.drawing.cold_start import cold_seconds, first_steps
from benchmarks.result_values import at, table

STARTS = {  # rows of client_speed.json
    "starts humanoid": "MuJoCo Warp, humanoid",
    "starts n_humanoid": "MuJoCo Warp, n_humanoid",
    "starts aloha_pot": "MuJoCo Warp, aloha_pot",
    "starts featherstone": "Newton, Featherstone",
    "starts ik": "Newton, inverse kinematics (LM)",
    "starts kamino": "Newton, Kamino's solver, 256 mechanisms",
    "starts kamino 4096": "Newton, Kamino's solver, 4,096 mechanisms",
}
WORLDS = {"humanoid": 8192, "n_humanoid": 1024, "featherstone": 4096, "ik": 4096}


def whole_starts() -> dict[str, str]:
    """Starts beside Warp's: on a GPU, and the compilation on two cores."""

    rows = {row["name"]: row for row in at("client_speed/rows")}

    def cell(name: str, side: str) -> str:
        newer = rows.get(name.replace("starts", side), {"runs": ()})
        row = newer if side in cold_seconds(newer) else rows[name]
        if (value := cold_seconds(row).get(side)) is None:
            return "not measured"
        peer = cold_seconds(row).get("warp", cold_seconds(rows[name]).get("warp"))
        text = f"{value:.1f} ({value / peer:.3f})" if peer else f"{value:.1f}"
        return f"{medians(row['runs'], 'warm_s')['warm']:.1f}; {text}" if side == "warm" else text

    def on_gpu(name: str) -> list[str]:
        seconds = cold_seconds(rows[name])
        warp = f"{seconds['warp']:.1f}" if "warp" in seconds else f"more than {rows[name]['cut_after_s']['warp']}"
        return [STARTS[name], warp, *(cell(name, side) for side in sides)]

    def on_two_cores(client: dict[str, Any]) -> list[str]:
        found = client["ratios"]
        ratios = (f"{found[side]:.3g}" if side in found else "not measured" for side in on_cores)
        return [client["title"], f"{client['seconds']['warp']:.1f}", *ratios]

    sides = ("tiles", "all", "list", "warm", "store", "wheel")
    on_cores = ("first", "all", "record", "warm", "store", "wheel")
    head = [
        "client",
        "Warp",
        "first start",
        '`modules="all"`',
        "start list",
        "`warm`; then the start",
        "store",
        "wheel",
    ]
    starts = [row for row in at("clients/rows") if row["name"].startswith("starts ")]
    plain = ["client", "Warp, s", "first start", '`modules="all"`', "start list", "after `warm`", "store", "wheel"]
    return {
        "whole starts": table(head, map(on_gpu, STARTS)),
        "whole starts on two cores": table(plain, map(on_two_cores, starts)),
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

    def steps(value: float) -> str:
        return f"{value / 1e6:.2f} million" if value >= 1e6 else f"{round(value, -2):,.0f}"

    def speed(title: str, worlds: int, name: str) -> list[str]:
        row = at(f"client_speed/speed {name}")
        found = medians((run for run in row["runs"] if run["phase"] == "warm"), "steps_per_second")
        rates = "; ".join(steps(found[side]) for side in ("warp", "tiles"))
        return [title, f"{worlds:,}", rates, f"{row['compared']['steps_to_warp']['tiles']:.2f}"]

    humanoid = cold_seconds(at("client_speed/wheel humanoid"))
    inverse = first_steps(at("client_speed/rows"))[STARTS["starts ik"]]
    return {
        "clients": table(
            ["client", "modules; with functions", "LTO-IR builds by Warp: without, with warp_tiles",
             "CPU s: Warp; warp_tiles", "ratio", "ratio of modules with functions", "cubins, MB: Warp; warp_tiles"],
            map(cold, (row for row in at("clients/rows") if "tile_modules" in row)),
        ),
        "client speed": table(
            ["client", "worlds or problems", "steps (solves) a second: Warp; warp_tiles", "ratio"],
            [speed(STARTS[f"starts {name}"], worlds, name) for name, worlds in WORLDS.items()],
        ),
        "README first start": f"{inverse['tiles']:.0f} s in place of {inverse['warp']:.0f} s",
        "README wheel": f"{humanoid['wheel']:.0f} s in place of {humanoid['warp']:.0f} s",
    }  # fmt: skip


PARTS = (whole_starts, clients)
