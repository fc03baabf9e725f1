"""Recorded launches on the CPU: replays, changed arguments, edited kernels, and tapes."""

import gc
import itertools
import sys
import timeit
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.recorded.recorded_kernels import arguments_on, arrays_of, launched_by_warp, weighted
from warp_tiles import RecordingError, RecordingTarget, record

CPU = "cpu"


@wp.kernel
def twice(x: wp.array(dtype=Any), out: wp.array(dtype=Any)):
    i = wp.tid()
    out[i] = x[i] + x[i]


@wp.kernel
def summed(x: wp.array2d(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    wp.tile_atomic_add(out, wp.tile_sum(wp.tile_load(x, shape=(1, 16), offset=(wp.tid(), 0))))


def array(values: Any, dtype: Any = wp.float32) -> Any:
    return wp.array(values, dtype=dtype, device=CPU, requires_grad=True)


def assert_as_launched_by_warp(pair: Any, arguments: list[Any]) -> None:
    """Replay both directions with gradients of 1."""
    arguments[3].grad.fill_(1.0)
    pair.forward()
    pair.adjoint()
    assert arrays_of(arguments) == launched_by_warp(CPU)


def test_both_directions_equal_those_of_warp() -> None:
    arguments = arguments_on(CPU)
    pair = record(weighted, 2, arguments[:3], arguments[3:], device=CPU)
    assert not np.any(arguments[3].numpy()), "nothing is launched yet"
    assert_as_launched_by_warp(pair, arguments)
    assert (pair.names, pair.kernel, pair.has_adjoint) == (("x", "scale", "shift", "out"), weighted, True)


@pytest.mark.parametrize("dim", [0, (3, 0)], ids=repr)
def test_a_dimension_of_zero_launches_nothing(dim: Any) -> None:
    arguments = arguments_on(CPU)
    pair, before = record(weighted, dim, arguments, device=CPU), arrays_of(arguments)
    with wp.Tape() as tape:
        pair.forward()
    pair.adjoint()
    assert (tape.launches, arrays_of(arguments)) == ([], before)
    with pytest.raises(RecordingError, match="shape"):
        pair.set("x", array([1.0]))


def test_a_graph_of_a_generic_kernel() -> None:
    x, out = array([1.0, 2.0], wp.float64), array([0.0, 0.0], wp.float64)
    pair = record(twice, 2, [x], [out], device=CPU)
    with wp.ScopedCapture(device=CPU) as capture:
        pair.forward()
    x.fill_(10.0)
    wp.capture_launch(capture.graph)
    assert out.numpy().tolist() == [20.0, 20.0]


class Tuned:
    def recording_target(self, args: list[Any], device: Any, outputs: int) -> RecordingTarget:
        assert (device.is_cpu, outputs) == (True, 1)
        return RecordingTarget(summed, dim=args[0].shape[0], block_dim=32, tiled=True)


@pytest.mark.parametrize("launch", [{"kernel": summed, "dim": 4, "block_dim": 32, "tiled": True}, {"kernel": Tuned()}])
def test_tiles_and_tuned_kernels(launch: dict[str, Any]) -> None:
    x, out = array(np.ones((4, 16))), array([0.0])
    with wp.Tape() as tape:
        record(inputs=[x], outputs=[out], device=CPU, **launch).forward()
    tape.backward(out)
    assert (out.numpy()[0], x.grad.numpy().sum(), tape.launches[0][1]) == (64, 64, (4, 1))
    with pytest.raises(RecordingError, match="tuned kernel was given launch dimensions"):
        record(Tuned(), 4, [x], [out], device=CPU)


def test_arrays_live_as_long_as_they_are_recorded() -> None:
    arguments = arguments_on(CPU)
    seen = [weakref.ref(arguments[0]), weakref.ref(arguments[3])]
    pair = record(weighted, 2, arguments, device=CPU)
    del arguments
    pair.set("x", array([1.0, 2.0]))
    gc.collect()
    assert [reference() is None for reference in seen] == [True, False]


def test_a_replay_takes_less_host_time_than_a_launch() -> None:
    arguments = arguments_on(CPU)
    pair = record(weighted, 2, arguments, device=CPU)
    calls = (pair.forward, pair.adjoint, lambda: wp.launch(weighted, 2, inputs=arguments, device=CPU))
    times = [[timeit.timeit(call, number=200) for call in calls] for _ in range(15)]
    forward, adjoint, launch = map(min, zip(*times))
    assert max(forward, adjoint) < 0.5 * launch


def test_arguments_are_kept_until_they_are_set_and_bring_their_gradients() -> None:
    x, scale, shift, out = arguments = arguments_on(CPU)
    pair, new = record(weighted, 2, arguments, device=CPU), array([1.0, 2.0])
    scale.factor, shift[1] = 100.0, 9.0
    weighted.module.mark_modified()
    pair.forward()
    assert out.numpy()[0] == 30.5
    for name, value in (("x", new), ("scale", scale), ("shift", [0.0, 1.0, 0.0])):
        pair.set(name, value)
    out.grad.fill_(1.0)
    pair.forward()
    pair.adjoint()
    assert out.numpy().tolist() == [501.0, 1001.0]
    assert (new.grad.numpy()[0], x.grad.numpy()[0]) == (500.0, 0.0)


BAD: list[tuple[str, Callable[[], Any], str]] = [
    ("x", lambda: array([1.0]), r"argument 'x' has shape \(1,\), and was recorded with \(2,\)"),
    ("x", lambda: np.zeros(4, dtype=np.float32), r"argument 'x' has shape \(4,\)"),
    ("x", lambda: array([1.0, 2.0], wp.float64), "'x' of kernel weighted does not fit: .*dtype"),
    ("x", lambda: array([[1.0, 2.0]]), "'x' of kernel weighted does not fit: .*dimension"),
    ("shift", lambda: "x", "'shift' of kernel weighted does not fit"),
    ("scale", lambda: 1.0, "'scale' of kernel weighted is 1.0"),
    ("scale", lambda: arguments_on(CPU, 1)[1], r"'scale.weights' has shape \(1,\), and was recorded with \(2,\)"),
    ("zz", lambda: 1.0, "kernel weighted has no argument 'zz'"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_a_value_that_does_not_fit_changes_nothing(name: str, value: Callable[[], Any], message: str) -> None:
    arguments = arguments_on(CPU)
    pair = record(weighted, 2, arguments, device=CPU)
    with pytest.raises(RecordingError, match=message):
        pair.set(name, value())
    assert_as_launched_by_warp(pair, arguments)


BAD_LAUNCHES = [(weighted, 2, 3, "3 arguments were given"), (weighted, None, 4, "dim is None"), (print, 2, 4, "<built")]


@pytest.mark.parametrize(("kernel", "dim", "count", "message"), BAD_LAUNCHES)
def test_a_launch_that_cannot_be_recorded(kernel: Any, dim: Any, count: int, message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        record(kernel, dim, arguments_on(CPU)[:count], device=CPU)


def test_gradients_that_are_replaced_are_used() -> None:
    arguments = arguments_on(CPU)
    changed = arguments[0], arguments[1].weights, arguments[3]
    pair, old = record(weighted, 2, arguments, device=CPU), [each.grad for each in changed]
    for each in changed:
        each.grad = wp.zeros_like(each.grad)
    assert_as_launched_by_warp(pair, arguments)
    assert not any(np.any(gradient.numpy()) for gradient in old)


def test_assigned_strides_are_used_and_an_assigned_shape_is_refused() -> None:
    x, out = array([1.0, 2.0, 3.0, 4.0])[:2], array([0.0, 0.0])
    pair = record(twice, 2, [x], [out], device=CPU)
    x.strides = (8,)
    pair.forward()
    assert out.numpy().tolist() == [2.0, 6.0]
    x.shape = (1,)
    for _ in range(2):
        with pytest.raises(RecordingError, match=r"'x' has shape \(1,\), and was recorded with \(2,\)"):
            pair.forward()


TEXT = """
import warp as wp

@wp.func
def shape(x: wp.float32):
    return x * 2.0

@wp.kernel
def scaled(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    a = wp.tile_ones(shape=(4, 4), dtype=wp.float32)
    out[0] = shape(x[0]) * wp.tile_extract(wp.tile_matmul(a, a), 1, 1) + 0.0
"""
FACTORY = """
import warp as wp

kernels = []
for factor in (2.0, 3.0):
    @wp.kernel
    def looped(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
        out[0] = x[0] * wp.static(factor)
    kernels.append(looped)
"""
_numbers = itertools.count()
Load = Callable[..., ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Runs texts in one Python module, as reloads of it or as cells of a notebook."""
    module = ModuleType(f"recorded_source_{next(_numbers)}")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def load(text: str, *, is_cell: bool = False) -> ModuleType:
        path = tmp_path / f"text_{next(_numbers)}.py"
        path.write_text(text)
        module.__loader__ = module.__loader__ if is_cell else object()  # type: ignore[assignment]
        exec(compile(text, str(path), "exec"), vars(module))
        return module

    return load


class Launched:
    """A recording of a kernel of x and out, and its results: the value and its slope."""

    def __init__(self, kernel: Any) -> None:
        self.x, self.out = array([1.0]), array([0.0])
        self.pair = record(kernel, 1, [self.x], [self.out], device=CPU)

    def results(self) -> tuple[float, float]:
        self.x.grad.zero_()
        self.out.grad.fill_(1.0)
        self.pair.adjoint()
        self.pair.forward()
        return float(self.out.numpy()[0]), float(self.x.grad.numpy()[0])


def test_an_edited_kernel_or_function_is_followed(load: Load) -> None:
    launched = Launched(load(TEXT).scaled)
    before = launched.pair._forward
    assert (launched.results(), launched.pair._forward) == ((8.0, 8.0), before)
    edited = TEXT.replace("2.0", "30.0").replace("+ 0.0", "+ 1.0")
    module, (_, function, kernel) = load(edited), edited.split("\n\n")
    assert (launched.results(), launched.pair.kernel) == ((121.0, 120.0), module.scaled)
    shifted, scaled = kernel.replace("+ 1.0", "+ 5.0"), function.replace("30.0", "3.0")
    for cell, value in ((kernel, 121.0), (shifted, 125.0), (scaled, 17.0)):
        load(cell, is_cell=True)
        assert launched.results()[0] == value


def test_an_edited_kernel_with_other_arguments_is_refused(load: Load) -> None:
    launched = Launched(load(TEXT).scaled)
    for old, new in (("32), out", "32), s: float, out"), ("(x: wp.array", "(y: wp.array")):
        load(TEXT.replace(old, new).replace("x[0]", "out[0]"))
        for call in (launched.pair.forward, launched.pair.adjoint, lambda: launched.pair.set("x", launched.x)):
            with pytest.raises(RecordingError, match=r"scaled takes (x, s|y), out, and 2 arguments were given"):
                call()


def test_kernels_of_one_name_are_not_mistaken_for_edits(load: Load) -> None:
    launched = [Launched(kernel) for kernel in load(FACTORY).kernels]
    load(FACTORY.replace("2.0, 3.0", "4.0, 5.0"), is_cell=True)
    assert [each.results() for each in launched] == [(2.0, 2.0), (3.0, 3.0)]


def test_a_changed_module_is_recorded_again_with_the_present_arguments(load: Load) -> None:
    module = load(TEXT)
    launched, builds = Launched(module.scaled), []
    launched.x = array([3.0])
    launched.pair.set("x", launched.x)

    def run(of: Callable[[], object]) -> None:
        of()
        assert launched.results() == (24.0, 8.0)
        builds.append(launched.pair._adjoint.launch.module_exec)

    run(module.scaled.module.mark_modified)
    run(module.scaled.module.unload)
    with warp_tiles.enabled():
        run(lambda: None)
        with warp_tiles.override(provider="scalar"):
            run(lambda: None)
    wp.set_module_options({"enable_backward": False}, module=module)
    with pytest.raises(RecordingError, match="scaled has no adjoint: enable_backward is off"):
        launched.results()
    run(lambda: wp.set_module_options({"enable_backward": True}, module=module))
    # on a CPU, warp_tiles changes no hash
    assert (len({build.module_hash for build in builds}), builds[0] is builds[1]) == (1, False)


def test_a_tape_records_replays_as_it_records_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(wp.config, "verify_autograd_array_access", True)
    monkeypatch.setattr(wp.Tape, "_check_kernel_array_access", lambda tape, kernel, args: checked.append(kernel.key))
    x, scale, shift, y = arguments_on(CPU)
    z, other, found = array([0.0, 0.0]), array([7.0, 7.0]), []
    pair = record(weighted, 2, [x, scale, shift], [y], device=CPU)
    for recorded in (False, True):
        with wp.Tape() as tape:
            if recorded:
                pair.forward()
                pair.set("x", y)
                pair.set("out", z)
                pair.forward()
                pair.set("x", other)  # a tape keeps the arguments of its forward pass
            else:
                wp.launch(weighted, 2, inputs=[x, scale, shift], outputs=[y], device=CPU)
                wp.launch(weighted, 2, inputs=[y, scale, shift], outputs=[z], device=CPU)
        tape.backward(grads={z: wp.ones_like(z)})
        assert {x, y, z, scale.weights} <= set(tape.gradients)
        found.append([value.grad.numpy().tolist() for value in (x, scale.weights)])
        tape.zero()
    assert found[0] == found[1] != [[0.0, 0.0]] * 2
    assert (checked, np.any(other.grad.numpy())) == (["weighted"] * 4, False)
