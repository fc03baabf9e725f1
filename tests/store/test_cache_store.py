"""Look up, store, evict, explain and repair entries, and one build per key across threads."""

import logging
import os
import threading
import time
import zlib
from collections import Counter
from pathlib import Path

import pytest

from tests.interpreter import python
from tests.store.cache_workers import files, fill, flip, get_or_build, key, key_file_of, object_of, payload
from tests.store.subjects import entry
from tests.waiting import in_threads, until
from warp_tiles.errors import CacheError
from warp_tiles.store.cache import Cache, Upstream, find
from warp_tiles.store.folder import Folder
from warp_tiles.store.key import CacheKey, explain_among


def test_import_and_constructor_create_no_files(root: Path) -> None:
    cache = Cache(root)
    assert cache.get(key("a")) is None
    assert cache.entries() == ()
    assert cache.info().exists is False
    assert cache.gc().removed == []
    assert cache.clear().removed == []
    assert cache.verify().checked == 0
    assert not root.exists()
    code = f"import os; before = set(os.listdir({str(root.parent)!r})); import warp_tiles.store.cache; "
    code += f"assert set(os.listdir({str(root.parent)!r})) == before; assert not os.path.exists({str(root)!r})"
    python("-c", code, HOME=str(root.parent), XDG_CACHE_HOME=str(root.parent))


def test_get_returns_the_stored_entry(cache: Cache) -> None:
    stored = cache.put(key("a"), payload("a"), {"symbol": "s", "sizes": (1, 2), "build_ms": 1.5})
    found = cache.get(key("a"))
    assert found == stored
    assert found.payload == payload("a")
    assert found.manifest.key == key("a")
    assert found.manifest.info == {"symbol": "s", "sizes": [1, 2], "build_ms": 1.5}
    assert cache.get(found.key) == found
    assert cache.get(key("b")) is None
    assert object_of(cache, found).read_bytes() == payload("a")
    assert cache.manifest(key("a")) == found.manifest
    assert cache.manifest(key("b")) is None


def test_a_payload_of_two_keys_is_stored_once_and_a_second_put_replaces_the_first(cache: Cache) -> None:
    first = cache.put(key("a"), payload("old"), {})
    second = cache.put(key("b"), payload("old"), {})
    assert object_of(cache, first) == object_of(cache, second)
    assert (cache.info().entries, cache.info().payloads) == (2, 1)
    assert cache.get(key("a")).payload == cache.get(key("b")).payload == payload("old")
    for name in "ab":
        cache.put(key(name), payload("new"), {})
        assert cache.get(key(name)).payload == payload("new")
    assert (cache.info().entries, cache.info().payloads, cache.verify().unreferenced) == (2, 2, 1)
    assert cache.gc().payloads == 1
    assert (cache.info().payloads, cache.get(key("a")).payload) == (1, payload("new"))


@pytest.mark.parametrize(
    ("data", "info", "error"),
    [
        (b"", {}, ValueError), (b"x", {"a": float("nan")}, ValueError),
        ("text", {}, TypeError), (bytearray(b"x"), {}, TypeError), (b"x", {"a": object()}, TypeError),
    ],
)  # fmt: skip
def test_unstorable_values_are_refused(cache: Cache, root: Path, data: object, info: dict, error: type) -> None:
    with pytest.raises(error):
        cache.put(key("a"), data, info)
    assert not root.exists()


def test_a_store_keeps_the_bound_and_the_new_entry(root: Path) -> None:
    cache = Cache(root, max_bytes=50_000)
    for step in range(20):
        fill(cache, step, size=10_000)
        assert cache.info().size_bytes <= 50_000
        assert cache.get(key(step)) is not None
    assert 0 < cache.info().entries < 20
    assert cache.verify().ok
    fill(cache, "large", size=49_000)  # above nine tenths, the target of an automatic eviction
    assert (cache.info().entries, cache.get(key("large")) is not None) == (1, True)
    assert cache.info().size_bytes <= 50_000


