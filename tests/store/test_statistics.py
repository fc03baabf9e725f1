"""The counts of a cache: each process adds its own, whatever happens to it, and none is disturbed by that."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hardening.damage import damage
from tests.hardening.writers import child
from tests.store.cache_workers import get_or_build, key, payload
from tests.store.subjects import entry
from tests.waiting import in_threads
from warp_tiles.errors import BuildError, CacheError
from warp_tiles.store.cache import Cache, Upstream
from warp_tiles.store.statistics import Statistics
from warp_tiles.util.trusted_folder import RefusedFolderError, TrustedFolder

TIMES = 50


def build(cache: Cache, name: object) -> None:
    get_or_build(cache, key(name), lambda: (payload(name), {}))


def counts(root: Path) -> dict[str, float]:
    """The counts of a cache, without the seconds of builds."""
    return {name: count for name, count in Cache(root).statistics()[1].items() if not name.endswith("seconds")}


def test_each_result_of_a_lookup_is_counted(root: Path) -> None:
    cache, modules = Cache(root, max_bytes=6000), Cache(root, "modules")
    for _ in range(3):
        build(cache, "a")
    fetched = entry("fetched")
    get_or_build(cache, fetched.manifest.key, lambda: (b"", {}), lambda: Upstream(fetched))
    for what in (cache, modules):
        with pytest.raises(BuildError), what.lease(key("bad")):
            raise BuildError("no")
    for number in range(6):
        build(cache, number)
    cache.close()
    modules.close()
    found = counts(root)
    assert found.pop("functions evicted") >= 1
    built = {"functions found": 2, "functions fetched": 1, "functions built": 7}
    assert found == {**built, "functions failed": 1, "modules failed": 1}


def test_what_another_process_has_built_meanwhile_was_found(root: Path) -> None:
    in_threads(4, lambda: (build(cache := Cache(root), "a"), cache.close()))
    assert counts(root) == {"functions built": 1, "functions found": 3}


def test_the_time_of_builds_is_added(root: Path) -> None:
    before_ns = time.time_ns()
    for name in ("a", "b"):
        with Cache(root).lease(key(name)):
            time.sleep(0.1)
    since_ns, found = Cache(root).statistics()
    assert 0.2 <= found["functions build_seconds"] < 10
    assert before_ns <= since_ns <= time.time_ns()


def test_processes_and_threads_add_at_once(root: Path) -> None:
    root.mkdir()

    def add() -> None:
        statistics = Statistics(root, "functions")
        for _ in range(TIMES):
            statistics.count("found")
            statistics.save(60.0)

    def add_in_threads() -> None:
        assert in_threads(2, add) == [None, None]

    pids = [child(add_in_threads) for _ in range(4)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    assert counts(root) == {"functions found": 8 * TIMES}


def test_a_forked_child_adds_only_its_own(root: Path) -> None:
    cache = Cache(root)
    build(cache, "a")
    build(cache, "a")  # found, and added at the end

    def of_the_child() -> None:
        build(cache, "a")
        build(cache, "b")  # a build adds what was counted before

    assert os.waitpid(child(of_the_child), 0)[1] == 0
    assert counts(root) == {"functions built": 2, "functions found": 1}
    cache.close()
    assert counts(root) == {"functions built": 2, "functions found": 2}


def test_a_process_adds_its_counts_when_it_ends(root: Path) -> None:
    """Also if ``sys.exit()`` ends it; the counts since the last build are lost if it is killed."""
    script = """
import os, sys
import warp_tiles
from tests.store.test_statistics import build
from warp_tiles._warp import require_hooks
from warp_tiles.settings import current
warp_tiles.enable()
for name in ("a", "b", "a", "b"):
    build(require_hooks("a test").engine.build_context(current()).cache, name)
