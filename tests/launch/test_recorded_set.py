"""``set()`` of recorded launches, and refused arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warp as wp

from tests.launch.recorded_kernels import (
    CPU,
    Inner,
    Weights,
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
from warp_tiles._warp import launch as warp_launch

# ---- set()


@pytest.mark.parametrize("name", ["a", 0, np.int64(0), np.uint8(0)], ids=repr)
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


def test_a_gradient_is_replaced_and_restored() -> None:
    arguments = blend_arguments()
    pair = record(blend, 5, arguments, device=CPU)
    gradient = wp.zeros_like(arguments[2].grad)
    pair.set("c", gradient, adjoint=True)
    arguments[5].grad.fill_(1.0)
    pair.adjoint()
    assert np.any(gradient.numpy())
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


# ---- members of structs


@wp.struct
class Layer:
    gain: wp.array(dtype=wp.float32)
    weights: Weights


@wp.kernel
def layered(layer: Layer, out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = layer.gain[i] * layer.weights.values[i]


def layer_of(gain: Any, values: Any, unused: Any = None) -> Any:
    layer = Layer()
    layer.gain = gain
    layer.weights.values = values
    layer.weights.unused = unused
    return layer


def layered_pair() -> tuple[Any, Any]:
    out = array(np.zeros(4))
    return record(layered, 4, [layer_of(random(4, 1), random(4, 2))], [out], device=CPU), out


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize(
    ("sizes", "member"), [((3, 4), "layer.gain"), ((4, 3), "layer.weights.values"), ((8, 4), "layer.gain")]
)
def test_an_array_in_a_struct_must_have_the_recorded_shape(sizes: tuple[int, int], member: str, adjoint: bool) -> None:
    pair, out = layered_pair()
    pair.forward()
    before = out.numpy().copy()
    with pytest.raises(RecordingError, match=rf"argument '{member}' has shape \([38],\), and was .* \(4,\)"):
        pair.set("layer", layer_of(*map(random, sizes)), adjoint=adjoint)
    pair.forward()
    np.testing.assert_array_equal(out.numpy(), before)
    new = layer_of(random(4, 8), random(4, 9))
    pair.set("layer", new)
    pair.forward()
    np.testing.assert_allclose(out.numpy(), new.gain.numpy() * new.weights.values.numpy(), rtol=1e-6)


def test_an_array_may_be_missing_from_a_gradient_but_not_from_an_argument() -> None:
    pair, _ = layered_pair()
    with pytest.raises(RecordingError, match=r"argument 'layer\.weights\.values' has shape None"):
        pair.set("layer", layer_of(random(4), None))
    pair.set("layer", layer_of(random(4), None), adjoint=True)


def test_the_first_array_in_place_of_none_has_any_shape() -> None:
    pair, _ = layered_pair()
    pair.set("layer", layer_of(random(4), random(4), unused=random(7)))
    with pytest.raises(RecordingError, match=r"'layer.weights.unused' has shape \(6,\), and was .* \(7,\)"):
        pair.set("layer", layer_of(random(4), random(4), unused=random(6)))


@pytest.mark.parametrize("adjoint", [False, True])
def test_the_device_must_access_the_arrays_in_a_struct(adjoint: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, _ = layered_pair()
    monkeypatch.setattr(wp, "can_access", lambda device, value: False)
    elsewhere = random(4)
    layer = layer_of(random(4), elsewhere)
    elsewhere.device = "cuda:7"
    match = "argument 'layer.weights.values' of kernel layered is on cuda:7, which cpu cannot access"
    with pytest.raises(RecordingError, match=match):
        pair.set("layer", layer, adjoint=adjoint)
    with pytest.raises(RecordingError, match=match):
        record(layered, 4, [layer], [array(np.zeros(4))], device=CPU)
    warp_launch.check_arguments(layered, [layer, array(np.zeros(4))], wp.get_device(CPU))  # before they are copied


# ---- names


@pytest.mark.parametrize("name", ["d", "", 6, -1, True, 1.5, None, np.int64(6), np.bool_(False), "0"], ids=repr)
def test_an_unknown_name_raises_with_the_valid_ones(name: Any) -> None:
    pair = record(blend, 5, blend_arguments(), device=CPU)
    with pytest.raises(RecordingError, match="no argument") as caught:
        pair.set(name, 1.0)
    assert "a, b, c, s, t, out" in caught.value.remedy


# ---- refused arguments of record()


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


@pytest.mark.parametrize("dim", [None, -1, (2, -3), 1.5, "5", (), (2, 2.5), (1, 1, 1, 1, 1)], ids=repr)
def test_invalid_dimensions(dim: Any) -> None:
    with pytest.raises(RecordingError, match="dim is"):
        record(blend, dim, blend_arguments(), device=CPU)


def test_tiles_use_one_of_four_dimensions() -> None:
    arguments = [array(np.zeros((4, 16))), array([0.0])]
    with pytest.raises(RecordingError, match="dim is") as caught:
        record(summed, (1, 1, 1, 1), arguments, block_dim=32, tiled=True, device=CPU)
    assert "1 to 3" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("inputs", (None, 5, "abc", random(5), np.zeros(5))),
        ("outputs", (None, 5, "abc", random(5))),
        ("adj_inputs", (5, "abc", random(5))),
        ("adj_outputs", (5, "abc", random(5))),
        ("stream", (5, "cuda:0")),
        ("block_dim", ("a", 0, -1, 1025, 2.5, True)),
        ("max_blocks", (None, "a", -1, 2**31, 0.5, False)),
    ],
)
def test_an_invalid_option_is_named(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(RecordingError, match=f"^{name} is ") as caught:
            record(blend, 5, **{"inputs": blend_arguments(), "device": CPU, name: value})
        assert caught.value.remedy


def test_an_object_that_is_not_a_kernel() -> None:
    with pytest.raises(RecordingError, match="is not a kernel"):
        record(lambda: None, 1, device=CPU)


def test_tiles_need_a_block_dim() -> None:
    with pytest.raises(RecordingError, match="without block_dim"):
        record(summed, 4, [array(np.zeros((4, 16))), array([0.0])], tiled=True, device=CPU)


def test_a_generic_kernel_whose_types_cannot_be_inferred() -> None:
    with pytest.raises(RecordingError):
        record(twice, 4, [None, random(4)], device=CPU)


class Elsewhere(wp.Stream):
    """A stream of a GPU that does not exist."""

    def __init__(self) -> None:
        self.device = "cuda:7"

    def __del__(self) -> None:
        pass


def test_a_stream_of_another_device() -> None:
    stream = Elsewhere()
    with pytest.raises(RecordingError, match="device is cpu, but the stream belongs to cuda:7"):
        record(blend, 5, blend_arguments(), device=CPU, stream=stream)


def test_an_array_that_the_device_cannot_access(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = record(blend, 5, blend_arguments(), device=CPU)
    checked = []
    monkeypatch.setattr(wp, "can_access", lambda device, value: checked.append((device, value)))
    elsewhere, own = random(5, 90), random(5, 91)
    elsewhere.device = "cuda:7"
    for adjoint in (False, True):
        with pytest.raises(RecordingError, match="'a' of kernel blend is on cuda:7, which cpu cannot access"):
            pair.set("a", elsewhere, adjoint=adjoint)
    pair.set("a", own)
    assert checked == [(wp.get_device(CPU), elsewhere)] * 2, "an array on the device itself needs no check"
