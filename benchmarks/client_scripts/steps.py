"""One step of each client, by its public interface, on the CPU device. The caller intercepts the launches.

A function builds a client's model and calls what a simulation or a training loop calls. Sizes that are not in the
code of a kernel (worlds, problems) are small. Packages are imported by name, because not all need to be installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import runpy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

DEVICE = "cpu"


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, package
    assert spec.origin is not None, package
    return Path(spec.origin).parent


# ---- MuJoCo Warp


def mujoco_warp(model: str, **limits: int) -> None:
    """One ``mujoco_warp.step`` of a model of the package's own test data."""
    mujoco, mjw = import_module("mujoco"), import_module("mujoco_warp")
    host = mujoco.MjModel.from_xml_path(str(_folder("mujoco_warp") / "test_data" / model))
    state = mujoco.MjData(host)
    if host.nkey:
        mujoco.mj_resetDataKeyframe(host, state, 0)  # as its testspeed does
    mujoco.mj_forward(host, state)
    mjw.step(mjw.put_model(host), mjw.put_data(host, state, nworld=4, **limits))


# ---- Newton


def quadruped() -> Any:
    """A builder with the quadruped of Newton's example_basic_urdf."""
    wp, newton = import_module("warp"), import_module("newton")
    builder = newton.ModelBuilder()
    builder.default_joint_cfg.armature = 0.01
    builder.add_urdf(
        str(_folder("newton") / "examples" / "assets" / "quadruped.urdf"),
        xform=wp.transform(wp.vec3(0.0, 0.0, 0.7), wp.quat_identity()),
        floating=True,
        enable_self_collisions=False,
        ignore_inertial_definitions=True,
        joint_damping_mode="drive",
    )
    return builder


def featherstone() -> None:
    """One step of ``SolverFeatherstone(use_tile_gemm=True)`` without contacts, whose kernels have no tile functions."""
    newton, builder = import_module("newton"), quadruped()
    builder.add_ground_plane()
    model = builder.finalize(device=DEVICE)
    solver = newton.solvers.SolverFeatherstone(model, use_tile_gemm=True)
    before, after, control = model.state(), model.state(), model.control()
    newton.eval_fk(model, model.joint_q, model.joint_qd, before)
    before.clear_forces()
    solver.step(before, after, control, None, 1e-3)


def inverse_kinematics() -> None:
    """A solve of ``newton.ik.IKSolver`` (Levenberg-Marquardt, analytic Jacobian) with three objectives."""
    scenes = import_module("benchmarks.client_scripts.newton_speed")  # which imports this module
    scenes.inverse_kinematics(quadruped(), DEVICE, 2).advance()


def kamino() -> None:
    """A factorization and both solves of ``LLTBlockedSolver``, the direct solver of ``SolverKamino``."""
    wp = import_module("warp")
    linalg = import_module("newton._src.solvers.kamino._src.linalg")
    size = 96
    info = linalg.DenseSquareMultiLinearInfo()
    info.finalize(dimensions=[size], dtype=wp.float32, device=DEVICE)
    matrix = wp.array(np.eye(size, dtype=np.float32).ravel(), dtype=wp.float32, device=DEVICE)
    operator = linalg.DenseLinearOperatorData(info=info, mat=matrix)
    solver = linalg.LLTBlockedSolver(operator=operator, device=DEVICE)
    b, x = (wp.zeros(size, dtype=wp.float32, device=DEVICE) for _ in range(2))
    solver.compute(A=matrix)
    solver.solve(b=b, x=x)
    solver.solve_inplace(x=x)


def _blank(kind: Any) -> Any:
    """An argument of a type, without elements: launches are noted, and not run."""
    wp = import_module("warp")
    if hasattr(kind, "ndim") and hasattr(kind, "dtype"):
        return wp.zeros((0,) * kind.ndim, dtype=kind.dtype, device=DEVICE)
    return kind()


def newton_kernels() -> None:
    """The kernels with tile functions of Newton's other solvers, in blocks of the sizes that their callers use."""
    wp = import_module("warp")
    newton, kamino = "newton._src", "newton._src.solvers.kamino._src"
    rcm = import_module(f"{kamino}.linalg.factorize.llt_blocked_rcm")
    sparse = import_module(f"{kamino}.linalg.factorize.llt_blocked_semi_sparse")
    joints = import_module(f"{kamino}.solvers.dvi.joint_blocks")
    response = import_module(f"{kamino}.solvers.dvi.response")
    condensation = import_module(f"{kamino}.solvers.dvi.effort_limit_condensation")
    lox = import_module(f"{kamino}.solvers.lox.llt")
    steel = import_module(f"{newton}.solvers.steel.solver_steel")
    actuators = import_module(f"{newton}.actuators.joint_space_response")
    mpm = import_module(f"{newton}.solvers.implicit_mpm.implicit_mpm_solver_kernels")
    kernels = {  # with the threads of a block
        rcm.make_llt_blocked_rcm_factorize_kernel(32): 128,
        **dict.fromkeys(rcm.make_llt_blocked_rcm_parallel_factorize_kernels(32), 128),
        rcm.make_llt_blocked_rcm_solve_kernel(32): 256,
        rcm.make_llt_blocked_rcm_solve_inplace_kernel(32): 256,
        sparse.create_blocked_cholesky_kernel(16): 128,
        sparse.create_blocked_cholesky_solve_kernel(16): 64,
        joints._factor: 32,
        joints.make_response_kernel(True): 32,
        response.make_response_kernel(): 128,
        condensation._condense: 32,
        lox.make_llt_blocked_rcm_traversal_solve_kernel(32): 256,
        steel._get_hinv_jt_plain_kernel(12, 32, "sm_90"): 64,
        actuators._build_tile_inverse_kernel(32): 128,
        mpm.make_rotate_vectors(8): 32,
        mpm.make_inverse_rotate_vectors(8): 32,
    }
    for kernel, threads in kernels.items():
        inputs = [_blank(argument.type) for argument in kernel.adj.args]
        wp.launch_tiled(kernel, dim=[1], inputs=inputs, block_dim=threads, device=DEVICE)


