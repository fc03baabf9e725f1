"""Precompiled headers for the CPU: kept between processes. Their failures cost only time."""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from warp_tiles import SeamError
from warp_tiles._warp import searches
from warp_tiles.cache import Cache, CacheKey
from warp_tiles.settings import Settings
from warp_tiles.tuning import headers
from warp_tiles.tuning.headers import HeaderCache, cached_headers, header_inputs

INPUTS = {"kind": "headers of a test"}
O2, O3 = "builtin_bd1_o2.pch", "builtin_bd1_o3.pch"
_SEARCH = """
import json, os
import warp as wp
import warp_tiles
from pathlib import Path
from warp_tiles._warp.internals import find
from warp_tiles._warp.searches import headers_folder

def make(count):
    @wp.kernel(module="unique")
    def add(values: wp.array(dtype=float)):
        values[wp.tid()] += float(count)
    return add

tuned = warp_tiles.autotune(configs=[{"count": 1}, {"count": 2}], key=("values",), dim=lambda config, args: 4)(make)
tuned.launch(inputs=[wp.zeros(4, device="cpu")], device="cpu")
own = headers_folder()
threads = [Path(folder.name) for folder in find("context.runtime")._pch_dirs.values() if Path(folder.name) != own]
headers = [path for folder in threads for path in folder.glob("*.pch")]
print(json.dumps({"searches": tuned.counters.searches, "builds": tuned.counters.builds,
                  "names": sorted({path.name for path in headers}),
                  "taken": [(own / path.name).exists() and (own / path.name).samefile(path) for path in headers]}))
"""


