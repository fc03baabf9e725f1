"""Recorded launches: packing, replay, gradients and lifetime."""

from __future__ import annotations

import gc
import timeit
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warp as wp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.launch.recorded_kernels import (
    CPU,
    array,
    blend,
    blend_arguments,
    expected_blend,
    forward_only,
    gathered,
    gradients,
    launch_adjoint,
    nothing,
    random,
    struct_arguments,
    summed,
    twice,
    weighted,
)
from warp_tiles import RecordingError, RecordingTarget, record

# ---- results of a replay


@settings(deadline=None)
@given(size=st.integers(1, 40), s=st.floats(-4, 4, width=32), t=st.floats(-4, 4, width=32))
def test_forward_and_adjoint_equal_those_of_warp_bit_for_bit(size: int, s: float, t: float) -> None:
    ours, theirs = blend_arguments(size), blend_arguments(size)
    ours[3:5] = theirs[3:5] = [s, t]
    pair = record(blend, size, ours[:5], ours[5:], device=CPU)
    seed = np.arange(1, size + 1, dtype=np.float32)
    for _ in range(2):
        ours[5].grad.assign(seed)
        theirs[5].grad.assign(seed)
        pair.forward()
        pair.adjoint()
        wp.launch(blend, dim=size, inputs=theirs, device=CPU)
        launch_adjoint(blend, size, theirs)
        np.testing.assert_array_equal(ours[5].numpy(), theirs[5].numpy())
    for got, want in zip(gradients(ours), gradients(theirs)):
        np.testing.assert_array_equal(got, want)
    assert np.any(ours[0].grad.numpy()) or s == 0 or abs(s) < 1e-30


def test_recording_launches_nothing() -> None:
    arguments = blend_arguments()
    before = arguments[5].numpy().copy()
    record(blend, 5, arguments, device=CPU)
    np.testing.assert_array_equal(arguments[5].numpy(), before)


@pytest.mark.parametrize("dim", [(5,), [5], np.int64(5), np.array([5])], ids=repr)
def test_dimensions_have_any_form_that_warp_accepts(dim: Any) -> None:
    arguments = blend_arguments()
    record(blend, dim, arguments, device=CPU).forward()
    np.testing.assert_allclose(arguments[5].numpy(), expected_blend(arguments), rtol=1e-6)


@pytest.mark.parametrize("dim", [0, (0,), (3, 0)], ids=repr)
def test_a_dimension_of_zero_launches_nothing(dim: Any) -> None:
    arguments = blend_arguments()
    pair = record(blend, dim, arguments, device=CPU)
    before = arguments[5].numpy().copy()
    pair.forward()
    pair.adjoint()
    pair.set("a", random(5, 77))
    with wp.Tape() as tape:
        pair.forward()
    tape.backward(grads={arguments[5]: random(5)})
    np.testing.assert_array_equal(arguments[5].numpy(), before)
    assert not np.any(arguments[0].grad.numpy())
    with pytest.raises(RecordingError, match="'zz'"):
        pair.set("zz", 1)


def test_a_kernel_without_arguments() -> None:
    pair = record(nothing, 2, device=CPU)
    pair.forward()
    pair.adjoint()
    assert pair.names == ()


@pytest.mark.parametrize("dtype", [wp.float32, wp.float64, wp.vec3])
def test_a_generic_kernel_is_recorded_for_its_arguments(dtype: Any) -> None:
    rows = np.arange(12.0).reshape(4, 3) if dtype is wp.vec3 else np.arange(4.0)
    x, out = array(rows, dtype=dtype), array(np.zeros_like(rows), dtype=dtype)
    pair = record(twice, 4, [x], [out], device=CPU)
    pair.forward()
    np.testing.assert_array_equal(out.numpy(), 2 * rows)
    out.grad.fill_(1.0)
    pair.adjoint()
    np.testing.assert_array_equal(x.grad.numpy(), np.full_like(rows, 2.0))
    with pytest.raises(RecordingError, match="dtype"):
        pair.set("x", array(np.zeros(4), dtype=wp.float16))


def test_tiles_are_launched_as_with_launch_tiled() -> None:
    x = array(np.arange(64.0).reshape(4, 16))
    ours, theirs = array([0.0]), array([0.0])
    pair = record(summed, 4, [x], [ours], block_dim=32, tiled=True, device=CPU)
    wp.launch_tiled(summed, dim=[4], inputs=[x, theirs], block_dim=32, device=CPU)
    pair.forward()
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    ours.grad.fill_(1.0)
    pair.adjoint()
    np.testing.assert_array_equal(x.grad.numpy(), np.ones((4, 16)))


