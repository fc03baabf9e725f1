"""Tuned kernels on Warp's CPU device, and the values that change their keys."""

import logging
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.tuning.fake_stores import MemoryStore
from tests.tuning.kernels import CONFIGS, SIZE, arguments, dim, lists, scaled_add, tuned
from warp_tiles import SettingError, TuningError
from warp_tiles._warp.intercept import intercepted
from warp_tiles.tuning.record import TuningKey
from warp_tiles.tuning.store import RecordStore

CPU = wp.get_device("cpu")


@pytest.mark.parametrize("by_name", [False, True])
def test_only_the_final_launch_changes_arrays(store: MemoryStore, by_name: bool) -> None:
    add, args = tuned(store), arguments()
    before = {name: value.numpy().copy() for name, value in args.items() if name != "n"}
    record = add.tune(args, "cpu")
    np.testing.assert_array_equal(args["c"].numpy(), before["c"])
    assert {timing.config["tile"] for timing in record.timings} == {8, 16, 32}
    assert add.best(args, "cpu") == record.winner()
    assert (add.counters.searches, add.counters.builds, add.counters.measurements) == (1, 3, 3)
    second = tuned(store)
    second.launch(**(dict(args, device="cpu") if by_name else lists(args)))
    np.testing.assert_array_equal(args["a"].numpy(), before["a"])
    np.testing.assert_array_equal(args["b"].numpy(), before["b"])
    np.testing.assert_allclose(args["c"].numpy(), before["a"] + before["b"] + before["c"], rtol=1e-6)
    second.launch(**lists(args))
    assert (second.counters.lookups, second.counters.searches, second.counters.builds) == (1, 0, 0)


def test_a_planned_script_searches_nothing(store: MemoryStore) -> None:
    add, args = tuned(store), arguments()
    launched: list[int] = []
    with intercepted(lambda launch: launched.append(launch.block_dim)):
        add.launch(**lists(args))
        with pytest.raises(TuningError, match="while the script is planned"):
            add.tune(args, "cpu")
    assert launched == [CONFIGS[0]["block_dim"]]
    assert (add.counters.searches, add.counters.measurements) == (0, 0)


# ---- results


def wrong_for_16(tile: int) -> Any:
    return scaled_add(tile, 3.0 if tile == 16 else 1.0)


def refuses_16(tile: int) -> Any:
    if tile == 16:
        raise ValueError("16 is not supported")
    return scaled_add(tile)


def total(args: Any) -> Any:
    return args.c.numpy() + args.a.numpy() + args.b.numpy()


@pytest.mark.parametrize(
    ("factory", "reference", "reason"),
    [
        (wrong_for_16, "first", "wrong result: c differs by up to"),
        (wrong_for_16, total, "wrong result: c differs by up to"),
        (wrong_for_16, lambda args: {"c": total(args)}, "wrong result: c differs by up to"),
        (refuses_16, None, "ValueError: 16 is not supported"),
    ],
    ids=["first", "array", "by name", "refused"],
)
def test_a_wrong_result_or_a_refused_configuration_is_a_recorded_failure(
    store: MemoryStore, factory: Any, reference: Any, reason: str
) -> None:
    add, args = tuned(store, factory=factory, reference=reference), arguments()
    add.launch(**lists(args))
    failed = [timing for timing in add.record(args, "cpu").timings if timing.status == "failed"]
    assert [timing.config["tile"] for timing in failed] == [16]
    assert reason in failed[0].reason


def test_a_reference_that_does_not_fit(store: MemoryStore) -> None:
    args = arguments()
    for reference, text in ((lambda args: [1, 2], "2 results for c"), (lambda args: {"a": 1}, "a, which is not writ")):
        with pytest.raises(TuningError, match=text):
            tuned(store, reference=reference).launch(**lists(args))


def does_not_build(tile: int) -> Any:
    @wp.kernel(module="unique")
    def kernel(a: wp.array(dtype=float), b: wp.array(dtype=float), n: int, c: wp.array(dtype=float)):
        c[0] = wp.no_such_function(a[tile])

    return kernel


def test_if_all_candidates_fail_the_error_has_each_reason(store: MemoryStore) -> None:
    add, args = tuned(store, factory=does_not_build), arguments()
    for _ in range(2):  # after a search, then from the record
        with pytest.raises(TuningError, match="no configuration of <tuned kernel") as caught:
            add.launch(**lists(args))
        assert all(f"'tile': {tile}" in caught.value.log for tile in (8, 16, 32))
        assert "no_such_function" in caught.value.log
    assert add.counters.searches == 1
    with pytest.raises(TuningError):
        add.tune(args, "cpu", again=True)
    assert add.counters.searches == 2


