"""A shared cache of two users: commands of the second user work beside the private folders of the first."""

import os
import stat
from pathlib import Path

import pytest

from tests.interpreter import python
from tests.store.cache_workers import get_or_build
from warp_tiles.store import LOCKS, SLOT_PREFIX
from warp_tiles.store.cache import Cache
from warp_tiles.store.key import CacheKey, MissedKeys
from warp_tiles.util.trusted_folder import TrustedFolder

SECOND = """
import os, sys
from pathlib import Path
import warp_tiles
from tests.hardening.subjects import KEY
from warp_tiles.store.key import CacheKey
from warp_tiles.store.cache import Cache
from warp_tiles.store.key import MissedKeys

root, warm = Path(sys.argv[1]), Path(sys.argv[2])
for place in (root, warm):  # every module is imported while this is root
    if place == root:
        continue
    cache = Cache(place, allow_shared=True)
    cache.put(KEY, b"x", {}); cache.get(KEY); cache.verify(remove=True); cache.gc(); cache.info()
    MissedKeys(place, shared=True).add(KEY)
os.setgroups([65533]); os.setgid(65533); os.setuid(65534)
os.umask(0o002)
cache = Cache(root, allow_shared=True)
assert cache.get(CacheKey.of({"name": "first"})).payload == b"first"
cache.put(KEY, b"second", {})
MissedKeys(root, shared=True).add(KEY)
assert cache.verify(remove=True).ok
cache.gc()
assert cache.get(KEY).payload == b"second"
assert cache.faults == (), cache.faults
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_commands_of_the_second_user(tmp_path: Path) -> None:
    root, warm = tmp_path / "shared", tmp_path / "warm"
    for folder in (root, warm):
        folder.mkdir()
    os.chown(root, 0, 65533)
    root.chmod(0o2770)
    for parent in tmp_path.parents:
        if parent.owner() == "root" and parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(stat.S_IMODE(parent.stat().st_mode) | 0o111)
    tmp_path.chmod(0o711)
    first = Cache(root, allow_shared=True)
    first.put(CacheKey.of({"name": "first"}), b"first", {})
    MissedKeys(root, shared=True).add(CacheKey.of({"name": "asked"}))
    former = root / "cuda_headers" / f"{'0' * 64}.pch"
    former.parent.mkdir(mode=0o700)
    former.touch()
    python("-c", SECOND, root, warm)
    assert former.exists()


def test_a_file_system_without_locks_still_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def unsupported(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    cache = Cache(tmp_path / "cache")
    get_or_build(cache, CacheKey.of({"name": "a"}), lambda: (b"a", {}))
    assert cache.get(CacheKey.of({"name": "a"})) is not None
    cache.gc()
    cache.clear()
    assert {fault.kind for fault in cache.faults} <= {"lock", "folder"}
    assert "coordinated" in str(cache.faults[-1])


def test_gc_removes_old_leftovers_and_idle_locks_in_its_own_folders_alone(tmp_path: Path) -> None:
    """The root may be a folder with other content."""
    root = tmp_path / "cache"
    cache = Cache(root)
    entry = cache.put(CacheKey.of({"name": "a"}), b"a", {})
    folders = ("asked", "starts", "tuning/gemm", "failed", "v2/objects/ab")
    old = [root / folder / ".tmp-deadbeef-1-00" for folder in folders]
    kept = [path.with_name(".tmp-deadbeef-2-00") for path in old]
    locks = root / "tuning" / ".locks"
    old += [locks / f"{'a' * 64}.lock", root / LOCKS / f"{SLOT_PREFIX}0123abcd-0-0.lock"]
    kept.append(locks / f"{'b' * 64}.lock")
    others, held = root / "projects" / ".tmp-00000000-1-00", locks / f"{'c' * 64}.lock"
    for path in (*old, *kept, others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for path in root.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    others.parent.chmod(0o777)
    with TrustedFolder(root).lock(f"tuning/.locks/{held.name}", 0.0):
        for path in (*old, others, held):
            os.utime(path, (0, 0))
        assert cache.verify().unfinished == 2, "of functions"
        assert cache.gc().leftovers == len(folders)
    assert [path for path in old if path.exists()] == []
    assert all(path.exists() for path in (*kept, others, held))
    assert cache.get(entry.key) == entry
