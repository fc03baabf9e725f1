"""What is kept beside the store is sealed and verified: facts, missed keys, precompiled headers."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import warp_tiles
from tests.hardening.damage import damage
from tests.hardening.memory import less_than
from tests.hardening.subjects import ABSENT, SUBJECTS
from warp_tiles.cli import doctor
from warp_tiles.compile.toolchain import FileDigests, ToolchainStore
from warp_tiles.store import report
from warp_tiles.store.cache import Cache
from warp_tiles.util.trusted_folder import TrustedFolder
from warp_tiles.util.warn import WarnedTexts

BESIDE = ("toolchain", "digests", "asked key", "precompiled headers")


@pytest.fixture
def damaged(tmp_path: Path) -> list[Path]:
    """One damaged file of each kind below one root."""
    files = [SUBJECTS[kind].write(tmp_path) for kind in BESIDE]
    for file in files:
        assert damage(file, "a flipped bit", random.Random(3), keep_times=True)
    return files


def test_verify_names_damage_beside_the_store(damaged: list[Path], tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    report = cache.verify()
    assert sorted(finding.path for finding in report.damaged) == sorted(damaged)
    assert all(file.exists() for file in damaged)
    cache.verify(remove=True)
    assert not any(file.exists() for file in damaged)
    assert cache.verify().ok


def test_the_doctor_names_it(damaged: list[Path], tmp_path: Path) -> None:
    with warp_tiles.override(cache_dir=tmp_path / "cache"):
        finding = doctor._cache()
    assert (finding.state, finding.remedy) == ("problem", "run `warp-tiles cache verify`")


def test_a_damaged_fact_is_found_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bit of the file counts: the search is repeated, and its result is stored again."""
    from warp_tiles.compile import toolchain as module

    found = ToolchainStore(tmp_path / "first").toolchain()
    searches: list[int] = []
    monkeypatch.setattr(module, "find_toolchain", lambda warp_toolkit: searches.append(1) or found)
    root = tmp_path / "cache"
    ToolchainStore(root).toolchain()
    (file,) = (root / "toolchain").glob("toolchain-*.json")
    for seed in range(100):
        before = len(searches)
        changed = damage(file, "a flipped bit", random.Random(seed), keep_times=bool(seed % 2))
        assert ToolchainStore(root).toolchain() == found
        assert len(searches) == before + changed
        assert ToolchainStore(root).toolchain() == found
        assert len(searches) == before + changed


def test_facts_are_private_below_a_shared_root(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o2775)
    ToolchainStore(root, shared=True)._write("toolchain", [], {})
    FileDigests(root, shared=True)._remember("0" * 64, "1" * 64)
    for path in (root / "toolchain").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0
    (root / "toolchain").chmod(0o777)
    assert ToolchainStore(root, shared=True)._read("toolchain", []) is None


@pytest.mark.parametrize("kind", ["manifest", "asked key"])
def test_a_huge_file_is_not_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has 1 GB, and takes no space on the disk."""
    monkeypatch.setattr(report, "_logged", WarnedTexts())
    logged: list[str] = []
    monkeypatch.setattr(report.logger, "warning", lambda text, *values: logged.append(text % values))
    os.truncate(SUBJECTS[kind].write(tmp_path), 1 << 30)
    with less_than(16 << 20):
        assert SUBJECTS[kind].read(tmp_path) is ABSENT
    (message,) = logged
    assert f"more than {1 << 20 if kind == 'manifest' else 4 << 20} bytes" in message


def in_time(read: Callable[[], object]) -> object:
    """The result of a call that must not hang."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(read()), daemon=True)
    thread.start()
    thread.join(20)
    assert results, "the reader hangs"
    return results[0]


def test_a_fifo_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    file = SUBJECTS["asked key"].write(tmp_path)
    file.unlink()
    os.mkfifo(file)
    assert in_time(lambda: SUBJECTS["asked key"].read(tmp_path)) is ABSENT

    def read() -> str:
        with pytest.raises(OSError, match="not a regular file") as caught:
            TrustedFolder(tmp_path / "cache").read(f"asked/{file.name}", 100)
        return str(caught.value)

    assert str(file) in str(in_time(read))
