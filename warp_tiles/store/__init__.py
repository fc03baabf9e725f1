"""What is kept: the content-addressed cache of one machine, and the objects that leave it.

The cache holds compiled functions (raw LTO-IR) and linked modules. A key is a list of labelled inputs. A payload is
stored under its SHA-256. The cache never fails a build: if its folder cannot be used, only the caching is lost. It does
refuse a folder that others can write. See ``docs/cache.md``.

Objects leave the machine in remote stores and bundles, which sign them. See ``docs/remote.md``.

This module has the kinds of what is kept, and where it lies. It is cheap to import.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from warp_tiles.errors import unless_signalled

#: Kinds of objects: LTO-IR of a function, a linked module, tuning records, facts about the toolchain of a deployment.
LTOIR, MODULE, RECORDS, TOOLCHAIN = "ltoir", "module", "records", "toolchain"
#: The toolchain of a statement that holds for all of them.
ANY_TOOLCHAIN = "any"
#: The fact of an entry that was signed elsewhere: the id of the key.
SIGNED_BY = "signed_by"
#: The fact of an entry that was compiled from a start list, and whose source no launch has generated yet.
AHEAD = "ahead"
#: The layout of a cache on disk, and the form of objects in remote stores and bundles. Each has its own version.
LAYOUT, FORM = "v2", "v1"


def object_name(kind: str, key: str) -> str:
    """The name of an object in a store and in a bundle."""
    return f"{FORM}/{kind}/{key[:2]}/{key}"


JSON = ".json"
MAX_PAYLOAD_BYTES = 256 << 20


@dataclass(frozen=True)
class Kind:
    """One kind. What is damaged is removed and reported once, unless it is set aside.

    Attributes:
        part: What it counts as in ``cache info``.
        folder: By name below the root of all caches; empty for the root itself.
        most_bytes: The largest file or payload that is written and read.
        most_files: Above this number, the files that were used least recently are removed; 0 for no such limit.
        private: Its files are for this user alone, also below a shared root.
        merged: A writer adds to what others wrote, under a lock, and durably. Otherwise what is lost can be made again.
        aside: Suffix with which a damaged file is set aside; empty if it is removed.
        object: As what it leaves the machine, in bundles and remote stores; empty if it stays.
        entries: Its files are entries, in a cache of their own.
    """

    part: str
    folder: str
    suffix: str = JSON
    most_bytes: int = 4 << 20
    most_files: int = 0
    private: bool = True
    merged: bool = False
    aside: str = ""
    object: str = ""
    entries: bool = False

    @property
    def location(self) -> str:
        """The folder of its files, by name below the root of all caches."""
        return f"{self.folder}/{LAYOUT}".lstrip("/") if self.entries else self.folder


FUNCTIONS = Kind("functions", "", ".ltoir", MAX_PAYLOAD_BYTES, private=False, object=LTOIR, entries=True)
MODULES = Kind("linked_modules", "modules", ".cubin", MAX_PAYLOAD_BYTES, private=False, object=MODULE, entries=True)
#: Tuning records. One with a thousand timings has 0.4 MB.
MEASUREMENTS = Kind("tuning_records", "tuning", private=False, merged=True, aside=".damaged", object=RECORDS)
#: What scripts loaded, see :mod:`warp_tiles.build.start_list`. A file that a user names is exchanged.
STARTS = Kind("facts", "starts", most_bytes=64 << 20, most_files=64, private=False, merged=True)
#: Sealed files, which are made again if they are lost.
SEALED = (
    TOOLCHAIN_FACTS := Kind("facts", "toolchain", most_files=256, object=TOOLCHAIN),
    MISSED_KEYS := Kind("facts", "asked", most_files=256),
)
#: To compile them again alone. Nothing else reads them.
REJECTED_SOURCES = Kind("facts", "failed", ".cu", most_bytes=64 << 20, most_files=64)
#: What former versions left, which is only removed: files with these names. Others in such folders are the user's.
FORMER = tuple(
    Kind("former_versions", folder)
    for folder in ("v1", "modules/v1", "cuda_headers", "asked_headers", "headers", "runs", "statistics", "stats")
)
FORMER_NAMES = re.compile(
    r"([0-9a-f]+-)?[0-9a-f]{32,64}(\.\w+)?|(store|stats|starts|worker-[\w-]+)\.(lock|holder)"
    r"|(digests|remote|counts)\.json|\.tmp-.+"
)
KINDS = (FUNCTIONS, MODULES, MEASUREMENTS, STARTS, *SEALED, REJECTED_SOURCES, *FORMER)


# ---- location and file names

#: The folders of manifests, payloads and locks below a cache, and the beginning of the locks of running compilers.
KEYS, OBJECTS, LOCKS = f"{LAYOUT}/keys", f"{LAYOUT}/objects", f"{LAYOUT}/locks"
SLOT_PREFIX = "worker-"
_NO_FOLDER = Path(os.devnull) / "warp_tiles"
_HEX64 = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Returns True if the text is 64 lower-case hex digits."""
    return _HEX64.fullmatch(text) is not None


def default_root() -> Path:
    """The user's cache folder for this package, by the platform's convention. Nothing is created.

    Without a home folder, it is a path that cannot be used, and the cache reports that.
    """
    return _of_user("user_cache_path")


def config_folder() -> Path:
    """The user's configuration folder for this package, as :func:`default_root` is the one of the cache."""
    return _of_user("user_config_path")


def _of_user(kind: str) -> Path:
    import platformdirs

    try:
        folder: Path = getattr(platformdirs, kind)("warp_tiles", appauthor=False)
    except unless_signalled(RuntimeError):  # this user has no home folder
        return _NO_FOLDER
    return folder if folder.is_absolute() else _NO_FOLDER  # XDG_CACHE_HOME may be relative


def cache_root(cache_dir: Path | None) -> Path:
    """Folder of the cache, of the tuning records, and of the facts about the toolchain; None for the default."""
    return absolute(cache_dir or default_root())


def start_file(root: Path, script: Path) -> Path:
    """Where the start list of a script lies if no other file is named; ``root`` is the folder of all caches."""
    import hashlib

    identity = hashlib.sha256(os.fsencode(script.resolve())).hexdigest()
    name = "".join(char if char.isalnum() or char in ".-" else "_" for char in script.name)[:80]
    return root / STARTS.folder / f"{name}-{identity[:12]}{STARTS.suffix}"


def absolute(path: Path) -> Path:
    """The absolute path, or the path as it is if the working directory was removed; it then cannot be used."""
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        return Path(path)