def test_structs_and_vectors_and_their_gradients() -> None:
    weights, arguments = struct_arguments()
    pair = record(weighted, 4, arguments, device=CPU)
    pair.forward()
    x, out = arguments[0], arguments[3]
    np.testing.assert_allclose(out.numpy(), x.numpy() * weights.values.numpy() * 2 + 1.25, rtol=1e-6)
    out.grad.fill_(1.0)
    pair.adjoint()
    np.testing.assert_allclose(x.grad.numpy(), weights.values.numpy() * 2, rtol=1e-6)
    np.testing.assert_allclose(weights.values.grad.numpy(), x.numpy() * 2, rtol=1e-6)


def test_changes_of_values_have_no_effect_until_they_are_set() -> None:
    weights, arguments = struct_arguments()
    pair = record(weighted, 4, arguments, device=CPU)
    pair.forward()
    before = arguments[3].numpy().copy()
    weights.scale = 100.0
    weights.inner.offset = wp.vec3(7.0, 7.0, 7.0)
    arguments[2][1] = 9.0
    pair.forward()
    np.testing.assert_array_equal(arguments[3].numpy(), before)
    pair.set("w", weights)
    pair.set("shift", arguments[2])
    pair.forward()
    want = arguments[0].numpy() * weights.values.numpy() * 100 + 16
    np.testing.assert_allclose(arguments[3].numpy(), want, rtol=1e-6)


def test_vectors_from_lists_and_numpy() -> None:
    _, arguments = struct_arguments()
    pair = record(weighted, 4, [*arguments[:2], [0.0, 0.25, 0.0], arguments[3]], device=CPU)
    pair.forward()
    before = arguments[3].numpy().copy()
    pair.set("shift", np.array([0.0, 1.25, 0.0]))
    pair.forward()
    np.testing.assert_allclose(arguments[3].numpy(), before + 1, rtol=1e-6)


def test_numpy_arrays_work_as_with_warp() -> None:
    x, out = np.arange(3, dtype=np.float32), np.zeros(3, dtype=np.float32)
    pair = record(forward_only, 3, [x], [out], device=CPU)
    pair.forward()
    np.testing.assert_array_equal(out, 3 * x)
    with pytest.raises(RecordingError, match=r"shape \(4,\)"):
        pair.set("x", np.zeros(4, dtype=np.float32))


def test_indexed_arrays() -> None:
    base = random(6, 4)

    def view(indices: list[int]) -> Any:
        return wp.indexedarray(base, [wp.array(indices, dtype=int, device=CPU)])

    out = array(np.zeros(3))
    pair = record(gathered, 3, [view([0, 2, 4])], [out], device=CPU)
    pair.forward()
    np.testing.assert_array_equal(out.numpy(), base.numpy()[[0, 2, 4]])
    pair.set("x", view([5, 3, 1]))
    pair.forward()
    np.testing.assert_array_equal(out.numpy(), base.numpy()[[5, 3, 1]])
    with pytest.raises(RecordingError, match=r"shape \(2,\)"):
        pair.set("x", view([5, 3]))


# ---- gradients


def test_given_gradients_are_used() -> None:
    arguments = blend_arguments()
    passed = [random(5, 40 + index, grad=False) for index in range(4)]
    for gradient in passed[:3]:
        gradient.zero_()
    pair = record(blend, 5, arguments[:5], arguments[5:], [*passed[:3], None, None], [passed[3]], device=CPU)
    pair.adjoint()
    np.testing.assert_allclose(passed[2].numpy(), 0.5 * passed[3].numpy(), rtol=1e-6)
    assert not np.any(arguments[2].grad.numpy())


def test_an_array_without_a_gradient_gets_none() -> None:
    arguments = blend_arguments()
    arguments[1] = random(5, 2, grad=False)
    pair = record(blend, 5, arguments, device=CPU)
    arguments[5].grad.fill_(1.0)
    pair.adjoint()
    np.testing.assert_allclose(arguments[0].grad.numpy(), 2.0 * arguments[1].numpy(), rtol=1e-6)


def test_a_replaced_gradient_is_used() -> None:
    arguments = blend_arguments()
    pair = record(blend, 5, arguments, device=CPU)
    old = arguments[2].grad
    arguments[2].grad = wp.zeros_like(old)
    arguments[5].grad = random(5, 3, grad=False)
    pair.adjoint()
    assert not np.any(old.numpy())
    assert np.any(arguments[2].grad.numpy())


def test_a_gradient_that_appears_later_is_used() -> None:
    arguments = blend_arguments(grad=False)
    pair = record(blend, 5, arguments, device=CPU)
    for value in arguments:
        if isinstance(value, wp.array):
            value.requires_grad = True
    arguments[5].grad.fill_(1.0)
    pair.adjoint()
    np.testing.assert_array_equal(arguments[2].grad.numpy(), np.full(5, 0.5, dtype=np.float32))


