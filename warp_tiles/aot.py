"""Plans into files, for build systems: one JSON file per variant, LTO-IR from each, one bundle of all.

    python -m warp_tiles.aot variants --manifest plan.json --archs "80;90" --folder DIR
    python -m warp_tiles.aot build DIR/SYMBOL.json -o DIR/SYMBOL.ltoir --depfile DIR/SYMBOL.d
    python -m warp_tiles.aot pack DIR/index.json -o warp_tiles_bundle.tar

``CMakeLists.txt`` calls these. Files are rewritten only if their content changed, so that a build
system rebuilds only what depends on a change. A bundle holds what :class:`~warp_tiles.engine.Engine`
would have stored, under the same keys.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warp_tiles.cache import BundleReport, Cache, CacheKey
from warp_tiles.compiler import compile_to_ltoir, guarded
from warp_tiles.dispatch import MIN_ARCH, TF32_MIN_ARCH
from warp_tiles.errors import BuildError, CacheError, PlanError, SettingError, ToolchainError
from warp_tiles.files import write_atomic
from warp_tiles.planning import PlannedVariant
from warp_tiles.providers import CublasdxProvider
from warp_tiles.providers.cublasdx import kernels_folder
from warp_tiles.toolchain import ToolchainStore, dotted, search_state
from warp_tiles.variant import GemmVariant, Role

SCHEMA = 1
SOURCES = ("cublasdx/gemm.cuh",)  # below kernels/: what translation units include
INDEX_NAME = "index.json"
_NO_LIMIT_BYTES = 2**62
_PLAN_AGAIN = "make it with `warp-tiles plan SCRIPT --json`, of this version of warp-tiles"
_CONFIGURE_AGAIN = "configure again: cmake -S ... -B ..."
_PLAN_FIELDS = frozenset(PlannedVariant(None, Role.FORWARD, "", "", (), True, "").to_json())
# modules that decide the source text, the options or the key of a variant
_DECIDING_MODULES = tuple(Path(__file__).parent / n for n in ("variant.py", "compiler.py", "providers/cublasdx.py"))


@dataclass(frozen=True)
class Selection:
    """What a manifest asks to build.

    Attributes:
        variants: Each once, in the order of first mention.
        notes: What the user should hear, e.g. what was left out and why.
    """

    variants: tuple[GemmVariant, ...]
    notes: tuple[str, ...] = ()


# ---- from the manifest to variants


def parse_archs(text: str) -> tuple[int, ...]:
    """Compute capabilities from a list such as ``80;90``; an empty one means those of the plan.

    Raises:
        SettingError: An entry is not a number, or older than any that is built for.
    """
    archs: dict[int, None] = {}
    for entry in text.replace(";", " ").replace(",", " ").split():
        if not (entry.isascii() and entry.isdigit() and len(entry) < 6):
            raise SettingError(
                f"WARP_TILES_ARCHS is {text!r}, of which {entry!r} is not a compute capability",
                remedy='give numbers, e.g. -DWARP_TILES_ARCHS="80;90" for sm_80 and sm_90',
            )
        if int(entry) < MIN_ARCH:
            raise SettingError(
                f"WARP_TILES_ARCHS is {text!r}, but cuBLASDx code is not built for sm_{entry}",
                remedy=f"give {MIN_ARCH} or newer; older GPUs take Warp's scalar path, which needs no bundle",
            )
        archs[int(entry)] = None
    return tuple(archs)


def read_manifest(path: Path) -> Any:
    """The JSON of a manifest.

    Raises:
        PlanError: The file cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise PlanError(
            f"the manifest {path} cannot be read: {error.strerror or error}",
            remedy=f"give -DWARP_TILES_MANIFEST the path of a plan; {_PLAN_AGAIN}",
        ) from error
    except ValueError as error:
        raise PlanError(f"the manifest {path} is not JSON: {error}", remedy=_PLAN_AGAIN) from error


