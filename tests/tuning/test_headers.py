"""Precompiled headers for the CPU: kept between processes, and never more than time."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from warp_tiles import SeamError
from warp_tiles._warp import searches
from warp_tiles.cache import Cache, CacheKey
from warp_tiles.settings import Settings
from warp_tiles.tuning import headers
from warp_tiles.tuning.headers import Shelf, headers_key, kept_headers

KEY = CacheKey.of({"kind": "headers of a test"})
_SEARCH = """
import json, os
import warp as wp
import warp_tiles
from pathlib import Path
from warp_tiles._warp.searches import headers_folder, precompiled_headers

def make(count):
    @wp.kernel(module="unique")
    def add(values: wp.array(dtype=float)):
        values[wp.tid()] += float(count)
    return add

tuned = warp_tiles.autotune(configs=[{"count": 1}, {"count": 2}], key=("values",), dim=lambda config, args: 4)(make)
tuned.launch(inputs=[wp.zeros(4, device="cpu")], device="cpu")
own = {path.name: path.stat() for path in headers_folder().glob("*.pch")}
used = {name: path.stat() for name, path in precompiled_headers().items()}
print(json.dumps({"searches": tuned.counters.searches, "builds": tuned.counters.builds, "names": sorted(used),
                  "taken": [used[name].st_ino == state.st_ino for name, state in own.items()]}))
"""


class Process:
    """Folders of a process's threads, in place of Warp's."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.own, self.other = root / "own", root / "other"
        for folder in (self.own, self.other):
            folder.mkdir(parents=True)
        patch.setattr(searches, "headers_folder", lambda: self.own)
        patch.setattr(searches, "precompiled_headers", self.made)

    def made(self) -> dict[str, Path]:
        return {path.name: path for folder in (self.own, self.other) for path in folder.glob("*.pch")}


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(tmp_path / "process", monkeypatch)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "headers", suffix=".zip")


