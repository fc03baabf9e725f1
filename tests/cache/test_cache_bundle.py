"""Bundles: a round trip, and refusals of unsound bundles."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from cache_workers import counted, files, fill, key, object_of, payload
from hypothesis import given, settings
from hypothesis import strategies as st

from warp_tiles.cache import Cache
from warp_tiles.cache._sealed import seal, unseal
from warp_tiles.errors import BundleError, CacheError


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Three keys, two payloads."""
    source = Cache(tmp_path / "source")
    fill(source, "a", "b")
    source.put(key("c"), payload("a"), {"name": "c"})
    report = source.export_bundle(tmp_path / "bundle")
    assert (report.added, report.skipped, report.payload_bytes) == (3, (), 2000)
    return tmp_path / "bundle"


def members(bundle: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(bundle, "r:") as archive:
        return [(member, archive.extractfile(member).read()) for member in archive]


def rewrite(bundle: Path, content: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    with tarfile.open(bundle, "w:", format=tarfile.USTAR_FORMAT) as archive:
        for member, data in content:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = link
    return member


def refused(root: Path, bundle: Path, match: str) -> None:
    cache = Cache(root)
    with pytest.raises(BundleError, match=match):
        cache.import_bundle(bundle)
    assert not root.exists()
    assert counted(cache) == {}


def test_a_round_trip(bundle: Path, cache: Cache) -> None:
    report = cache.import_bundle(bundle)
    assert (report.added, report.present, report.payload_bytes) == (3, 0, 2000)
    assert counted(cache) == {"stores": 3}
    source = Cache(bundle.parent / "source")
    for name in "abc":
        ours, theirs = cache.get(key(name)), source.get(key(name))
        assert ours.payload == theirs.payload
        assert ours.manifest.info == theirs.manifest.info
        assert ours.manifest.stored_at_ns == theirs.manifest.stored_at_ns
    again = cache.import_bundle(bundle)
    assert (again.added, again.present, again.payload_bytes) == (0, 3, 0)
    assert cache.export_bundle(bundle.parent / "second").added == 3
    assert (bundle.parent / "second").read_bytes() == bundle.read_bytes()


def test_other_tools_can_read_and_write_a_bundle(bundle: Path, cache: Cache) -> None:
    content = members(bundle)
    assert content[0][0].name == "manifest.json"
    assert sorted(data for _, data in content[1:]) == sorted([payload("a"), payload("b")])
    rewrite(bundle, content)
    assert cache.import_bundle(bundle).added == 3


def test_export_of_chosen_keys(bundle: Path, root: Path) -> None:
    source = Cache(bundle.parent / "source")
    assert source.export_bundle(bundle, [key("b").digest]).added == 1
    cache = Cache(root)
    assert cache.import_bundle(bundle).added == 1
    assert [item.key for item in cache.entries()] == [key("b").digest]
    before = bundle.read_bytes()
    with pytest.raises(CacheError, match="no sound entry"):
        source.export_bundle(bundle, [key("zz").digest])
    assert bundle.read_bytes() == before


def test_export_skips_damaged_entries(bundle: Path) -> None:
    source = Cache(bundle.parent / "source")
    entry = source.get(key("b"))
    object_of(source, entry).write_bytes(b"damaged")
    report = source.export_bundle(bundle)
    assert (report.added, report.skipped) == (2, (entry.key,))


def test_an_import_keeps_a_stored_entry(bundle: Path, cache: Cache) -> None:
    cache.put(key("a"), b"mine", {})
    report = cache.import_bundle(bundle)
    assert (report.added, report.present) == (2, 1)
    assert cache.get(key("a")).payload == b"mine"
    assert cache.verify().ok


def test_a_damaged_entry_is_replaced(bundle: Path, cache: Cache) -> None:
    (entry,) = fill(cache, "a")
    object_of(cache, entry).write_bytes(b"damaged")
    assert cache.import_bundle(bundle).added == 3
    assert cache.get(key("a")).payload == payload("a")


def test_an_import_keeps_the_bound(bundle: Path, root: Path) -> None:
    cache = Cache(root, max_bytes=2000)
    assert cache.import_bundle(bundle).added == 3
    assert cache.info().size_bytes <= 2000
    assert cache.counters.evictions > 0


@pytest.mark.parametrize(
    "name",
    [
        "../../../escape",
        "/etc/escape",
        "objects/../../escape",
        f"objects/{'a' * 64}.ltoir/../../x",
        f"./objects/{'a' * 64}.ltoir",
        "objects\\escape",
        "keys/x.json",
        "",
    ],
)
def test_a_name_outside_the_cache_is_refused(bundle: Path, root: Path, name: str) -> None:
    rewrite(bundle, [*members(bundle), (info(name), b"x")])
    refused(root, bundle, "could leave the cache")
    assert not (root.parent / "escape").exists()


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.DIRTYPE, "folder"),
        (tarfile.FIFOTYPE, "FIFO"),
        (tarfile.XHDTYPE, "special member"),
        (tarfile.GNUTYPE_LONGNAME, "special member"),
        (tarfile.GNUTYPE_SPARSE, "special member"),
    ],
)
def test_only_regular_files_are_taken(bundle: Path, root: Path, kind: bytes, match: str) -> None:
    content = members(bundle)
    rewrite(bundle, [content[0], (info(content[1][0].name, kind, "/etc/passwd"), b""), content[2]])
    refused(root, bundle, match)


