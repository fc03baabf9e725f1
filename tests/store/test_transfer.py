"""Push and pull: entries of this toolchain, each once, and tuning records."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.store.server import dav
from tests.store.subjects import SIGNER, STRANGER, TRUSTED, connect, ready
from tests.store.subjects import key as cache_key
from tests.tuning.tuning_records import key, timing
from warp_tiles.store import AHEAD, RECORDS
from warp_tiles.store.cache import Cache
from warp_tiles.store.key import CacheKey, Entry
from warp_tiles.store.keys import SigningKey
from warp_tiles.store.remote import Client, RemoteStore
from warp_tiles.store.transfer import Transfer, export, is_built_by, pull, push
from warp_tiles.tuning import store as store_module
from warp_tiles.tuning.store import RecordStore

TOOLCHAIN = {"compiler": "c" * 64, "linker": "d" * 64}


@pytest.fixture
def store(tmp_path: Path) -> RemoteStore:
    (tmp_path / "store").mkdir()
    return ready(connect(tmp_path / "store", signer=SIGNER))


def fill(root: Path) -> Cache:
    cache = Cache(root)
    for compiler in ("c" * 64, "e" * 64):
        cache.put(CacheKey.of({"compiler": compiler, "name": "a"}), compiler.encode(), {})
    cache.put(CacheKey.of({"compiler": "c" * 64, "linker": "f" * 64, "name": "a"}), b"linked", {})
    cache.put(CacheKey.of({"name": "of unknown origin"}), b"unknown", {})
    return cache


def test_only_entries_of_this_compiler_and_linker_are_signed(store: RemoteStore, tmp_path: Path) -> None:
    cache, calls = fill(tmp_path / "cache"), []
    assert push(cache, store, TOOLCHAIN, lambda: calls.append(1)) == Transfer(1, 0, 3, moved_bytes=64)
    assert push(cache, store, TOOLCHAIN, lambda: calls.append(1)) == Transfer(0, 1, 3)
    assert len(calls) == 8


def test_nobody_vouches_for_a_module_that_no_launch_has_generated(store: RemoteStore, tmp_path: Path) -> None:
    cache, key = Cache(tmp_path / "cache"), CacheKey.of({"compiler": "c" * 64, "name": "a"})
    entry = cache.put(key, b"payload", {"module": "m", AHEAD: True})
    assert push(cache, store, TOOLCHAIN, lambda: None) == Transfer(skipped=1)
    assert export([cache], tmp_path / "signed", SIGNER).skipped == (entry.key,)
    assert export([cache], tmp_path / "unsigned", None).added == 1
    assert export([cache], tmp_path / "named", SIGNER, [(cache, entry.key)]).added == 1
    cache.vouch(entry)
    assert cache.get(key).manifest.info == {"module": "m"}  # type: ignore[union-attr]
    assert export([cache], tmp_path / "signed", SIGNER).added == 1
    assert push(cache, store, TOOLCHAIN, lambda: None).moved == 1


def test_a_damaged_object_is_replaced(store: RemoteStore, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.put(CacheKey.of({"compiler": "c" * 64, "name": "a"}), b"payload", {})
    assert push(cache, store, TOOLCHAIN, lambda: None).moved == 1
    (path,) = (path for path in (tmp_path / "store").rglob("*") if path.is_file())
    path.write_bytes(b"garbage")
    assert push(cache, store, TOOLCHAIN, lambda: None).moved == 1
    assert push(cache, store, TOOLCHAIN, lambda: None).present == 1


def test_only_entries_for_this_toolchain_are_pulled(store: RemoteStore, tmp_path: Path) -> None:
    push(fill(tmp_path / "cache"), store, TOOLCHAIN, lambda: None)
    (tmp_path / "store" / "v1" / "ltoir" / "ab").mkdir(parents=True, exist_ok=True)
    (tmp_path / "store" / "v1" / "ltoir" / "ab" / "README").write_text("other names are ignored")
    other = ready(RemoteStore((tmp_path / "store").as_uri(), TRUSTED, 5.0, lambda kind: "another toolchain"))
    assert pull(Cache(tmp_path / "other"), other, lambda: None) == Transfer(skipped=1)
    (tmp_path / "file").write_text("")
    assert pull(Cache(tmp_path / "file"), store, lambda: None) == Transfer(failed=1)
    fleet = Cache(tmp_path / "fleet")
    assert pull(fleet, store, lambda: None) == Transfer(moved=1, moved_bytes=64)
    assert pull(fleet, store, lambda: None) == Transfer(present=1)
    (found,) = fleet.entries()
    assert is_built_by(found.manifest.key, TOOLCHAIN)
    of_warp = CacheKey.of({"kind": "module of Warp", "warp": "a" * 64})
    assert [is_built_by(of_warp, {**TOOLCHAIN, "warp": letter * 64}) for letter in "ab"] == [True, False]


# ---- tuning records


def connection(folder: Path, signer: SigningKey | None = None) -> RemoteStore:
    folder.mkdir(exist_ok=True)
    return ready(connect(folder, signer=signer))


def test_records_go_to_another_machine_and_known_timings_stay(tmp_path: Path) -> None:
    remote = tmp_path / "store"
    first, second = (RecordStore(tmp_path / name) for name in ("first", "second"))
    assert first.push(connection(remote, SIGNER)).moved == 0
    first.merge(key("gemm a"), [timing({"x": 1}, 5.0)])
    assert first.push(connection(remote, SIGNER)).moved == 1
    again = first.push(connection(remote, SIGNER))
    assert (again.moved, again.present) == (0, 1)
    second.merge(key("gemm a"), [timing({"x": 1}, 7.0)])
    second.merge(key("gemm b"), [timing({"x": 2}, 3.0)])
    assert second.pull(connection(remote)).moved == 1
    found = second.load(key("gemm a"))
    assert [item.median_us for item in found.timings] == [7.0]


def machines(folder: Path, count: int) -> list[RecordStore]:
    """Machines with one record each."""
    found = [RecordStore(folder / f"machine {number}") for number in range(count)]
    for number, machine in enumerate(found):
        machine.merge(key(f"gemm {number}"), [timing({"x": 1})])
    return found


def pulled(remote: RemoteStore, folder: Path) -> int:
    """The number of records that a new machine has after a pull."""
    fleet = RecordStore(folder / "fleet")
    fleet.pull(remote)
    return len(fleet.records())


@pytest.mark.parametrize("lists", ["folder", "webdav", "no lists"])
def test_machines_that_push_at_once_lose_no_record(lists: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them have read what the store holds before the first of them writes."""
    (tmp_path / "store").mkdir()
    count, read = 8, store_module.records_entry
    all_have_read = threading.Barrier(count)

    def entry_after_all_have_read(*given: Any, **named: Any) -> Entry:
        all_have_read.wait(30)
        return read(*given, **named)

    with dav(tmp_path / "store", infinite=lists == "webdav") as url:

        def push(machine: RecordStore) -> Transfer:
            return machine.push(ready(connect(tmp_path / "store" if lists == "folder" else url, signer=SIGNER)))

        with monkeypatch.context() as patched:
            patched.setattr(store_module, "records_entry", entry_after_all_have_read)
            with ThreadPoolExecutor(count) as threads:
                assert [each.moved for each in threads.map(push, machines(tmp_path, count))] == [1] * count
    assert pulled(connection(tmp_path / "store"), tmp_path) == count
    extended = RecordStore(tmp_path / "fleet")
    assert extended.push(connection(tmp_path / "store", SIGNER)).moved == count
    assert len(connection(tmp_path / "store").keys(RECORDS)) == 1, "the others are removed, because it contains them"
    assert RecordStore(tmp_path / "late").pull(connection(tmp_path / "store")).moved == count


