"""Keys of tuned kernels: the values that change them, and repeated look-ups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.tuning.fake_stores import MemoryStore
from tests.tuning.kernels import SIZE, arguments, lists, scaled_add, tuned
from warp_tiles import TuningError


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_another_shape_or_scalar_is_another_key(store: MemoryStore) -> None:
    add = tuned(store)
    for size in (64, 128, 64):
        add.launch(**lists(arguments(size)))
    assert add.counters.searches == 2
    assert len(store.records) == 2
    key = add.key(arguments(), "cpu")
    assert dict(key.values)["a.shape"] == "64"
    assert dict(key.values)["a.dtype"] == "float32"
    assert dict(key.values)["n"] == 64
    assert "b.shape" not in dict(key.values)


def test_layout_counts(store: MemoryStore) -> None:
    add, args = tuned(store), arguments()
    every_other = wp.array(np.ones(2 * SIZE, np.float32), dtype=float, device="cpu")[::2]
    strided = dict(args, a=every_other)
    assert add.key(args, "cpu").digest != add.key(strided, "cpu").digest
    assert dict(add.key(strided, "cpu").values)["a.layout"] == "2"
    before = strided["c"].numpy().copy()
    add.launch(**strided, device="cpu")
    np.testing.assert_allclose(strided["c"].numpy(), before + 1 + args["b"].numpy(), rtol=1e-6)


def test_the_order_of_names_is_not_part_of_the_key(store: MemoryStore) -> None:
    args = arguments()
    keys = [tuned(store, key=names).key(args, "cpu").digest for names in (("a", "n"), ("n", "a"))]
    assert keys[0] == keys[1]


def test_a_key_of_a_function(store: MemoryStore) -> None:
    add = tuned(store, key=lambda args: {"bucket": args.n // 128})
    add.launch(**lists(arguments(64)))
    add.launch(**lists(arguments(96)))
    assert add.counters.searches == 1
    add.launch(**lists(arguments(128)))
    assert add.counters.searches == 2


def test_constants_that_the_maker_closes_over_count(store: MemoryStore) -> None:
    def closing(factor: float) -> Any:
        def factory(tile: int) -> Any:
            return scaled_add(tile, factor)

        return tuned(store, factory=factory)

    args = arguments()
    assert closing(1.0).key(args, "cpu").source == closing(1.0).key(args, "cpu").source
    assert closing(1.0).key(args, "cpu").source != closing(2.0).key(args, "cpu").source


def _shift(step: int) -> Any:
    @wp.kernel(module="unique", enable_backward=False)
    def kernel(v: wp.vec3, f: float, y: wp.array(dtype=float)):
        y[wp.tid()] = v[0] + f

    return kernel


def test_vectors_and_numbers_that_json_lacks_are_looked_up_once(store: MemoryStore) -> None:
    shift = warp_tiles.autotune(
        [{"step": 1}], key=("v", "f"), dim=lambda c, args: SIZE, store=lambda now: store
    )(_shift)  # fmt: skip
    y = wp.zeros(SIZE, dtype=float, device="cpu")
    for first in (1.0, 2.0, 1.0):
        for f in (float("nan"), np.float32(1), np.float32(2)):
            shift.launch(inputs=[wp.vec3(first, 0.0, 0.0), f], outputs=[y], device="cpu")
    assert (shift.counters.lookups, len(store.records)) == (6, 6)


def test_enabling_warp_tiles_is_another_key_in_the_same_process(store: MemoryStore) -> None:
    add, args = tuned(store), arguments()
    add.launch(**lists(args))
    with warp_tiles.enabled():
        add.launch(**lists(args))
    assert add.counters.lookups == 2


def test_the_provider_of_products_and_the_mode_of_the_build_are_in_the_key(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = tuned(store)
    before = add.key(arguments(), "cpu")
    assert dict(before.values)["build.products"] == "warp"
    with warp_tiles.enabled():
        for provider in ("mma", "scalar"):
            with warp_tiles.override(provider=provider):
                assert dict(add.key(arguments(), "cpu").values)["build.products"] == provider
    assert add.key(arguments(), "cpu").digest == before.digest
    monkeypatch.setattr(wp.config, "mode", "debug")
    assert add.key(arguments(), "cpu").digest != before.digest


def test_another_function_of_the_launch_dimensions_is_another_key(store: MemoryStore) -> None:
    keys = [
        tuned(store, dim=dim).key(arguments(), "cpu").digest
        for dim in (lambda config, args: SIZE, lambda config, args: SIZE // config["step"])
    ]
    assert keys[0] != keys[1]


def test_a_value_that_no_key_can_hold_is_named(store: MemoryStore) -> None:
    shift = warp_tiles.autotune([{"step": 1}], key=("v",), dim=lambda c, args: SIZE, store=lambda now: store)(_shift)
    y = wp.zeros(SIZE, dtype=float, device="cpu")
    with pytest.raises(TuningError, match=r"the key names v, which is \(1.0, 2.0, 3.0\)"):
        shift.launch(inputs=[(1.0, 2.0, 3.0), 1.0], outputs=[y], device="cpu")
