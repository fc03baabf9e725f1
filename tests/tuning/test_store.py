"""Records on disk: lookup, merging, removal, exports, damage, and folders that cannot be written."""

import json
import pickle
import stat
import warnings
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tuning.tuning_records import ENVIRONMENT, failure, key, timing
from warp_tiles import settings
from warp_tiles.errors import RecordError
from warp_tiles.store import RECORDS, object_name
from warp_tiles.tuning.record import Record, TuningKey, encode_record
from warp_tiles.tuning.store import RecordFolder, RecordStore, open_store, records_entry

A, B, C = timing({"x": 1}, 10.0), timing({"x": 2}, 20.0), failure({"x": 3})


def file_of(store: RecordStore, record_key: TuningKey) -> Path:
    return store.root / f"{record_key.file}.json"


def future(record_key: TuningKey) -> bytes:
    return json.dumps({"schema": 2, "key": record_key.to_json(), "measurements": {}}).encode()


def write(path: Path, data: bytes) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return data


def medians(record: Record | None) -> dict[int, float]:
    """The times of a record by the value of their configuration."""
    assert record is not None
    return {item.config["x"]: item.median_us for item in record.timings}


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_nothing_is_created_until_something_is_written(records: RecordStore, tmp_path: Path) -> None:
    assert records.load(key()) is None
    assert records.records() == []
    assert records.remove() == 0
    assert list(tmp_path.iterdir()) == []


def test_merging_adds_and_replaces_by_configuration(records: RecordStore) -> None:
    records.merge(key(), [A, C])
    newer = timing({"x": 3}, 5.0)
    assert records.merge(key(), [B, newer]).timings == (A, newer, B)


@pytest.mark.parametrize(("shared", "folder", "file"), [(False, 0o700, 0o600), (True, 0o2770, 0o660)])
def test_folders_and_files_have_the_permissions_of_the_cache(
    tmp_path: Path, shared: bool, folder: int, file: int
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(folder)
    with settings.override(cache_dir=cache, cache_shared=shared):
        store = open_store()
        store.merge(key(), [A])
        with store.single_flight(key()):
            paths = [store.root, *store.root.rglob("*")]
            found = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths}
    assert found == {(True, folder), (False, file)}


def test_a_configuration_without_a_json_form_is_refused_and_changes_nothing(records: RecordStore) -> None:
    records.merge(key(), [A])
    before = file_of(records, key()).read_bytes()
    with pytest.raises(TypeError):
        records.merge(key(), [B, timing({"x": object()})])
    with pytest.raises(ValueError, match="JSON"):
        records.merge(key(), [B, timing({"x": float("nan")})])
    assert file_of(records, key()).read_bytes() == before


class TestFolders:
    """The lookup order: read-only folders in the given order, then the user's own."""

    @pytest.fixture
    def shipped(self, tmp_path: Path) -> list[Path]:
        return [tmp_path / "first", tmp_path / "second"]

    @pytest.fixture
    def store(self, tmp_path: Path, shipped: list[Path]) -> RecordStore:
        return RecordStore(tmp_path / "tuning", shipped)

    def test_earlier_folders_win_for_a_configuration_and_all_are_united(
        self, store: RecordStore, shipped: list[Path]
    ) -> None:
        for median, (folder, names) in enumerate(zip((*shipped, store.root), ([1], [1, 2], [1, 2, 3])), 1):
            RecordStore(folder).merge(key(), [timing({"x": name}, float(median)) for name in names])
        assert medians(store.load(key())) == {1: 1.0, 2: 2.0, 3: 3.0}

    def test_a_finished_timing_wins_over_an_earlier_unfinished_one(
        self, store: RecordStore, shipped: list[Path]
    ) -> None:
        RecordStore(shipped[0]).merge(key(), [replace(timing({"x": 1}, 1.0), unfinished=True)])
        store.merge(key(), [timing({"x": 1}, 2.0)])
        assert medians(store.load(key())) == {1: 2.0}

    @pytest.mark.parametrize("at_home", [False, True], ids=["folder", "own"])
    def test_a_timing_with_the_present_driver_wins_wherever_it_was(
        self, store: RecordStore, shipped: list[Path], at_home: bool
    ) -> None:
        later = key(environment=replace(ENVIRONMENT, driver="13.9"))
        there, here = RecordStore(shipped[0]), RecordStore(store.root)
        new, old = (here, there) if at_home else (there, here)
        old.merge(key(), [timing({"x": 1}, 1.0), timing({"x": 2}, 1.0)])
        new.merge(later, [timing({"x": 1}, 2.0, soft=later.environment.soft())])
        (united,) = store.united(present=later.environment)
        assert medians(united) == medians(store.load(later)) == {1: 2.0, 2: 1.0}
        assert medians(store.load(key())) == {1: 1.0, 2: 1.0}

    def test_read_only_folders_are_never_written(self, store: RecordStore, shipped: list[Path]) -> None:
        RecordStore(shipped[0]).merge(key(), [A])
        path = file_of(RecordStore(shipped[0]), key())
        damaged = write(path.with_name("0" * 64 + ".json"), b"{")
        before = {item: item.stat().st_mtime_ns for item in shipped[0].rglob("*")}
        with pytest.warns(RuntimeWarning, match="damaged and not used"):
            store.records()
        merged = store.merge(key(), [timing({"x": 1}, 1.0), B])
        store.remove()
        assert merged.timings == (A, B)
        assert {item: item.stat().st_mtime_ns for item in shipped[0].rglob("*")} == before
        assert path.with_name("0" * 64 + ".json").read_bytes() == damaged
        assert not shipped[1].exists()

    def test_links_are_followed_in_read_only_folders(self, store: RecordStore, shipped: list[Path]) -> None:
        RecordStore(shipped[1]).merge(key(), [A])
        real, link = (file_of(RecordStore(folder), key()) for folder in reversed(shipped))
        link.parent.mkdir(parents=True)
        link.symlink_to(real)
        assert RecordStore(store.root, shipped[:1]).load(key()) == Record(key(), (A,))

    def test_a_missing_folder_causes_a_warning(self, tmp_path: Path) -> None:
        with settings.override(cache_dir=tmp_path, record_paths=[tmp_path / "typo"]):
            with pytest.warns(RuntimeWarning, match=r"no folder .*typo.*record_paths"):
                store = open_store()
            assert store.load(key()) is None


