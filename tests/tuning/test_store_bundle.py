"""Export and import of records."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.tuning.store_files import A, B, C
from tests.tuning.tuning_records import key, timing
from warp_tiles.errors import RecordError
from warp_tiles.store import RECORDS, object_name
from warp_tiles.tuning.folder import RecordFolder
from warp_tiles.tuning.record import Record, encode_record
from warp_tiles.tuning.store import RecordStore


class TestBundle:
    def test_export_and_import_carry_every_record(self, records: RecordStore, tmp_path: Path) -> None:
        bundle, other = tmp_path / "bundle.json", RecordStore(tmp_path / "other")
        records.merge(key(), [A, C])
        records.merge(key("gemm"), [B])
        assert records.export(bundle) == 2
        assert zipfile.ZipFile(bundle).namelist() == [object_name(RECORDS, records.entry().key)]
        assert other.import_(bundle) == 2
        assert {item.path.name: item.path.read_bytes() for item in other.records()} == {
            item.path.name: item.path.read_bytes() for item in records.records()
        }

    def test_export_unites_folders_or_writes_given_records(self, records: RecordStore, tmp_path: Path) -> None:
        records.merge(key(), [A])
        both = RecordStore(tmp_path / "own", [records.root])
        both.merge(key(), [B])
        both.merge(key(m=1), [B])
        assert both.export(tmp_path / "all.json") == 2
        imported = RecordStore(tmp_path / "imported")
        imported.import_(tmp_path / "all.json")
        assert imported.load(key()) == Record(key(), (A, B))
        assert both.export(tmp_path / "one.json", [Record(key(m=1), (B,))]) == 1

    def test_importing_adds_timings_and_keeps_known_ones(self, records: RecordStore, tmp_path: Path) -> None:
        other = RecordStore(tmp_path / "other")
        other.merge(key(), [timing({"x": 1}, 99.0), B])
        other.export(tmp_path / "bundle.json")
        records.merge(key(), [A])
        assert records.import_(tmp_path / "bundle.json") == 1
        loaded = records.load(key())
        assert loaded is not None
        assert {item.config["x"]: item.median_us for item in loaded.timings} == {1: 10.0, 2: 20.0}

    def test_two_records_of_one_key_are_united(self, records: RecordStore, tmp_path: Path) -> None:
        records.export(tmp_path / "bundle.json", [Record(key(), (A,)), Record(key(), (B,))])
        assert records.import_(tmp_path / "bundle.json") == 2
        assert records.find(key().digest).record.winner() == A
        assert len(records.find(key().digest).record.timings) == 2

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "cut short"),
            (b"\x80\x04rubbish", "cut short"),
            (b"{rubbish", "Expecting property name"),
            (b'{"schema": 1}', "not an export"),
            (b'{"schema": 1, "records": {}}', "not an export"),
            (b'{"records": []}', "not an export"),
            (b'{"schema": 1, "records": [7]}', "record 0: not a tuning record"),
            (b'{"schema": 3, "records": []}', "schema 3"),
            (b'{"schema": 1, "records": [{"schema": 4}]}', "record 0: it has schema 4"),
        ],
    )
    def test_an_invalid_file_is_an_error(
        self, records: RecordStore, tmp_path: Path, content: bytes, message: str
    ) -> None:
        (tmp_path / "bundle.json").write_bytes(content)
        with pytest.raises(RecordError, match=message) as raised:
            records.import_(tmp_path / "bundle.json")
        assert str(tmp_path / "bundle.json") in raised.value.message
        assert raised.value.remedy
        assert not records.root.exists()

    def test_one_bad_record_keeps_the_good_ones_out(self, records: RecordStore, tmp_path: Path) -> None:
        good = json.loads(encode_record(Record(key(), (A,))))
        bad = Record(key(m=1), (A,)).to_json() | {"timings": [{"config": 3}]}
        (tmp_path / "bundle.json").write_text(json.dumps({"schema": 1, "records": [good, bad]}))
        with pytest.raises(RecordError, match="record 1"):
            records.import_(tmp_path / "bundle.json")
        assert records.records() == []

    def test_a_file_that_is_missing_is_an_error(self, records: RecordStore, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match=r"gone\.json"):
            records.import_(tmp_path / "gone.json")

    def test_an_import_that_a_full_disk_cuts_short_can_be_repeated(
        self, records: RecordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        records.merge(key(m=0), [A])
        records.export(tmp_path / "bundle.json", [Record(key(m=number), (B,)) for number in range(3)])
        whole, written = RecordFolder.write, []

        def write_two(folder: RecordFolder, record: Record) -> None:
            if len(written) == 2:
                raise OSError(28, "No space left on device")
            written.append(record)
            whole(folder, record)

        with monkeypatch.context() as patch:
            patch.setattr(RecordFolder, "write", write_two)
            with pytest.raises(RecordError, match="No space left"):
                records.import_(tmp_path / "bundle.json")
        assert len(written) == 2
        assert records.import_(tmp_path / "bundle.json") == 3
        found = {item.record.key: item.record.timings for item in records.records()}
        assert found == {key(m=0): (B, A), key(m=1): (B,), key(m=2): (B,)}
