"""Runs a solver of Newton, and prints what it measures as lines of JSON.

    python benchmarks/client_scripts/newton_speed.py featherstone|ik|kamino [--device cuda:0] [--worlds 4096]

The program does not use warp_tiles: `warp-tiles run` runs it as it runs any other. A line is printed as soon as its
values are known. `setup_s` is the time in which packages are imported and the robot's description is read; no kernel
runs in it. `jit_s` is the time after that until the first step has ended. It includes the creation of the model and of
the solver, whose time alone is the `jit_s` of a run with warm caches. On a GPU the steps are then captured as a graph,
which is replayed from the same initial state in every round. A step of `ik` is one solve.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import warp as wp

from benchmarks.client_scripts.steps import quadruped

TIME_STEP_S = 1e-3
SPRING_NM_PER_RAD, DAMPER_NMS_PER_RAD = 20.0, 0.2  # of the legs
IK_ITERATIONS = 24  # as in Newton's example_ik_franka
TIMED_CALLS = 10  # of the times of kernels


@dataclass(frozen=True)
class Scene:
    """A solver, its model and its state.

    Attributes:
        tile_kernel: Part of the name of the kernel with tile functions.
        steps_per_call: Steps that ``advance`` makes in each world.
        advance: Launches the kernels of these steps.
        restart: Returns to the initial state.
        coordinates: The coordinates after a call, of shape ``(worlds, coordinates)``.
    """

    tile_kernel: str
    steps_per_call: int
    advance: Callable[[], None]
    restart: Callable[[], None]
    coordinates: Callable[[], np.ndarray]

    def digest(self) -> dict[str, Any]:
        """Numbers by which the results of two runs are compared."""
        found = self.coordinates()
        finite = np.isfinite(found)
        values = found[finite].astype(np.float64)
        return {
            "joint_q_mean": float(values.mean()),
            "joint_q_rms": float(np.sqrt(np.square(values).mean())),
            "finite_worlds": int(finite.all(axis=1).sum()),
        }


def stepped(tile_kernel: str, solver: Any, model: Any, worlds: int, **initial: Any) -> Scene:
    """A solver whose two states change places, so that a graph of two steps can be replayed.

    Args:
        solver, model: The solver and its model.
        worlds: Number of robots.
        **initial: Initial arrays of the state; the first has the coordinates.
    """
    states, control = (model.state(), model.state()), model.control()

    def advance() -> None:
        for before, after in (states, states[::-1]):
            before.clear_forces()
            solver.step(before, after, control, None, TIME_STEP_S)

    def restart() -> None:
        for name, values in initial.items():
            wp.copy(getattr(states[0], name), values)

    restart()
    coordinates = getattr(states[0], next(iter(initial)))
    return Scene(tile_kernel, 2, advance, restart, lambda: coordinates.numpy().reshape(worlds, -1))


def featherstone(robot: Any, device: str, worlds: int) -> Scene:
    """``SolverFeatherstone(use_tile_gemm=True)`` on falling quadrupeds without contacts.

    Each world starts with other joint angles and velocities. Springs hold the legs.
    """
    newton = import_module("newton")
    builder = newton.ModelBuilder()
    builder.replicate(robot, worlds)
    builder.add_ground_plane()
    model = builder.finalize(device=device)
    model.joint_target_ke.fill_(SPRING_NM_PER_RAD)
    model.joint_target_kd.fill_(DAMPER_NMS_PER_RAD)
    solver = newton.solvers.SolverFeatherstone(model, use_tile_gemm=True)
    random = np.random.default_rng(0)
    joint_q = model.joint_q.numpy().reshape(worlds, -1)
    joint_q[:, 7:] += random.uniform(-0.3, 0.3, joint_q[:, 7:].shape)  # the first seven are the base's pose
    joint_qd = random.uniform(-0.5, 0.5, model.joint_dof_count)
    initial = {"joint_q": joint_q.ravel(), "joint_qd": joint_qd}
    arrays = {name: wp.array(values, dtype=wp.float32, device=device) for name, values in initial.items()}
    return stepped("eval_dense_gemm_and_cholesky_tile", solver, model, worlds, **arrays)


def inverse_kinematics(robot: Any, device: str, worlds: int) -> Scene:
    """``newton.ik.IKSolver`` (Levenberg-Marquardt, analytic Jacobian) with three objectives.

    A target pose of the last link is drawn for each problem. Each solve starts from the robot's initial pose.
    """
    ik = import_module("newton.ik")
    robot.add_ground_plane()
    model = robot.finalize(device=device)
    link = model.body_count - 1
    random = np.random.default_rng(0)
    positions = np.array([0.0, 0.0, 0.2]) + random.uniform(-0.15, 0.15, (worlds, 3))  # m
    rotations = np.array([0.0, 0.0, 0.0, 1.0]) + random.uniform(-0.2, 0.2, (worlds, 4))
    rotations /= np.linalg.norm(rotations, axis=1, keepdims=True)
    objectives = [
        ik.IKObjectivePosition(link, wp.vec3(), wp.array(positions, dtype=wp.vec3, device=device)),
        ik.IKObjectiveRotation(link, wp.quat_identity(), wp.array(rotations, dtype=wp.vec4, device=device)),
        ik.IKObjectiveJointLimit(model.joint_limit_lower, model.joint_limit_upper, weight=10.0),
    ]
    solver = ik.IKSolver(model, worlds, objectives, lambda_initial=0.1, jacobian_mode=ik.IKJacobianType.ANALYTIC)
    seeds = wp.array(np.tile(model.joint_q.numpy(), (worlds, 1)), dtype=wp.float32, device=device)
    joint_q = wp.clone(seeds)

    def advance() -> None:
        wp.copy(joint_q, seeds)
        solver.step(joint_q, joint_q, iterations=IK_ITERATIONS)

    return Scene("_lm_solve_tiled", 1, advance, lambda: None, joint_q.numpy)


def four_bar() -> Any:
    """A builder with the mechanism of Newton's example_kamino_basic_fourbar, which its own code builds."""
    newton = import_module("newton")
    robot = newton.ModelBuilder(up_axis=newton.Axis.Z)
    newton.solvers.SolverKamino.register_custom_attributes(robot)
    robot.default_shape_cfg.margin = robot.default_shape_cfg.gap = 0.0
    import_module("newton.tests.utils").basics.build_boxes_fourbar(builder=robot, ground=False)
    return robot