class TestFind:
    def test_an_ambiguous_beginning_names_the_candidates(self, records: RecordStore) -> None:
        keys = [key(m=number) for number in range(17)]  # two of seventeen share their first digit
        for one in keys:
            records.merge(one, [A])
        digits = [one.digest[0] for one in keys]
        twice = next(digit for digit in digits if digits.count(digit) > 1)
        with pytest.raises(RecordError, match="begin with") as raised:
            records.find(twice)
        named = [one for one in keys if one.digest[:12] in raised.value.message]
        assert len(named) == digits.count(twice)
        assert "more digits" in raised.value.remedy

    @pytest.mark.parametrize("prefix", ["", "zz", "0" * 64])
    def test_an_unknown_key_names_the_known_ones(self, records: RecordStore, prefix: str) -> None:
        with pytest.raises(RecordError, match="there are none"):
            records.find(prefix)
        records.merge(key(), [A])
        with pytest.raises(RecordError, match=key().digest[:12]):
            records.find(prefix)

    def test_records_are_listed_by_the_beginning_of_their_subject(self, records: RecordStore) -> None:
        subjects = ["gemm", "gemm2", "kernel:a.b", "kernel:a-b", ".hidden", ""]
        for subject in subjects:
            records.merge(key(subject), [A])
        assert sorted(item.record.key.subject for item in records.records()) == sorted(subjects)
        assert [item.record.key.subject for item in records.records("kernel:a.")] == ["kernel:a.b"]
        assert {item.record.key.subject for item in records.records("gemm")} == {"gemm", "gemm2"}
        assert records.records("kernel:a.b.c") == []


def test_all_records_and_set_aside_files_are_removed(records: RecordStore) -> None:
    records.merge(key(), [A])
    write(file_of(records, key(m=1)), b"{")
    with quiet():
        assert records.load(key(m=1)) is None
        assert records.remove() == 1
    assert [path.name for path in records.root.rglob("*") if path.is_file()] == ["store.lock"]


@pytest.mark.parametrize(
    "subject",
    ["kernel:pkg.mod.<locals>.make", "kernel:a/../b", "..", ".", "a\\b", "x" * 500, "ünï", "", "con:"],
)
def test_a_file_is_readable_json_in_a_safe_folder_of_its_subject(records: RecordStore, subject: str) -> None:
    records.merge(key(subject), [A])
    (path,) = records.root.rglob("*.json")
    data = json.loads(path.read_text())
    assert (data["schema"], data["key"]["subject"], path.stem) == (1, subject, key(subject).digest)
    assert path.read_text().count("\n") > 10
    assert path.parent.parent == records.root
    assert path.parent.name == "kernel-pkg.mod.-locals-.make" or "<" not in subject
    assert set(path.parent.name) <= set("abcdefghijklmnopqrstuvwxyz-.")
    assert not path.parent.name.startswith(".")
    assert records.load(key(subject)) == Record(key(subject), (A,))
    assert [item.record.key.subject for item in records.records(subject)] == [subject]


# ---- export and import


