"""Tuning records in a remote store."""

from __future__ import annotations

from pathlib import Path

from tests.store.subjects import SIGNER, STRANGER, TRUSTED, connect, ready
from tests.tuning.tuning_records import key, timing
from warp_tiles.store import RECORDS
from warp_tiles.store.keys import SigningKey
from warp_tiles.store.remote import RemoteStore
from warp_tiles.tuning.store import RecordStore


def connection(folder: Path, signer: SigningKey | None = None) -> RemoteStore:
    folder.mkdir(exist_ok=True)
    return ready(connect(folder, signer=signer))


def test_records_go_to_another_machine_and_known_timings_stay(tmp_path: Path) -> None:
    remote = tmp_path / "store"
    first, second = (RecordStore(tmp_path / name) for name in ("first", "second"))
    assert first.push(connection(remote, SIGNER)) == 0
    first.merge(key("gemm a"), [timing({"x": 1}, 5.0)])
    assert first.push(connection(remote, SIGNER)) == 1
    second.merge(key("gemm a"), [timing({"x": 1}, 7.0)])
    second.merge(key("gemm b"), [timing({"x": 2}, 3.0)])
    assert second.pull(connection(remote)) == 1
    found = second.load(key("gemm a"))
    assert found is not None
    assert [item.median_us for item in found.timings] == [7.0]


def test_a_push_keeps_what_the_signer_wrote_before(tmp_path: Path) -> None:
    remote = tmp_path / "store"
    for name in ("gemm a", "gemm b"):
        machine = RecordStore(tmp_path / name)
        machine.merge(key(name), [timing({"x": 1})])
        machine.push(connection(remote, SIGNER))
    fleet = RecordStore(tmp_path / "fleet")
    assert fleet.pull(connection(remote)) == 2
    assert len([path for path in (remote / "v1" / RECORDS).rglob("*") if path.is_file()]) == 1


def test_records_of_a_stranger_are_not_read(tmp_path: Path) -> None:
    remote = tmp_path / "store"
    machine = RecordStore(tmp_path / "stranger")
    machine.merge(key("gemm"), [timing({"x": 1})])
    assert machine.push(connection(remote, STRANGER)) == 1
    (path,) = (path for path in (remote / "v1" / RECORDS).rglob("*") if path.is_file())
    reader = connection(remote)
    assert set(reader.trusted) == set(TRUSTED)
    assert RecordStore(tmp_path / "fleet").pull(reader) == 0
    # under the name of a trusted signer
    machine.push(connection(tmp_path / "other", SIGNER))
    (name,) = (path for path in (tmp_path / "other" / "v1" / RECORDS).rglob("*") if path.is_file())
    planted = remote / name.relative_to(tmp_path / "other")
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_bytes(path.read_bytes())
    assert RecordStore(tmp_path / "fleet").pull(connection(remote)) == 0
