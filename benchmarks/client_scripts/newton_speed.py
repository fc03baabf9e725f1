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
from importlib import import_module
from typing import Any

import numpy as np
import warp as wp

from benchmarks.client_scripts.steps import quadruped

TIME_STEP_S = 1e-3
SPRING_NM_PER_RAD, DAMPER_NMS_PER_RAD = 20.0, 0.2  # of the legs
IK_ITERATIONS = 24  # as in Newton's example_ik_franka
TIMED_CALLS = 10  # of the times of kernels


class Scene:
    """A solver, its model and its state.

    Attributes:
        steps_per_call: Steps that `advance` makes in each world.
        tile_kernel: Part of the name of the kernel with tile functions.
    """

    steps_per_call: int
    tile_kernel: str

    def restart(self) -> None:
        """Return to the initial state."""

    def advance(self) -> None:
        """Launch the kernels of `steps_per_call` steps."""
        raise NotImplementedError

    def digest(self) -> dict[str, Any]:
        """Numbers by which the results of two runs are compared."""
        raise NotImplementedError


def summary(joint_q: np.ndarray) -> dict[str, Any]:
    """Mean and root mean square of joint coordinates of shape ``(worlds, coordinates)``, and how many are finite."""
    finite = np.isfinite(joint_q)
    values = joint_q[finite].astype(np.float64)
    return {
        "joint_q_mean": float(values.mean()),
        "joint_q_rms": float(np.sqrt(np.square(values).mean())),
        "finite_worlds": int(finite.all(axis=1).sum()),
    }


class Stepped(Scene):
    """A solver of Newton whose two states change places, so that a graph of two steps can be replayed.

    Args:
        solver, model: The solver and its model.
        worlds: Number of robots.
    """

    steps_per_call = 2

    def __init__(self, solver: Any, model: Any, worlds: int) -> None:
        self._solver, self._worlds = solver, worlds
        self._states = model.state(), model.state()
        self._control = model.control()

    def advance(self) -> None:
        for before, after in (self._states, self._states[::-1]):
            before.clear_forces()
            self._solver.step(before, after, self._control, None, TIME_STEP_S)


class Featherstone(Stepped):
    """``SolverFeatherstone(use_tile_gemm=True)`` on falling quadrupeds without contacts, as in steps.py.

    Each world starts with other joint angles and velocities. Springs hold the legs.

    Args:
        robot: Builder with one quadruped.
        device: Name of the device.
        worlds: Number of quadrupeds.
    """

    tile_kernel = "eval_dense_gemm_and_cholesky_tile"

    def __init__(self, robot: Any, device: str, worlds: int) -> None:
        newton = import_module("newton")
        builder = newton.ModelBuilder()
        builder.replicate(robot, worlds)
        builder.add_ground_plane()
        model = builder.finalize(device=device)
        model.joint_target_ke.fill_(SPRING_NM_PER_RAD)
        model.joint_target_kd.fill_(DAMPER_NMS_PER_RAD)
        super().__init__(newton.solvers.SolverFeatherstone(model, use_tile_gemm=True), model, worlds)
        random = np.random.default_rng(0)
        joint_q = model.joint_q.numpy().reshape(worlds, -1)
        joint_q[:, 7:] += random.uniform(-0.3, 0.3, joint_q[:, 7:].shape)  # the first seven are the base's pose
        self._joint_q = wp.array(joint_q.ravel(), dtype=wp.float32, device=device)
        joint_qd = random.uniform(-0.5, 0.5, model.joint_dof_count)
        self._joint_qd = wp.array(joint_qd, dtype=wp.float32, device=device)
        self.restart()

    def restart(self) -> None:
        first = self._states[0]
        wp.copy(first.joint_q, self._joint_q)
        wp.copy(first.joint_qd, self._joint_qd)

    def digest(self) -> dict[str, Any]:
        return summary(self._states[0].joint_q.numpy().reshape(self._worlds, -1))


