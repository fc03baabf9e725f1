"""The copies on which a search launches, on Warp's CPU device."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.tuning.fake_stores import MemoryStore
from warp_tiles import TuningError
from warp_tiles.tuning import launches
from warp_tiles.tuning.factory import TunedLaunch
from warp_tiles.tuning.launches import KernelCandidate, KernelLaunches, LaunchOptions, Reference, Workspace
from warp_tiles.tuning.measure import Effort

SIZE = 8
QUICK = Effort(warmup=1, runs=2, iterations=2)


@wp.struct
class Inner:
    total: wp.array(dtype=float)


@wp.struct
class State:
    x: wp.array(dtype=float)
    inner: Inner
    scale: float


def state() -> Any:
    result = State()
    result.x, result.scale = array(2.0), 3.0
    result.inner = Inner()
    result.inner.total = array(1.0)
    return result


def array(value: float) -> Any:
    return wp.array(np.full(SIZE, value, dtype=np.float32), dtype=float, device="cpu")


def workspace(names: Sequence[str], values: Sequence[Any], written: Any = None, **options: Any) -> Workspace:
    """Copies of arguments on the CPU."""
    dim, device = lambda config, args: SIZE, wp.get_device("cpu")
    launches: Any = KernelLaunches(add, names, None, values, written, device, LaunchOptions(dim, **options), ())
    return Workspace(launches, device)


def add_state(step: int) -> Any:
    @wp.kernel(module="unique", enable_backward=False)
    def kernel(s: State, n: int):
        i = wp.tid()
        s.inner.total[i] += s.scale * s.x[i]

    return kernel


def adding(of_y: Any) -> Any:
    """Makes kernels whose second argument is of a type."""

    def make(step: int) -> Any:
        @wp.kernel(module="unique", enable_backward=False)
        def kernel(x: wp.array(dtype=float), y: of_y):
            i = wp.tid()
            y[i] += x[i]

        return kernel

    return make


add, add_indexed = adding(wp.array(dtype=float)), adding(wp.indexedarray(dtype=float))


def tuned(factory: Any, **options: Any) -> Any:
    store = MemoryStore()
    given = {"dim": lambda config, args: SIZE, "effort": QUICK, "store": lambda now: store, "key": ("x",), **options}
    return warp_tiles.autotune([{"step": 1}, {"step": 2}], **given)(factory)


@pytest.mark.parametrize("where", ["inputs", "outputs", "restore"])
def test_only_the_final_launch_changes_arrays_in_structs(where: str) -> None:
    given = state()
    kernel = tuned(add_state, key=("n",), restore="s" if where == "restore" else None)
    kernel.launch(**{"outputs" if where == "outputs" else "inputs": [given, SIZE]}, device="cpu")
    assert kernel.counters.measurements == 2
    np.testing.assert_array_equal(given.inner.total.numpy(), 7.0)
    np.testing.assert_array_equal(given.x.numpy(), 2.0)


@pytest.mark.parametrize("restore", [None, "y"])
def test_only_the_final_launch_changes_inputs_that_are_outputs_and_indexed_arrays(restore: str | None) -> None:
    x, y = array(1.0), array(1.0)
    tuned(add, restore=restore).launch(inputs=[x], outputs=[x], device="cpu")
    np.testing.assert_array_equal(x.numpy(), 2.0)
    view = y[wp.array(list(range(0, SIZE, 2)), dtype=int, device="cpu")]
    indexed = tuned(add_indexed, restore=restore, dim=lambda config, args: SIZE // 2)
    indexed.launch(inputs=[array(2.0)], outputs=[view], device="cpu")
    np.testing.assert_array_equal(y.numpy(), [3.0, 1.0] * (SIZE // 2))


def test_results_in_structs_are_compared_by_name() -> None:
    kernel = tuned(add_state, key=("n",), reference=lambda args: {"s.inner.total": np.full(SIZE, 8.0)})
    with pytest.raises(TuningError, match="no configuration") as caught:
        kernel.tune([state(), SIZE], "cpu")
    assert "s.inner.total differs by up to 1 " in caught.value.log


def test_launches_of_adjoints_have_random_gradients_of_their_own() -> None:
    given = state()
    (gradients,) = workspace(("s",), [given], adjoint=True).gradients or ()
    assert np.all(gradients.inner.total.numpy() != 0)
    assert given.inner.total.grad is None
    assert workspace(("n",), [SIZE], adjoint=True).gradients == [None]


def test_one_array_in_two_places_is_one_copy_and_named_arrays_alone_are_copied() -> None:
    x, y = array(1.0), array(0.0)
    space = workspace(("x", "y"), [x, x])
    assert space.values[0] is space.values[1] is not x
    assert space.written == ("x", "y")
    space = workspace(("x", "y"), (x, y), restore=("y",))
    assert space.values[0] is x
    assert space.values[1] is not y


@pytest.mark.parametrize("wrong", [wp.int32, wp.vec3])
def test_a_wrong_call_records_no_failures(wrong: Any) -> None:
    kernel, x = tuned(add), array(1.0)
    with pytest.raises(TuningError, match=r"argument 'y' .* expects an array with dtype"):
        kernel.launch(inputs=[x], outputs=[wp.zeros(SIZE, dtype=wrong, device="cpu")])
    assert kernel.record([x, x], "cpu") is None
    y = array(0.0)
    kernel.launch(inputs=[x], outputs=[y], device="cpu")
    np.testing.assert_array_equal(y.numpy(), 1.0)


def count_up(step: int) -> Any:
    @wp.kernel(module="unique", enable_backward=False)
    def kernel(x: wp.array(dtype=float), y: wp.array(dtype=float)):
        i = wp.tid()
        x[i] += 1.0
        y[i] = x[i]

    return kernel


def test_only_the_final_launch_changes_an_input_that_launches_write(caplog: pytest.LogCaptureFixture) -> None:
    x, y = array(1.0), array(0.0)
    with caplog.at_level("WARNING", "warp_tiles"):
        tuned(count_up).launch(inputs=[x], outputs=[y], device="cpu")
    assert (x.numpy() == 2).all()
    assert (y.numpy() == 2).all()
    assert [record.message for record in caplog.records if "launches write x" in record.message]


@pytest.mark.parametrize("writes", [True, False])
def test_one_launch_looks_for_written_arrays_and_later_ones_only_restore_them(writes: bool) -> None:
    x, y = array(1.0), array(0.0)
    space = workspace(("x", "y"), (x, y), frozenset({"y"}))
    launches = []

    def run() -> None:
        launches.append(1)
        space.values[0].fill_(5.0 if writes else 1.0)

    space.find_written(run)
    assert (space.values[0].numpy() == 1).all()
    space.values[0].fill_(7.0)  # as another configuration may
    space.find_written(run)
    assert launches == [1]
    if writes:
        space.restore()
    assert (space.values[0].numpy() == 1).all()
    assert space.written == ("y",)


def test_a_copy_keeps_negative_strides() -> None:
    data = np.arange(SIZE, dtype=np.float32)
    forward = wp.array(data, dtype=float, device="cpu")
    last = forward.ptr + 4 * (SIZE - 1)
    source = wp.array(ptr=last, dtype=float, shape=(SIZE,), strides=(-4,), device="cpu")
    space = workspace(("x",), (source,))
    assert space.values[0].strides == source.strides
    np.testing.assert_array_equal(space.values[0].numpy(), data[::-1])


def test_an_array_that_cannot_be_copied_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **options: Any) -> Any:
        raise RuntimeError("Failed to allocate 32 bytes")

    monkeypatch.setattr(wp, "clone", refuse)
    with pytest.raises(TuningError, match=r"argument x of shape \(8,\) cannot be copied on cpu: Failed") as caught:
        workspace(("x",), (array(1.0),))
    assert "restore=" in caught.value.remedy


def test_results_of_another_shape_are_wrong() -> None:
    """NumPy would compare one number with each element."""
    reference = Reference([lambda: {"y": np.zeros(1)}], rtol=0.0, atol=1.0)
    reference.check({"y": np.zeros(1)})
    with pytest.raises(TuningError, match="y has the shape"):
        reference.check({"y": np.zeros(SIZE)})


def test_a_kernel_that_needs_more_shared_memory_than_there_is_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = SimpleNamespace(forward_smem_bytes=99_000, forward_smem_shortfall="and the device has 48000")
    monkeypatch.setattr(wp, "launch", lambda *arguments, **named: SimpleNamespace(hooks=hooks, block_dim=64))
    space = workspace((), ())
    launch = TunedLaunch({"step": 1}, add(1), 64)
    with pytest.raises(TuningError, match="99000 bytes of shared memory are needed, and the device has 48000"):
        KernelCandidate(launch, (SIZE,), space).build()


def test_candidates_share_the_lock_of_their_module_and_device() -> None:
    """Two builds of one module at a time would both compile it."""
    kernel, other = add(1), add(2)
    cpu, gpu = wp.get_device("cpu"), SimpleNamespace(is_cpu=False)
    lock = launches._lock_of(TunedLaunch({}, kernel, 64), cpu)
    assert launches._lock_of(TunedLaunch({}, kernel, 128), cpu) is lock, "the CPU has one build for all block sizes"
    assert launches._lock_of(TunedLaunch({}, kernel, 64), gpu) is not lock
    of_128 = launches._lock_of(TunedLaunch({}, kernel, 128), gpu)
    assert launches._lock_of(TunedLaunch({}, kernel, 64), gpu) is not of_128
    assert kernel.module.name == other.module.name or launches._lock_of(TunedLaunch({}, other, 64), cpu) is not lock