class Process:
    """The header folders of a process's threads, in place of Warp's."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.own, self.other = root / "own", root / "other"
        for folder in (self.own, self.other):
            folder.mkdir(parents=True)
        patch.setattr(searches, "headers_folder", lambda: self.own)
        patch.setattr(searches, "precompiled_headers", self.headers_by_name)

    def headers_by_name(self) -> dict[str, Path]:
        found = [path for folder in (self.own, self.other) for path in folder.glob(searches.CPU_HEADERS)]
        return {path.name: path for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)}


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(tmp_path / "process", monkeypatch)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "headers", suffix=".pch")


def test_headers_of_a_thread_are_there_in_the_next_process(
    process: Process, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (process.other / O2).write_bytes(b"second level")
    (process.other / "builtin_bd1_o3-1c20.pch.tmp").write_bytes(b"half")
    (process.other / "nvrtc.pch").write_bytes(b"for GPUs")
    HeaderCache(cache, INPUTS).save()
    later = Process(tmp_path / "later", monkeypatch)
    HeaderCache(cache, INPUTS).load()
    assert [(path.name, path.read_bytes()) for path in later.own.iterdir()] == [(O2, b"second level")]
    assert list(later.other.iterdir()) == []
    assert [path.suffix for path in (cache.root / "v1" / "objects").rglob("*") if path.is_file()] == [".pch"]


def test_headers_of_several_processes_are_all_kept(
    process: Process, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = HeaderCache(cache, INPUTS), HeaderCache(cache, INPUTS)
    first.load()
    second.load()
    (process.own / O2).write_bytes(b"two")
    first.save()
    Process(tmp_path / "second", monkeypatch).own.joinpath(O3).write_bytes(b"three")
    second.save()
    later = Process(tmp_path / "later", monkeypatch)
    HeaderCache(cache, {"kind": "another Warp"}).load()
    assert list(later.own.iterdir()) == []
    HeaderCache(cache, INPUTS).load()
    assert sorted(path.name for path in later.own.iterdir()) == [O2, O3]


def test_nothing_is_written_twice(process: Process, cache: Cache) -> None:
    (process.own / O2).write_bytes(b"two")
    stored_headers = HeaderCache(cache, INPUTS)
    stored_headers.save()
    stored_headers.save()
    again = HeaderCache(cache, INPUTS)
    again.load()
    again.save()
    assert cache.counters.stores == 1


def test_a_newer_header_replaces_the_stored_one(
    process: Process, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (process.own / O2).write_bytes(b"stored")
    os.utime(process.own / O2, ns=(1, 1))
    HeaderCache(cache, INPUTS).save()
    stored_headers = HeaderCache(cache, INPUTS)
    stored_headers.load()
    (process.other / O2).write_bytes(b"newer")
    stored_headers.save()
    assert (process.own / O2).read_bytes() == b"stored"
    later = Process(tmp_path / "later", monkeypatch)
    HeaderCache(cache, INPUTS).load()
    assert (later.own / O2).read_bytes() == b"newer"


@pytest.mark.parametrize("name", ["../builtin_bd1.pch", "/builtin_bd1.pch", "builtin_bd/../../x.pch", "other.pch", ""])
def test_names_of_the_cache_stay_in_the_folder(process: Process, cache: Cache, name: str) -> None:
    cache.put(CacheKey.of({**INPUTS, "file": name}), b"data", {})
    HeaderCache(cache, INPUTS).load()
    assert list(process.own.iterdir()) == []
    assert [path.name for path in process.own.parent.iterdir()] != ["builtin_bd1.pch"]


@pytest.mark.parametrize("damage", ["bytes", "refused", "unwritable", "seam"])
def test_a_failure_costs_only_time(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    monkeypatch.setattr(headers, "header_inputs", lambda folder, version: INPUTS)
    now, root = Settings(cache_dir=tmp_path), tmp_path / "headers"
    (process.own / O2).write_bytes(b"two" * 100)
    HeaderCache(Cache(root, suffix=".pch"), INPUTS).save()
    (process.own / O2).unlink()
    (stored,) = root.rglob("*.pch")
    if damage == "bytes":
        stored.write_bytes(stored.read_bytes()[:-1] + b"x")
    elif damage == "refused":
        root.chmod(0o777)
    elif damage == "unwritable":
        monkeypatch.setattr(headers, "write_atomic", _no_space)
    else:
        monkeypatch.setattr(searches, "headers_folder", _no_seam)
    ran = False
    with caplog.at_level(logging.INFO, "warp_tiles"), cached_headers(now):
        ran = True
        (process.other / O2).write_bytes(b"made again")
    assert ran
    assert caplog.records
    assert list(process.own.iterdir()) == []


def _no_space(path: Path, data: bytes, mode: int) -> None:
    raise OSError(28, "No space left on device")


def _no_seam() -> Path:
    raise SeamError("Warp has no headers_folder")


def test_an_error_in_the_block_propagates(process: Process, tmp_path: Path) -> None:
    def search() -> None:
        with cached_headers(Settings(cache_dir=tmp_path)):
            (process.own / O2).write_bytes(b"two")
            raise RuntimeError("of the search")

    with pytest.raises(RuntimeError, match="of the search"):
        search()
    assert len(list((tmp_path / "headers").rglob("*.pch"))) == 1


def test_a_shared_cache_holds_no_headers(process: Process, tmp_path: Path) -> None:
    with cached_headers(Settings(cache_dir=tmp_path, cache_shared=True)):
        (process.own / O2).write_bytes(b"two")
    assert not (tmp_path / "headers").exists()


@pytest.mark.parametrize(
    "change", ["size", "time", "library", "version", "folder", "machine", "processor", "instruction_sets"]
)
def test_the_key_has_all_inputs_of_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    package = tmp_path / "warp"
    for name in ("native/builtin.h", "native/cutlass/gemm.h", "bin/warp-clang.so"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("text")
        os.utime(package / name, ns=(1, 1))
    version, header = "1.19.0", package / "native" / "cutlass" / "gemm.h"
    before = header_inputs(package, version)
    assert header_inputs(package, version) == before
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
        monkeypatch.setattr(platform if change == "machine" else headers, change, lambda: "another")
    assert header_inputs(package, version) != before


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
        assert "PCH" not in run.stderr  # nothing was refused
    first, second = found
    assert (first["searches"], first["builds"]) == (second["searches"], second["builds"]) == (1, 2)
    assert first["names"] == second["names"] != []
    assert set(first["taken"]) == {False}  # the thread that searches builds nothing itself
    assert set(second["taken"]) == {True}
