"""With a missing, full or read-only folder only the caching is lost. A folder that others can write is refused."""

import errno
import logging
import os
import sys
from operator import methodcaller
from pathlib import Path

import pytest

from tests.interpreter import python
from tests.store.cache_workers import files, fill, get_or_build, key, key_file_of, payload
from warp_tiles.errors import CacheError
from warp_tiles.store import FUNCTIONS, MODULES, default_root
from warp_tiles.store.cache import Cache, find

COMMANDS = {
    "get": lambda cache: cache.get(key("a")),
    "manifest": lambda cache: cache.manifest(key("a")),
    "put": lambda cache: cache.put(key("a"), b"x", {}),
    "get_or_build": lambda cache: get_or_build(cache, key("a"), lambda: (b"x", {})),
    "find": lambda cache: find([cache], "a"),
    "export": lambda cache: cache.read_verified("0" * 64),
    **{name: methodcaller(name) for name in ("info", "entries", "verify", "gc", "clear", "check_trust")},
}


def refuse(patch: pytest.MonkeyPatch, *calls: str, number: int = errno.EROFS) -> None:
    """Make calls of the operating system fail."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    for call in calls:
        patch.setattr(os, call, fail)


def build_twice(cache: Cache) -> None:
    """Call get_or_build() twice. Both calls run the build and return its result."""
    for _ in range(2):
        entry, hit = get_or_build(cache, key("a"), lambda: (payload("a"), {"n": 1}))
        assert (hit, entry.payload, entry.manifest.info) == (False, payload("a"), {"n": 1})
        assert not entry.is_stored


@pytest.mark.parametrize("place", ["file", "below a file", "/proc/warp_tiles-cache", "/dev/null/cache"])
def test_without_a_usable_folder_only_the_caching_is_lost(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache({"file": tmp_path / "file", "below a file": tmp_path / "file" / "x"}.get(place) or Path(place))
    with caplog.at_level(logging.WARNING, "warp_tiles.cache"):
        build_twice(cache)
        again = Cache(cache.root)
        build_twice(again)
    assert {fault.kind for fault in cache.faults} == {"folder"}
    assert len(again.faults) == len(cache.faults)
    assert len(caplog.records) == len(cache.faults)  # once per process, not per cache or build
    assert "Remedy:" in caplog.text
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("call", ["replace", "write", "fsync", "mkdir"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES])
def test_after_a_failed_write_only_the_caching_is_lost(
    cache: Cache, root: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    with monkeypatch.context() as patch:
        refuse(patch, call, number=number)
        build_twice(cache)
        assert os.strerror(number) in cache.faults[-1].reason
    assert files(root) == []  # no partial file stays
    assert get_or_build(cache, key("a"), lambda: (payload("a"), {}))[1] is False
    assert cache.get(key("a")) is not None  # the cache works again with the folder


def test_without_write_access_hits_are_hits_damage_is_a_miss_and_commands_raise(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = fill(cache, "a")
    refuse(monkeypatch, "utime", "mkdir", "replace", "unlink")
    assert (cache.get(key("a")), cache.faults) == (entry, ())
    key_file_of(cache, entry).write_bytes(b"{}")
    for _ in range(2):
        assert cache.get(key("a")) is None
    assert [fault.kind for fault in cache.faults] == ["damage"]
    for command in (cache.clear, lambda: cache.gc(0)):
        with pytest.raises(CacheError, match="Read-only"):
            command()


def test_a_removed_folder_is_created_again(cache: Cache, root: Path) -> None:
    fill(cache, "a")
    root.rename(root.with_name("gone"))
    assert cache.get(key("a")) is None
    fill(cache, "a")
    assert (cache.get(key("a")) is not None, cache.faults) == (True, ())


def problems_of(root: Path) -> dict[str, list[str]]:
    """The paths of the problems of two caches of one root."""
    caches = {kind.folder: Cache(root, kind) for kind in (FUNCTIONS, MODULES)}
    for cache in caches.values():
        cache.get(key("a"))
    return {name: [fault.path for fault in cache.faults] for name, cache in caches.items()}


class TestTrust:
    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777])
    def test_a_folder_that_others_can_write_is_refused(self, root: Path, mode: int) -> None:
        root.mkdir()
        root.chmod(mode)
        with pytest.raises(CacheError, match="is refused") as caught:
            Cache(root).check_trust()
        assert "chmod 700" in caught.value.remedy
        assert files(root) == []

    @pytest.mark.parametrize("mode", [0o700, 0o500, 0o755, 0o711])
    def test_the_users_own_folder_passes_and_that_of_another_does_not(
        self, root: Path, mode: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root.mkdir()
        root.chmod(mode)
        cache = Cache(root)
        cache.check_trust()
        assert cache.get(key("a")) is None
        monkeypatch.setattr(os, "geteuid", lambda: root.stat().st_uid + 1)
        with pytest.raises(CacheError, match="belongs to user"):
            Cache(root).check_trust()
        assert Cache(root, allow_shared=True).get(key("a")) is None

    @pytest.mark.parametrize("command", COMMANDS)
    def test_only_commands_of_the_user_fail(self, cache: Cache, root: Path, command: str) -> None:
        """A launch goes on without the cache; nothing is read from it, and the reason is reported."""
        (entry,) = fill(cache, "a")
        root.chmod(0o777)
        before, refusing = files(root), Cache(root)
        if command in ("get", "manifest"):
            assert COMMANDS[command](refusing) is None
        elif command == "put":
            assert COMMANDS[command](refusing).payload == b"x"
        elif command == "get_or_build":
            found, hit = COMMANDS[command](refusing)
            assert (found.payload, hit) == (b"x", False)
            assert found != entry
        else:
            with pytest.raises(CacheError, match="is refused"):
                COMMANDS[command](refusing)
            return
        assert files(root) == before
        assert "is refused" in str(refusing.faults[0])

    def test_a_problem_names_the_cache_that_has_it(self, root: Path) -> None:
        modules = Cache(root, MODULES)
        fill(modules, "a")
        (root / "modules").chmod(0o777)
        assert problems_of(root) == {"": [], "modules": [str(root / "modules")]}
        root.chmod(0o777)
        assert problems_of(root) == {"": [str(root)], "modules": [str(root)]}


def test_the_default_root_is_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert default_root() == tmp_path / "warp_tiles"
    assert not default_root().exists()


def test_on_a_full_disk_only_the_caching_is_lost(root: Path) -> None:
    fill(Cache(root), "a")
    code = f"""
import resource, signal
from tests.store.cache_workers import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
cache = Cache(Path({str(root)!r}))
entry, hit = get_or_build(cache, key("big"), lambda: (payload("big", 200_000), {{}}))
assert entry.payload == payload("big", 200_000) and not hit
assert not entry.is_stored
assert "File too large" in cache.faults[0].reason, cache.faults
assert cache.get(key("a")).payload == payload("a")
"""
    python("-c", code)
    cache = Cache(root)
    assert len(files(root)) == 2
    assert (cache.verify().sound, cache.get(key("big"))) == (1, None)