def test_a_store_does_not_measure_the_cache_each_time(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, size_bytes = [], Folder.size_bytes
    monkeypatch.setattr(Folder, "size_bytes", lambda folder: measured.append(1) or size_bytes(folder))
    fill(cache, *range(30))
    assert len(measured) == 1
    small = Cache(cache.root, max_bytes=cache.info().size_bytes + 50_000)
    measured.clear()
    fill(small, *range(100, 130))
    assert 1 < len(measured) < 30
    assert cache.info().size_bytes <= small.max_bytes


def test_uses_within_one_tick_of_the_clock_keep_their_order(cache: Cache) -> None:
    fill(cache, "old")
    for step in range(20):
        assert cache.get(key("old")) is not None
        assert cache.entries()[0].key == key("old").digest
        fill(cache, step)
        assert cache.entries()[0].key == key(step).digest


@pytest.mark.parametrize("bound", [500, 1100])  # below the payload, and below payload and manifest
def test_a_payload_above_the_bound_is_not_stored(root: Path, bound: int) -> None:
    cache = Cache(root, max_bytes=bound)
    (entry,) = fill(cache, "a")
    assert entry.payload == payload("a")
    assert not entry.is_stored
    assert [fault.kind for fault in cache.faults] == ["size"]
    assert not root.exists()


def test_gc_never_removes_a_payload_that_a_key_refers_to(cache: Cache) -> None:
    first = cache.put(key("a"), payload("same", 10_000), {})
    second = cache.put(key("b"), payload("same", 10_000), {})
    fill(cache, "c", size=10_000)
    report = cache.gc(cache.info().size_bytes - 1)  # one of the sharing keys is removed, their payload stays
    assert report.removed == [first.key]
    assert report.payloads == 0
    assert cache.get(key("b")).payload == second.payload
    assert cache.get(key("a")) is None
    assert cache.verify().missing == ()
    assert cache.gc(0).size_bytes == 0
    assert (cache.info().entries, cache.info().payloads) == (0, 0)


def test_gc_keeps_payloads_when_a_manifest_cannot_be_read(
    cache: Cache, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = fill(cache, "a")
    with monkeypatch.context() as patch:
        patch.setattr(cache._folder, "load", lambda digest: os.listdir("/dev/null/x"))
        assert cache.gc().payloads == 0
    assert cache.get(key("a")) == entry
    report = cache.clear()
    assert (len(report.removed), report.payloads, files(root)) == (1, 1, [])
    fill(cache, "a")
    assert cache.get(key("a")) is not None


@pytest.mark.parametrize("command", ["gc", "clear --all"])
@pytest.mark.parametrize("state", ["own", "writable by others", "a link", "a file"])
def test_what_has_the_name_of_a_former_folder_stays_if_it_is_the_users(root: Path, state: str, command: str) -> None:
    """The root may be a folder with other content, e.g. with logs of trainings, which lie in `runs`."""
    cache = Cache(root)
    fill(cache, "a")
    target = root if state == "own" else root.parent
    user = [target / name for name in ("runs/events.out.tfevents.1", "runs/1/uv.lock", "v1/keys/notes.json")]
    for path in user if state != "a file" else ():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(b"precious")
    if state == "writable by others":
        (target / "runs").rename(root / "runs")
        (root / "runs").chmod(0o777)
        user = [root / "runs/1/uv.lock"]
    elif state != "own":
        user = [root / "runs"]
        user[0].write_bytes(b"precious") if state == "a file" else user[0].symlink_to(target / "runs")
    os.utime(user[-1], (0, 0))
    assert cache.info().parts["former_versions"] == 0
    cache.gc() if command == "gc" else cache.clear(everything=True)
    assert all(path.exists() for path in user)


def stored_keys(cache: Cache) -> list[CacheKey]:
    return [item.manifest.key for item in cache.entries()]


def test_a_miss_is_explained_by_the_nearest_key(cache: Cache) -> None:
    cache.put(key("a", arch="80", compiler="12.8"), payload("a"), {})
    near = cache.put(key("b", arch="90", compiler="12.9"), payload("b"), {})
    explanation = explain_among(key("b", arch="90", compiler="13.0"), stored_keys(cache))
    assert (explanation.stored, explanation.nearest) == (False, near.key)
    assert [str(difference) for difference in explanation.differences] == ["compiler: 12.9 -> 13.0"]
    assert near.key in str(explanation)
    stored = explain_among(near.manifest.key, stored_keys(cache))
    assert (stored.stored, len(stored.differences)) == (True, 3)
    assert explain_among(key("b"), ()).nearest is None
    assert find([cache], near.key[:12])[1].key == near.manifest.key
    for start, text in (("", "2 stored keys"), ("zz", "no stored key begins")):
        with pytest.raises(CacheError, match=text):
            find([cache], start)


def test_threads_build_a_key_once(cache: Cache) -> None:
    built = []

    def build() -> tuple[bytes, dict[str, object]]:
        built.append(threading.get_ident())
        time.sleep(0.2)
        return payload("a"), {}

    results = in_threads(8, lambda: get_or_build(cache, key("a"), build))
    assert len(built) == 1
    assert [entry for entry, _ in results] == [cache.get(key("a"))] * 8
    assert results[0][0].payload == payload("a")
    assert Counter(hit for _, hit in results) == {False: 1, True: 7}


def test_threads_ask_a_store_once(root: Path) -> None:
    fetched, asked = entry("fetched"), []

    def upstream() -> Upstream:
        asked.append(threading.get_ident())
        time.sleep(0.2)
        return Upstream(fetched)

    def ask() -> bytes:
        wanted = fetched.manifest.key
        return get_or_build(Cache(root), wanted, lambda: pytest.fail("nothing is built"), upstream)[0].payload

    assert in_threads(8, ask) == [fetched.payload] * 8
    assert len(asked) == 1


def test_a_failing_build_stores_nothing_and_a_build_may_request_another_key(cache: Cache, root: Path) -> None:
    def fail() -> tuple[bytes, dict[str, object]]:
        raise RuntimeError("no compiler")

    def build() -> tuple[bytes, dict[str, object]]:
        return get_or_build(cache, key("b"), lambda: (payload("b"), {}))[0].payload, {}

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no compiler"):
            get_or_build(cache, key("a"), fail)
    assert files(root) == []
    found, hit = get_or_build(cache, key("a"), build)
    assert (found.payload, hit, len(cache.entries())) == (payload("b"), False, 2)


def test_a_lock_held_too_long_does_not_stop_the_build(root: Path) -> None:
    cache = Cache(root, build_wait_s=0.1)
    with Cache(root)._folder.lock(key("a").digest, 1.0):
        with cache.lease(key("a"), builds=False) as lease:
            assert (lease.found, cache.faults) == (None, ()), "what builds nothing waits for nobody"
        entry, hit = get_or_build(cache, key("a"), lambda: (payload("a"), {}))
    assert (hit, entry.payload) == (False, payload("a"))
    assert [fault.kind for fault in cache.faults] == ["lock"]
    assert cache.get(key("a")) is not None


def test_a_launch_that_waits_for_its_own_process_names_no_other(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("warp_tiles.util.trusted_folder.PATIENCE_S", 0.05)
    caplog.set_level("INFO", "warp_tiles.cache")
    begun, seen = threading.Event(), threading.Event()

    def build() -> None:
        with cache.lease(key("a")):
            begun.set()
            assert seen.wait(20)

    builder = threading.Thread(target=build)
    builder.start()
    assert begun.wait(20)
    launch = threading.Thread(target=lambda: cache.lease(key("a")).__enter__())
    launch.start()
    until(lambda: caplog.records)
    seen.set()
    builder.join()
    launch.join()
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for another thread of this process, which builds the same"
    ]


def test_a_manifest_under_another_name_and_a_forged_payload_are_found(cache: Cache) -> None:
    """A forged payload can match the CRC-32. A changed time, or verify, adds the SHA-256."""
    first, second = fill(cache, "a", "b")
    sound = key_file_of(cache, first).read_bytes()
    key_file_of(cache, first).write_bytes(key_file_of(cache, second).read_bytes())
    assert len(cache.verify().damaged) == 1
    assert cache.get(key("a")) is None
    assert cache.get(key("b")) == second
    key_file_of(cache, first).write_bytes(sound)
    polynomial = 1 | 0xEDB88320 << 1  # of CRC-32, whose multiples change nothing
    forged = (int.from_bytes(payload("a"), "little") ^ polynomial).to_bytes(len(payload("a")), "little")
    assert zlib.crc32(forged) == first.manifest.payload_crc32
    object_of(cache, first).write_bytes(forged)
    assert len(cache.verify().damaged) == 1
    assert cache.get(key("a")) is None


def test_damage_is_reported_once_rebuilt_and_healed_for_every_key_of_a_payload(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    entry = cache.put(key("a"), payload("same"), {})
    cache.put(key("b"), payload("same"), {})
    with caplog.at_level(logging.WARNING, "warp_tiles.cache"):
        for _ in range(2):
            flip(object_of(cache, entry), 77, keep_times=True)
            again, hit = get_or_build(cache, key("a"), lambda: (payload("same"), {}))
            assert (hit, again.payload) == (False, payload("same"))
            assert [fault.kind for fault in cache.faults] == ["damage"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "CRC-32" in caplog.text
    assert get_or_build(cache, key("a"), lambda: pytest.fail("built again"))[1] is True
    assert cache.get(key("b")).payload == payload("same")
    flip(object_of(cache, entry), 5, keep_times=True)
    cache.put(key("c"), payload("same"), {})  # repairs it
    assert cache.get(key("a")).payload == payload("same")  # its time differs now, so this read checks the SHA-256
    assert cache.verify().sound == 3


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
