"""What is kept beside the store is sealed and verified: facts, missed keys, earlier runs, precompiled headers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import warp_tiles
from tests.hardening.damage import damage
from tests.hardening.subjects import SUBJECTS
from warp_tiles.cache import Cache, FileDigests
from warp_tiles.cli import diagnose
from warp_tiles.toolchain.store import ToolchainStore

BESIDE = ("toolchain", "digests", "asked key", "previous run", "precompiled headers")


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
    cache.verify(set_aside=True)
    assert not any(file.exists() for file in damaged)
    assert cache.verify().ok


def test_the_doctor_names_it(damaged: list[Path], tmp_path: Path) -> None:
    with warp_tiles.override(cache_dir=tmp_path / "cache"):
        finding = diagnose._cache()
    assert (finding.state, finding.remedy) == ("problem", "run `warp-tiles cache verify`")


def test_a_damaged_fact_is_found_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bit of the file counts: the search is repeated, and its result is stored again."""
    from warp_tiles.toolchain import store as module

    found = ToolchainStore(tmp_path / "first").toolchain()
    searches: list[int] = []
    monkeypatch.setattr(module, "find_toolchain", lambda: searches.append(1) or found)
    root = tmp_path / "cache"
    ToolchainStore(root, "toolchain").toolchain()
    (file,) = (root / "toolchain").glob("toolchain-*.json")
    for seed in range(100):
        before = len(searches)
        changed = damage(file, "a flipped bit", random.Random(seed), keep_times=bool(seed % 2))
        assert ToolchainStore(root, "toolchain").toolchain() == found
        assert len(searches) == before + changed
        assert ToolchainStore(root, "toolchain").toolchain() == found
        assert len(searches) == before + changed


def test_facts_are_private_below_a_shared_root(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o2775)
    ToolchainStore(root, "toolchain", shared=True)._write("toolchain", [], {})
    FileDigests(root, "toolchain", allow_shared=True)._remember("0" * 64, "1" * 64)
    for path in (root / "toolchain").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0
    (root / "toolchain").chmod(0o777)
    assert ToolchainStore(root, "toolchain", shared=True)._read("toolchain", []) is None