def test_zeros_are_measured_as_random_numbers(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []

    def reference(args: Any) -> Any:
        seen.append(args.a.numpy().copy())
        return args.c.numpy() + args.a.numpy() + args.b.numpy()

    add, args = tuned(store, reference=reference), arguments()
    args["a"].zero_()
    with caplog.at_level(logging.WARNING, "warp_tiles"):
        add.launch(**lists(args))
    assert "the input a is all zeros" in caplog.text
    assert np.all(seen[0] != 0)
    assert not args["a"].numpy().any()


# ---- kinds of kernels


def test_a_kernel_of_a_shared_module_gets_one_of_its_own(store: MemoryStore) -> None:
    def shared(tile: int) -> Any:
        @wp.kernel(enable_backward=False)
        def kernel(a: wp.array(dtype=float), b: wp.array(dtype=float), n: int, c: wp.array(dtype=float)):
            i = wp.tid()
            wp.tile_store(c, wp.tile_load(a, shape=tile, offset=i * tile), offset=i * tile)

        return kernel

    add, args = tuned(store, factory=shared), arguments()
    kernels = [add.launch_of(config, args)[0] for config in CONFIGS]
    assert len({kernel.module.name for kernel in kernels}) == 3
    assert __name__ not in {kernel.module.name for kernel in kernels}
    assert all(kernel.options["enable_backward"] is False for kernel in kernels)
    add.launch(**lists(args))
    np.testing.assert_array_equal(args["c"].numpy(), args["a"].numpy())


@pytest.mark.parametrize(
    ("option", "values"),
    [("warp_tiles_provider", ["scalar", "own"]), ("warp_tiles_main_loop", ["mma,stages=3", "wgmma,blocks=1"])],
)
def test_a_name_of_a_module_option_goes_to_the_module(store: MemoryStore, option: str, values: list[str]) -> None:
    configs = [{"tile": 8, "block_dim": 32, option: value} for value in values]
    add, args = tuned(store, configs), arguments()
    kernels = [add.launch_of(config, args)[0] for config in configs]
    assert [kernel.module.options[option] for kernel in kernels] == values
    assert kernels[0].module is not kernels[1].module
    add.launch(**lists(args))


def test_generic_kernels_and_empty_launches(store: MemoryStore) -> None:
    def generic(tile: int) -> Any:
        @wp.kernel(module="unique", enable_backward=False)
        def kernel(a: wp.array(dtype=Any), b: wp.array(dtype=Any), n: int, c: wp.array(dtype=Any)):
            i = wp.tid()
            c[i] = a[i] + b[i]

        return kernel

    add = tuned(store, factory=generic, dim=lambda c, args: args.n, tiled=False)
    for dtype in (wp.float32, wp.float64):
        arrays = [wp.array(np.arange(1.0, 9.0), dtype=dtype, device="cpu") for _ in range(3)]
        add.launch(inputs=[*arrays[:2], 0], outputs=arrays[2:], device="cpu")
        add.launch(inputs=[*arrays[:2], 8], outputs=arrays[2:], device="cpu")
        np.testing.assert_array_equal(arrays[2].numpy(), 2 * np.arange(1.0, 9.0))
    assert add.counters.searches == 2, "an empty launch is not tuned"


def test_a_tape_records_the_winning_launch_alone(store: MemoryStore) -> None:
    def squares(tile: int) -> Any:
        @wp.kernel(module="unique")
        def kernel(a: wp.array(dtype=float), n: int, c: wp.array(dtype=float)):
            i = wp.tid()
            c[i] = a[i] * a[i]

        return kernel

    square = tuned(store, factory=squares, dim=lambda c, args: args.n, tiled=False)
    a = wp.array(np.arange(1.0, 9.0), dtype=float, device="cpu", requires_grad=True)
    c = wp.zeros(8, dtype=float, device="cpu", requires_grad=True)
    with wp.Tape() as tape:
        square.launch(inputs=[a, 8], outputs=[c], device="cpu")
    assert len(tape.launches) == 1
    tape.backward(grads={c: wp.ones_like(c)})
    np.testing.assert_allclose(a.grad.numpy(), 2 * np.arange(1.0, 9.0))


# ---- bad input


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"configs": [{"tile": 8, "block_dim": 32, "depth": 2}]}, "names depth, which it does not take"),
        ({"configs": [{"block_dim": 32}]}, "lacks tile"),
        ({"configs": [{"tile": 8}]}, "has no block_dim"),
        ({"default": {"til": 3}}, "names til"),
        ({"key": ()}, "key is"),
        ({"space": warp_tiles.Space(tile=[8])}, "configs or space"),
        ({"configs": [{**CONFIGS[0], "warp_tiles_nothing": 1}]}, "warp_tiles_nothing is unknown.*warp_tiles_provider"),
        ({"configs": [{**CONFIGS[0], "warp_tiles_provider": "none"}]}, "warp_tiles_provider is 'none'.*cublasdx"),
        *(({"dim": value}, "dim is") for value in (None, 4, (4, 4))),
        *(
            ({name: value}, f"{name} is")
            for name in ("rtol", "atol")
            for value in (-1e-9, math.nan, math.inf, 10**400, "0.1", None, True)
        ),
        *(({"jobs": value}, "jobs is") for value in (-1, 1.5, True)),
        *(({name: value}, f"{name} is") for name in ("tiled", "flush_l2", "wait") for value in ("no", 1, None)),
        *(({"effort": value}, "effort is") for value in (3, {"runs": 2})),
        *(({"restore": value}, "restore is") for value in (3, [3])),
        *(({name: 3}, f"{name} is 3") for name in ("default", "configs", "reference")),
        ({"configs": None, "space": {"step": [1, 2]}}, "space is"),
        ({"search": "some"}, "search is"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_invalid_options_are_refused_at_once(options: dict[str, Any], text: str) -> None:
    given = {"key": ("a",), "dim": dim, "tiled": True, "configs": CONFIGS, **options}
    with pytest.raises((TuningError, SettingError), match=f"(?s){text}") as caught:
        warp_tiles.autotune(**given)(scaled_add)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("devices", "listed"),
    [("cuda:0", ("cuda:0",)), (["cuda:1", "cuda:0"], ("cuda:1", "cuda:0")), (CPU, (CPU,)), ((), ()), (None, ())],
    ids=["text", "list", "device", "empty", "none"],
)
def test_one_device_is_a_list_of_one(store: MemoryStore, devices: Any, listed: tuple[Any, ...]) -> None:
    assert tuned(store, devices=devices)._options.devices == listed