# ---- warp-nn


def warp_nn() -> None:
    """The forward pass of a multilayer perceptron 32, 64, 64, 8. Its modules have the adjoints as well.

    Its Adam is left out: one of its modules has tiles of 1,024 elements in blocks of one thread, which takes Warp's
    compiler minutes with and without warp_tiles.
    """
    wp, nn = import_module("warp"), import_module("warp_nn.nn")
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    with wp.Tape():
        model(wp.zeros((16, 32), dtype=wp.float32, requires_grad=True))


# ---- Warp's tile examples


def _script(name: str, *arguments: str) -> None:
    """Run one of Warp's examples as a script. One ends where it checks results, which were not computed."""
    path = _folder("warp") / "examples" / "tile" / f"{name}.py"
    before, sys.argv = sys.argv, [str(path), "--headless", *arguments]
    try:
        with contextlib.suppress(AssertionError):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before


ARCH = 90
PINNED = {"warp-lang": "1.19.0", "mujoco-warp": "4.0.0", "newton": "1.8.0", "warp-nn": "0.4.1"}
MORE_PACKAGES = ("pillow",)  # example_tile_mlp reads a picture with it; the version has no influence


@dataclass(frozen=True)
class Client:
    """A program that uses Warp's tile functions.

    Attributes:
        title: Its name in tables.
        step: Runs one step.
        packages: Its distributions besides Warp, by name.
    """

    title: str
    step: Callable[[], None]
    packages: tuple[str, ...] = ()


MUJOCO, NEWTON = ("mujoco-warp",), ("newton",)
CLIENTS = {
    "mujoco_humanoid": Client("MuJoCo Warp, humanoid", lambda: mujoco_warp("humanoid/humanoid.xml"), MUJOCO),
    "mujoco_n_humanoid": Client(
        "MuJoCo Warp, n_humanoid", lambda: mujoco_warp("humanoid/n_humanoid.xml", njmax=600, nconmax=160), MUJOCO
    ),
    "mujoco_aloha_pot": Client(
        "MuJoCo Warp, aloha_pot", lambda: mujoco_warp("aloha_pot/scene.xml", njmax=128, nconmax=24), MUJOCO
    ),
    "newton_featherstone": Client("Newton, Featherstone", featherstone, NEWTON),
    "newton_ik": Client("Newton, inverse kinematics (LM)", inverse_kinematics, NEWTON),
    "newton_kamino": Client("Newton, Kamino's blocked LLT", kamino, NEWTON),
    "newton_kernels": Client("Newton, other solvers", newton_kernels, NEWTON),
    "warp_nn_mlp": Client("warp-nn, MLP", warp_nn, ("warp-nn",)),
    "tile_mlp": Client("example_tile_mlp", lambda: _script("example_tile_mlp"), MORE_PACKAGES),
    "tile_block_cholesky": Client(  # with its smallest matrix
        "example_tile_block_cholesky", lambda: _script("example_tile_block_cholesky", "--device", DEVICE, "-N", "1")
    ),
    "tile_cholesky": Client("example_tile_cholesky", lambda: _script("example_tile_cholesky", "--device", DEVICE)),
}


def versions() -> dict[str, str]:
    """The versions of the clients' packages that are installed."""
    names = (*PINNED, *MORE_PACKAGES, "mujoco", "nvidia-cuda-nvrtc-cu12", "nvidia-nvjitlink-cu12")
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def missing(client: Client, found: Mapping[str, str]) -> str:
    """The reason why a client cannot be measured with these packages; empty if it can."""
    for name in ("warp-lang", *client.packages):
        if name not in found:
            return f"{name} is not installed"
        if found[name] != PINNED.get(name, found[name]):
            return f"{name} is {found[name]}, and the benchmark is for {PINNED[name]}"
    return ""


if __name__ == "__main__":  # a script for the commands that plan one
    if sys.argv[1:]:
        CLIENTS[sys.argv[1]].step()
    else:
        print(json.dumps(versions()))
