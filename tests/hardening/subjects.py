"""The kinds of files that are read back: how to write one, and how to read it as a launch or a command does."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tuning.tuning_records import key as record_key
from tests.tuning.tuning_records import timing
from warp_tiles.cache import Cache, CacheKey, FileDigests
from warp_tiles.cache._files import FileCache
from warp_tiles.cache._missed import MissedKeys
from warp_tiles.errors import BundleError, RecordError
from warp_tiles.launch.previous_run import PreviousRuns
from warp_tiles.plan.loads import LoadedModule
from warp_tiles.toolchain.store import ToolchainStore
from warp_tiles.tuning.store import RecordStore
from warp_tiles.util.digests import matches, write_digests
from warp_tiles.util.processes import described, this_process

KEY = CacheKey.of({"compiler": "NVRTC 12.9", "m": "16", "options": ["-O3", "--std=c++17"], "source": "x" * 2000})
PAYLOAD = random.Random(1).randbytes(20_000)
MODULES = (LoadedModule("a", ("k", "l"), 64, "cuda:0"), LoadedModule("b", (), 256, "cpu"))
TIMINGS = [timing({"tile_m": size, "block_dim": 128}, 10.0 + size, shared_bytes=1024) for size in (16, 32)]
SCRIPT = Path("/somewhere/train.py")
ABSENT = object()


@dataclass(frozen=True)
class Subject:
    """One kind of file.

    Attributes:
        write: Writes it below a folder, and returns the file that is damaged.
        read: Reads it again as a new process would; :data:`ABSENT` if it counts as missing or is refused.
        repaired: True if the damaged file is replaced or set aside when it is read.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    repaired: bool = True


def _put(folder: Path) -> Cache:
    cache = Cache(folder / "cache")
    cache.put(KEY, PAYLOAD, {"symbol": "f", "seconds": 1.25})
    return cache


def _write_payload(folder: Path) -> Path:
    return next((_put(folder).root / "v1/objects").glob("*/*.ltoir"))


def _write_manifest(folder: Path) -> Path:
    return next((_put(folder).root / "v1/keys").glob("*/*.json"))


def _read_entry(folder: Path) -> Any:
    found = Cache(folder / "cache").get(KEY)
    return ABSENT if found is None else (found.payload, dict(found.manifest.info), found.manifest.key)


def _read_manifest(folder: Path) -> Any:
    found = Cache(folder / "cache").manifest(KEY)
    return ABSENT if found is None else (dict(found.info), found.key, found.payload_sha256)


def _write_record(folder: Path) -> Path:
    RecordStore(folder / "cache", folder="tuning").merge(record_key("gemm"), TIMINGS)
    return next((folder / "cache/tuning/gemm").glob("*.json"))


def _read_record(folder: Path) -> Any:
    found = RecordStore(folder / "cache", folder="tuning").load(record_key("gemm"))
    return ABSENT if found is None else found.timings


def _read_shipped(folder: Path) -> Any:
    found = RecordStore(folder / "own", [folder / "cache/tuning"]).load(record_key("gemm"))
    return ABSENT if found is None else found.timings


def _write_fact(folder: Path) -> Path:
    store = ToolchainStore(folder / "cache", "toolchain")
    store._write("toolchain", ["state", 1], {"nvrtc": "/lib/libnvrtc.so.12", "nvrtc_version": [12, 9]})
    return next((folder / "cache/toolchain").glob("toolchain-*.json"))


def _read_fact(folder: Path) -> Any:
    found = ToolchainStore(folder / "cache", "toolchain")._read("toolchain", ["state", 1])
    return ABSENT if found is None else found


def _library(folder: Path) -> Path:
    path = folder / "libnvrtc.so"
    if not path.exists():
        path.write_bytes(PAYLOAD)
    return path


def _write_digests(folder: Path) -> Path:
    memo = FileDigests(folder / "cache", "toolchain")
    memo._remember("0" * 64, "1" * 64)
    return folder / "cache/toolchain/v1/digests.json"


def _read_digests(folder: Path) -> Any:
    return FileDigests(folder / "cache", "toolchain")._load() or ABSENT


def _write_headers(folder: Path) -> Path:
    FileCache(folder / "cache/cuda_headers", suffix=".pch").put(KEY, PAYLOAD, {})
    return next((folder / "cache/cuda_headers/v1/objects").glob("*/*.pch"))