class TestBundle:
    def test_export_and_import_carry_every_record(self, records: RecordStore, tmp_path: Path) -> None:
        bundle, other = tmp_path / "bundle.json", RecordStore(tmp_path / "other")
        records.merge(key(), [A, C])
        records.merge(key("gemm"), [B])
        assert records.export(bundle) == 2
        assert zipfile.ZipFile(bundle).namelist() == [object_name(RECORDS, records_entry(records.united()).key)]
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
        assert both.export(tmp_path / "one.json", [Record(key(m=1), (B,))]) == 1
        imported = RecordStore(tmp_path / "imported")
        imported.merge(key(), [timing({"x": 1}, 99.0)])
        assert imported.import_(tmp_path / "all.json") == 2
        assert medians(imported.load(key())) == {1: 99.0, 2: 20.0}, "known timings stay"

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"{rubbish", "Expecting property name"),
            (b'{"schema": 1}', "not an export"),
            (b'{"schema": 1, "records": {}}', "not an export"),
            (b'{"records": []}', "not an export"),
            (b'{"schema": 1, "records": [7]}', "record 0: not a tuning record"),
            (b'{"schema": 3, "records": []}', "schema 3"),
            (b'{"schema": 1, "records": [{"schema": 4}]}', "record 0: it has schema 4"),
        ],
    )
    def test_invalid_content_is_an_error(self, records: RecordStore, content: bytes, message: str) -> None:
        with pytest.raises(RecordError, match=message) as raised:
            records.import_bytes(content, "the bundle")
        assert "the bundle" in raised.value.message
        assert raised.value.remedy
        assert not records.root.exists()

    @pytest.mark.parametrize("content", [b"", b"\x80\x04rubbish", b'{"schema": 1, "records": []}', None])
    def test_a_file_that_is_no_bundle_is_an_error(
        self, records: RecordStore, tmp_path: Path, content: bytes | None
    ) -> None:
        if content is not None:
            (tmp_path / "bundle.json").write_bytes(content)
        with pytest.raises(RecordError, match=r"bundle\.json") as raised:
            records.import_(tmp_path / "bundle.json")
        assert content is None or ("cut short" in raised.value.message and "`tune export`" in raised.value.remedy)

    def test_one_bad_record_keeps_the_good_ones_out(self, records: RecordStore) -> None:
        good = json.loads(encode_record(Record(key(), (A,))))
        bad = Record(key(m=1), (A,)).to_json() | {"timings": [{"config": 3}]}
        with pytest.raises(RecordError, match="record 1"):
            records.import_bytes(json.dumps({"schema": 1, "records": [good, bad]}).encode(), "a bundle")
        assert records.records() == []

    def test_an_import_that_a_full_disk_cuts_short_can_be_repeated(
        self, records: RecordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        records.merge(key(m=0), [A])
        records.export(tmp_path / "bundle.json", [Record(key(m=number), (B,)) for number in range(3)])
        whole, written = RecordFolder.store, []

        def write_two(folder: RecordFolder, name: str, record: Record) -> None:
            if len(written) == 2:
                raise OSError(28, "No space left on device")
            written.append(record)
            whole(folder, name, record)

        with monkeypatch.context() as patch:
            patch.setattr(RecordFolder, "store", write_two)
            with pytest.raises(RecordError, match="No space left"):
                records.import_(tmp_path / "bundle.json")
        assert len(written) == 2
        assert records.import_(tmp_path / "bundle.json") == 3
        found = {item.record.key: item.record.timings for item in records.records()}
        assert found == {key(m=0): (B, A), key(m=1): (B,), key(m=2): (B,)}


# ---- damage, later schemas, folders that cannot be written


class TestDamage:
    """``tests/hardening`` has other contents, and numbers that no float holds."""

    @pytest.fixture(params=[b"", b"[]", b'{"schema": true}', b'{"schema": 0}', "another key", "a pickle"], ids=str)
    def damaged(self, request: pytest.FixtureRequest) -> bytes:
        contents = {
            "another key": encode_record(Record(key(m=1), (A,))),
            "a pickle": pickle.dumps(Exploding()),
        }
        return contents[request.param] if isinstance(request.param, str) else request.param

    @pytest.mark.parametrize("merges", [False, True], ids=["load", "merge"])
    def test_a_damaged_record_is_set_aside_with_one_warning(
        self, records: RecordStore, damaged: bytes, merges: bool
    ) -> None:
        path = file_of(records, key())
        write(path, damaged)
        with pytest.warns(RuntimeWarning, match=f"{path.name}.*set aside"):
            found = records.merge(key(), [A]) if merges else records.load(key())
        assert path.exists() == merges == (found is not None)
        assert records.load(key()) == found  # without another warning
        assert records.merge(key(), [A]).timings == (A,)
        assert path.with_suffix(".damaged").read_bytes() == damaged

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


class TestUnusable:
    """If nothing can be written, results last as long as the process."""

    @pytest.fixture
    def stuck(self, tmp_path: Path) -> RecordStore:
        """A store that not even root can write, because a file has the name of its folder."""
        (tmp_path / "tuning").write_text("in the way")
        return RecordStore(tmp_path / "tuning")

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