def test_launches_with_wrong_arguments(store: MemoryStore) -> None:
    args = arguments()
    for options, given, text in (
        ({}, {**args, "d": 1}, "names d"),
        ({}, {**args, "inputs": [args["a"]]}, "a twice"),
        ({}, {"a": args["a"], "n": SIZE}, "no b, c"),
        ({}, {"inputs": [args["a"]]}, "no b, n, c"),
        ({"key": ("a", "m")}, args, "key names m, which the kernel does not take.*its arguments are a, b, n, c"),
        ({"restore": ("a", "m")}, args, "restore names m, which the kernel does not take"),
    ):
        with pytest.raises(TuningError, match=f"(?s){text}"):
            tuned(store, **options).launch(**given, device="cpu")


def test_a_maker_that_is_no_function_or_makes_no_kernel(store: MemoryStore) -> None:
    def nothing(tile: int) -> None:
        return None

    with pytest.raises(TuningError, match="give a function that makes a kernel"):
        tuned(store, factory=3)  # type: ignore[arg-type]
    with pytest.raises(TuningError, match="accepts no configuration") as caught:
        tuned(store, factory=nothing).launch(**lists(arguments()))
    assert "gives None" in caught.value.log


def limit_space(monkeypatch: pytest.MonkeyPatch, room: list[bool]) -> None:
    """Let the next builds of kernels find space or none; those after them find space."""
    build = wp._src.build.build_cpu

    def build_with_space(*args: Any, **options: Any) -> None:
        if not (room.pop(0) if room else True):
            raise OSError(28, "No space left on device")
        build(*args, **options)

    monkeypatch.setattr(wp._src.build, "build_cpu", build_with_space)