def test_a_bundle_cut_anywhere_is_refused(bundle: Path, root: Path) -> None:
    whole = bundle.read_bytes()
    for size in [*range(0, len(whole) - 512, 97), len(whole) - 512, len(whole) - 1]:
        bundle.write_bytes(whole[:size])
        refused(root, bundle, "not a sound bundle")


def test_a_changed_header_is_refused(bundle: Path, root: Path) -> None:
    whole = bytearray(bundle.read_bytes())
    whole[110] ^= 1  # the owner, which is not used
    bundle.write_bytes(whole)
    refused(root, bundle, "checksum")


def test_data_after_the_end_is_refused(bundle: Path, root: Path) -> None:
    bundle.write_bytes(bundle.read_bytes() + bytes(512) + b"x")
    refused(root, bundle, "data follows its end")


def test_a_wrong_payload_is_refused(bundle: Path, root: Path) -> None:
    content = members(bundle)
    changed = bytearray(content[2][1])
    changed[500] ^= 1
    rewrite(bundle, [*content[:2], (content[2][0], bytes(changed))])
    refused(root, bundle, "CRC-32")


@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_size_is_refused(bundle: Path, root: Path, change: int) -> None:
    content = members(bundle)
    data = content[2][1]
    rewrite(bundle, [*content[:2], (content[2][0], data[:-1] if change < 0 else data + b"x")])
    refused(root, bundle, "its entry says 1000")


def test_duplicate_missing_and_extra_payloads_are_refused(bundle: Path, root: Path) -> None:
    content = members(bundle)
    rewrite(bundle, [*content, content[1]])
    refused(root, bundle, "occurs twice")
    rewrite(bundle, content[:-1])
    refused(root, bundle, "1 of 2 payloads are absent")
    rewrite(bundle, [*content, (info(f"objects/{'a' * 64}.ltoir"), b"x")])
    refused(root, bundle, "no entry refers")
    rewrite(bundle, content[1:])
    refused(root, bundle, "its first member")
    rewrite(bundle, [*content, content[0]])
    refused(root, bundle, "is not a payload's name")


