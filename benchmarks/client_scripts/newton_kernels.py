"""Measures kernels with tile functions of Newton 1.8.0 and warp-nn one by one, and keeps their results.

    python -m benchmarks.client_scripts.newton_kernels warp|tiles|own --json FILE [--device cuda:0] [--only PATTERN ...]
        [--values DIR] [--worlds 1024]

`own` is `mathdx_opt_out="own"`. A row launches a package's kernel as the package does, on well-conditioned random data
of a fixed seed. The file gets ``{"sides": {side: {"rows": [{"name", "us", "finite", ...}]}}}``; rows that are not run
again stay. `us` is the median GPU time of a call, of the row's kernels only; it is null on the CPU device. With
`--values`, `difference` is the largest one from Warp's result, relative to Warp's largest magnitude, for each output: a
run with side `warp` has to come first. The exit status is 1 if a row failed, or differs by more than 1e-5.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import warp as wp

import warp_tiles
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
from benchmarks.machine import cpu_record, gpu_record

NEWTON = "newton._src"
TIMED_CALLS = 30
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


def measured(name: str, side: str, worlds: int, folder: Path | None) -> dict[str, Any]:
    """Run a row: its time and what is known of its results."""
    row = ROWS[name](worlds)
    row.call()
    values = {output: found.numpy() for output, found in row.outputs.items()}
    record: dict[str, Any] = {"name": name, "us": None}
    record["finite"] = all(bool(np.isfinite(value).all()) for value in values.values())
    if folder is not None:
        path, peer = folder / side / f"{name}.npz", folder / "warp" / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **values)
        if side != "warp":
            record["difference"] = differences(values, peer)
    if wp.get_device().is_cuda:
        record["us"] = round(kernel_us(row), 2)
    return record


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=("warp", "tiles", "own"))
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="rows, as of a shell")
    parser.add_argument("--values", type=Path, metavar="DIR", help="folder for results")
    parser.add_argument("--worlds", type=int, default=1024, help="worlds, or rows of a network's input")
    arguments = parser.parse_args()
    if arguments.side != "warp":
        warp_tiles.configure(mathdx_opt_out="own" if arguments.side == "own" else "warp")
        warp_tiles.enable()
    wp.config.log_level = wp.LOG_WARNING
    failed = False
    with wp.ScopedDevice(arguments.device) as device:
        if arguments.json.exists():
            record = json.loads(arguments.json.read_text())
        else:
            record = gpu_record("auto") if device.is_cuda else cpu_record()
        rows = record.setdefault("sides", {}).setdefault(arguments.side, {}).setdefault("rows", [])
        for name in ROWS:
            if not any(fnmatch.fnmatch(name, pattern) for pattern in arguments.only):
                continue
            try:
                found = measured(name, arguments.side, arguments.worlds, arguments.values)
            except Exception as error:  # the other rows are independent of it
                found = {"name": name, "error": f"{type(error).__name__}: {error}"}
            wrong = max(found.get("difference", {}).values(), default=0.0) > LARGEST_DIFFERENCE
            failed = failed or wrong or "error" in found
            print(json.dumps(found), flush=True)
            rows[:] = [*(row for row in rows if row["name"] != name), found]
            arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
