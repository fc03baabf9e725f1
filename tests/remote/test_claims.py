"""Machines that share a store build an entry once: claims, waits for them, and claims that do not count."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path

import pytest

from tests.remote.subjects import SIGNER, connect, entry, ready, signed, write_object
from warp_tiles.remote import LTOIR, object_name
from warp_tiles.remote.store import Claim, RemoteStore

ENTRY = entry()


def claims(folder: Path) -> list[Path]:
    return [path for path in (folder / "v1" / "claims").rglob("*") if path.is_file()]


def pair(folder: Path) -> tuple[RemoteStore, RemoteStore]:
    first, second = (ready(connect(folder, signer=SIGNER)) for _ in range(2))
    return first, second


def plant(folder: Path, data: bytes) -> None:
    path = folder / object_name("claims", ENTRY.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_the_second_machine_waits_for_the_first(tmp_path: Path) -> None:
    first, second = pair(tmp_path)
    results = []
    entered = threading.Event()

    def wait() -> None:
        entered.wait(5)
        with second.lease(LTOIR, ENTRY.key, 10.0) as found:
            results.append(found.found)

    thread = threading.Thread(target=wait)
    thread.start()
    with first.lease(LTOIR, ENTRY.key, 10.0) as found:
        assert found.found is None
        entered.set()
        time.sleep(0.6)
        assert found.push is not None
        found.push(ENTRY)
    thread.join(10)
    assert [item.payload for item in results if item] == [ENTRY.payload]
    assert claims(tmp_path) == []


def test_a_machine_that_never_ends_is_not_waited_for_forever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = pair(tmp_path)
    with first.lease(LTOIR, ENTRY.key, 10.0):
        (mine,) = claims(tmp_path)
        content = mine.read_bytes()
        start = time.perf_counter()
        with second.lease(LTOIR, ENTRY.key, 0.5) as found:
            assert found.found is None
        assert 0.4 < time.perf_counter() - start < 3.0
        assert mine.read_bytes() == content, "only its owner removes a claim"
    assert "is built here too" in caplog.text
    assert claims(tmp_path) == []


def test_all_waits_of_a_process_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warp_tiles.remote.store.CLAIMS_S", 0.5)
    first, second = pair(tmp_path)
    others = [entry(number).key for number in range(3)]
    with contextlib.ExitStack() as held:
        for key in others:
            held.enter_context(first.lease(LTOIR, key, -1.0))
        start = time.perf_counter()
        for key in others:
            with second.lease(LTOIR, key, -1.0) as found:
                assert found.found is None
        assert time.perf_counter() - start < 3.0


@pytest.mark.parametrize("kind", ["old", "of the future", "of nothing", "of other JSON", "huge"])
def test_a_claim_that_does_not_count_is_taken_over(kind: str, tmp_path: Path) -> None:
    claim = json.loads(Claim.new().data)
    data = {
        "old": json.dumps({**claim, "time": time.time() - 61}),
        "of the future": json.dumps({**claim, "time": time.time() + 1e9}),
        "of nothing": "",
        "of other JSON": "[" * 3000,
        "huge": json.dumps({**claim, "id": "x" * 10_000}),
    }[kind]
    plant(tmp_path, data.encode())
    _, machine = pair(tmp_path)
    start = time.perf_counter()
    with machine.lease(LTOIR, ENTRY.key, 10.0) as found:
        assert found.push is not None
        assert time.perf_counter() - start < 1.0
    assert claims(tmp_path) == []


def test_a_waiter_names_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("warp_tiles.remote.store.CLAIM_PATIENCE_S", 0.1)
    first, second = pair(tmp_path)
    with first.lease(LTOIR, ENTRY.key, 10.0), second.lease(LTOIR, ENTRY.key, 0.6):
        pass
    assert f"waiting for process {os.getpid()}" in caplog.text


def test_a_failed_build_frees_the_others(tmp_path: Path) -> None:
    first, second = pair(tmp_path)
    with pytest.raises(ZeroDivisionError), first.lease(LTOIR, ENTRY.key, 10.0):
        raise ZeroDivisionError
    with second.lease(LTOIR, ENTRY.key, 10.0) as found:
        assert found.found is None


def test_a_store_that_was_closed_is_a_miss(tmp_path: Path) -> None:
    write_object(tmp_path, ENTRY, signed(ENTRY))
    store, _ = pair(tmp_path)
    with store.lease(LTOIR, entry("b").key, 10.0) as found:
        store.close()
        assert found.push is not None
        assert not found.push(entry("b"))
    assert store.fetch(LTOIR, ENTRY.key) is None
