"""A module's hash depends on all files of the folders that affect the code, and on no other file of the package."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from warp_tiles import settings
from warp_tiles.build.engine import Engine
from warp_tiles.compile import sources

PACKAGE = sources.PACKAGE
EVERY_MODULE = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
KERNELS = sources.kernels_folder()
EVERY_HEADER = sorted(path.relative_to(KERNELS).as_posix() for path in KERNELS.rglob("*.cuh"))


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package and of the device sources, used in their place."""
    monkeypatch.setattr(sources, "kernels_folder", lambda: tmp_path / "copy" / "kernels")
    monkeypatch.setattr(sources, "PACKAGE", tmp_path / "copy" / "warp_tiles")
    ignored = shutil.ignore_patterns("__pycache__", "kernels")
    shutil.copytree(PACKAGE, tmp_path / "copy" / "warp_tiles", ignore=ignored)
    shutil.copytree(KERNELS, tmp_path / "copy" / "kernels")
    with settings.override(cache_dir=tmp_path / "cache"):
        yield tmp_path / "copy"


def fingerprint() -> str:
    """The fingerprint of a new process."""
    return Engine(warp_toolkit=(13, 4)).fingerprint()


def salt_of_changed(file: Path) -> str:
    """The fingerprint with one more byte in a file."""
    original = file.read_bytes()
    file.write_bytes(original + b"\n")
    try:
        return fingerprint()
    finally:
        file.write_bytes(original)


@pytest.mark.slow
def test_one_byte_in_a_code_folder_or_a_device_source_changes_the_salt(copied: Path) -> None:
    before = fingerprint()
    decisive = {f"warp_tiles/{name}": name.split("/")[0] in sources.CODE_FOLDERS for name in EVERY_MODULE}
    for name, decides in {**decisive, **{f"kernels/{name}": True for name in EVERY_HEADER}}.items():
        assert (salt_of_changed(copied / name) != before) is decides, name
    assert fingerprint() == before


def test_a_new_module_changes_the_salt(copied: Path) -> None:
    before = fingerprint()
    (copied / "warp_tiles" / "codegen" / "new.py").write_text("")
    assert fingerprint() != before
