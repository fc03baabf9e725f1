"""Measures kernels with tile functions of Newton 1.8.0, warp-nn and MuJoCo Warp one by one, and compares their results.

    python -m benchmarks.client_scripts.kernels --json benchmarks/results/client_kernels.json

The sides are Warp, warp_tiles, and `own`, which sets `mathdx_opt_out="own"`; each runs in a process of its own. A row
launches a package's kernel as the package does, on well-conditioned random data of a fixed seed. `us` is the median GPU
time of a call, of the row's kernels only; it is null on the CPU device. `difference` is the largest one from Warp's
result, relative to Warp's largest magnitude, for each output. The exit status is 1 if a row failed, or differs by more
than 1e-5. The rows of MuJoCo Warp's models have the times of all kernels of a step, which runs as launches, not as a
graph, after steps that are not counted. They need a GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import warp as wp

import warp_tiles
from benchmarks import runner
from benchmarks.client_scripts.dvi_rows import effort_limits, gram, inverse, joint_blocks, response
from benchmarks.client_scripts.kernel_rows import (
    Row,
    array,
    banded,
    blocked,
    factorization,
    filled,
    normal,
    offsets,
    panels,
    positive_definite,
    reordered,
    semi_sparse,
    solve,
    solve_inplace,
    traversal,
)
from benchmarks.client_speed import MODELS, package_folder
from benchmarks.machine import cpu_record, gpu_record

NEWTON = "newton._src"
TIMED_CALLS, WARM_STEPS = 30, 30
SIDES = ("warp", "tiles", "own")
MUJOCO_ROWS = ("humanoid", "n_humanoid")
_TILE_FUNCTION = re.compile(r"\btile_(?:matmul|cholesky\w*|(?:lower|upper)_solve\w*)\(")
_KERNEL = re.compile(r"^(?:extern \"C\" )?__global__ void.*?\b(\w+)_cuda_kernel_forward\(", re.MULTILINE)
LARGEST_DIFFERENCE = 1e-5  # of correct results, all float32


# ---- Newton's other solvers


def steel(worlds: int) -> Row:
    """``H^-1 J^T`` of 12 degrees of freedom and 32 constraints."""
    module, size, constraints = import_module(f"{NEWTON}.solvers.steel.solver_steel"), 12, 32
    kernel = module._get_hinv_jt_plain_kernel(size, constraints, str(wp.get_device().arch))
    lower = array(np.linalg.cholesky(positive_definite(worlds, size)))
    jacobian, identity = array(normal(worlds, constraints, size)), offsets(worlds, 1)
    result, unused = wp.zeros_like(jacobian), wp.zeros((1, 1, 1), dtype=wp.float32)
    inputs = [lower, jacobian, identity, identity, identity, filled(worlds, constraints), result, unused, unused]
    return Row((kernel,), lambda: wp.launch_tiled(kernel, dim=[worlds, 1], inputs=inputs, block_dim=64), {"Y": result})


def actuators(worlds: int) -> Row:
    """The inverses of mass matrices of 32 degrees of freedom."""
    kernel = import_module(f"{NEWTON}.actuators.joint_space_response")._build_tile_inverse_kernel(32)
    mass, eye = array(positive_definite(worlds, 32)), array(np.eye(32))
    lower, result = wp.zeros_like(mass), wp.zeros_like(mass)
    inputs = [mass, eye, lower, result]
    return Row((kernel,), lambda: wp.launch_tiled(kernel, dim=[worlds], inputs=inputs, block_dim=128),
               {"L": lower, "inverse": result})  # fmt: skip


def material_points(worlds: int, maker: str) -> Row:
    """The change of basis of strains and stresses, in place, in elements of 8 nodes: four for each world."""
    kernel = getattr(import_module(f"{NEWTON}.solvers.implicit_mpm.implicit_mpm_solver_kernels"), maker)(8)
    elements = 4 * worlds
    rotations = np.linalg.qr(normal(elements, 8, 8))[0]
    bases = [array(rotations), array(2.0 * rotations)] if maker == "make_rotate_vectors" else [array(rotations)]
    widths = (6, 6, 1) if maker == "make_rotate_vectors" else (6, 6, 6)
    before = [array((1 + index) * normal(elements * 8, width)) for index, width in enumerate(widths)]
    vectors = [wp.clone(values) for values in before]

    def call() -> None:
        for values, first in zip(vectors, before):
            wp.copy(values, first)
        wp.launch_tiled(kernel, dim=elements, inputs=[*bases, *vectors], block_dim=32)

    return Row((kernel,), call, {f"vectors_{index}": values for index, values in enumerate(vectors)})


# ---- warp-nn


def network(rows: int, layer: str, backward: bool) -> Row:
    """A layer of 64 features, or the gradients of its parameters and of its input. A GRU makes four steps."""
    module = getattr(import_module("warp_nn.nn"), layer)(64, 64)
    random = np.random.default_rng(1)
    for parameter in module.parameters():
        parameter.assign(random.uniform(-0.125, 0.125, parameter.shape).astype(np.float32))
    shape = (rows, 64) if layer == "Linear" else (rows, 4, 64)
    x = wp.array(normal(*shape), dtype=wp.float32, requires_grad=True)

    def forward() -> Any:
        found = module(x)
        return found if layer == "Linear" else found[0]

    if not backward:
        return Row((module._kernel,), forward, {"output": forward()})
    with wp.Tape() as tape:
        output = forward()
    seed = array(random.standard_normal(output.shape))

    def call() -> None:
        tape.zero()
        tape.backward(grads={output: seed})

    gradients = {f"parameter_{index}": value.grad for index, value in enumerate(module.parameters())}
    return Row((module._kernel,), call, {"input": x.grad, **gradients}, backward=True)


# ---- MuJoCo Warp


def with_tile_functions(folder: Path) -> list[str]:
    """Kernels of the modules in a kernel cache whose source calls products, factorizations or solves."""
    sources = [path.read_text() for path in folder.rglob("*.cu")]
    return sorted({name for text in sources if _TILE_FUNCTION.search(text) for name in _KERNEL.findall(text)})


def step_kernels(model: str) -> dict[str, Any]:
    """The times of all kernels of a step of MuJoCo Warp, and which of them have tile functions."""
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
    for _ in range(TIMED_CALLS):
        mjw.step(on_device, data)
    times = Counter[str]()
    for result in wp.timing_end():
        name = result.name.removeprefix("forward kernel ")
        times[name] += result.elapsed * 1e3 / TIMED_CALLS
    return {
        "worlds": worlds,
        "step_us": round(sum(times.values()), 1),
        "kernels_us": {name: round(value, 2) for name, value in times.most_common()},
        "tile_kernels": with_tile_functions(Path(wp.config.kernel_cache_dir)),
    }


# ---- The measurement


ROWS: dict[str, Callable[[int], Row]] = {
    "llt_blocked_factorize": lambda worlds: factorization(blocked(), positive_definite(worlds, 96)),
    "llt_blocked_solve": lambda worlds: solve(blocked(), positive_definite(worlds, 96)),
    "llt_blocked_solve_inplace": lambda worlds: solve_inplace(blocked(), positive_definite(worlds, 96)),
    "llt_blocked_rcm_factorize": lambda worlds: factorization(reordered(), banded(worlds, 128)),
    "llt_blocked_rcm_panels": lambda worlds: panels(min(worlds, 128)),
    "llt_blocked_rcm_panels_fused": lambda worlds: panels(min(worlds, 16)),
    "llt_blocked_rcm_solve": lambda worlds: solve(reordered(), banded(worlds, 128)),
    "llt_blocked_rcm_solve_inplace": lambda worlds: solve_inplace(reordered(), banded(worlds, 128)),
    "semi_sparse_factorize": lambda worlds: semi_sparse(worlds, "factorize"),
    "semi_sparse_solve": lambda worlds: semi_sparse(worlds, "solve"),
    "lox_traversal_solve": traversal,
    "dvi_inverse": inverse,
    "dvi_response": response,
    "dvi_gram": gram,
    "dvi_joint_factor": lambda worlds: joint_blocks(worlds, "factor"),
    "dvi_joint_solve": lambda worlds: joint_blocks(worlds, "solve"),
    "dvi_joint_response": lambda worlds: joint_blocks(worlds, "response"),
    "dvi_condense": lambda worlds: effort_limits(worlds, "condense"),
    "dvi_recover": lambda worlds: effort_limits(worlds, "recover"),
    "steel_hinv_jt": steel,
    "actuators_inverse": actuators,
    "mpm_rotate": lambda worlds: material_points(worlds, "make_rotate_vectors"),
    "mpm_rotate_back": lambda worlds: material_points(worlds, "make_inverse_rotate_vectors"),
    "nn_linear": lambda worlds: network(worlds, "Linear", backward=False),
    "nn_linear_backward": lambda worlds: network(worlds, "Linear", backward=True),
    "nn_gru": lambda worlds: network(worlds, "GRU", backward=False),
    "nn_gru_backward": lambda worlds: network(worlds, "GRU", backward=True),
}


def kernel_us(row: Row) -> float:
    """The median time of the row's kernels in a call, in microseconds."""
    direction = "backward" if row.backward else "forward"
    names = tuple(f"{direction} kernel {kernel.key}" for kernel in row.kernels)
    times: list[float] = []
    for _ in range(TIMED_CALLS):
        wp.timing_begin(wp.TIMING_KERNEL)
        row.call()
        found = [result.elapsed for result in wp.timing_end() if result.name.startswith(names)]
        if not found:
            raise LookupError(f"no launch of {names}")
        times.append(sum(found) * 1e3)
    return statistics.median(times)