os._exit(0) if sys.argv[1] == "killed" else sys.exit(0)
"""
    for how in ("killed", "ends"):
        subprocess.run(
            [sys.executable, "-c", script, how],
            env={**os.environ, "WARP_TILES_CACHE_DIR": str(root)},
            check=True,
            capture_output=True,
        )
    assert counts(root) == {"functions built": 2, "functions found": 4}


def test_a_process_that_asked_nothing_makes_no_folder(root: Path) -> None:
    Cache(root).close()
    assert not root.exists()
    assert Cache(root).statistics() == (0, {})
    assert not root.exists()


def test_a_cache_that_was_removed_is_not_made_again(root: Path) -> None:
    cache = Cache(root)
    build(cache, "a")
    build(cache, "a")
    root.rename(root.with_name("gone"))
    cache.close()
    assert not root.exists()


def in_use(root: Path) -> Callable[[], None]:
    held = TrustedFolder(root).lock("v1/locks/stats.lock", 1.0)
    held.__enter__()
    return lambda: held.__exit__(None, None, None)


def open_to_all(root: Path) -> Callable[[], None]:
    (root / "stats").chmod(0o777)
    return lambda: (root / "stats").chmod(0o700)


def a_file_in_its_place(root: Path) -> Callable[[], None]:
    (root / "stats").rename(root / "aside")
    (root / "stats").write_text("")

    def undo() -> None:
        (root / "stats").unlink()
        (root / "aside").rename(root / "stats")

    return undo


def full(root: Path) -> Callable[[], None]:
    patch = pytest.MonkeyPatch()

    def write(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    patch.setattr(TrustedFolder, "write", write)
    return patch.undo


@pytest.mark.parametrize("state", [in_use, open_to_all, a_file_in_its_place, full])
def test_no_state_of_the_file_delays_or_fails_a_process(
    root: Path, state: Callable[[Path], Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    build(Cache(root), "before")
    before = Cache(root).statistics()
    undo = state(root)
    start = time.monotonic()
    cache = Cache(root)
    with cache.building():
        pass
    cache.close()
    assert time.monotonic() - start < 1.0
    undo()
    assert Cache(root).statistics() == before
    assert not caplog.records
    build(Cache(root), "after")
    assert counts(root) == {"functions built": 2}


def test_what_could_not_be_added_is_added_later(root: Path) -> None:
    build(Cache(root), "before")
    undo, cache = in_use(root), Cache(root)
    build(cache, "during")
    assert counts(root) == {"functions built": 1}
    undo()
    cache.close()
    assert counts(root) == {"functions built": 2}


def test_damaged_counts_stay_until_they_are_reset(root: Path) -> None:
    cache = Cache(root)
    build(cache, "a")
    file = root / "stats/counts.json"
    assert damage(file, "a flipped bit", random.Random(5), keep_times=True)
    damaged = file.read_bytes()
    build(cache, "b")
    cache.close()
    assert file.read_bytes() == damaged
    with pytest.raises(CacheError, match="no process adds to them") as error:
        cache.statistics()
    assert "cache stats --zero" in str(error.value)
    assert cache.statistics(reset=True)[1] == {}
    build(Cache(root), "c")
    assert counts(root) == {"functions built": 1}


@pytest.mark.parametrize("body", [{}, {"since_ns": 1, "counts": []}, {"since_ns": 1, "counts": {"a": "b"}}])
def test_a_sealed_file_of_something_else_is_damage(root: Path, body: dict[str, object]) -> None:
    cache = Cache(root)
    Statistics(root, "functions")._documents.write("counts", body)
    build(cache, "a")
    with pytest.raises(CacheError, match="damaged"):
        cache.statistics()


def test_a_refused_folder_is_an_error_of_the_command(root: Path) -> None:
    build(Cache(root), "a")
    open_to_all(root)
    with pytest.raises(CacheError) as error:
        Cache(root).statistics()
    assert isinstance(error.value.__cause__, RefusedFolderError)


def test_clearing_keeps_the_counts_unless_all_is_cleared(root: Path) -> None:
    cache = Cache(root)
    build(cache, "a")
    cache.clear()
    assert counts(root) == {"functions built": 1}
    assert cache.clear(everything=True).total_bytes == 0
    assert cache.statistics() == (0, {})


def test_users_of_a_shared_cache_share_the_counts(root: Path) -> None:
    root.mkdir()
    root.chmod(0o2770)
    cache = Cache(root, allow_shared=True)
    build(cache, "a")
    assert (root / "stats/counts.json").stat().st_mode & 0o777 == 0o660
    assert (root / "stats").stat().st_mode & 0o777 == 0o770