class InverseKinematics(Scene):
    """``newton.ik.IKSolver`` with the objectives of steps.py. A target pose of the last link is drawn for each problem.

    Each solve starts from the robot's initial pose and makes ``IK_ITERATIONS`` iterations.

    Args:
        robot: Builder with one quadruped.
        device: Name of the device.
        worlds: Number of problems.
    """

    steps_per_call = 1
    tile_kernel = "_lm_solve_tiled"

    def __init__(self, robot: Any, device: str, worlds: int) -> None:
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
        self._solver = ik.IKSolver(
            model, worlds, objectives, lambda_initial=0.1, jacobian_mode=ik.IKJacobianType.ANALYTIC
        )
        seeds = np.tile(model.joint_q.numpy(), (worlds, 1))
        self._seeds = wp.array(seeds, dtype=wp.float32, device=device)
        self._joint_q = wp.clone(self._seeds)

    def advance(self) -> None:
        wp.copy(self._joint_q, self._seeds)
        self._solver.step(self._joint_q, self._joint_q, iterations=IK_ITERATIONS)

    def digest(self) -> dict[str, Any]:
        """Of the joint coordinates and of the costs."""
        costs = self._solver.costs_expanded.numpy()
        return {**summary(self._joint_q.numpy()), "cost_mean": float(costs.mean()), "cost_max": float(costs.max())}


def four_bar() -> Any:
    """A builder with the mechanism of Newton's example_kamino_basic_fourbar, which its own code builds."""
    newton = import_module("newton")
    robot = newton.ModelBuilder(up_axis=newton.Axis.Z)
    newton.solvers.SolverKamino.register_custom_attributes(robot)
    robot.default_shape_cfg.margin = robot.default_shape_cfg.gap = 0.0
    import_module("newton.tests.utils").basics.build_boxes_fourbar(builder=robot, ground=False)
    return robot


class Kamino(Stepped):
    """``SolverKamino`` on free four-bar mechanisms. They collide as in Newton's example, without a ground.

    Args:
        robot: Builder with one mechanism.
        device: Name of the device.
        worlds: Number of mechanisms.
    """

    tile_kernel = "llt_blocked"

    def __init__(self, robot: Any, device: str, worlds: int) -> None:
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
        super().__init__(newton.solvers.SolverKamino(model=model, config=config), model, worlds)
        self._body_q, self._body_qd = wp.clone(model.body_q), wp.clone(model.body_qd)

    def restart(self) -> None:
        wp.copy(self._states[0].body_q, self._body_q)
        wp.copy(self._states[0].body_qd, self._body_qd)

    def digest(self) -> dict[str, Any]:
        return summary(self._states[0].body_q.numpy().reshape(self._worlds, -1))


SCENES: dict[str, tuple[Callable[[], Any], Callable[[Any, str, int], Scene]]] = {
    "featherstone": (quadruped, Featherstone),
    "ik": (quadruped, InverseKinematics),
    "kamino": (four_bar, Kamino),
}


def emit(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def kernel_times(scene: Scene) -> dict[str, float]:
    """Microseconds of the kernels of one call of `advance`: of all together, and of the one with tile functions."""
    wp.timing_begin(wp.TIMING_KERNEL)
    for _ in range(TIMED_CALLS):
        scene.advance()
    found = wp.timing_end()
    tile = [result.elapsed for result in found if scene.tile_kernel in result.name]
    return {
        "kernels_us": round(sum(result.elapsed for result in found) * 1e3 / TIMED_CALLS, 2),
        "tile_kernel_us": round(sum(tile) * 1e3 / TIMED_CALLS, 2),
    }


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
    arguments = parser.parse_args()
    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    with wp.ScopedDevice(arguments.device) as device:
        read, make = SCENES[arguments.scene]
        robot = read()
        wp.zeros(1, dtype=wp.float32)  # creates the device's context
        wp.synchronize_device(device)
        ready = time.perf_counter()
        scene = make(robot, arguments.device, arguments.worlds)
        scene.advance()
        wp.synchronize_device(device)
        emit(setup_s=round(ready - start, 2), jit_s=round(time.perf_counter() - ready, 2), first=scene.digest())
        found = rates(scene, arguments.worlds, arguments.steps, arguments.rounds)
        emit(
            steps_per_second=round(statistics.median(found), 1),
            rounds=[round(rate, 1) for rate in found],
            last=scene.digest(),
        )
        if wp.get_device().is_cuda:
            emit(**kernel_times(scene))


if __name__ == "__main__":
    main()
