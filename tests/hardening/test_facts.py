"""What is kept beside the store is verified, and facts are private."""

import random
from pathlib import Path

import pytest

import warp_tiles
from tests.hardening.damage import damage
from tests.hardening.subjects import SUBJECTS
from warp_tiles import cli
from warp_tiles.compile.toolchain import FileFacts
from warp_tiles.store.cache import Cache

BESIDE = ("toolchain", "digest", "asked key", "linked module")


@pytest.fixture
def damaged(tmp_path: Path) -> list[Path]:
    """One damaged file of each kind below one root."""
    files = [SUBJECTS[kind].write(tmp_path) for kind in BESIDE]
    for file in files:
        assert damage(file, "a flipped bit", random.Random(3), keep_times=True)
    return files


def test_verify_and_the_doctor_name_damage_beside_the_store(damaged: list[Path], tmp_path: Path) -> None:
    with warp_tiles.override(cache_dir=tmp_path / "cache"):
        finding = cli._cache()
    assert (finding.state, finding.remedy) == ("problem", "run `warp-tiles cache verify`")
    cache = Cache(tmp_path / "cache")
    report = cache.verify()
    assert sorted(finding.path for finding in report.damaged) == sorted(damaged)
    assert all(file.exists() for file in damaged)
    cache.verify(remove=True)
    assert not any(file.exists() for file in damaged)
    assert cache.verify().ok


def test_facts_are_private_below_a_shared_root(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o2775)
    FileFacts(root, shared=True).write("toolchain", {})
    for path in (root / "toolchain").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0
    (root / "toolchain").chmod(0o777)
    assert FileFacts(root, shared=True).read("toolchain", dict) is None