def select(manifest: Any, archs: Sequence[int] = ()) -> Selection:
    """The variants that a manifest needs from cuBLASDx.

    Args:
        manifest: What ``warp-tiles plan --json`` prints.
        archs: Targets of every variant, in place of the plan's own.

    Raises:
        PlanError: The manifest is malformed; the message says where.
    """
    variants: dict[GemmVariant, None] = {}
    notes: dict[str, None] = {}
    for where, data in _rows(manifest):
        variant = _variant_of(where, data)
        if variant is None:
            continue
        if data["provider"] != CublasdxProvider.name:
            notes[
                f"{variant.describe()} is left out: it was planned for the provider {data['provider']!r} "
                f"({data.get('reason', 'no reason given')})"
            ] = None
            continue
        for arch in archs or (variant.arch,):
            if arch < MIN_ARCH:
                raise PlanError(
                    f"{where} is for sm_{arch}, but cuBLASDx code is built for sm_{MIN_ARCH} and newer",
                    remedy="plan with --arch, or set WARP_TILES_ARCHS",
                )
            variants[for_arch(variant, arch)] = None
            single = {variant.a.dtype, variant.b.dtype, variant.c.dtype} == {"float32"}
            if single and variant.arch < TF32_MIN_ARCH <= arch:
                notes[
                    f"the plan is for sm_{variant.arch}, which has no tf32: a product that asks for tf32 is built "
                    f"in float32 for sm_{arch} and compiled again at run time; plan with --arch {arch}"
                ] = None
    return Selection(tuple(variants), tuple(notes))


def for_arch(variant: GemmVariant, arch: int) -> GemmVariant:
    """The same product for another target, by the rules of :func:`warp_tiles.dispatch.products`."""
    return replace(variant, arch=arch, precision="default" if arch < TF32_MIN_ARCH else variant.precision)


