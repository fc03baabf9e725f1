"""The memo of file digests: when a digest is reused, and when it is taken again."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.store.cache_workers import files
from warp_tiles.compile import toolchain as toolchain_store
from warp_tiles.compile.toolchain import FileFacts
from warp_tiles.store.kinds import TOOLCHAIN_FACTS


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat files as settled at once."""
    monkeypatch.setattr(toolchain_store, "SETTLE_NS", -(10**12))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that was read for its digest."""
    seen: list[Path] = []
    take = toolchain_store._hash_file
    monkeypatch.setattr(toolchain_store, "_hash_file", lambda path: (seen.append(path), take(path))[1])
    return seen


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "lib.so"
    path.write_bytes(b"code" * 1000)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_unchanged_file_is_hashed_once(
    root: Path, tmp_path: Path, library: Path, settled: None, hashed: list[Path]
) -> None:
    headers = {f"h{number}.h": tmp_path / f"h{number}.h" for number in range(9)}
    for name, path in headers.items():
        path.write_text(name)
    memo = FileFacts(root)
    assert [memo.digest(library) for _ in range(3)] == [sha256(library)] * 3
    group = memo.digest_many(headers)
    assert len(hashed) == 10
    again = FileFacts(root)  # as another process would
    assert (again.digest(str(library)), again.digest_many(headers)) == (sha256(library), group)
    assert len(hashed) == 10


@pytest.mark.parametrize("change", ["content", "same size and mtime", "replaced", "moved"])
def test_a_changed_file_is_hashed_again(
    root: Path, library: Path, settled: None, hashed: list[Path], change: str
) -> None:
    memo = FileFacts(root)
    old, status = memo.digest(library), library.stat()
    time.sleep(0.02)  # more than a tick of the file system's clock
    if change == "content":
        library.write_bytes(b"other")
    elif change == "same size and mtime":
        library.write_bytes(b"edoc" * 1000)
        os.utime(library, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "replaced":
        new = library.with_name("new")
        new.write_bytes(b"edoc" * 1000)
        os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
        new.replace(library)
    else:
        library = library.rename(library.with_name("moved.so"))
    assert memo.digest(library) == sha256(library)
    assert (memo.digest(library) != old) == (change != "moved")
    assert len(hashed) == 2


def test_the_digest_of_a_recently_changed_file_is_not_stored(root: Path, library: Path, hashed: list[Path]) -> None:
    memo = FileFacts(root)
    assert memo.digest(library) == memo.digest(library) == sha256(library)
    assert len(hashed) == 2
    assert not root.exists()


def test_a_group_depends_on_names_and_contents_only(root: Path, tmp_path: Path, settled: None) -> None:
    files = {}
    for name in ("a.h", "b.h", "sub/c.h"):
        path = tmp_path / "one" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        files[name] = path
    memo = FileFacts(root)
    digest = memo.digest_many(files)
    assert memo.digest_many(dict(reversed(files.items()))) == digest
    copy = tmp_path / "two"
    (tmp_path / "one").rename(copy)
    moved = {name: copy / name for name in files}
    assert memo.digest_many(moved) == digest
    (copy / "b.h").write_text("b.H")
    changed = memo.digest_many(moved)
    assert changed != digest
    assert memo.digest_many({"a.h": moved["a.h"], "B.h": moved["b.h"], "sub/c.h": moved["sub/c.h"]}) != changed
    assert memo.digest_many({"a.h": moved["a.h"], "b.h": moved["b.h"]}) != changed
    assert memo.digest_many({"a.h": moved["b.h"], "b.h": moved["a.h"], "sub/c.h": moved["sub/c.h"]}) != changed
    assert memo.digest_many({"": moved["a.h"]}) != memo.digest(moved["a.h"])


def test_the_memo_stays_small(root: Path, tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain_store, "TOOLCHAIN_FACTS", replace(TOOLCHAIN_FACTS, most_files=5))
    memo = FileFacts(root)
    for number in range(12):
        path = tmp_path / f"f{number}"
        path.write_text(str(number))
        assert memo.digest(path) == sha256(path)
        assert len(files(root)) == min(number + 1, 5)
