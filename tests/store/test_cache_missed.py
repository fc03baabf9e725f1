"""Missed keys are stored, so that a miss can be explained."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from warp_tiles.store import explain
from warp_tiles.store.explain import MissedKeys
from warp_tiles.store.key import CacheKey
from warp_tiles.store.kinds import MISSED_KEYS
from warp_tiles.store.sealed import seal


def key(compiler: str = "12.9") -> CacheKey:
    return CacheKey.of({"compiler": compiler, "m": "16"})


def test_a_missed_key_is_found_by_its_first_digits(tmp_path: Path) -> None:
    keys = MissedKeys(tmp_path)
    assert keys.find(key().digest[:8]) is None
    keys.add(key())
    assert keys.find(key().digest[:8]) == key()
    assert keys.find("") == key()
    keys.add(key("13.0"))
    assert keys.find("") is None, "two keys match"


def test_a_file_of_another_key_is_no_key_and_an_unwritable_folder_raises_nothing(tmp_path: Path) -> None:
    keys, stored = MissedKeys(tmp_path), tmp_path / "asked" / f"{key().digest}.json"
    for data in (seal({"transcript": key("13.0").transcript}), seal({"transcript": 1}), seal({}), b"{"):
        keys.add(key())
        stored.write_bytes(data)
        assert keys.find(key().digest) is None
    assert not stored.exists()
    (tmp_path / "file").write_text("")
    MissedKeys(tmp_path / "file").add(key())
    assert MissedKeys(tmp_path / "file").find(key().digest) is None


def test_the_oldest_keys_are_removed_first(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(explain, "MISSED_KEYS", replace(MISSED_KEYS, most_files=3))
    keys = MissedKeys(tmp_path)
    for number in range(5):
        keys.add(key(str(number)))
        os.utime(tmp_path / "asked" / f"{key(str(number)).digest}.json", (number, number))
    assert [keys.find(key(str(number)).digest) is not None for number in range(5)] == [False, False, True, True, True]