def kamino(robot: Any, device: str, worlds: int) -> Scene:
    """``SolverKamino`` on free four-bar mechanisms. They collide as in Newton's example, without a ground."""
    newton = import_module("newton")
    builder = newton.ModelBuilder(up_axis=newton.Axis.Z)
    for _ in range(worlds):
        builder.add_world(robot)
    model = builder.finalize(device=device, skip_validation_joints=True)
    model.joint_target_ke.fill_(1.0)
    model.joint_target_kd.fill_(0.001)
    config = newton.solvers.SolverKamino.Config.from_model(model)
    config.use_collision_detector = True
    config.collision_detector.pipeline = "primitive"
    config.collision_detector.max_contacts = 32 * worlds
    solver = newton.solvers.SolverKamino(model=model, config=config)
    arrays = {name: wp.clone(getattr(model, name)) for name in ("body_q", "body_qd")}
    return stepped("llt_blocked", solver, model, worlds, **arrays)


SCENES: dict[str, tuple[Callable[[], Any], Callable[[Any, str, int], Scene]]] = {
    "featherstone": (quadruped, featherstone),
    "ik": (quadruped, inverse_kinematics),
    "kamino": (four_bar, kamino),
}


def emit(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def kernel_times(scene: Scene) -> dict[str, float]:
    """Microseconds of the kernels of one call of `advance`: of all together, and of the one with tile functions."""
    wp.timing_begin(wp.TIMING_KERNEL)
    for _ in range(TIMED_CALLS):
        scene.advance()
    found = wp.timing_end()
    tile = [result for result in found if scene.tile_kernel in result.name]
    parts = {"kernels_us": found, "tile_kernel_us": tile}
    return {name: round(sum(one.elapsed for one in part) * 1e3 / TIMED_CALLS, 2) for name, part in parts.items()}


def rates(scene: Scene, worlds: int, steps: int, rounds: int) -> list[float]:
    """Steps a second of all worlds together, for each round."""
    device, call = wp.get_device(), scene.advance
    if device.is_cuda:
        with wp.ScopedCapture() as capture:
            scene.advance()
        call = functools.partial(wp.capture_launch, capture.graph)
    calls = max(1, steps // scene.steps_per_call)
    found = []
    for _ in range(rounds):
        scene.restart()
        wp.synchronize_device(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wp.synchronize_device(device)
        found.append(worlds * calls * scene.steps_per_call / (time.perf_counter() - start))
    return found


def main() -> None:
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", choices=SCENES)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--worlds", type=int, default=4096, help="worlds, or problems of inverse kinematics")
    parser.add_argument("--steps", type=int, default=1000, help="steps or solves of each round, in each world")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are timed")
    options = parser.parse_args()
    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    with wp.ScopedDevice(options.device) as device:
        read, make = SCENES[options.scene]
        robot = read()
        wp.zeros(1, dtype=wp.float32)  # creates the device's context
        wp.synchronize_device(device)
        ready = time.perf_counter()
        scene = make(robot, options.device, options.worlds)
        scene.advance()
        wp.synchronize_device(device)
        emit(setup_s=round(ready - start, 2), jit_s=round(time.perf_counter() - ready, 2), first=scene.digest())
        found = [round(rate, 1) for rate in rates(scene, options.worlds, options.steps, options.rounds)]
        emit(steps_per_second=statistics.median(found), rounds=found, last=scene.digest())
        if device.is_cuda:
            emit(**kernel_times(scene))


if __name__ == "__main__":
    main()
