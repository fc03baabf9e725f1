"""The toolchain and digests of its files, stored beside the cache; in a bundle, those of the machine that made it.

A fact is stored under the state of all that decides about it, so it is found as long as that state is equal: the search
for the toolchain under the state of the search path, the includes of a source under that of its folders.

A compiler library of 90 MB takes 50 ms to hash and hardly ever changes. So digests are stored under the files' status.
A digest is taken again when path, size, modification or change time, inode or device differ. A program cannot set the
change time, so a replacement under the old modification time is detected.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from warp_tiles.compile.find import Toolchain, Version, find_toolchain, search_path
from warp_tiles.compile.sources import DeviceSource, include_closure, kernels_folder
from warp_tiles.errors import BundleError, SettingError, ToolchainError, shown, suppressed, unless_signalled
from warp_tiles.settings import Settings
from warp_tiles.store import TOOLCHAIN, TOOLCHAIN_FACTS, absolute, is_digest
from warp_tiles.store.documents import DamagedError, parse_object, sealed_documents
from warp_tiles.store.key import CacheKey, Entry, Manifest
from warp_tiles.util.files import sha256_of as _hash_file
from warp_tiles.util.version import __version__

if TYPE_CHECKING:
    from warp_tiles.store.bundle import Bundle

T = TypeVar("T")
#: A file that changed this recently may change again within one clock tick, so its digest is not stored.
SETTLE_NS = 2_000_000_000
_DIGEST = "digest"
_SEARCH_VARIABLES = ("CUDA_HOME", "CUDA_PATH", "MATHDX_HOME", "CONDA_PREFIX", "LD_LIBRARY_PATH")


class FileFacts:
    """Facts about files, first of all their SHA-256, cached between processes.

    If the folder is damaged or not writable, only time is lost. The facts are for this user alone, also if the root is
    ``shared`` with others.
    """

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        self._documents = sealed_documents(absolute(root), TOOLCHAIN_FACTS, shared=shared)
        self._digests: dict[str, str] = {}  # by name

    @property
    def is_empty(self) -> bool:
        """True if no digest is stored, as at the first use on a machine."""
        if self._digests:
            return False
        with suppressed(OSError):
            return not any(name.startswith(f"{_DIGEST}-") for name in self._documents.names())
        return True

    def read(self, name: str, rebuild: Callable[[Any], T]) -> T | None:
        """A stored fact; None if it is missing, or if ``rebuild`` refuses its form by one of Python's errors."""
        try:
            return rebuild((self._documents.read(name) or {})["value"])
        except (LookupError, TypeError, ValueError, AttributeError):
            return None

    def write(self, name: str, value: object) -> None:
        self._documents.write(name, {"value": value})

    def digest(self, path: str | os.PathLike[str]) -> str:
        """SHA-256 of one file, hex. Raises OSError if the file cannot be read."""
        return self._digest("file", {"": path}, lambda paths: _hash_file(paths[""]))

    def digest_many(self, files: Mapping[str, str | os.PathLike[str]]) -> str:
        """One SHA-256 over the names and contents of several files, hex. Their order and folders do not count."""
        return self._digest("group", files, _hash_group)

    def digest_folder(self, folder: Path, pattern: str) -> str:
        """:meth:`digest_many` of the files below a folder that match a pattern; empty if there are none."""
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob(pattern)}
        return self.digest_many(files) if files else ""

    def _digest(
        self,
        kind: str,
        files: Mapping[str, str | os.PathLike[str]],
        take: Callable[[Mapping[str, str | os.PathLike[str]]], str],
    ) -> str:
        name, newest_ns = _named(kind, files)
        digest = self._digests.get(name) or self.read(name, _as_digest)
        if digest is None:
            digest = take(files)
            if _named(kind, files)[0] != name or time.time_ns() - newest_ns <= SETTLE_NS:
                return digest
            self.write(name, digest)
        self._digests[name] = digest
        return digest


def _as_digest(value: str) -> str:
    if not is_digest(value):
        raise ValueError("it is no digest")
    return value


def fact_name(kind: str, state: object) -> str:
    return f"{kind}-{hashlib.sha256(repr(state).encode('utf-8', 'surrogatepass')).hexdigest()}"


def _named(kind: str, files: Mapping[str, str | os.PathLike[str]]) -> tuple[str, int]:
    """The name of the digest of files in their present status, and the newest of their change times."""
    rows: tuple[tuple[Any, ...], ...] = tuple(
        (name, os.fspath(files[name]), *_state(os.stat(files[name]))) for name in sorted(files)
    )
    return _digest_name(kind, rows), max((row[4] for row in rows), default=0)


