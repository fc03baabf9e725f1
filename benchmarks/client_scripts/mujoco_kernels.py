"""Measures the GPU time of each kernel of a step of MuJoCo Warp, and which of them have tile functions.

    python -m benchmarks.client_scripts.mujoco_kernels humanoid|n_humanoid|aloha_pot warp|tiles|own --json FILE

`own` is `mathdx_opt_out="own"`. The steps run as launches, not as a graph, after steps that are not counted. The file
gets the microseconds of a step for each kernel: ``{model: {side: {"kernels_us": {...}, "tile_kernels": [...]}}}``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import warp as wp

import warp_tiles
from benchmarks.client_speed import MODELS, package_folder
from benchmarks.machine import gpu_record

WARM_STEPS, TIMED_STEPS = 30, 10
_TILE_FUNCTION = re.compile(r"\btile_(?:matmul|cholesky\w*|(?:lower|upper)_solve\w*)\(")
_KERNEL = re.compile(r"^(?:extern \"C\" )?__global__ void.*?\b(\w+)_cuda_kernel_forward\(", re.MULTILINE)


def with_tile_functions(folder: Path) -> list[str]:
    """Kernels of the modules in a kernel cache whose source calls products, factorizations or solves."""
    sources = [path.read_text() for path in folder.rglob("*.cu")]
    return sorted({name for text in sources if _TILE_FUNCTION.search(text) for name in _KERNEL.findall(text)})


def measured(model: str) -> dict[str, Any]:
    """The times of a step."""
    mujoco, mjw = import_module("mujoco"), import_module("mujoco_warp")
    file, worlds, sizes = MODELS[model]
    limits = {name: int(value) for name, _, value in (size.removeprefix("--").partition("=") for size in sizes)}
    host = mujoco.MjModel.from_xml_path(str(package_folder("mujoco_warp") / "test_data" / file))
    state = mujoco.MjData(host)
    if host.nkey:
        mujoco.mj_resetDataKeyframe(host, state, 0)
    mujoco.mj_forward(host, state)
    on_device, data = mjw.put_model(host), mjw.put_data(host, state, nworld=worlds, **limits)
    for _ in range(WARM_STEPS):
        mjw.step(on_device, data)
    wp.timing_begin(wp.TIMING_KERNEL | wp.TIMING_KERNEL_BUILTIN)
    for _ in range(TIMED_STEPS):
        mjw.step(on_device, data)
    times = Counter[str]()
    for result in wp.timing_end():
        name = result.name.removeprefix("forward kernel ")
        times[name] += result.elapsed * 1e3 / TIMED_STEPS
    return {
        "worlds": worlds,
        "step_us": round(sum(times.values()), 1),
        "kernels_us": {name: round(value, 2) for name, value in times.most_common()},
        "tile_kernels": with_tile_functions(Path(wp.config.kernel_cache_dir)),
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("side", choices=("warp", "tiles", "own"))
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.side != "warp":
        warp_tiles.configure(mathdx_opt_out="own" if arguments.side == "own" else "warp")
        warp_tiles.enable()
    found = measured(arguments.model)
    record = json.loads(arguments.json.read_text()) if arguments.json.exists() else gpu_record("auto")
    record.setdefault(arguments.model, {})[arguments.side] = found
    arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    tile_us = sum(found["kernels_us"].get(name, 0.0) for name in found["tile_kernels"])
    print(f"{arguments.model}, {arguments.side}: {found['step_us']} us a step, {tile_us:.1f} with tile functions")


if __name__ == "__main__":
    main()
