"""The computed tables and values of docs/clients.md: names with their texts."""

from __future__ import annotations

from typing import Any

from benchmarks.client_speed import medians
from benchmarks.drawing.cold_start import cold_seconds, first_steps
from benchmarks.result_values import at, table

STARTS = {  # rows of client_speed.json
    "starts humanoid": "MuJoCo Warp, humanoid",
    "starts n_humanoid": "MuJoCo Warp, n_humanoid",
    "starts n_humanoid alone": "MuJoCo Warp, n_humanoid, alone",
    "starts aloha_pot": "MuJoCo Warp, aloha_pot",
    "starts featherstone": "Newton, Featherstone",
    "starts ik": "Newton, inverse kinematics (LM)",
    "starts kamino": "Newton, Kamino's solver, 256 mechanisms",
    "starts kamino H100": "the same on an H100, of an earlier state",
    "starts kamino 4096": "Newton, Kamino's solver, 4,096 mechanisms",
}
WORLDS = {"humanoid": 8192, "n_humanoid": 1024, "featherstone": 4096, "ik": 4096}


def whole_starts() -> dict[str, str]:
    """Starts beside Warp's: on a GPU, and the compilation on two cores."""

    wheels = {row["name"]: cold_seconds(row) for row in at("client_speed/rows") if row["name"].startswith("wheel ")}

    def on_gpu(name: str) -> list[str]:
        row = at(f"client_speed/{name}")
        seconds = cold_seconds(row)
        warm_s = medians(row["runs"], "warm_s").get("warm")
        warp = f"{seconds['warp']:.1f}" if "warp" in seconds else f"more than {row['cut_after_s']['warp']}"
        texts = {
            side: f"{value:.1f} ({value / seconds['warp']:.3f})" if "warp" in seconds else f"{value:.1f}"
            for side, value in seconds.items()
        }
        if warm_s is not None:
            texts["warm"] = f"{warm_s:.1f}; {texts['warm']}"
        if (newer := wheels.get(name.replace("starts", "wheel"), {})) and "wheel" in newer:
            peer = newer.get("warp", seconds.get("warp"))
            texts["wheel"] = f"{newer['wheel']:.1f}" + (f" ({newer['wheel'] / peer:.3f})" if peer else "")
        return [STARTS[name], warp, *(texts.get(side, "not measured") for side in sides)]

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
