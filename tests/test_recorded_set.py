"""``set()`` of recorded launches, and what is refused."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warp as wp

from tests.recorded_kernels import (
    CPU,
    Inner,
    array,
    blend,
    blend_arguments,
    expected_blend,
    random,
    struct_arguments,
    summed,
    twice,
    weighted,
)
from warp_tiles import RecordingError, record

# ---- set()


@pytest.mark.parametrize("name", ["a", 0])
def test_an_argument_is_changed_by_name_or_index(name: str | int) -> None:
    arguments = blend_arguments()
    pair = record(blend, 5, arguments, device=CPU)
    arguments[0] = random(5, 33)
    pair.set(name, arguments[0])
    pair.forward()
    np.testing.assert_allclose(arguments[5].numpy(), expected_blend(arguments), rtol=1e-6)
    arguments[5].grad.fill_(1.0)
    pair.adjoint()
    np.testing.assert_allclose(arguments[0].grad.numpy(), 2 * arguments[1].numpy(), rtol=1e-6)
    np.testing.assert_allclose(arguments[1].grad.numpy(), 2 * arguments[0].numpy(), rtol=1e-6)


def test_numbers_are_changed_in_both_directions() -> None:
    arguments = blend_arguments()
    pair = record(blend, 5, arguments, device=CPU)
    arguments[4] = 8.0
    pair.set("t", 8.0)
    pair.forward()
    np.testing.assert_allclose(arguments[5].numpy(), expected_blend(arguments), rtol=1e-6)
    arguments[5].grad.fill_(1.0)
    pair.adjoint()
    np.testing.assert_array_equal(arguments[2].grad.numpy(), np.full(5, 8, dtype=np.float32))


def test_a_gradient_is_changed_and_given_back() -> None:
    arguments = blend_arguments()
    pair = record(blend, 5, arguments, device=CPU)
    mine = wp.zeros_like(arguments[2].grad)
    pair.set("c", mine, adjoint=True)
    arguments[5].grad.fill_(1.0)
    pair.adjoint()
    assert np.any(mine.numpy())
    assert not np.any(arguments[2].grad.numpy())
    pair.set("c", None, adjoint=True)
    arguments[5].grad.fill_(1.0)
    pair.adjoint()
    assert np.any(arguments[2].grad.numpy())


def test_a_new_array_brings_its_own_gradient() -> None:
    arguments = blend_arguments()
    pair = record(blend, 5, arguments, device=CPU)
    pair.set("c", wp.zeros_like(arguments[2].grad), adjoint=True)
    other = random(5, 50)
    pair.set("c", other)
    arguments[5].grad.fill_(1.0)
    pair.adjoint()
    np.testing.assert_array_equal(other.grad.numpy(), np.full(5, 0.5, dtype=np.float32))


BAD: list[tuple[str, Callable[[], Any], str]] = [
    ("a", lambda: random(4), r"shape \(4,\), and was recorded with \(5,\)"),
    ("a", lambda: array(np.zeros(5), dtype=wp.float64), "dtype"),
    ("a", lambda: array(np.zeros((5, 1))), "dimension"),
    ("a", lambda: 1.0, "float"),
    ("s", lambda: random(5), "pack"),
    ("s", lambda: "x", "pack"),
]


@pytest.mark.parametrize(
    ("name", "value", "message", "adjoint"),
    [(*bad, adjoint) for bad in BAD for adjoint in (False, True)] + [("a", lambda: None, "shape", False)],
)
def test_a_value_that_does_not_fit_changes_nothing(
    name: str, value: Callable[[], Any], message: str, adjoint: bool
) -> None:
    arguments = blend_arguments()
    pair = record(blend, 5, arguments, device=CPU)
    with pytest.raises(RecordingError, match=message) as caught:
        pair.set(name, value(), adjoint=adjoint)
    assert f"'{name}'" in caught.value.message
    pair.forward()
    np.testing.assert_allclose(arguments[5].numpy(), expected_blend(arguments), rtol=1e-6)
    arguments[5].grad.fill_(1.0)
    pair.adjoint()
    np.testing.assert_array_equal(arguments[2].grad.numpy(), np.full(5, 0.5, dtype=np.float32))


def test_a_struct_of_another_type_does_not_fit() -> None:
    _, arguments = struct_arguments()
    pair = record(weighted, 4, arguments, device=CPU)
    with pytest.raises(RecordingError, match="'w'") as caught:
        pair.set("w", Inner())
    assert "Weights" in caught.value.remedy


@pytest.mark.parametrize("name", ["d", "", 6, -1, True, 1.5, None])
def test_an_unknown_name_raises_with_the_valid_ones(name: Any) -> None:
    pair = record(blend, 5, blend_arguments(), device=CPU)
    with pytest.raises(RecordingError, match="no argument") as caught:
        pair.set(name, 1.0)
    assert "a, b, c, s, t, out" in caught.value.remedy


# ---- what is refused at recording


def test_a_wrong_number_of_arguments() -> None:
    with pytest.raises(RecordingError, match="takes 6 arguments, and 5 were given"):
        record(blend, 5, blend_arguments()[:5], device=CPU)


@pytest.mark.parametrize("count", [0, 4, 6])
def test_missing_and_surplus_gradients(count: int) -> None:
    arguments = blend_arguments()
    with pytest.raises(RecordingError, match=f"adj_inputs of kernel .* has {count} gradients for 5 arguments"):
        record(blend, 5, arguments[:5], arguments[5:], [None] * count, [None], device=CPU)
    with pytest.raises(RecordingError, match="has 2 gradients for 1 arguments"):
        record(blend, 5, arguments[:5], arguments[5:], [None] * 5, [None] * 2, device=CPU)


def test_a_gradient_of_another_shape() -> None:
    arguments = blend_arguments()
    with pytest.raises(RecordingError, match="the gradient of argument 'b' has shape"):
        record(blend, 5, arguments, adj_inputs=[None, random(4), None, None, None, None], device=CPU)


@pytest.mark.parametrize("dim", [None, -1, (2, -3), 1.5, "5", (), (2, 2.5)], ids=repr)
def test_dimensions_that_are_none(dim: Any) -> None:
    with pytest.raises(RecordingError, match="dim is"):
        record(blend, dim, blend_arguments(), device=CPU)


def test_what_is_no_kernel() -> None:
    with pytest.raises(RecordingError, match="is no kernel"):
        record(lambda: None, 1, device=CPU)


def test_tiles_need_a_block_dim() -> None:
    with pytest.raises(RecordingError, match="without block_dim"):
        record(summed, 4, [array(np.zeros((4, 16))), array([0.0])], tiled=True, device=CPU)


def test_a_generic_kernel_that_cannot_be_inferred() -> None:
    with pytest.raises(RecordingError):
        record(twice, 4, [None, random(4)], device=CPU)


def test_a_stream_of_another_device() -> None:
    stream = types.SimpleNamespace(device="cuda:7")
    with pytest.raises(RecordingError, match="device is cpu, and the stream is of cuda:7"):
        record(blend, 5, blend_arguments(), device=CPU, stream=stream)


def test_an_array_that_the_device_cannot_access(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = record(blend, 5, blend_arguments(), device=CPU)
    asked = []
    monkeypatch.setattr(wp, "can_access", lambda device, value: asked.append((device, value)))
    elsewhere, own = random(5, 90), random(5, 91)
    elsewhere.device = "cuda:7"
    for adjoint in (False, True):
        with pytest.raises(RecordingError, match="'a' of kernel blend is on cuda:7, which cpu cannot access"):
            pair.set("a", elsewhere, adjoint=adjoint)
    pair.set("a", own)
    assert asked == [(wp.get_device(CPU), elsewhere)] * 2, "an array of the device itself is not asked about"