def differences(values: dict[str, np.ndarray], peer: Path) -> dict[str, float]:
    """The largest difference of each output from Warp's, relative to the largest magnitude of Warp's."""
    found = {}
    with np.load(peer) as known:
        for name, value in values.items():
            finite = np.isfinite(known[name])
            if not np.array_equal(np.isfinite(value), finite):
                raise ValueError(f"{name} has other elements that are not finite than Warp's")
            scale = float(np.abs(known[name][finite]).max(initial=0.0)) or 1.0
            found[name] = float(np.abs(value - known[name])[finite].max(initial=0.0)) / scale
    return found


def measured(name: str, side: str, worlds: int, folder: Path) -> dict[str, Any]:
    """Run a row: its time and what is known of its results, which a folder receives."""
    if name in MUJOCO_ROWS:
        return step_kernels(name)
    row = ROWS[name](worlds)
    row.call()
    values = {output: found.numpy() for output, found in row.outputs.items()}
    record: dict[str, Any] = {"finite": all(bool(np.isfinite(value).all()) for value in values.values())}
    path, peer = folder / side / f"{name}.npz", folder / "warp" / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **values)
    if side != "warp":
        record["difference"] = differences(values, peer)
    return record | {"us": round(kernel_us(row), 2) if wp.get_device().is_cuda else None}


