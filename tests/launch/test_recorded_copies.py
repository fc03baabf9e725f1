"""A recording that is on a tape is copied before it changes, and a change that fails or comes later loses nothing."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import warp as wp

from tests.launch.test_recorded_stale import Launched, Source, source, text
from warp_tiles import RecordingError, record

__all__ = ["source"]  # the fixture
CPU = "cpu"


@wp.kernel
def energy(x: wp.array(dtype=wp.float32), s: wp.float32, loss: wp.array(dtype=wp.float32)):
    i = wp.tid()
    wp.atomic_add(loss, 0, s * x[i] * x[i])


def array(value: float, count: int = 1) -> Any:
    return wp.full(count, value, dtype=wp.float32, device=CPU, requires_grad=True)


def state_of(packed: Any) -> list[Any]:
    """The arguments, gradients and shapes of a recording, and those of Warp's launches."""
    found = [list(getattr(packed, name)) for name in ("values", "gradients", "_kept", "_shapes")]
    for replay in (packed._forward, packed._adjoint):
        launch = replay.launch
        found += [list(launch.params), list(launch.fwd_args), list(launch.adj_args or ())]
    return found


def same(first: list[Any], second: list[Any]) -> bool:
    """True if two states consist of the same objects and equal shapes."""
    return all(
        len(one) == len(other) and all(a is b or (isinstance(a, dict) and a == b) for a, b in zip(one, other))
        for one, other in zip(first, second)
    )


def test_a_copy_shares_nothing_that_changes() -> None:
    pair = record(energy, 1, [None, 1.0], [array(0.0)], [None, None], device=CPU)
    original = pair._packed
    copied, before = original.copy(), state_of(original)
    for index, value in enumerate((array(2.0), 3.0, array(1.0))):
        copied.set(index, value)
    copied.set_gradient(0, array(0.0))
    assert same(state_of(original), before)
    after = state_of(copied)
    assert not any(same([one], [other]) for one, other in zip(before, after) if one)


def test_only_the_first_change_after_a_tape_copies() -> None:
    x, loss = array(2.0), array(0.0)
    pair = record(energy, 1, [x, 1.0], [loss], device=CPU)
    with wp.Tape():
        pair.forward()
    on_tape = pair._packed
    pair.set("s", 2.0)
    changed = pair._packed
    pair.set("s", 3.0)
    assert on_tape is not changed is pair._packed


def test_a_tape_keeps_the_gradient_of_the_forward_pass() -> None:
    x, loss, first, second = array(2.0), array(0.0), array(0.0), array(0.0)
    pair = record(energy, 1, [x, 1.0], [loss], [first, None], device=CPU)
    with wp.Tape() as tape:
        pair.forward()
    pair.set("x", second, adjoint=True)
    tape.backward(loss)
    assert (first.numpy()[0], second.numpy()[0]) == (4.0, 0.0)
    assert tape.gradients[x] is first


def test_a_refused_gradient_is_not_used_when_the_module_is_built_again(source: Source) -> None:
    launched = Launched(source.load(text()).scaled)
    with pytest.raises(RecordingError, match="shape"):
        launched.pair.set("x", array(0.0, 3), adjoint=True)
    launched.pair.kernel.module.mark_modified()
    assert launched.slope() == 2.0


def test_a_new_argument_drops_a_gradient_also_while_there_is_no_adjoint(source: Source) -> None:
    """The given gradient belonged to the old argument; it must not return with the adjoint."""
    module = source.load(text())
    launched, given = Launched(module.scaled), array(0.0)
    launched.pair.set("x", given, adjoint=True)
    wp.set_module_options({"enable_backward": False}, module=module)
    launched.value()
    launched.x = array(1.0)
    launched.pair.set("x", launched.x)
    wp.set_module_options({"enable_backward": True}, module=module)
    assert launched.slope() == 2.0
    assert given.numpy()[0] == 0.0


@wp.kernel
def shifted(x: wp.array(dtype=wp.float32), by: wp.vec3, out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = x[i] + by[0]


def test_a_list_that_changes_is_not_used_when_the_module_is_built_again() -> None:
    x, out, by = array(2.0), array(0.0), [1.0, 0.0, 0.0]
    pair = record(shifted, 1, [x, by], [out], device=CPU)
    by[0] = 9.0
    pair.kernel.module.mark_modified()
    pair.forward()
    assert out.numpy()[0] == 3.0


@pytest.mark.parametrize("given", [array(2.0, 3), np.zeros(3)], ids=["Warp", "NumPy"])
def test_an_array_is_not_a_list_of_inputs(given: Any) -> None:
    with pytest.raises(RecordingError, match="inputs is"):
        record(energy, 1, given, device=CPU)


# ---- kernels that have one name


MAKER = """
import warp as wp

def make(factor: float):
    @wp.kernel(module="unique")
    def scaled(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
        i = wp.tid()
        out[i] = x[i] * wp.static(factor)

    return scaled
"""
CELL = """
@wp.kernel(module="unique")
def scaled(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = x[i] * {factor}
"""


def test_another_kernel_that_a_maker_returns_under_the_name_is_no_edit(source: Source) -> None:
    module = source.load(MAKER + "scaled = make(2.0)\n")
    launched = Launched(module.scaled)
    source.run_cell("scaled = make(5.0)\n")
    assert (launched.value(), launched.slope()) == (2.0, 2.0)


def test_a_kernel_of_a_maker_is_not_the_one_that_has_its_name(source: Source) -> None:
    module = source.load(MAKER)
    source.run_cell(CELL.format(factor="17.0"))
    launched = Launched(module.make(4.0))
    source.run_cell(CELL.format(factor="19.0"))
    assert launched.value() == 4.0


# no test above has these factors: Warp gives two equal kernels with modules of their own one kernel object
def test_an_edit_is_noticed_if_each_kernel_has_a_module(source: Source) -> None:
    source.load("import warp as wp\n")
    source.run_cell(CELL.format(factor="11.0"))
    launched = Launched(vars(sys.modules[source.name])["scaled"])
    assert launched.value() == 11.0
    source.run_cell(CELL.format(factor="13.0"))
    assert (launched.value(), launched.slope()) == (13.0, 13.0)