def with_manifest(bundle: Path, change: object) -> None:
    content = members(bundle)
    head = unseal(content[0][1])
    rewrite(bundle, [(content[0][0], seal(change(head) or head)), *content[1:]])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda head: head.update(schema=2), "schema 2"),
        (lambda head: head.update(format="other"), "format 'other'"),
        (lambda head: head.update(extra=1), "unknown fields"),
        (lambda head: head.update(entries={}), "no list of entries"),
        (lambda head: head["entries"].append(1), "not an object"),
        (lambda head: head["entries"].append(head["entries"][0]), "occurs twice"),
        (lambda head: head["entries"][0].update(key="ab" * 32), "transcript proves"),
        (lambda head: head["entries"][0].update(key="../../escape"), "transcript proves"),
        (lambda head: head["entries"][0]["transcript"]["fields"][0].__setitem__(2, "x"), "transcript proves"),
        (lambda head: head["entries"][0].update(payload_sha256="../../escape"), "payload_sha256"),
        (lambda head: head["entries"][0].update(payload_sha256="ab" * 32), "no entry refers|absent"),
        (lambda head: head["entries"][0].update(payload_bytes=0), "claims a payload of 0"),
        (lambda head: head["entries"][0].update(payload_bytes=10**12), "claims a payload"),
        (lambda head: head["entries"][0].update(payload_bytes=True), "payload_bytes"),
        (lambda head: head["entries"][0].update(payload_crc32=-1), "payload_crc32"),
        (lambda head: head["entries"][0].update(payload_crc32=5), "CRC-32"),
        (lambda head: head["entries"][0].pop("info"), "missing or unknown"),
        (lambda head: {"schema": 1}, "format None"),
    ],
)
def test_an_inconsistent_manifest_is_refused(bundle: Path, root: Path, change: object, match: str) -> None:
    if match == "no entry refers|absent":
        change_all = change

        def change(head: dict) -> None:
            for entry in head["entries"]:
                change_all({"entries": [entry]})

    def apply(head: dict) -> dict | None:
        result = change(head)
        return result if isinstance(result, dict) and "schema" in result else None

    with_manifest(bundle, apply)
    refused(root, bundle, match)


def test_an_unsealed_manifest_of_another_format_is_named(bundle: Path, root: Path) -> None:
    content = members(bundle)
    rewrite(bundle, [(content[0][0], b'{"format":"warp_tiles-bundle","schema":9}'), *content[1:]])
    refused(root, bundle, "schema 9")
    rewrite(bundle, [(content[0][0], b"[" * 100_000), *content[1:]])
    refused(root, bundle, "its manifest is damaged")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=2000))
def test_arbitrary_bytes_are_refused_cleanly(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "bundle").write_bytes(data)
        refused(Path(folder, "c"), Path(folder, "bundle"), "not a sound bundle")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_changed_byte_is_refused_or_changes_nothing(data: st.DataObject) -> None:
    """Only the padding of a checksum may change without effect."""
    with tempfile.TemporaryDirectory() as folder:
        source = Cache(Path(folder, "source"))
        fill(source, "a", size=300)
        source.export_bundle(Path(folder, "bundle"))
        whole = bytearray(Path(folder, "bundle").read_bytes())
        where = data.draw(st.integers(0, len(whole) - 1))
        whole[where] ^= data.draw(st.integers(1, 255))
        Path(folder, "bundle").write_bytes(whole)
        cache = Cache(Path(folder, "c"))
        try:
            cache.import_bundle(Path(folder, "bundle"))
        except BundleError:
            assert not cache.root.exists()
        else:
            entry = cache.get(key("a"))
            assert (entry.payload, entry.manifest.info) == (payload("a", 300), {"name": "a"})


def test_a_bundle_that_changes_during_the_import_is_refused(
    bundle: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warp_tiles.cache import _bundle

    check = _bundle.check

    def check_then_cut(path: Path) -> object:
        checked = check(path)
        os.truncate(path, path.stat().st_size - 2000)
        return checked

    monkeypatch.setattr(_bundle, "check", check_then_cut)
    with pytest.raises(BundleError):
        cache.import_bundle(bundle)
    assert cache.verify().ok


def test_the_error_names_a_file_that_cannot_be_read_or_written(bundle: Path, cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="absent"):
        cache.import_bundle(tmp_path / "absent")
    with pytest.raises(CacheError, match="nowhere"):
        cache.export_bundle(tmp_path / "nowhere" / "bundle")
    blocked = tmp_path / "blocked"
    blocked.write_text("in the way")
    with pytest.raises(CacheError, match="blocked"):
        Cache(blocked).import_bundle(bundle)
    assert files(tmp_path / "nowhere") == []