def test_what_a_thread_made_is_there_in_the_next_process(
    process: Process, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (process.other / "o2.pch").write_bytes(b"second level")
    (process.other / "o3.pch.tmp").write_bytes(b"half")
    Shelf(cache, KEY).keep()
    later = Process(tmp_path / "later", monkeypatch)
    Shelf(cache, KEY).take()
    assert [(path.name, path.read_bytes()) for path in later.own.iterdir()] == [("o2.pch", b"second level")]
    assert list(later.other.iterdir()) == []
    assert [path.suffix for path in (cache.root / "v1" / "objects").rglob("*") if path.is_file()] == [".zip"]


def test_headers_of_several_processes_are_united(
    process: Process, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Shelf(cache, KEY), Shelf(cache, KEY)
    first.take()
    second.take()
    (process.own / "o2.pch").write_bytes(b"two")
    first.keep()
    Process(tmp_path / "second", monkeypatch).own.joinpath("o3.pch").write_bytes(b"three")
    second.keep()
    later = Process(tmp_path / "later", monkeypatch)
    Shelf(cache, KEY).take()
    assert sorted(path.name for path in later.own.iterdir()) == ["o2.pch", "o3.pch"]


def test_nothing_is_written_twice(process: Process, cache: Cache) -> None:
    (process.own / "o2.pch").write_bytes(b"two")
    shelf = Shelf(cache, KEY)
    shelf.keep()
    shelf.keep()
    again = Shelf(cache, KEY)
    again.take()
    again.keep()
    assert cache.counters.stores == 1


def test_own_headers_are_left_alone(process: Process, cache: Cache) -> None:
    (process.own / "o2.pch").write_bytes(b"stored")
    Shelf(cache, KEY).keep()
    (process.own / "o2.pch").write_bytes(b"newer")
    Shelf(cache, KEY).take()
    assert (process.own / "o2.pch").read_bytes() == b"newer"


def test_names_of_an_archive_stay_in_the_folder(process: Process, cache: Cache) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("../../outside.pch", b"out")
    cache.put(KEY, stream.getvalue(), {})
    Shelf(cache, KEY).take()
    assert [path.name for path in process.own.iterdir()] == ["outside.pch"]


@pytest.mark.parametrize("damage", ["bytes", "archive", "refused", "unwritable", "seam"])
def test_what_cannot_be_used_costs_only_time(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    monkeypatch.setattr(headers, "headers_key", lambda folder, version: KEY)
    now, root = Settings(cache_dir=tmp_path), tmp_path / "headers"
    cache = Cache(root, suffix=".zip")
    (process.own / "o2.pch").write_bytes(b"two" * 100)
    Shelf(cache, KEY).keep()
    (process.own / "o2.pch").unlink()
    (stored,) = root.rglob("*.zip")
    if damage == "bytes":
        stored.write_bytes(stored.read_bytes()[:-1] + b"x")
    elif damage == "archive":
        cache.put(KEY, b"no archive", {})
    elif damage == "refused":
        root.chmod(0o777)
    elif damage == "unwritable":
        monkeypatch.setattr(headers, "write_atomic", _no_space)
    else:
        monkeypatch.setattr(searches, "headers_folder", _no_seam)
    ran = False
    with caplog.at_level(logging.INFO, "warp_tiles"), kept_headers(now):
        ran = True
        (process.other / "o2.pch").write_bytes(b"made again")
    assert ran
    assert caplog.records
    assert list(process.own.iterdir()) == []


def _no_space(path: Path, data: bytes) -> None:
    raise OSError(28, "No space left on device")


def _no_seam() -> Path:
    raise SeamError("Warp has no headers_folder")


def test_a_damaged_entry_is_replaced(process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "headers_key", lambda folder, version: KEY)
    cache = Cache(tmp_path / "headers", suffix=".zip")
    cache.put(KEY, b"no archive", {})
    with kept_headers(Settings(cache_dir=tmp_path)):
        (process.own / "o2.pch").write_bytes(b"two")
    later = Process(tmp_path / "later", monkeypatch)
    Shelf(cache, KEY).take()
    assert (later.own / "o2.pch").read_bytes() == b"two"


@pytest.mark.parametrize("change", ["size", "time", "library", "version", "folder", "processor", "instruction_sets"])
def test_the_key_has_everything_that_headers_are_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    package = tmp_path / "warp"
    for name in ("native/builtin.h", "native/cutlass/gemm.h", "bin/warp-clang.so"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("text")
        os.utime(package / name, ns=(1, 1))
    version, header = "1.19.0", package / "native" / "cutlass" / "gemm.h"
    before = headers_key(package, version)
    assert headers_key(package, version) == before
    if change == "size":
        header.write_text("texts")
        os.utime(header, ns=(1, 1))
    elif change == "time":
        os.utime(header, ns=(2, 2))
    elif change == "library":
        (package / "bin" / "warp-clang.so").write_text("other")
    elif change == "version":
        version = "1.19.1"
    elif change == "folder":
        package = package.rename(tmp_path / "elsewhere")
    else:
        monkeypatch.setattr(headers, change, lambda: "another")
    assert headers_key(package, version) != before


def test_a_search_in_another_process_precompiles_nothing(tmp_path: Path) -> None:
    script = tmp_path / "search.py"
    script.write_text(_SEARCH)
    found = []
    for number in range(2):
        environ = {**os.environ, "WARP_TILES_CACHE_DIR": str(tmp_path / "tiles"), "WARP_TILES_POLICY": "max"}
        environ["WARP_CACHE_PATH"] = str(tmp_path / f"warp{number}")
        run = subprocess.run([sys.executable, str(script)], env=environ, capture_output=True, text=True, check=True)
        found.append(json.loads(run.stdout.splitlines()[-1]))
        for record in (tmp_path / "tiles" / "tuning").rglob("*.json"):
            record.unlink()
    first, second = found
    assert (first["searches"], first["builds"]) == (second["searches"], second["builds"]) == (1, 2)
    assert first["names"] == second["names"] != []
    assert first["taken"] == []  # the thread that searches builds nothing itself
    assert second["taken"] == [True]
