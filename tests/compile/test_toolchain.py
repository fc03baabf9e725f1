"""The stored toolchain and the digests of its files: when they are reused, and when the search is repeated."""

import hashlib
import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.compile.test_find import PLAIN
from tests.compile.test_sources import tree
from warp_tiles.compile import toolchain as module
from warp_tiles.compile.find import Toolchain
from warp_tiles.compile.sources import DeviceSource
from warp_tiles.compile.toolchain import FileFacts, ToolchainFacts
from warp_tiles.errors import ToolchainError
from warp_tiles.store.documents import seal


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Toolchain]:
    """All searches so far. Each finds a toolchain of three small files."""
    searches: list[Toolchain] = []
    library = tmp_path / "lib/libnvrtc.so.12"
    library.parent.mkdir()
    library.write_bytes(b"compiler")
    linker = library.with_name("libnvJitLink.so.12")
    linker.write_bytes(b"linker")
    include = tree(tmp_path / "inc", a="#pragma once\n")

    def search(warp_toolkit: Any) -> Toolchain:
        searches.append(Toolchain(library, (12, 9), linker, (12, 9), (include,), "25.6.0"))
        return searches[-1]

    monkeypatch.setattr(module, "find_toolchain", search)
    monkeypatch.setattr(module, "search_state", lambda: ["state"])
    return searches


def test_the_search_runs_once_for_each_warp(found: list[Toolchain], tmp_path: Path) -> None:
    store = ToolchainFacts(tmp_path / "memo")
    assert not (tmp_path / "memo").exists(), "the constructor creates no files"
    assert found == []
    assert store.toolchain() == store.toolchain() == found[0]
    assert len(found) == 1
    assert ToolchainFacts(tmp_path / "memo").toolchain() == found[0]  # as another process would
    assert len(found) == 1
    for toolkit in ((13, 4), (13, 4), (12, 9)):
        ToolchainFacts(tmp_path / "memo", warp_toolkit=toolkit).toolchain()
    assert len(found) == 3


def rewrite(memo: Path, name: str, value: object) -> None:
    """Store another value, as sound as the first."""
    (path,) = memo.glob(f"toolchain/{name}-*.json")
    path.write_bytes(seal({"value": value}))


@pytest.mark.parametrize("value", [None, 3, [], {}, {"toolchain": {}, "files": []}, {"toolchain": {"nvrtc": 3}}])
def test_a_fact_of_another_form_repeats_the_search(value: object, found: list[Toolchain], tmp_path: Path) -> None:
    ToolchainFacts(tmp_path).toolchain()
    rewrite(tmp_path, "toolchain", value)
    for _ in range(2):
        assert ToolchainFacts(tmp_path).toolchain() == found[0]
        assert len(found) == 2, "it is repaired"


