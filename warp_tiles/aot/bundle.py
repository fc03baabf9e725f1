"""Builds a plan through files, for build systems: one JSON file per function, its LTO-IR, and one bundle of all.

    python -m warp_tiles.aot variants --manifest plan.json --archs "80;90" --folder DIR
    python -m warp_tiles.aot build DIR/NAME.json -o DIR/NAME.ltoir --depfile DIR/NAME.d
    python -m warp_tiles.aot pack DIR/index.json -o warp_tiles_bundle.tar

``CMakeLists.txt`` calls these commands. A file is rewritten only if its content changed, so that a build
system rebuilds only what depends on a change. A bundle holds the same entries under the same keys as
:class:`~warp_tiles.build.engine.Engine` would store.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from warp_tiles.aot.manifest import Job
from warp_tiles.cache import BundleReport, Cache, CacheKey
from warp_tiles.cli.output import output_errors
from warp_tiles.compile.compiler import compile_to_ltoir, guarded
from warp_tiles.errors import BuildError, CacheError, PlanError, ToolchainError
from warp_tiles.gemm.hardware import MIN_ARCH
from warp_tiles.providers.cublasdx import CublasdxProvider
from warp_tiles.providers.mma import MmaProvider
from warp_tiles.providers.nvrtc import NvrtcProvider
from warp_tiles.providers.solver import SolverProvider
from warp_tiles.toolchain import sources
from warp_tiles.toolchain.packages import load_library
from warp_tiles.toolchain.search import dotted
from warp_tiles.toolchain.sources import code_modules
from warp_tiles.toolchain.store import ToolchainStore, search_state
from warp_tiles.util.files import read_json, read_whole, write_output

SCHEMA = 2
ProviderClass = type[NvrtcProvider[Any, Any]]
PROVIDERS: tuple[ProviderClass, ...] = (MmaProvider, SolverProvider, CublasdxProvider)
INDEX_NAME = "index.json"
_NO_LIMIT_BYTES = 2**62
_CONFIGURE_AGAIN = "configure again: cmake -S ... -B ..."


def provider_class(job: Job) -> ProviderClass:
    """The provider of a job.

    Raises:
        ValueError: No provider of that name builds such variants ahead of time.
    """
    for provider in PROVIDERS:
        if provider.name == job.provider and isinstance(job.variant, provider.serves):
            return provider
    raise ValueError(f"no provider {job.provider!r} builds {job.variant.describe()} ahead of time")


# ---- files for the build system


def known_targets(store: ToolchainStore) -> tuple[int, ...]:
    """Compute capabilities that the compiler knows and that functions are built for.

    Raises:
        ToolchainError: There is no compiler.
    """
    store.toolchain()
    load_library("nvrtc")  # the store may know it without having loaded it
    from cuda.bindings import nvrtc

    status, known = nvrtc.nvrtcGetSupportedArchs()
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise ToolchainError(f"NVRTC does not list its targets: {status!r}", remedy="run `warp-tiles doctor`")
    return tuple(arch for arch in known if arch >= MIN_ARCH)


def write_variants(folder: Path, jobs: Sequence[Job], store: ToolchainStore) -> tuple[str, ...]:
    """Write one file per function, and the index that :func:`pack` reads.

    A file holds the function's cache key, so it changes with the compiler, the headers and the options.

    Returns:
        The file names without suffix, in the order of the jobs.

    Raises:
        ToolchainError: There is no toolchain, or it does not know a target.
    """
    known = known_targets(store)
    for arch in sorted({job.variant.arch for job in jobs} - set(known)):
        raise ToolchainError(
            f"NVRTC {dotted(store.toolchain().nvrtc_version)} does not compile for sm_{arch}",
            remedy=f"choose WARP_TILES_ARCHS among {', '.join(map(str, known))}, or install another NVRTC",
        )
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        key = provider_class(job)(store).key(job.variant, job.tile_config)
        _write_if_changed(folder / f"{job.name}.json", {"schema": SCHEMA, "job": job.to_json(), "key": key.digest})
    names = tuple(job.name for job in jobs)
    _write_if_changed(folder / INDEX_NAME, {"schema": SCHEMA, "variants": list(names)})
    return names


def kernel_sources(store: ToolchainStore, providers: Iterable[ProviderClass] = PROVIDERS) -> dict[str, Path]:
    """Files of ``kernels/`` that the translation units of some providers can include, by relative path.

    Raises:
        ToolchainError: Headers of a provider are missing.
    """
    top = sources.kernels_folder().resolve()
    found = {path.resolve() for made in providers for path in store.closure(made(store).source()).values()}
    return {path.relative_to(top).as_posix(): path for path in sorted(found) if path.is_relative_to(top)}


def watched(store: ToolchainStore, providers: Iterable[ProviderClass] = PROVIDERS) -> list[str]:
    """Files and folders whose change can change keys, so that the variants have to be written again.

    Folders of installed packages are included, because a package manager may give new files old times.

    Raises:
        ToolchainError: There is no toolchain.
    """
    packages = [Path(entry) for entry, status in search_state()[2] if status is not None]
    kernels = kernel_sources(store, providers).values()
    found = [*kernels, *code_modules().values(), *store.toolchain().libraries.values(), *packages]
    return sorted({os.path.abspath(path) for path in found})


def _write_if_changed(path: Path, data: Mapping[str, Any]) -> None:
    text = (json.dumps(data, indent=2) + "\n").encode("utf-8")
    with suppress(OSError):  # missing, larger than the text, or no regular file
        if read_whole(path, len(text))[0] == text:
            return
    _write(path, text)


def _write(path: Path, data: bytes) -> None:
    with output_errors(path):
        write_output(path, data)


def _read(path: Path, *fields: str) -> list[Any]:
    """Read fields of a file of this module."""
    try:
        data = read_json(path)
        if data["schema"] == SCHEMA:
            return [data[name] for name in fields]
        problem = f"its schema is {data['schema']!r}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise PlanError(f"{path} is not usable: {problem}", remedy=_CONFIGURE_AGAIN)


# ---- compile and pack


def read_job(description: Path) -> Job:
    """Read the job in a file of :func:`write_variants`.

    Raises:
        PlanError: The file is damaged.
    """
    (data,) = _read(description, "job")
    try:
        job = Job.from_json(data)
        provider_class(job)
    except ValueError as error:
        raise PlanError(f"{description} is not usable: {error}", remedy=_CONFIGURE_AGAIN) from error
    return job


def build(job: Job, output: Path, store: ToolchainStore, *, fallback: bool = True) -> str:
    """Compile one function to ``output``, and write its entry for the cache to ``output`` + ``.json``.

    If the compiler rejects the function, it is built with the provider's weaker promises, if there are
    any. As in the engine, it then has the key of the weaker variant.

    Args:
        job: The function to build.
        output: LTO-IR file to write.
        store: Toolchain.
        fallback: True to try weaker promises.

    Returns:
        A warning for the user; empty if the function was built as planned.

    Raises:
        BuildError: The compiler rejected it. Its log is attached.
        ToolchainError: There is no toolchain.
    """
    try:
        _build_exactly(job, output, store)
        return ""
    except BuildError:
        recipes = provider_class(job)(store).recipes(job.variant) if fallback else ()
        for recipe in recipes:
            if recipe.variant == job.variant:
                continue
            try:
                _build_exactly(replace(job, variant=recipe.variant), output, store)
            except BuildError:
                continue
            return f"{job.variant.describe()}: not built as planned, built by {recipe.title}"
        raise


def _build_exactly(job: Job, output: Path, store: ToolchainStore) -> None:
    provider = provider_class(job)(store)
    # the key is taken first: if a header changes during the compilation, the result is a rebuild and not a wrong key
    key = provider.key(job.variant, job.tile_config)
    compiled = guarded(compile_to_ltoir, provider.request(job.variant, job.tile_config))
    info = provider.manifest(job.variant, compiled, job.tile_config)
    sha256 = hashlib.sha256(compiled.payload).hexdigest()
    entry = {"schema": SCHEMA, "key": key.transcript, "payload_sha256": sha256, "info": info}
    _write(entry_path(output), json.dumps(entry).encode("utf-8"))
    _write(output, compiled.payload)


def entry_path(ltoir: Path) -> Path:
    """The file beside LTO-IR that holds its key and the other facts of its cache entry."""
    return ltoir.with_name(ltoir.name + ".json")


def write_depfile(path: Path, job: Job, output: Path, store: ToolchainStore) -> None:
    """Write a depfile in the syntax of make, with all inputs of ``output``.

    Raises:
        ToolchainError: There is no toolchain.
    """
    headers = store.closure(provider_class(job)(store).source()).values()
    inputs = [*headers, *store.toolchain().libraries.values(), *code_modules().values()]
    lines = sorted({_escape_for_make(os.path.abspath(file)) for file in inputs})
    rule = " \\\n  ".join([f"{_escape_for_make(os.path.abspath(output))}:", *lines]) + "\n"
    _write(path, rule.encode("utf-8"))


def _escape_for_make(path: str) -> str:
    return path.replace("\\", "/").replace("$", "$$").replace("#", "\\#").replace(" ", "\\ ")


def pack(index: Path, bundle: Path) -> BundleReport:
    """Pack the LTO-IR beside an index into a bundle for ``warp-tiles cache import``.

    Raises:
        CacheError: A file is missing or has changed, or the bundle cannot be written.
        PlanError: The index or an entry is damaged.
    """
    (names,) = _read(index, "variants")
    bundle.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".warp_tiles-", dir=bundle.parent) as root:
        cache = Cache(Path(root), max_bytes=_NO_LIMIT_BYTES)
        for name in names:
            _store(cache, index.parent / f"{name}.ltoir")
        return cache.export_bundle(bundle)


def _store(cache: Cache, ltoir: Path) -> None:
    transcript, sha256, info = _read(entry_path(ltoir), "key", "payload_sha256", "info")
    remedy = "remove it and build again"
    try:
        payload = ltoir.read_bytes()
        key = CacheKey.from_transcript(transcript)
    except (OSError, ValueError) as error:
        raise CacheError(f"{ltoir} cannot be packed: {error}", remedy=remedy) from error
    if hashlib.sha256(payload).hexdigest() != sha256:
        raise CacheError(f"{ltoir} has changed after it was built", remedy=remedy)
    cache.put(key, payload, info)
    if cache.problems:
        problem = cache.problems[-1]
        raise CacheError(f"{ltoir} cannot be packed: {problem}", remedy="check that the build folder has space")