def test_a_replaced_gradient_in_a_struct_is_used() -> None:
    weights, arguments = struct_arguments()
    pair = record(weighted, 4, arguments, device=CPU)
    old = weights.values.grad
    weights.values.grad = wp.zeros_like(old)
    arguments[3].grad.fill_(1.0)
    pair.adjoint()
    assert not np.any(old.numpy())
    np.testing.assert_allclose(weights.values.grad.numpy(), arguments[0].numpy() * 2, rtol=1e-6)


def test_gradients_of_numbers_are_accepted_and_ignored() -> None:
    arguments = blend_arguments()
    pair = record(blend, 5, arguments, adj_inputs=[None, None, None, 0.0, 0.0, None], device=CPU)
    with wp.Tape() as tape:
        pair.forward()
    tape.backward(grads={arguments[5]: random(5, 4, grad=False)})
    assert set(tape.gradients) == {value for value in arguments if isinstance(value, wp.array)}
    tape.zero()


def test_a_recording_still_works_after_a_failed_build(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = blend_arguments()
    pair = record(blend, 5, arguments, device=CPU)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the compiler is missing")

    for change in (blend.module.mark_modified, lambda: setattr(arguments[0], "requires_grad", True)):
        change()
        with monkeypatch.context() as patch:
            patch.setattr(wp, "launch", fail)
            with pytest.raises(RuntimeError, match="the compiler is missing"):
                pair.adjoint()
        arguments[5].zero_()
        pair.forward()
        np.testing.assert_allclose(arguments[5].numpy(), expected_blend(arguments), rtol=1e-6)


def test_a_kernel_without_an_adjoint_runs_forward_only() -> None:
    x, out = random(3), random(3)
    pair = record(forward_only, 3, [x], [out], device=CPU)
    assert not pair.has_adjoint
    pair.forward()
    np.testing.assert_array_equal(out.numpy(), 3 * x.numpy())
    for call in (pair.adjoint, lambda: pair.set("x", x.grad, adjoint=True)):
        with pytest.raises(RecordingError, match="forward_only has no adjoint") as caught:
            call()
        assert "enable_backward" in caught.value.remedy
    pair.set("x", random(3, 8))
    with pytest.raises(RecordingError, match="has no adjoint"):
        record(forward_only, 3, [x], [out], [x.grad], device=CPU)


# ---- tuned kernels


class Tuned:
    """A tuned kernel with only the method that recordings use."""

    def recording_target(self, args: list[Any], device: Any, outputs: int) -> RecordingTarget:
        assert device.is_cpu
        return RecordingTarget(summed, dim=args[0].shape[0], block_dim=32, tiled=True)


def test_a_tuned_kernel_decides_its_launch() -> None:
    x, out = array(np.ones((4, 16))), array([0.0])
    pair = record(Tuned(), inputs=[x], outputs=[out], device=CPU)
    pair.forward()
    assert out.numpy()[0] == 64
    with pytest.raises(RecordingError, match="tuned kernel was given launch dimensions"):
        record(Tuned(), 4, [x], [out], device=CPU)


# ---- lifetime and cost


def test_arrays_stay_alive_with_the_recording() -> None:
    arguments = blend_arguments()
    seen = [weakref.ref(value) for value in arguments if isinstance(value, wp.array)]
    expected = expected_blend(arguments)
    pair = record(blend, 5, arguments, device=CPU)
    del arguments
    gc.collect()
    assert all(reference() is not None for reference in seen)
    pair.forward()
    out = seen[-1]()
    assert out is not None
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)
    old = seen[0]
    pair.set("a", random(5, 60))
    gc.collect()
    assert old() is None, "a replaced argument is released"
    del out, pair
    gc.collect()
    assert not any(reference() for reference in seen)


def test_repr_and_properties() -> None:
    pair = record(blend, 5, blend_arguments(), device=CPU)
    assert repr(pair) == "RecordedLaunch(blend(a, b, c, s, t, out), dim=(5,), device=cpu)"
    assert pair.names == ("a", "b", "c", "s", "t", "out")
    assert pair.kernel is blend
    assert pair.has_adjoint


def fastest_us(call: Callable[[], Any]) -> float:
    return min(timeit.repeat(call, number=500, repeat=15)) / 500 * 1e6


def test_a_replay_is_fast() -> None:
    arguments = blend_arguments(1)
    pair = record(blend, 1, arguments, device=CPU)
    own = [value.grad if isinstance(value, wp.array) else None for value in arguments]
    keywords = {"dim": 1, "inputs": arguments, "device": CPU}
    launch_us = fastest_us(lambda: wp.launch(blend, **keywords))
    forward = wp.launch(blend, **keywords, record_cmd=True)
    adjoint = wp.launch(blend, **keywords, adj_inputs=own, adjoint=True, record_cmd=True)
    for replay, theirs in ((pair.forward, forward.launch), (pair.adjoint, adjoint.launch)):
        replay_us = fastest_us(replay)
        assert replay_us <= fastest_us(theirs) + 0.5
        assert replay_us <= 0.35 * launch_us
