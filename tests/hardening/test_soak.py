"""Kills at random points, and rounds of 64 processes on a cold cache."""

from pathlib import Path

import pytest

from tests.hardening.writers import KEYS, key, payload
from tests.interpreter import python
from tests.nightly import some
from tests.store.cache_workers import get_or_build
from tests.tuning.tuning_records import key as record_key
from warp_tiles.store import MODULES
from warp_tiles.store.cache import Cache
from warp_tiles.tuning.store import RecordStore
from warp_tiles.util.trusted_folder import TrustedFolder

ROUNDS, PROCESSES = 10, 64


def run(*words: object) -> str:
    done = python("-m", "tests.hardening.writers", *words)
    assert "Traceback" not in done.stderr
    return done.stdout


def unowned(root: Path) -> list[Path]:
    """Temporary files, names of holders, and payloads that no key refers to."""
    found = [path for path in root.rglob("*") if path.name.startswith(".tmp-") or path.suffix == ".holder"]
    for cache in (Cache(root), Cache(root, MODULES)):
        used = {entry.manifest.payload_sha256 for entry in cache.entries()}
        stored = (cache.root / "v2/objects").glob("*/*")
        found += [path for path in stored if path.name.partition(".")[0] not in used]
    return found


def test_gc_also_collects_the_caches_beside_the_store(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    Cache(root).put(key("main"), b"main", {})
    cache = Cache(root, MODULES)
    for name in ("kept", "payload without a key"):
        cache.put(key(name), payload(name), {})
    (cache.root / cache._folder.file(key("payload without a key").digest)).unlink()
    files = TrustedFolder(cache.root)
    for name in (key("killed").digest, "starts"):
        files.write(f"v2/locks/{name}.holder", b"1 elsewhere")
    assert Cache(root).gc().payloads == 1
    assert unowned(root) == []
    found = cache.get(key("kept"))
    assert found.payload == payload("kept")


@pytest.mark.slow
@pytest.mark.parametrize("killed", some([60, 200], 1))
def test_killed_writers_leave_the_cache_sound(tmp_path: Path, killed: int) -> None:
    """Two writers at a time, each of which is killed."""
    root = tmp_path / "cache"
    run("kill", root, killed // 2, 7)
    cache = Cache(root)
    report = cache.verify()
    assert report.damaged == ()
    assert report.checked > 0
    for entry in cache.entries():
        found = cache.get(entry.key)
        if found is not None:
            assert found.payload == payload(found.manifest.info["n"])
    assert RecordStore(root, folder="tuning").load(record_key("gemm")) is not None
    cache.gc()
    assert unowned(root) == []
    assert get_or_build(cache, key("after"), lambda: (b"after", {}))[1] is False
    assert cache.faults == ()


@pytest.mark.slow
@pytest.mark.parametrize("number", some(range(ROUNDS), 1))
def test_many_processes_on_a_cold_cache_build_each_key_once(tmp_path: Path, number: int) -> None:
    assert run("crowd", tmp_path, PROCESSES) == f"0 failed, {KEYS} builds\n"
    report = Cache(tmp_path / "cache").verify()
    assert (report.sound, report.damaged, report.unfinished) == (KEYS, (), 0)