def _rows(manifest: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    """Every variant of a manifest with its place."""
    for number, module in enumerate(_list_in(manifest, "modules", "the manifest")):
        where = f"modules[{number}]"
        for index, data in enumerate(_list_in(module, "variants", where)):
            if not isinstance(data, dict):
                raise _malformed(f"{where}.variants[{index}] is not an object")
            yield f"{where}.variants[{index}]", data


def _list_in(data: Any, name: str, where: str) -> list[Any]:
    if not isinstance(data, dict) or not isinstance(data.get(name), list):
        raise _malformed(f"{where} is not an object with a list {name!r}")
    found: list[Any] = data[name]
    return found


def _malformed(what: str) -> PlanError:
    return PlanError(f"the manifest is malformed: {what}", remedy=_PLAN_AGAIN)


def _variant_of(where: str, data: dict[str, Any]) -> GemmVariant | None:
    """The variant of a row, or None if nothing is to be built for it."""
    unknown = sorted(set(data) - _PLAN_FIELDS)
    if unknown:
        raise _malformed(f"{where} has the unknown field {', '.join(map(repr, unknown))}")
    if not isinstance(data.get("needed"), bool) or not isinstance(data.get("provider"), str):
        raise _malformed(f"{where} has no truth value 'needed' or no text 'provider'")
    if not data["needed"] or data.get("m", 0) is None:
        return None
    try:
        variant = GemmVariant.from_json(data)
    except ValueError as error:
        raise _malformed(f"{where} is {error}") from error
    if data.get("symbol", variant.symbol) != variant.symbol:
        raise _malformed(f"{where} has the symbol {data['symbol']!r:.120}, its sizes say {variant.symbol!r}")
    return variant


# ---- files for the build system


def known_targets(store: ToolchainStore) -> tuple[int, ...]:
    """Compute capabilities that the compiler knows, of those that cuBLASDx code is built for.

    Raises:
        ToolchainError: There is no compiler.
    """
    store.toolchain()
    from cuda.bindings import nvrtc

    status, known = nvrtc.nvrtcGetSupportedArchs()
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise ToolchainError(f"NVRTC does not name its targets: {status!r}", remedy="run `warp-tiles doctor`")
    return tuple(arch for arch in known if arch >= MIN_ARCH)


def write_variants(folder: Path, variants: Sequence[GemmVariant], store: ToolchainStore) -> tuple[str, ...]:
    """Write one file per variant, and the index that :func:`pack` reads.

    A file names the variant's cache key, so it changes when compiler, headers or options do.

    Returns:
        The symbols, in the order of the variants.

    Raises:
        ToolchainError: There is no toolchain, or it does not know a target.
    """
    known = known_targets(store)
    for arch in sorted({variant.arch for variant in variants} - set(known)):
        raise ToolchainError(
            f"NVRTC {dotted(store.toolchain().nvrtc_version)} does not compile for sm_{arch}",
            remedy=f"choose WARP_TILES_ARCHS among {', '.join(map(str, known))}, or install another NVRTC",
        )
    provider = CublasdxProvider(store)
    folder.mkdir(parents=True, exist_ok=True)
    for variant in variants:
        data = {"schema": SCHEMA, "variant": variant.to_json(), "key": provider.key(variant).digest}
        _write_if_changed(folder / f"{variant.symbol}.json", data)
    symbols = tuple(variant.symbol for variant in variants)
    _write_if_changed(folder / INDEX_NAME, {"schema": SCHEMA, "variants": list(symbols)})
    return symbols


def kernel_sources(store: ToolchainStore) -> dict[str, Path]:
    """Files of ``kernels/`` that a translation unit can include, by their name below it.

    Raises:
        ToolchainError: There is no toolchain.
    """
    top = kernels_folder().resolve()
    found = {path.resolve() for source in SOURCES for path in store.closure(top / source).values()}
    return {path.relative_to(top).as_posix(): path for path in sorted(found) if path.is_relative_to(top)}


def watched(store: ToolchainStore) -> list[str]:
    """Files and folders whose change can change keys: the variants have to be written again.

    Folders of installed packages are among them: a package manager may give new files old times.

    Raises:
        ToolchainError: There is no toolchain.
    """
    packages = [Path(entry) for entry, status in search_state()[2] if status is not None]
    found = [*kernel_sources(store).values(), *_DECIDING_MODULES, *store.toolchain().libraries.values(), *packages]
    return sorted({os.path.abspath(path) for path in found})


def _write_if_changed(path: Path, data: Mapping[str, Any]) -> None:
    text = (json.dumps(data, indent=2) + "\n").encode("utf-8")
    try:
        if path.read_bytes() == text:
            return
    except FileNotFoundError:
        pass
    write_atomic(path, text, 0o644)


def _read(path: Path, *fields: str) -> list[Any]:
    """Fields of a file that this module wrote."""
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["schema"] == SCHEMA:
            return [data[name] for name in fields]
        problem = f"its schema is {data['schema']!r}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise PlanError(f"{path} is not usable: {problem}", remedy=_CONFIGURE_AGAIN)


# ---- compile and pack


def build(description: Path, output: Path, store: ToolchainStore, *, fallback: bool = True) -> str:
    """Compile one variant to ``output``, and write its entry for the cache to ``output`` + ``.json``.

    As in the engine, a variant that the compiler refuses is built without its promise about
    alignment, under the key that the engine looks up then.

    Args:
        description: File of :func:`write_variants`.
        output: LTO-IR file to write.
        store: Toolchain.
        fallback: Whether the weaker variant may be built.

    Returns:
        What the user should hear; empty if the variant was built as asked.

    Raises:
        BuildError: The compiler refused the variant; its log is attached.
        ToolchainError: There is no toolchain.
        PlanError: The description is damaged.
    """
    (data,) = _read(description, "variant")
    try:
        variant = GemmVariant.from_json(data)
    except ValueError as error:
        raise PlanError(f"{description} is not usable: {error}", remedy=_CONFIGURE_AGAIN) from error
    weaker = variant.without_alignment()
    try:
        _build_exactly(variant, output, store)
    except BuildError as error:
        if not fallback or weaker == variant:
            raise
        try:
            _build_exactly(weaker, output, store)
        except BuildError:
            raise error from None
        return f"{variant.describe()}: refused with its alignment, built without"
    return ""


def _build_exactly(variant: GemmVariant, output: Path, store: ToolchainStore) -> None:
    provider = CublasdxProvider(store)
    key = provider.key(variant)  # before compiling: a header edited meanwhile then costs a rebuild, not a wrong key
    compiled = guarded(compile_to_ltoir, provider.request(variant))
    info = provider.manifest(variant, compiled)
    sha256 = hashlib.sha256(compiled.payload).hexdigest()
    entry = {"schema": SCHEMA, "key": key.transcript, "payload_sha256": sha256, "info": info}
    write_atomic(entry_path(output), json.dumps(entry).encode("utf-8"), 0o644)
    write_atomic(output, compiled.payload, 0o644)


def entry_path(ltoir: Path) -> Path:
    """The file beside LTO-IR that holds its key and what the cache keeps with it."""
    return ltoir.with_name(ltoir.name + ".json")


def write_depfile(path: Path, output: Path, store: ToolchainStore) -> None:
    """Name everything that ``output`` was made from in the syntax of make.

    Raises:
        ToolchainError: There is no toolchain.
    """
    headers = [path for source in SOURCES for path in store.closure(kernels_folder() / source).values()]
    inputs = [*headers, *store.toolchain().libraries.values(), *_DECIDING_MODULES]
    lines = sorted({_make_escaped(os.path.abspath(file)) for file in inputs})
    rule = " \\\n  ".join([f"{_make_escaped(os.path.abspath(output))}:", *lines]) + "\n"
    write_atomic(path, rule.encode("utf-8"), 0o644)


def _make_escaped(path: str) -> str:
    return path.replace("\\", "/").replace("$", "$$").replace("#", "\\#").replace(" ", "\\ ")


def pack(index: Path, bundle: Path) -> BundleReport:
    """Pack the LTO-IR of an index, which lies beside it, into a bundle for ``warp-tiles cache import``.

    Raises:
        CacheError: A file is missing or was changed, or the bundle cannot be written.
        PlanError: The index or an entry is damaged.
    """
    (symbols,) = _read(index, "variants")
    bundle.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".warp_tiles-", dir=bundle.parent) as root:
        cache = Cache(Path(root), max_bytes=_NO_LIMIT_BYTES)
        for symbol in symbols:
            _store(cache, index.parent / f"{symbol}.ltoir")
        report = cache.export_bundle(bundle)
    # temporary files are the owner's alone; a bundle is for others to read, as far as the umask lets them
    mask = os.umask(0o077)
    os.umask(mask)
    bundle.chmod(0o666 & ~mask)
    return report


def _store(cache: Cache, ltoir: Path) -> None:
    transcript, sha256, info = _read(entry_path(ltoir), "key", "payload_sha256", "info")
    remedy = "remove it and build again"
    try:
        payload = ltoir.read_bytes()
        key = CacheKey.from_transcript(transcript)
    except (OSError, ValueError) as error:
        raise CacheError(f"{ltoir} cannot be packed: {error}", remedy=remedy) from error
    if hashlib.sha256(payload).hexdigest() != sha256:
        raise CacheError(f"{ltoir} was changed after it was built", remedy=remedy)
    cache.put(key, payload, info)
    if cache.problems:
        problem = cache.problems[-1]
        raise CacheError(f"{ltoir} cannot be packed: {problem}", remedy="check that the build folder has space")


if __name__ == "__main__":
    from warp_tiles.cli.emit import main

    main()
