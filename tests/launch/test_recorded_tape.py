"""Recorded launches on a wp.Tape: its backward pass replays their adjoints."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import warp as wp

from tests.launch.recorded_kernels import CPU, forward_only
from warp_tiles import record


@wp.struct
class Spring:
    stiffness: wp.array(dtype=wp.float32)
    dt: wp.float32


@wp.kernel
def step(x: wp.array(dtype=wp.float32), spring: Spring, next: wp.array(dtype=wp.float32)):
    i = wp.tid()
    next[i] = x[i] - spring.dt * spring.stiffness[i] * wp.sin(x[i])


@wp.kernel
def energy(x: wp.array(dtype=wp.float32), loss: wp.array(dtype=wp.float32)):
    i = wp.tid()
    wp.atomic_add(loss, 0, x[i] * x[i])


SIZE, STEPS = 7, 6


class Simulation:
    """A chain of steps with a loss, launched by Warp or replayed."""

    def __init__(self) -> None:
        random = np.random.default_rng(4)
        self.states = [self.array(random.normal(size=SIZE)) for _ in range(STEPS + 1)]
        self.spring = Spring()
        self.spring.stiffness = self.array(random.uniform(1, 2, SIZE))
        self.spring.dt = 0.1
        self.loss = self.array([0.0])
        self.step = record(step, SIZE, [self.states[0], self.spring], [self.states[1]], device=CPU)
        self.energy = record(energy, SIZE, [self.states[-1]], [self.loss], device=CPU)

    @staticmethod
    def array(values: Any) -> Any:
        return wp.array(values, dtype=wp.float32, device=CPU, requires_grad=True)

    def launch(self) -> None:
        for before, after in zip(self.states, self.states[1:]):
            wp.launch(step, dim=SIZE, inputs=[before, self.spring], outputs=[after], device=CPU)
        wp.launch(energy, dim=SIZE, inputs=[self.states[-1]], outputs=[self.loss], device=CPU)

    def replay(self) -> None:
        for before, after in zip(self.states, self.states[1:]):
            self.step.set("x", before)
            self.step.set("next", after)
            self.step.forward()
        self.energy.forward()

    def arrays(self) -> list[Any]:
        return [*self.states, self.spring.stiffness, self.loss]


def taped(simulation: Simulation, forward: Any) -> tuple[Any, list[np.ndarray]]:
    simulation.loss.zero_()
    with wp.Tape() as tape:
        forward()
    tape.backward(simulation.loss)
    return tape, [value.grad.numpy().copy() for value in simulation.arrays()]


def test_a_simulation_has_the_gradients_of_warp_bit_for_bit() -> None:
    simulation = Simulation()
    tape, expected = taped(simulation, simulation.launch)
    loss = simulation.loss.numpy()[0]
    tape.zero()
    for _ in range(2):
        recorded_tape, got = taped(simulation, simulation.replay)
        assert simulation.loss.numpy()[0] == loss
        for ours, theirs in zip(got, expected):
            np.testing.assert_array_equal(ours, theirs)
        assert np.any(got[0])
        recorded_tape.zero()
        assert not any(np.any(value.grad.numpy()) for value in simulation.arrays())


def test_the_tape_has_the_gradients() -> None:
    simulation = Simulation()
    theirs, _ = taped(simulation, simulation.launch)
    ours, _ = taped(simulation, simulation.replay)
    assert set(ours.gradients) == set(theirs.gradients)
    for value in simulation.arrays():
        assert ours.gradients[value] is value.grad
    assert ours.gradients[simulation.spring].stiffness is simulation.spring.stiffness.grad


def test_the_tape_has_them_before_its_backward_pass() -> None:
    x, loss = Simulation.array([2.0]), Simulation.array([0.0])
    pair = record(energy, 1, [x], [loss], device=CPU)
    with wp.Tape() as tape:
        pair.forward()
        assert (tape.gradients[x], tape.gradients[loss]) == (x.grad, loss.grad)


def test_a_tape_keeps_the_arguments_of_the_forward_pass() -> None:
    x, y, loss = (Simulation.array(values) for values in ([2.0], [5.0], [0.0]))
    pair = record(energy, 1, [x], [loss], device=CPU)
    with wp.Tape() as tape:
        pair.forward()
    pair.set("x", y)
    tape.backward(loss)
    assert x.grad.numpy()[0] == 4.0
    assert y.grad.numpy()[0] == 0.0
    pair.forward()
    assert loss.numpy()[0] == 29.0


def test_a_tape_keeps_the_gradient_of_the_forward_pass() -> None:
    x, loss, first, second = (Simulation.array([value]) for value in (2.0, 0.0, 0.0, 0.0))
    pair = record(energy, 1, [x], [loss], [first], device=CPU)
    with wp.Tape() as tape:
        pair.forward()
    pair.set("x", second, adjoint=True)
    tape.backward(loss)
    assert (first.numpy()[0], second.numpy()[0]) == (4.0, 0.0)
    assert tape.gradients[x] is first
    tape.zero()
    assert first.numpy()[0] == 0.0


def test_a_gradient_for_backward_reaches_an_array_without_one() -> None:
    x = Simulation.array([2.0])
    out = wp.zeros(1, dtype=wp.float32, device=CPU)
    pair = record(energy, 1, [x], [out], device=CPU)
    with wp.Tape() as tape:
        pair.forward()
    tape.backward(grads={out: wp.array([3.0], dtype=wp.float32, device=CPU)})
    assert x.grad.numpy()[0] == 12.0
    assert tape.gradients[out] is out.grad


def test_only_forward_inside_the_tape_is_recorded() -> None:
    x, loss = Simulation.array([2.0]), Simulation.array([0.0])
    with wp.Tape() as tape:
        pair = record(energy, 1, [x], [loss], device=CPU)
        pair.adjoint()
    pair.forward()
    assert tape.launches == []


def test_the_tape_warns_of_a_kernel_without_an_adjoint() -> None:
    x, out = Simulation.array([2.0]), Simulation.array([0.0])
    pair = record(forward_only, 1, [x], [out], device=CPU)
    with wp.Tape() as tape:
        pair.forward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="forward_only is configured with the option 'enable_backward=False'"):
            tape.backward(grads={out: wp.ones_like(out)})
    assert len(tape.launches) == 1


def test_the_check_of_warp_for_overwritten_arrays_sees_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(wp.config, "verify_autograd_array_access", True)
    monkeypatch.setattr(wp.Tape, "_check_kernel_array_access", lambda tape, kernel, args: seen.append(kernel.key))
    pair = record(energy, 1, [Simulation.array([2.0])], [Simulation.array([0.0])], device=CPU)
    with wp.Tape():
        pair.forward()
    assert seen == ["energy"]
