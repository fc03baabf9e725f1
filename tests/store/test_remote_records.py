"""Tuning records in a remote store."""

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
from warp_tiles.store import RECORDS, transfer
from warp_tiles.store.cache import Cache
from warp_tiles.store.key import Entry
from warp_tiles.store.keys import SigningKey
from warp_tiles.store.remote import Client, RemoteStore
from warp_tiles.store.transfer import Transfer
from warp_tiles.tuning import store as store_module
from warp_tiles.tuning.store import RecordStore


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
    assert found is not None
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
            assert transfer.push(cache, remote, {"compiler": "c" * 64}, lambda: None) == Transfer(failed=1)
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
