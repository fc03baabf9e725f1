"""Builds kernels ahead of time, in parallel in separate processes, into folders that are kept.

Warp's builds depend on Warp's version alone, and ours on the sources, so a second run finds them. No GPU is needed, so
folders can be filled elsewhere and copied. Cubins are compressed, because Warp's hold megabytes of names.

    python -m benchmarks.speed.builds        # a compiler process: a job on stdin, one line per kernel on stdout
"""

from __future__ import annotations

import importlib.util
import json
import lzma
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

import warp as wp

from benchmarks.machine import source_digest
from benchmarks.processes import ProcessError, environment, run_json
from benchmarks.runner import DEVICE
from benchmarks.speed import cubin as elf
from benchmarks.speed import occupancy

RECORD = "record.json"
ARCH = 90
_LARGEST_BATCH = 6
_SLOWEST_FIRST = ("warp", "scalar", "native", "tiles")  # sides
_WARP_FUNCTION = re.compile(r"\bdot_\w+")  # a product that Warp builds with cuBLASDx


def import_kernels(path: Path, name: str) -> ModuleType:
    """Import the Python module ``name`` from a file. Warp reads the sources of kernels from it."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Cell(Protocol):
    """A kernel that several sides build; hashable."""

    @property
    def name(self) -> str:
        """The name, which is valid as a file name once spaces are replaced."""

    def text(self, side: str) -> str:
        """Source of the Python module with the kernel, as one side builds it."""


C = TypeVar("C", bound=Cell, covariant=True)


@dataclass(frozen=True)
class Build(Generic[C]):
    """A cell, built by one side.

    Attributes:
        cell: The cell.
        side: ``tiles`` stands for warp_tiles; other sides are Warp alone.
        limits_of: The architecture with whose limits it is planned and launched (:mod:`benchmarks.speed.occupancy`).
        passes: How often its loops by mma.sync multiply each pair of tiles.
        before: The digest of the earlier sources that built it; empty for the present ones.
    """

    cell: C
    side: str
    limits_of: int = ARCH
    passes: int = 1
    before: str = ""

    @property
    def label(self) -> str:
        """Name of its folder."""
        limits = f"_as_sm_{self.limits_of}" if self.limits_of != ARCH else ""
        return self.cell.name.replace(" ", "_") + limits + (f"_passes_{self.passes}" if self.passes > 1 else "")

    @property
    def module(self) -> str:
        """Name of its Python module. Sides and states have different ones: Warp takes equal names for one module."""
        return f"{'before' if self.before else self.side}_{self.label}"

    @property
    def multiplies_whole_arrays(self) -> bool:
        """True if a tape computes gradients of products of whole arrays as these sources do."""
        return self.side == "tiles" and not self.before

    @property
    def text(self) -> str:
        return self.cell.text(self.side)


class BuildStore:
    """The folders of finished builds.

    Args:
        root: Parent of the folders.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def folder(self, build: Build[Cell]) -> Path:
        ours = f"tiles-auto-{build.before or source_digest()}"
        return self.root / (ours if build.side == "tiles" else f"{build.side}-{wp.__version__}") / build.label

    def record(self, build: Build[Cell]) -> dict[str, Any] | None:
        """The record of a build: its time and sizes, or ``error``. None if there is no build yet."""
        try:
            text = (self.folder(build) / RECORD).read_text()
            record: dict[str, Any] = json.loads(text.replace(f"{self.root}{os.sep}", ""))  # messages contain paths
        except FileNotFoundError:
            return None
        return record if self._source(build).read_text() == build.text else None

    def _source(self, build: Build[Cell]) -> Path:
        return self.folder(build) / f"{build.side}_{build.label}.py"

    def machine_code(self, build: Build[Cell]) -> list[bytes]:
        """The ELF sections of the functions of a build; empty if it failed."""
        found = [elf.sections(lzma.decompress(path.read_bytes())) for path in self.folder(build).glob("*.cubin.xz")]
        return [content for sections in found for name, content in sections if name.startswith(".text.")]

    def fill(self, builds: Iterable[Build[Cell]], workers: int) -> None:
        """Build the missing kernels. A process builds kernels of one side with one architecture's limits.

        Args:
            builds: The builds; duplicates are built once.
            workers: Number of parallel processes.
        """
        missing = [build for build in dict.fromkeys(builds) if self.record(build) is None and not build.before]
        batches = []
        for kind in dict.fromkeys((build.side, build.limits_of, build.passes) for build in missing):
            selected = [build for build in missing if (build.side, build.limits_of, build.passes) == kind]
            size = max(1, min(_LARGEST_BATCH, len(selected) // (2 * workers)))
            batches += [selected[start : start + size] for start in range(0, len(selected), size)]
        if not batches:
            return
        batches.sort(key=lambda batch: _SLOWEST_FIRST.index(batch[0].side))
        print(f"building {len(missing)} kernels in {workers} processes", file=sys.stderr, flush=True)
        start, done = time.time(), 0
        with ThreadPoolExecutor(workers) as pool:
            for batch in pool.map(self._run, batches):
                done += len(batch)
                for build in batch:
                    if "error" in (self.record(build) or {"error": ""}):
                        print(f"  {build.module} failed, see {self.folder(build) / RECORD}", file=sys.stderr)
                print(f"  {done} of {len(missing)} in {time.time() - start:.0f} s", file=sys.stderr, flush=True)

    def _run(self, batch: list[Build[Cell]]) -> list[Build[Cell]]:
        side, limits_of, passes = batch[0].side, batch[0].limits_of, batch[0].passes
        caches = self.root / "caches" / (side if limits_of == ARCH else f"{side}_as_sm_{limits_of}")
        items = [{"module": build.module, "folder": str(self.folder(build))} for build in batch]
        for build in batch:
            shutil.rmtree(self.folder(build), ignore_errors=True)
            self.folder(build).mkdir(parents=True)
            self._source(build).write_text(build.text)
        environ = environment(
            WARP_CACHE_PATH=caches,
            WARP_TILES_CACHE_DIR=self.root / "caches" / "lto" if limits_of == ARCH else caches / "lto",
            WARP_TILES_JOBS="1",
        )
        job = {"tiles": side == "tiles", "limits_of": limits_of, "passes": passes, "items": items}
        try:
            run_json([sys.executable, "-m", "benchmarks.speed.builds"], environ, job)
        except ProcessError as error:
            for build in batch:
                if self.record(build) is None:
                    _write(self.folder(build), {"error": f"its process ended: {error}"[-2000:]})
        return batch

    def unpack(self, build: Build[Cell], target: Path) -> Path:
        """Write a finished build into a folder in the form that Warp reads. Returns the Python file of its kernels."""
        source = self._source(build)
        for path in (path for path in source.parent.iterdir() if path.suffix in (".xz", ".meta")):
            packed, name = path.read_bytes(), path.name.removesuffix(".xz").replace(source.stem, build.module)
            (target / name).write_bytes(lzma.decompress(packed) if path.suffix == ".xz" else packed)
        return Path(shutil.copy(source, target / f"{build.module}.py")) if build.before else source


def load_module(store: BuildStore, build: Build[Cell]) -> ModuleType:
    """The Python module of a finished build, whose kernels are loaded on the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        module = import_kernels(store.unpack(build, Path(folder)), build.module)
        wp.load_aot_module(module, device=DEVICE, arch=ARCH, module_dir=folder, strip_hash=True)
    return module


def _write(folder: Path, record: dict[str, Any]) -> None:
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")


def _build_one(name: str, folder: Path, limits_of: int, passes: int) -> dict[str, Any]:
    module = import_kernels(folder / f"{name}.py", name)
    start = time.perf_counter()
    with occupancy.limits_of(limits_of, ARCH), occupancy.multiplying(passes):
        (cubin,) = wp.compile_aot_module(module, arch=ARCH, module_dir=folder, strip_hash=True)
    seconds = time.perf_counter() - start
    data, meta = cubin.read_bytes(), folder / f"wp_{name}.meta"
    metadata = json.loads(meta.read_text())
    kernels = occupancy.resources(data, metadata, wp.get_module(name).options["block_dim"], ARCH)
    if limits_of != ARCH:
        metadata = occupancy.padded(metadata, kernels, limits_of, ARCH)
        meta.write_text(json.dumps(metadata))
    cubin.with_name(cubin.name + ".xz").write_bytes(lzma.compress(data, preset=1))
    cubin.unlink()
    functions = set(_WARP_FUNCTION.findall(next(folder.glob("*.cu")).read_text()))
    return {
        "seconds": round(seconds, 3),
        "cubin_bytes": len(data),
        "cublasdx_functions": len(functions),
        "kernels": {function: asdict(kernel) for function, kernel in kernels.items()},
        "launched_bytes": metadata,
    }


def main() -> None:
    """Build the kernels of the job on stdin, each into its folder."""
    job = json.loads(sys.stdin.read())
    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    if job["tiles"]:
        import warp_tiles

        warp_tiles.enable()
    for item in job["items"]:
        folder = Path(item["folder"])
        try:
            record = _build_one(item["module"], folder, job["limits_of"], job["passes"])
        except Exception as error:
            record = {"error": f"{type(error).__name__}: {error}"[:4000]}
        if job["tiles"]:
            modules = [module for module in warp_tiles.report()["modules"] if module["name"] == item["module"]]
            for part in ("builds", "loops", "memory"):
                record[part] = [found for module in modules for found in module[part]]
        _write(folder, record)
    print(json.dumps(len(job["items"])))


if __name__ == "__main__":
    main()