@pytest.mark.parametrize("change", ["environment", "files", "no headers", "no linker"])
def test_a_change_or_what_is_missing_repeats_the_search(
    change: str, found: list[Toolchain], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a toolkit below CUDA_HOME can get headers without changing the state of the search, and a lack of memory hides the
    # linker
    missing: dict[str, dict[str, Any]] = {"no headers": {"missing_headers": ("none", "install")}}
    missing["no linker"] = {"nvjitlink": None, "nvjitlink_version": None}
    search = module.find_toolchain
    monkeypatch.setattr(module, "find_toolchain", lambda kit: replace(search(kit), **missing.get(change, {})))
    store = ToolchainFacts(tmp_path / "memo")
    assert store.toolchain() == store.toolchain()
    assert len(found) == 1
    if change == "environment":
        monkeypatch.setattr(module, "search_state", lambda: ["another state"])
    elif change == "files":  # removing or replacing a toolkit below CUDA_HOME changes no folder of packages
        shutil.rmtree(tmp_path / "lib")
    ToolchainFacts(tmp_path / "memo").toolchain()
    assert len(found) == 2


def test_a_failed_search_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(warp_toolkit: Any) -> Toolchain:
        raise ToolchainError("nothing here")

    monkeypatch.setattr(module, "find_toolchain", fail)
    store = ToolchainFacts(tmp_path / "memo")
    with pytest.raises(ToolchainError, match="nothing here"):
        store.toolchain()
    monkeypatch.setattr(module, "find_toolchain", lambda warp_toolkit: PLAIN)
    assert store.toolchain() == PLAIN


def device(source: Path, include_dir: Path) -> DeviceSource:
    """A source with its own folder and another one as include folders."""
    return DeviceSource(source, source.parent, (source.parent, include_dir))


def test_digests_depend_on_every_file_of_a_source_and_on_the_bytes_of_the_compiler(
    found: list[Toolchain], tmp_path: Path
) -> None:
    source = tree(tmp_path / "kernels", gemm='#include <a.h>\n#include "tile.h"\n', tile="") / "gemm.h"
    digests = [ToolchainFacts(tmp_path / "memo").source_digest(device(source, tmp_path / "inc"))]
    for path in (source, tmp_path / "kernels/tile.h", tmp_path / "inc/a.h"):
        path.write_text(path.read_text() + "// more\n")
        digests.append(ToolchainFacts(tmp_path / "memo").source_digest(device(source, tmp_path / "inc")))
    assert len(set(digests)) == 4
    before = ToolchainFacts(tmp_path / "memo").compiler_digest()
    assert ToolchainFacts(tmp_path / "memo").compiler_digest() == before
    (tmp_path / "lib/libnvrtc.so.12").write_bytes(b"Compiler")
    assert ToolchainFacts(tmp_path / "memo").compiler_digest() != before


def test_a_closure_is_taken_once_until_something_changes(
    found: list[Toolchain], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = tree(tmp_path / "kernels", gemm__top="#include <a.h>\n", lib__b="", lib__c="")
    calls: list[Path] = []
    take = module.include_closure

    def counted(path: Path, folders: Any) -> dict[str, Path]:
        calls.append(path)
        return take(path, folders)

    def closure(include_dir: str = "inc") -> dict[str, str]:
        top = DeviceSource(kernels / "gemm/top.h", kernels, (kernels, kernels / "lib", tmp_path / include_dir))
        return dict(ToolchainFacts(tmp_path / "memo").closure(top))

    monkeypatch.setattr(module, "include_closure", counted)
    assert closure()["a.h"] == closure()["a.h"] == str(tmp_path / "inc/a.h")
    assert calls == [kernels / "gemm/top.h"]
    tree(tmp_path / "newer", a="")
    assert closure("newer")["a.h"] == str(tmp_path / "newer/a.h")
    (kernels / "gemm/top.h").write_text("#include <a.h>\n#include <b.h>\n")  # a new include
    assert closure()["b.h"] == str(kernels / "lib/b.h")
    tree(kernels, b="")  # this file comes first in the search order
    assert closure()["b.h"] == str(kernels / "b.h")
    assert len(calls) == 4


@pytest.mark.parametrize("value", [[], 3, {"gemm.h": 3}, None])
def test_a_closure_of_another_form_is_taken_again(found: list[Toolchain], tmp_path: Path, value: object) -> None:
    source = tree(tmp_path / "kernels", gemm="#include <a.h>\n") / "gemm.h"
    expected = ToolchainFacts(tmp_path / "memo").closure(device(source, tmp_path / "inc"))
    rewrite(tmp_path / "memo", "closure", value)
    assert ToolchainFacts(tmp_path / "memo").closure(device(source, tmp_path / "inc")) == expected


def test_the_state_of_the_search_depends_on_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = module.search_state()
    assert module.search_state() == before
    monkeypatch.syspath_prepend(str(tmp_path))
    assert module.search_state() == before, "a script's own folder does not matter"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert module.search_state() != before
    monkeypatch.undo()
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(str(packages))
    with_packages = module.search_state()
    assert with_packages != before
    (packages / "nvidia").mkdir()
    assert module.search_state() != with_packages
    assert json.loads(json.dumps(module.search_state())) == module.search_state()


def test_concurrent_threads_all_get_the_toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered, files_state = FileFacts.read, module.files_state
    first, just_found, search = iter([True]), threading.Event(), module.find_toolchain

    def late(facts: FileFacts, name: str, rebuild: Any) -> Any:
        if not next(first, False):
            just_found.wait(30)  # the second thread then finds nothing stored
        return None if not just_found.is_set() else remembered(facts, name, rebuild)

    def slow(toolchain: Toolchain) -> Any:
        just_found.set()
        time.sleep(0.3)
        return files_state(toolchain)

    def long(warp_toolkit: Any) -> Toolchain:
        if just_found.is_set():
            time.sleep(0.6)
        return search(warp_toolkit)

    monkeypatch.setattr(module, "find_toolchain", long)
    monkeypatch.setattr(FileFacts, "read", late)
    monkeypatch.setattr(module, "files_state", slow)
    store = ToolchainFacts(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        found = [future.result() for future in [pool.submit(store.toolchain) for _ in range(2)]]
    assert found[0] == found[1] == store.toolchain()


# ---- digests of files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat files as settled at once."""
    monkeypatch.setattr(module, "SETTLE_NS", -(10**12))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that was read for its digest."""
    seen: list[Path] = []
    take = module._hash_file
    monkeypatch.setattr(module, "_hash_file", lambda path: (seen.append(path), take(path))[1])
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
