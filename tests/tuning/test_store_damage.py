"""Records that are damaged, of a later schema, or that cannot be written."""

from __future__ import annotations

import json
import os
import pickle
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.tuning.store_files import A, B, file_of, future, quiet, unwritable, write
from tests.tuning.tuning_records import key, timing
from warp_tiles.errors import RecordError
from warp_tiles.tuning.record import Record, encode_record
from warp_tiles.tuning.store import RecordStore


class TestDamage:
    @pytest.fixture(
        params=[
            b"",
            b"{",
            b"\xff\xfe",
            b"[]",
            b"null",
            b'{"schema": "2"}',
            b'{"schema": true}',
            b'{"schema": 0}',
            b"[" * 5_000,
            b'{"schema": 1, "timings": [NaN]}',
            "another key",
            "a cut",
            "a pickle",
            "a number beyond floats",
            "a lone surrogate",
        ],
        ids=lambda value: repr(value)[:24],
    )
    def damaged(self, request: pytest.FixtureRequest) -> bytes:
        whole = encode_record(Record(key(), (A,)))
        contents = {
            "another key": encode_record(Record(key(m=1), (A,))),
            "a cut": whole[: len(whole) // 2],
            "a pickle": pickle.dumps(Exploding()),
            "a number beyond floats": whole.replace(b'"x": 1', b'"x": 1e999'),
            "a lone surrogate": whole.replace(b'"x": 1', b'"x": "\\ud800"'),
        }
        return contents[request.param] if isinstance(request.param, str) else request.param

    def test_a_damaged_record_is_set_aside_with_one_warning(self, records: RecordStore, damaged: bytes) -> None:
        path = file_of(records, key())
        write(path, damaged)
        with pytest.warns(RuntimeWarning, match=f"{path.name}.*set aside"):
            assert records.load(key()) is None
        assert not path.exists()
        assert path.with_suffix(".damaged").read_bytes() == damaged
        assert records.load(key()) is None  # without another warning
        assert records.merge(key(), [A]).timings == (A,)
        assert path.with_suffix(".damaged").read_bytes() == damaged

    def test_merging_sets_aside_too(self, records: RecordStore) -> None:
        path = file_of(records, key())
        write(path, b"{")
        with pytest.warns(RuntimeWarning, match="set aside"):
            assert records.merge(key(), [A]).timings == (A,)
        assert path.with_suffix(".damaged").read_bytes() == b"{"

    def test_a_damaged_record_in_an_unwritable_folder_causes_a_warning(self, records: RecordStore) -> None:
        write(file_of(records, key()), b"{")
        (records.root / ".locks").write_text("no lock can be made")
        with pytest.warns(RuntimeWarning, match="damaged .* cannot be set aside"):
            assert records.load(key()) is None
        assert file_of(records, key()).read_bytes() == b"{"


class Exploding:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a record was unpickled",))


class TestFutureSchema:
    def test_it_is_ignored_with_one_message_and_never_overwritten(self, records: RecordStore) -> None:
        path = file_of(records, key())
        data = write(path, future(key()))
        with pytest.warns(RuntimeWarning, match=r"left alone.*schema 2.*reads schema 1"):
            assert records.load(key()) is None
        assert records.load(key()) is None  # without another warning, which would be an error here
        assert records.records() == []
        with pytest.warns(RuntimeWarning, match="cannot be written.*left alone.*schema 2"):
            assert records.merge(key(), [A]).timings == (A,)
        assert records.merge(key(), [B]).timings == (A, B)
        assert RecordStore(records.root).load(key()) == Record(key(), (A, B))  # for this process
        assert path.read_bytes() == data
        assert list(path.parent.iterdir()) == [path]
        assert records.remove() == 1
        assert not path.exists()

    def test_other_keys_are_not_touched_by_it(self, records: RecordStore) -> None:
        write(file_of(records, key()), future(key()))
        records.merge(key(m=1), [A])
        with quiet():
            assert [item.record.key for item in records.records()] == [key(m=1)]

    def test_a_bundle_of_it_or_for_it_is_refused_whole(self, records: RecordStore, tmp_path: Path) -> None:
        bundle = tmp_path / "bundle.json"
        other = RecordStore(tmp_path / "other")
        other.merge(key(m=1), [A])
        other.merge(key(), [A])
        other.export(bundle)
        data = write(file_of(records, key()), future(key()))
        with pytest.raises(RecordError, match="left alone: it has schema 2"):
            records.import_(bundle)
        assert [path.read_bytes() for path in records.root.rglob("*.json")] == [data]
        bundle.write_bytes(b'{"schema": 2, "records": []}')
        with pytest.raises(RecordError, match="schema 2"):
            records.import_(bundle)


class TestUnusable:
    """If nothing can be written, results last as long as the process."""

    @pytest.fixture
    def stuck(self, tmp_path: Path) -> Iterator[RecordStore]:
        with unwritable(tmp_path / "tuning"):
            yield RecordStore(tmp_path / "tuning")

    def test_results_last_as_long_as_the_process_with_one_warning(self, stuck: RecordStore) -> None:
        with pytest.warns(RuntimeWarning, match="cannot be written"):
            assert stuck.merge(key(), [A]).timings == (A,)
        assert stuck.merge(key(), [B]).timings == (A, B)
        again = RecordStore(stuck.root)
        assert again.load(key()) == Record(key(), (A, B))
        assert [item.record for item in again.records("kernel:")] == [Record(key(), (A, B))]
        assert again.find(key().digest[:8]).record.key == key()
        assert RecordStore(stuck.root.with_name("elsewhere")).load(key()) is None

    def test_threads_lose_nothing(self, stuck: RecordStore) -> None:
        with quiet():
            stuck.merge(key(), [A])  # causes the only warning
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: stuck.merge(key(), [timing({"y": number})]), range(200)))
        record = stuck.load(key())
        assert record is not None
        assert len(record.timings) == 201

    def test_they_are_written_as_soon_as_that_is_possible(self, stuck: RecordStore) -> None:
        with quiet():
            stuck.merge(key(), [A])
        stuck.root.unlink()
        assert stuck.merge(key(), [B]).timings == (A, B)
        assert json.loads(file_of(stuck, key()).read_text())["timings"][0]["config"] == A.config

    def test_a_search_may_continue(self, stuck: RecordStore) -> None:
        with pytest.warns(RuntimeWarning, match="not coordinated"), stuck.single_flight(key()) as may_search:
            assert may_search

    def test_commands_raise_an_error(self, stuck: RecordStore, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match="cannot be exported"):
            stuck.export(tmp_path / "missing" / "bundle.json")
        bundle = tmp_path / "bundle.json"
        assert stuck.export(bundle, [Record(key(), (A,))]) == 1
        with pytest.raises(RecordError, match="cannot be changed"):
            stuck.import_(bundle)

    @pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions are those of POSIX")
    def test_a_folder_that_others_can_write_is_not_used_unless_shared(self, records: RecordStore) -> None:
        records.merge(key(), [A])
        records.root.chmod(0o777)
        with pytest.warns(RuntimeWarning, match=r"not used.*0o777.*chmod 700"):
            assert records.load(key()) is None
        with pytest.warns(RuntimeWarning, match="cannot be written"):
            assert records.merge(key(m=1), [B]).timings == (B,)
        shared = RecordStore(records.root, shared=True)
        assert shared.load(key()) == Record(key(), (A,))
        shared.merge(key("gemm"), [A])
        assert stat.S_IMODE(file_of(shared, key("gemm")).stat().st_mode) == 0o666
