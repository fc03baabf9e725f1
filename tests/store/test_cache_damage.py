"""Damaged entries are removed, reported once and rebuilt. tests/hardening/test_mutations.py changes their bytes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.store.cache_workers import files, fill, flip, get_or_build, key, key_file_of, object_of, payload
from warp_tiles.store.cache import Cache


def test_a_manifest_under_another_name_is_detected(cache: Cache) -> None:
    first, second = fill(cache, "a", "b")
    key_file_of(cache, first).write_bytes(key_file_of(cache, second).read_bytes())
    assert len(cache.verify().damaged) == 1
    assert cache.get(key("a")) is None
    assert cache.get(key("b")) == second


def test_a_forged_payload_is_found_by_its_sha256(cache: Cache) -> None:
    """A forged payload can match the CRC-32. A changed time, or verify, adds the SHA-256."""
    (entry,) = fill(cache, "a")
    path = object_of(cache, entry)
    forged = forge_crc32(payload("a"), entry.manifest.payload_crc32)
    path.write_bytes(forged)
    assert len(cache.verify().damaged) == 1
    assert cache.get(key("a")) is None


def forge_crc32(data: bytes, wanted: int) -> bytes:
    """Other bytes of the same length and CRC-32. Gaussian elimination over single-bit changes finds them."""
    import zlib

    zero = zlib.crc32(bytes(len(data)))
    basis: dict[int, tuple[int, int]] = {}
    for bit in range(40):
        effect, used = zlib.crc32((1 << bit).to_bytes(len(data), "little")) ^ zero, 1 << bit
        while effect:
            top = effect.bit_length()
            if top not in basis:
                basis[top] = (effect, used)
                break
            effect, used = effect ^ basis[top][0], used ^ basis[top][1]
        else:
            changed = (int.from_bytes(data, "little") ^ used).to_bytes(len(data), "little")
            assert zlib.crc32(changed) == wanted
            assert changed != data
            return changed
    raise AssertionError("40 bits span more than 32 dimensions")


def test_damage_is_removed_reported_once_and_rebuilt(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    (entry,) = fill(cache, "a")
    with caplog.at_level(logging.WARNING, "warp_tiles.cache"):
        for _ in range(2):
            flip(object_of(cache, entry), 77, keep_times=True)
            again, hit = get_or_build(cache, key("a"), lambda: (payload("a"), {"name": "a"}))
            assert (hit, again.payload) == (False, payload("a"))
            assert len(cache.problems) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "CRC-32" in caplog.text
    assert cache.problems[0].kind == "damage"
    assert get_or_build(cache, key("a"), lambda: pytest.fail("built again"))[1] is True


def test_rebuilding_one_key_of_a_damaged_payload_heals_the_other(cache: Cache) -> None:
    entry = cache.put(key("a"), payload("same"), {})
    cache.put(key("b"), payload("same"), {})
    flip(object_of(cache, entry), 5, keep_times=True)
    assert cache.get(key("a")) is None
    assert len(cache.verify().missing) == 1
    assert cache.get(key("b")) is None
    assert get_or_build(cache, key("a"), lambda: (payload("same"), {}))[1] is False
    assert cache.get(key("b")).payload == payload("same")
    assert cache.verify().sound == 2


def test_a_store_repairs_a_damaged_payload(cache: Cache) -> None:
    (entry,) = fill(cache, "a")
    flip(object_of(cache, entry), 5, keep_times=True)
    cache.put(key("b"), payload("a"), {})
    assert cache.get(key("a")) == entry  # its time differs now, so this read checks the SHA-256
    assert cache.verify().sound == 2


def test_verify_reports_and_removes_on_request(cache: Cache, root: Path) -> None:
    entries = fill(cache, *range(4))
    flip(object_of(cache, entries[0]), 9, keep_times=False)
    flip(key_file_of(cache, entries[1]), 9, keep_times=False)
    object_of(cache, entries[2]).unlink()
    before = files(root)
    report = cache.verify()
    assert (report.checked, report.sound, len(report.damaged), len(report.missing)) == (4, 1, 2, 1)
    assert report.unreferenced == 1
    assert not report.ok
    assert files(root) == before
    assert len(cache.verify(remove=True).damaged) == 2
    after = cache.verify()
    assert (after.checked, after.sound, len(after.damaged), len(after.missing)) == (3, 1, 0, 2)
    assert [cache.get(key(name)) is not None for name in range(4)] == [False, False, False, True]


def test_a_link_in_place_of_a_payload_is_not_followed(cache: Cache, tmp_path: Path) -> None:
    (entry,) = fill(cache, "a")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(payload("a"))
    object_of(cache, entry).unlink()
    object_of(cache, entry).symlink_to(elsewhere)
    assert cache.get(key("a")) is None
    assert get_or_build(cache, key("a"), lambda: (payload("a"), {}))[1] is False
    assert not object_of(cache, entry).is_symlink()
    assert elsewhere.read_bytes() == payload("a")
    assert cache.get(key("a")) is not None
