"""Records on disk: lookup in several folders, merging, finding and removal."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tuning.store_files import A, B, C, file_of, quiet, write
from tests.tuning.tuning_records import ENVIRONMENT, key, timing
from warp_tiles import settings
from warp_tiles.errors import RecordError
from warp_tiles.tuning.folder import slug
from warp_tiles.tuning.record import Record
from warp_tiles.tuning.store import RecordStore, open_store


def test_nothing_is_created_until_something_is_written(records: RecordStore, tmp_path: Path) -> None:
    assert records.load(key()) is None
    assert records.records() == []
    assert records.remove() == 0
    assert list(tmp_path.iterdir()) == []


def test_another_store_loads_merged_timings(records: RecordStore) -> None:
    merged = records.merge(key(), [A, C])
    loaded = RecordStore(records.root).load(key())
    assert merged == loaded
    assert loaded is not None
    assert loaded.timing({"x": 1}) == A
    assert [item.status for item in loaded.timings] == ["ok", "failed"]
    assert loaded.timing({"x": 3}).reason == C.reason  # type: ignore[union-attr]


def test_merging_adds_and_replaces_by_configuration(records: RecordStore) -> None:
    records.merge(key(), [A, C])
    newer = timing({"x": 3}, 5.0)
    assert records.merge(key(), [B, newer]).timings == (A, newer, B)


def test_files_are_readable_json_named_after_subject_and_key(records: RecordStore) -> None:
    records.merge(key("kernel:pkg.mod.<locals>.make"), [A])
    (path,) = records.root.rglob("*.json")
    assert path.parent.name == "kernel-pkg.mod.-locals-.make"
    assert path.stem == key("kernel:pkg.mod.<locals>.make").digest
    data = json.loads(path.read_text())
    assert (data["schema"], data["key"]["subject"]) == (1, "kernel:pkg.mod.<locals>.make")
    assert path.read_text().count("\n") > 10


@pytest.mark.skipif(os.name == "nt", reason="permissions are those of POSIX")
def test_folders_and_files_are_private(records: RecordStore) -> None:
    records.merge(key(), [A])
    with records.single_flight(key()):
        paths = [records.root, *records.root.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()} == {0o600}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_records_of_a_shared_cache_have_its_permissions(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o2770)
    with settings.override(cache_dir=cache, cache_shared=True):
        store = open_store()
        with store.single_flight(key()):
            store.merge(key(), [A])
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in cache.rglob("*")}
    (record,) = cache.rglob("*.json")
    assert (found["tuning"], found[record.parent.name], found[record.name]) == (0o2770, 0o2770, 0o660)


def test_a_configuration_without_a_json_form_is_refused_and_changes_nothing(records: RecordStore) -> None:
    records.merge(key(), [A])
    before = file_of(records, key()).read_bytes()
    with pytest.raises(TypeError):
        records.merge(key(), [B, timing({"x": object()})])
    with pytest.raises(ValueError, match="JSON"):
        records.merge(key(), [B, timing({"x": float("nan")})])
    assert file_of(records, key()).read_bytes() == before


def test_a_record_of_another_driver_is_loaded_with_its_own_soft_part(records: RecordStore) -> None:
    records.merge(key(), [A])
    later = key(environment=replace(ENVIRONMENT, driver="13.9"))
    loaded = records.load(later)
    assert loaded is not None
    assert loaded.key == later
    assert loaded.timings[0].soft == {"driver": "13.0", "warp": "1.19.0"}


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
        def configs(folder: float, *names: int) -> list[Any]:
            return [timing({"x": name}, folder) for name in names]

        RecordStore(shipped[0]).merge(key(), configs(1.0, 1))
        RecordStore(shipped[1]).merge(key(), configs(2.0, 1, 2))
        RecordStore(store.root).merge(key(), configs(3.0, 1, 2, 3))
        loaded = store.load(key())
        assert loaded is not None
        assert {item.config["x"]: item.median_us for item in loaded.timings} == {1: 1.0, 2: 2.0, 3: 3.0}

    def test_a_finished_timing_wins_over_an_earlier_unfinished_one(
        self, store: RecordStore, shipped: list[Path]
    ) -> None:
        RecordStore(shipped[0]).merge(key(), [replace(timing({"x": 1}, 1.0), unfinished=True)])
        RecordStore(store.root).merge(key(), [timing({"x": 1}, 2.0)])
        loaded = store.load(key())
        assert loaded is not None
        assert [item.median_us for item in loaded.timings] == [2.0]

    def test_a_timing_with_the_present_driver_wins_over_an_earlier_one_without(
        self, store: RecordStore, shipped: list[Path]
    ) -> None:
        later = key(environment=replace(ENVIRONMENT, driver="13.9"))
        RecordStore(shipped[0]).merge(key(), [timing({"x": 1}, 1.0), timing({"x": 2}, 1.0)])
        retuned = timing({"x": 1}, 2.0, soft=later.environment.soft())
        assert store.merge(later, [retuned]).timing({"x": 1}) == retuned
        now, before = store.load(later), store.load(key())
        assert now is not None
        assert before is not None
        assert {item.config["x"]: item.median_us for item in now.timings} == {1: 2.0, 2: 1.0}
        assert before.timing({"x": 1}).median_us == 1.0  # type: ignore[union-attr]

    def test_read_only_folders_are_never_written(self, store: RecordStore, shipped: list[Path]) -> None:
        RecordStore(shipped[0]).merge(key(), [A])
        path = shipped[0] / slug(key().subject) / f"{key().digest}.json"
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
        real = shipped[1] / slug(key().subject) / f"{key().digest}.json"
        link = shipped[0] / slug(key().subject) / real.name
        link.parent.mkdir(parents=True)
        link.symlink_to(real)
        assert RecordStore(store.root, shipped[:1]).load(key()) == Record(key(), (A,))

    def test_records_and_find_name_the_folder(self, store: RecordStore, shipped: list[Path]) -> None:
        RecordStore(shipped[0]).merge(key(), [A])
        store.merge(key(), [B])
        assert [(item.read_only, item.record.timings) for item in store.records()] == [(True, (A,)), (False, (B,))]
        assert store.find(key().digest[:10]).path.is_relative_to(shipped[0])

    def test_a_missing_folder_causes_a_warning(self, tmp_path: Path) -> None:
        with settings.override(cache_dir=tmp_path, record_paths=[tmp_path / "typo"]):
            with pytest.warns(RuntimeWarning, match=r"no folder .*typo.*record_paths"):
                store = open_store()
            assert store.load(key()) is None


class TestFind:
    def test_the_beginning_of_a_key_is_enough(self, records: RecordStore) -> None:
        records.merge(key(), [A])
        records.merge(key(m=1), [A])
        assert records.find(key().digest[:12]).record.key == key()

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


class TestRemove:
    def test_named_keys_are_removed_and_the_rest_stays(self, records: RecordStore) -> None:
        for number in range(3):
            records.merge(key(m=number), [A])
        assert records.remove([key(m=0).digest, key(m=2).digest, "f" * 64]) == 2
        assert [item.record.key for item in records.records()] == [key(m=1)]
        assert records.remove([]) == 0

    def test_all_records_and_set_aside_files_are_removed(self, records: RecordStore) -> None:
        records.merge(key(), [A])
        write(file_of(records, key(m=1)), b"{")
        with quiet():
            assert records.load(key(m=1)) is None
            assert records.remove() == 1
        assert [path.name for path in records.root.rglob("*") if path.is_file()] == ["store.lock"]


def test_the_settings_name_the_folders(tmp_path: Path) -> None:
    (tmp_path / "shipped").mkdir()
    RecordStore(tmp_path / "shipped").merge(key(), [A])
    with settings.override(cache_dir=tmp_path / "cache", record_paths=[tmp_path / "shipped"]) as now:
        assert open_store().load(key()) == open_store(now).load(key()) == Record(key(), (A,))
        open_store().merge(key(m=1), [B])
    assert file_of(RecordStore(tmp_path / "cache" / "tuning"), key(m=1)).is_file()


@pytest.mark.parametrize("subject", ["kernel:a/../b", "..", ".", "a\\b", "x" * 500, "ünï", "", "con:"])
def test_any_subject_makes_a_safe_folder(records: RecordStore, subject: str) -> None:
    records.merge(key(subject), [A])
    (path,) = records.root.rglob("*.json")
    assert path.parent.parent == records.root
    assert set(path.parent.name) <= set("abcdefghijklmnopqrstuvwxyz-.")
    assert not path.parent.name.startswith(".")
    assert records.load(key(subject)) == Record(key(subject), (A,))
    assert [item.record.key.subject for item in records.records(subject)] == [subject]