def test_a_failed_read_is_not_an_empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Client.read

    def fails_once(client: Client, name: str) -> Iterator[bytes]:
        monkeypatch.setattr(Client, "read", read)
        raise OSError("503 Service Unavailable")

    def fails(*_: object) -> Any:
        raise OSError("507 Insufficient Storage")

    for machine in machines(tmp_path, 6):
        monkeypatch.setattr(Client, "read", fails_once)
        assert machine.push(connection(tmp_path / "store", SIGNER)).moved
    assert pulled(connection(tmp_path / "store"), tmp_path) == 6
    monkeypatch.setattr(Client, "read", fails_once)
    found = RecordStore(tmp_path / "unlucky").pull(connection(tmp_path / "store"))
    assert (found.failed, found.moved > 0) == (1, True)
    cache = Cache(tmp_path / "cache")
    cache.put(cache_key(1), b"payload", {})
    remote = connection(tmp_path / "other", SIGNER)
    for name in ("read", "write"):
        with monkeypatch.context() as patched:
            patched.setattr(Client, name, fails)
            assert push(cache, remote, {"compiler": "c" * 64}, lambda: None) == Transfer(failed=1)
            assert name == "read" or machine.push(remote) == Transfer(failed=1)


def test_records_of_a_later_schema_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine, later) = machines(tmp_path, 2)
    with monkeypatch.context() as patched:
        patched.setattr("warp_tiles.tuning.store.encode_records", lambda records: b'{"schema": 999, "records": []}')
        assert later.push(connection(tmp_path / "store", SIGNER)).moved == 1
    assert machine.push(connection(tmp_path / "store", SIGNER)).moved == 1
    assert len(connection(tmp_path / "store").keys(RECORDS)) == 2


def test_records_of_a_stranger_are_not_read(tmp_path: Path) -> None:
    remote = tmp_path / "store"
    machine = RecordStore(tmp_path / "stranger")
    machine.merge(key("gemm"), [timing({"x": 1})])
    assert machine.push(connection(remote, STRANGER)).moved == 1
    (path,) = (path for path in (remote / "v1" / RECORDS).rglob("*") if path.is_file())
    reader = connection(remote)
    assert set(reader.trusted) == set(TRUSTED)
    assert RecordStore(tmp_path / "fleet").pull(reader) == Transfer(skipped=1)
    # under the name of a trusted signer
    machine.push(connection(tmp_path / "other", SIGNER))
    (name,) = (path for path in (tmp_path / "other" / "v1" / RECORDS).rglob("*") if path.is_file())
    planted = remote / name.relative_to(tmp_path / "other")
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_bytes(path.read_bytes())
    assert RecordStore(tmp_path / "fleet").pull(connection(remote)) == Transfer(skipped=2)