def test_a_build_that_found_no_space_is_tried_again_by_the_next_search(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = [False, False, False]
    limit_space(monkeypatch, room)
    configs = [{**config, "factor": 7.25} for config in CONFIGS]  # Warp's cache has these from no other test
    add, args = tuned(store, configs=configs, jobs=1), arguments()
    with pytest.raises(TuningError, match="no configuration") as caught:
        add.launch(**lists(args))
    assert caught.value.log.count("No space left on device") == 3
    caplog.clear()
    room[:] = [True, False, False]
    add.launch(**lists(args))
    assert [timing.config["tile"] for timing in add.record(args, "cpu").timings] == [8]
    assert caplog.text.count("left out until the next search: OSError: [Errno 28]") == 2
    searches = add.counters.searches
    add.launch(**lists(args))
    assert add.counters.searches == searches  # a choice lasts as long as the process
    room[:] = [True, False]
    found = add.tune(args, "cpu")
    assert sorted(timing.config["tile"] for timing in found.timings if timing.status != "failed") == [8, 16]
    assert [timing.config["tile"] for timing in found.timings if "Errno 28" in timing.reason] == [32]
    found = add.tune(args, "cpu")
    assert sorted(timing.config["tile"] for timing in found.timings if timing.status != "failed") == [8, 16, 32]
    assert len(add.record(args, "cpu").timings) == 3


def test_a_reference_that_launches_the_kernel_itself_gets_the_default(tmp_path: Path) -> None:
    def reference(args: Any) -> Any:
        again = arguments()
        add.launch(**lists(again))
        results.append(again["c"].numpy())
        return results[0]

    results: list[Any] = []
    add, args = tuned(RecordStore(tmp_path, folder="tuning"), reference=reference), arguments()
    add.launch(**lists(args))
    np.testing.assert_array_equal(args["c"].numpy(), results[0])


def test_a_recorded_launch_searches_with_its_outputs(store: MemoryStore) -> None:
    add, args = tuned(store, reference=lambda args: args.a.numpy() + args.b.numpy() + args.c.numpy()), arguments()
    given = lists(args)
    pair = warp_tiles.record(add, inputs=given["inputs"], outputs=given["outputs"], device="cpu")
    assert {timing.status for timing in add.record(args, "cpu").timings} <= {"ok", "dropped"}
    pair.forward()


# ---- keys


def key_of(store: MemoryStore, **options: Any) -> TuningKey:
    """The key of the same arguments under options of the decorator."""
    return tuned(store, **options).key(arguments(), "cpu")


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ({}, {}, True),
        ({}, {"block_dim": 64}, False),
        ({}, {"tiled": False}, False),
        ({}, {"flush_l2": True}, False),
        ({}, {"reference": "first"}, False),
        ({}, {"reference": total}, False),
        ({}, {"rtol": 0.1}, True),  # no results are compared
        ({"reference": "first", "rtol": 0.1}, {"reference": "first", "rtol": 1e-5}, False),
        ({"reference": "first", "rtol": 0.5}, {"reference": "first", "rtol": np.float32(0.5)}, True),
        ({"reference": "first", "rtol": 0.5}, {"reference": "first", "rtol": Fraction(1, 2)}, True),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value).partition(" at 0x")[0],
)
def test_shared_options_are_part_of_the_key(
    store: MemoryStore, first: dict[str, Any], second: dict[str, Any], equal: bool
) -> None:
    assert (key_of(store, **first).digest == key_of(store, **second).digest) is equal


def test_another_shape_layout_or_scalar_is_another_key(store: MemoryStore) -> None:
    add = tuned(store)
    for size in (64, 128, 64):
        add.launch(**lists(arguments(size)))
    assert add.counters.searches == 2
    assert len(store.records) == 2
    args = arguments()
    values = dict(add.key(args, "cpu").values)
    assert (values["a.shape"], values["a.dtype"], values["n"]) == ("64", "float32", 64)
    assert "b.shape" not in values
    strided = dict(args, a=wp.array(np.ones(2 * SIZE, np.float32), dtype=float, device="cpu")[::2])
    assert dict(add.key(strided, "cpu").values)["a.layout"] == "2"
    before = strided["c"].numpy().copy()
    add.launch(**strided, device="cpu")
    np.testing.assert_allclose(strided["c"].numpy(), before + 1 + args["b"].numpy(), rtol=1e-6)
    assert len(store.records) == 3


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


def test_the_provider_of_products_and_the_mode_of_the_build_are_in_the_key(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, args = tuned(store), arguments()
    before = add.key(args, "cpu")
    assert dict(before.values)["build.products"] == "warp"
    add.launch(**lists(args))
    with warp_tiles.enabled():
        add.launch(**lists(args))
        for provider in ("own", "scalar"):
            with warp_tiles.override(provider=provider):
                assert dict(add.key(args, "cpu").values)["build.products"] == provider
    assert add.counters.lookups == 2
    assert add.key(args, "cpu").digest == before.digest
    monkeypatch.setattr(wp.config, "mode", "debug")
    assert add.key(args, "cpu").digest != before.digest
