"""The choice of a configuration: policies, layers of settings, records of other drivers, other searches."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warp_tiles
from tests.tuning.fake_stores import MemoryStore
from tests.tuning.kernels import CONFIGS, QUICK, arguments, dim, lists, scaled_add, tuned
from tests.waiting import in_threads
from warp_tiles import LockedError, settings
from warp_tiles.tuning import kernel
from warp_tiles.tuning.record import Record
from warp_tiles.tuning.store import RecordStore


@pytest.mark.parametrize("policy", ["off", "scalar", "fast"])
def test_policies_without_tuning_take_the_default(store: MemoryStore, policy: str) -> None:
    add, args = tuned(store, default=1), arguments()
    with settings.override(policy=policy):
        before = args["c"].numpy().copy()
        add.launch(**lists(args))
        assert np.any(args["c"].numpy() != before)
    assert (add.counters.lookups, add.counters.searches) == (0, 0)
    with settings.override(policy="max"):
        add.launch(**lists(args))
    assert add.counters.searches == 1


def test_locked_needs_a_record(store: MemoryStore) -> None:
    add, args = tuned(store), arguments()
    with settings.override(policy="locked"):
        with pytest.raises(LockedError, match="no tuning record for") as caught:
            add.launch(**lists(args))
        assert store.records == {}
    for named in ("tests.tuning.kernels.scaled_add", "a.shape=64", "n=64", add.key(args, "cpu").digest, "override()"):
        assert named in caught.value.message
    assert "record_paths" in caught.value.remedy
    add.tune(args, "cpu")
    with settings.override(policy="locked"):
        add.launch(**lists(args))
    assert add.counters.searches == 1


@pytest.mark.parametrize(
    ("policy", "choice", "searches"), [("auto", "reuse", 0), ("auto", "retune", 1), ("locked", "reuse", 0)]
)
def test_timings_of_another_driver(
    store: MemoryStore, caplog: pytest.LogCaptureFixture, policy: str, choice: str, searches: int
) -> None:
    args = arguments()
    record = tuned(store).tune(args, "cpu")
    old = tuple(replace(timing, soft={"driver": "12.0", "warp": "1.19.0"}) for timing in record.timings)
    store.records[record.key.digest] = Record(record.key, old)
    add = tuned(store)
    changes = {"policy": policy, "record_driver_mismatch": choice}
    with settings.override(**changes), caplog.at_level(logging.WARNING, "warp_tiles"):
        add.launch(**lists(args))
    assert add.counters.searches == searches
    assert ("was measured with" in caplog.text) == (choice == "reuse")


def test_while_another_process_searches_the_default_is_taken(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_RETRY_AFTER_S", 3600.0)
    add, args = tuned(store, wait=False, default={"tile": 64, "block_dim": 32}), arguments()
    with store.busy:
        add.launch(**lists(args))
        add.launch(**lists(args))
    assert (add.counters.searches, add.counters.lookups) == (0, 1)
    add.forget()
    add.launch(**lists(args))
    assert add.counters.searches == 1


@pytest.mark.parametrize("measured", [3, 1], ids=["whole", "cut short"])
def test_waiting_for_another_search(store: MemoryStore, measured: int) -> None:
    add, args = tuned(store), arguments()
    with store.busy:
        waiting = threading.Thread(target=lambda: add.launch(**lists(args)))
        waiting.start()
        assert store.waits.wait(60)
        record = tuned(MemoryStore()).tune(args, "cpu")
        timings = sorted(record.timings, key=lambda timing: timing.status != "ok")
        store.records[record.key.digest] = replace(record, timings=tuple(timings[:measured]))
    waiting.join(30)
    assert add.counters.searches == 0


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_threads_that_launch_at_once_search_once(store: MemoryStore, is_on_disk: bool, tmp_path: Path) -> None:
    add = tuned(RecordStore(tmp_path) if is_on_disk else store)
    assert in_threads(4, lambda: add.launch(**lists(arguments()))) == [None] * 4
    assert add.counters.searches == 1


def test_a_search_for_one_key_blocks_no_other_key(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    add, small, large = tuned(store), arguments(), arguments(512)
    inside, go = threading.Event(), threading.Event()

    def choose(values: Sequence[Any], *_: Any) -> Any:
        if values[0].shape == (512,):
            inside.set()
            assert go.wait(60)
        return {"tile": 64, "block_dim": 32}

    monkeypatch.setattr(add, "_choose", choose)
    thread = threading.Thread(target=lambda: add.launch(**lists(large)))
    thread.start()
    assert inside.wait(60)
    other = threading.Thread(target=lambda: add.launch(**lists(small)))
    other.start()
    other.join(60)
    assert not other.is_alive()
    go.set()
    thread.join(60)
    monkeypatch.setattr(kernel, "_MOST_KEYS", 2)
    add.launch(**lists(arguments(256)))
    assert len(add._chosen) == 1


def test_an_exhausted_budget_continues_later(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    space = warp_tiles.Space(tile=[8, 16, 32, 64], block_dim=[32], constraints=[lambda c: c["tile"] < 64])
    add, args = tuned(store, space=space, search=warp_tiles.Random(2, seed=3)), arguments()
    with settings.override(tune_budget_s=1e-9), caplog.at_level(logging.WARNING, "warp_tiles"):
        add.launch(**lists(args))
    assert "budget" in caplog.text
    assert store.records == {}
    add.launch(**lists(args))
    tiles = [timing.config["tile"] for timing in store.load(add.key(args, "cpu")).timings]
    assert len(tiles) == 2
    assert set(tiles) < {8, 16, 32}


# ---- records on disk, settings in layers


def on_disk() -> Any:
    """A tuned kernel, as another process would make it, with the records that the settings name."""
    return warp_tiles.autotune(CONFIGS, key=("a", "n"), dim=dim, tiled=True, effort=QUICK, default=1)(scaled_add)


def test_policies_from_the_environment_and_the_project_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments()
    (tmp_path / "pyproject.toml").write_text(
        f"[tool.warp_tiles]\npolicy = 'locked'\ncache_dir = '{tmp_path / 'own'}'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARP_TILES_TRUSTED_PROJECT_DIRS", str(tmp_path))
    for variable in ("WARP_TILES_POLICY", "WARP_TILES_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(LockedError, match=r"the setting policy \(.*pyproject.toml\) is 'locked'"):
        on_disk().launch(**lists(args))
    monkeypatch.setenv("WARP_TILES_POLICY", "fast")
    fast = on_disk()
    fast.launch(**lists(args))
    assert (fast.counters.lookups, fast.counters.searches) == (0, 0)
    monkeypatch.setenv("WARP_TILES_POLICY", "max")
    first = on_disk()
    first.launch(**lists(args))
    assert (first.counters.searches, first.counters.measurements) == (1, 3)
    monkeypatch.delenv("WARP_TILES_POLICY")
    locked = on_disk()
    locked.launch(**lists(args))
    assert (locked.counters.lookups, locked.counters.searches) == (1, 0)
    assert len(list((tmp_path / "own" / "tuning").rglob("*.json"))) == 1


def test_an_unfinished_timing_counts_and_is_measured_again(store: MemoryStore) -> None:
    args = arguments()
    record = tuned(store).tune(args, "cpu")
    first, second, _ = record.timings
    store.records[record.key.digest] = replace(record, timings=(replace(first, unfinished=True), second))
    add = tuned(store)
    with settings.override(policy="locked"):
        add.launch(**lists(args))
    assert add.counters.searches == 0
    add.forget()
    with settings.override(tune_budget_s=100.0):
        add.launch(**lists(args))
    assert add.counters.searches == 1
    assert not any(timing.unfinished for timing in store.records[record.key.digest].timings)