def child(side: str, names: Sequence[str], device: str, worlds: int, folder: Path) -> None:
    """Run rows on one side, and print each as a line of JSON."""
    if side != "warp":
        warp_tiles.configure(mathdx_opt_out="own" if side == "own" else "warp")
        warp_tiles.enable()
    wp.config.log_level = wp.LOG_WARNING
    with wp.ScopedDevice(device):
        for name in names:
            try:
                found = measured(name, side, worlds, folder)
            except Exception as error:  # the other rows are independent of it
                found = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps({"name": name, **found}), flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run all sides. The exit status is 1 if a row failed or differs."""
    parser = runner.parser(__doc__, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--worlds", type=int, default=1024, help="worlds, or rows of a network's input")
    parser.add_argument("--child", nargs=2, metavar=("SIDE", "DIR"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    names = [name for name in (*MUJOCO_ROWS, *ROWS) if runner.is_wanted(name, options.only)]
    names = [name for name in names if name in ROWS or options.device != "cpu"]
    if options.child:
        side, folder = options.child
        child(side, names, options.device, options.worlds, Path(folder))
        return 0
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        for side in SIDES:
            words = [sys.executable, "-m", "benchmarks.client_scripts.kernels", *(arguments or sys.argv[1:])]
            done = subprocess.run([*words, "--child", side, scratch], stdout=subprocess.PIPE, text=True, check=False)
            for row in map(json.loads, (line for line in done.stdout.splitlines() if line.startswith("{"))):
                found[row.pop("name")][side] = row
    record = runner.Record(
        options.json, cpu_record() if options.device == "cpu" else gpu_record(), (*MUJOCO_ROWS, *ROWS)
    )
    failed = False
    for name, sides in found.items():
        record.put({"name": name, "worlds": options.worlds, "sides": sides})
        differs = max((max(one.get("difference", {"": 0.0}).values()) for one in sides.values()), default=0.0)
        failed = (
            failed or differs > LARGEST_DIFFERENCE or any("error" in sides.get(side, {"error": ""}) for side in SIDES)
        )
        print(f"{name}: {json.dumps(sides)}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