def _read_headers(folder: Path) -> Any:
    cache = FileCache(folder / "cache/cuda_headers", suffix=".pch")
    found = cache.verified_path(KEY, FileDigests(folder / "cache", "toolchain").digest)
    return ABSENT if found is None else found.read_bytes()


def _write_asked(folder: Path) -> Path:
    MissedKeys(folder / "cache").add(KEY)
    return next((folder / "cache/asked").glob("*.json"))


def _read_asked(folder: Path) -> Any:
    found = MissedKeys(folder / "cache").find(KEY.digest)
    return ABSENT if found is None else found


def _write_run(folder: Path) -> Path:
    PreviousRuns(folder / "cache").write(SCRIPT, MODULES)
    return next((folder / "cache/runs").glob("*.json"))


def _read_run(folder: Path) -> Any:
    return PreviousRuns(folder / "cache").read(SCRIPT) or ABSENT


def _write_output(folder: Path) -> Path:
    (folder / "a.cubin").write_bytes(PAYLOAD)
    (folder / "a.meta").write_bytes(b'{"kernel": 1}')
    write_digests(folder / "a.cubin", [folder / "a.meta"])
    return folder / "a.cubin"


def _read_output(folder: Path) -> Any:
    cubin, meta = folder / "a.cubin", folder / "a.meta"
    return (cubin.read_bytes(), meta.read_bytes()) if matches(cubin, [meta]) else ABSENT


def _of(suffix: str) -> Callable[[Path], Path]:
    return lambda folder: _write_output(folder).with_name(f"a.{suffix}")


def _write_bundle(folder: Path) -> Path:
    cache = _put(folder)
    cache.put(CacheKey.of({"name": "other"}), b"other", {})
    cache.export_bundle(folder / "bundle")
    return folder / "bundle"


def _read_bundle(folder: Path) -> Any:
    cache = Cache(Path(tempfile.mkdtemp(dir=folder)))
    try:
        cache.import_bundle(folder / "bundle")
    except BundleError:
        assert cache.entries() == (), "a refused bundle leaves nothing"
        return ABSENT
    return [cache.get(key).payload for key in (KEY, CacheKey.of({"name": "other"}))]  # type: ignore[union-attr]


def _write_export(folder: Path) -> Path:
    _write_record(folder)
    RecordStore(folder / "cache", folder="tuning").export(folder / "records.json")
    return folder / "records.json"


def _read_export(folder: Path) -> Any:
    store = RecordStore(Path(tempfile.mkdtemp(dir=folder)))
    try:
        store.import_(folder / "records.json")
    except RecordError:
        assert store.records() == [], "a refused export leaves nothing"
        return ABSENT
    return store.load(record_key("gemm")).timings  # type: ignore[union-attr]


def _write_holder(folder: Path) -> Path:
    (folder / "x.holder").write_bytes(this_process())
    return folder / "x.holder"


def _read_holder(folder: Path) -> Any:
    text = described((folder / "x.holder").read_bytes())
    assert text.isprintable()
    return ABSENT  # any text will do


SUBJECTS: dict[str, Subject] = {
    "payload": Subject(_write_payload, _read_entry),
    "manifest": Subject(_write_manifest, _read_entry),
    "manifest for display": Subject(_write_manifest, _read_manifest),
    "record": Subject(_write_record, _read_record),
    "shipped record": Subject(_write_record, _read_shipped, repaired=False),
    "toolchain": Subject(_write_fact, _read_fact),
    "digests": Subject(_write_digests, _read_digests),
    "precompiled headers": Subject(_write_headers, _read_headers),
    "asked key": Subject(_write_asked, _read_asked),
    "previous run": Subject(_write_run, _read_run),
    "cubin": Subject(_of("cubin"), _read_output, repaired=False),
    "metadata": Subject(_of("meta"), _read_output, repaired=False),
    "digest of a cubin": Subject(_of("cubin.sha256"), _read_output, repaired=False),
    "bundle": Subject(_write_bundle, _read_bundle, repaired=False),
    "export of records": Subject(_write_export, _read_export, repaired=False),
    "holder of a lock": Subject(_write_holder, _read_holder, repaired=False),
}
SILENT = {"cubin", "metadata", "digest of a cubin", "bundle", "export of records", "holder of a lock"}