@lru_cache(maxsize=64)  # each module's hash asks for the same hundreds of files
def _digest_name(kind: str, rows: tuple[tuple[Any, ...], ...]) -> str:
    return fact_name(_DIGEST, (kind, rows))


def _hash_group(files: Mapping[str, str | os.PathLike[str]]) -> str:
    hasher = hashlib.sha256(b"warp_tiles file group\0")
    for name in sorted(files):
        label = name.encode("utf-8", "surrogatepass")
        hasher.update(len(label).to_bytes(8, "big") + label + bytes.fromhex(_hash_file(files[name])))
    return hasher.hexdigest()


def _state(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def _stat(path: str) -> list[int] | None:
    try:
        return _state(os.stat(path))
    except unless_signalled(OSError):
        return None


def files_state(toolchain: Toolchain) -> list[Any]:
    """The state of the compiler, the linker and the folders of headers, which changes when they are replaced."""
    return [_stat(os.fspath(path)) for path in (*toolchain.paths, *toolchain.include_dirs)]


def search_state() -> list[Any]:
    """The inputs of the search. They change when a package is installed or removed."""
    # other folders of the path, such as the script's, change for unrelated reasons
    path = search_path()
    packages = [entry for entry in path if os.path.isdir(os.path.join(entry, "nvidia"))]
    packages += [entry for entry in path if entry.endswith(("site-packages", "dist-packages"))]
    folders = [[entry, _stat(entry)] for entry in dict.fromkeys(packages)]
    return [sys.version, [[name, os.environ.get(name)] for name in _SEARCH_VARIABLES], folders]


class ToolchainFacts:
    """The toolchain that goes with the CUDA version of Warp, and digests of its files, as stored facts."""

    def __init__(self, root: Path, *, shared: bool = False, warp_toolkit: Version | None = None) -> None:
        self.warp_toolkit = warp_toolkit
        self.digests = FileFacts(root, shared=shared)
        self._toolchain: Toolchain | None = None
        self._closures: dict[DeviceSource, dict[str, str]] = {}

    def toolchain(self) -> Toolchain:
        """The toolchain of this environment. Raises what :func:`find_toolchain` raises."""
        if self._toolchain is None:  # several threads may search at once; each stores a complete result
            name = fact_name("toolchain", [self.warp_toolkit, search_state()])
            toolchain = self.digests.read(name, _current_toolchain)
            if toolchain is None:
                toolchain = find_toolchain(self.warp_toolkit)
                # a toolkit can add headers without changing the state, and a lack of memory hides the linker
                if toolchain.missing_headers is None and toolchain.nvjitlink is not None:
                    value = {"toolchain": toolchain.to_json(), "files": files_state(toolchain)}
                    self.digests.write(name, value)
            self._toolchain = toolchain
        return self._toolchain

    def try_toolchain(self) -> Toolchain | None:
        try:
            return self.toolchain()
        except ToolchainError:
            return None

    def compiler_digest(self) -> str:
        """SHA-256 over the compiler's library files. Raises a ToolchainError if there is none."""
        return self.digests.digest_many(self.toolchain().libraries)

    def linker_digest(self) -> str:
        """SHA-256 of the linker's library; empty if there is none. Raises a ToolchainError without a toolchain."""
        linker = self.toolchain().nvjitlink
        return self.digests.digest(linker) if linker is not None else ""

    def source_digest(self, source: DeviceSource) -> str:
        """SHA-256 over a device source and every header that it can include."""
        return self.digests.digest_many(self.closure(source))

    def closure(self, source: DeviceSource) -> dict[str, str]:
        """:func:`~warp_tiles.compile.sources.include_closure` of a device source, with paths as text; it is stored.

        Path objects of hundreds of headers would take time.
        """
        if (known := self._closures.get(source)) is not None:
            return known
        folders = [os.fspath(folder) for folder in source.include_dirs]
        own = sorted(str(path) for path in source.folder.rglob("*") if path.is_file())
        state = [str(source.path), search_state(), [[path, _stat(path)] for path in (*folders, *own)]]
        name = fact_name("closure", state)
        closure = self.digests.read(name, lambda value: {str(label): os.fspath(path) for label, path in value.items()})
        if closure is None:
            closure = {label: str(path) for label, path in include_closure(source.path, source.include_dirs).items()}
            self.digests.write(name, closure)
        self._closures[source] = closure
        return closure


def _current_toolchain(value: Any) -> Toolchain:
    """A stored toolchain. Raises a ValueError if it was replaced or removed in place, which changes no package."""
    toolchain = Toolchain.from_json(value["toolchain"])
    if value["files"] != files_state(toolchain):
        raise ValueError("its files have changed")
    return toolchain


# ---- the toolchain of the machine that made a bundle, for machines that build nothing

_FACTS_KEY = CacheKey.of({"kind": "facts about a toolchain"})
_SCHEMA = 1
AGAIN = "make the bundle again with `warp-tiles bundle`"


def facts_entry(settings: Settings, here: ToolchainFacts, sources: Iterable[DeviceSource]) -> Entry:
    """What a bundle says about the machine that made it: what keys contain, without names of this machine's folders."""
    toolchain = here.toolchain()
    linker = "nvjitlink" if toolchain.nvjitlink is not None else None
    without_folders: dict[str, Any] = {"nvrtc": "nvrtc", "nvjitlink": linker, "include_dirs": [], "passed_over": []}
    facts = {
        "toolchain": {
            "schema": _SCHEMA,
            "toolchain": toolchain.to_json() | without_folders,
            "compiler": here.compiler_digest(),
            "linker": here.linker_digest(),
            "sources": {_label(source): here.source_digest(source) for source in sources},
        },
        "versions": _versions(),
        "settings": settings.affecting_code(),  # a bundle serves machines that agree with it
    }
    data = json.dumps(facts, sort_keys=True).encode("utf-8")
    return Entry(data, Manifest.describe(_FACTS_KEY, data, {}))


def _facts_of(bundle: Bundle) -> dict[str, Any]:
    """The facts in a bundle. Raises a BundleError if there are none that a trusted key signed."""
    facts = bundle.read(TOOLCHAIN, _FACTS_KEY.digest).payload
    with suppress(DamagedError):
        return parse_object(facts)
    return {}


def _versions() -> dict[str, str]:
    import warp

    return {"warp": warp.__version__, "warp_tiles": __version__}


def open_bundle(settings: Settings) -> Bundle:
    """Open the bundle of some settings. Raises a SettingError unless the policy is ``locked``.

    Raises a BundleError if it cannot be used, or was made with other versions or settings.
    """
    from warp_tiles.store.bundle import Bundle
    from warp_tiles.store.keys import trusted_by

    assert settings.bundle is not None
    if settings.rules.builds:
        raise SettingError(
            f"{settings.named('policy')} is {settings.policy!r}, and with a bundle nothing is built",
            remedy=settings.remedy("policy", "locked"),
        )
    bundle = Bundle(settings.bundle, trusted_by(settings))
    try:
        facts = _facts_of(bundle)
        for name, version in _versions().items():
            made_with = facts.get("versions", {}).get(name)
            if made_with != version:
                raise BundleError(
                    f"the bundle {settings.bundle} was made with {name} {made_with!s:.40}, and this is {version}",
                    remedy=f"install that version, or {AGAIN}",
                )
        for name, value in facts.get("settings", {}).items():
            if (here := settings.affecting_code().get(name, value)) != value:
                raise BundleError(
                    f"the bundle {settings.bundle} was made with {name}={value!s:.40}, "
                    f"and {settings.named(name)} is {here}",
                    remedy=f"{settings.remedy(name, str(value))}, or {AGAIN}",
                )
    except BaseException:
        bundle.close()
        raise
    return bundle


def _label(source: DeviceSource) -> str:
    return source.path.resolve().relative_to(kernels_folder().resolve()).as_posix()


class BundledFacts(ToolchainFacts):
    """The toolchain of the machine that made a bundle, known by its facts alone. Nothing can be compiled with it."""

    def __init__(self, bundle: Bundle, root: Path, *, shared: bool) -> None:
        super().__init__(root, shared=shared)
        try:
            facts = _facts_of(bundle)["toolchain"]
            if facts["schema"] != _SCHEMA:
                raise ValueError(f"facts of schema {shown(facts['schema'], 40)}")
            self._toolchain = Toolchain.from_json(facts["toolchain"])  # its paths lead nowhere
            self._compiler, self._linker = str(facts["compiler"]), str(facts["linker"])
            self._sources = {str(label): str(digest) for label, digest in facts["sources"].items()}
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            reason = f"its facts about the toolchain are no facts of this version: {shown(error, 100)}"
            raise BundleError(f"the bundle {bundle.path} cannot be used: {reason}", remedy=AGAIN) from error

    def compiler_digest(self) -> str:
        return self._compiler

    def linker_digest(self) -> str:
        return self._linker

    def source_digest(self, source: DeviceSource) -> str:
        """See :meth:`ToolchainFacts.source_digest`. Raises a ToolchainError if the facts lack this source."""
        label = _label(source)
        if label not in self._sources:
            raise ToolchainError(
                f"the bundle was made without the device source {label}",
                remedy="make the bundle again with this version of warp_tiles",
            )
        return self._sources[label]
