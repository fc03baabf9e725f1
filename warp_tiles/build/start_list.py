"""Start lists: the modules that a program loaded, with their sources, which its next start compiles ahead.

A list binds nothing. What it compiles is an entry under the content key of a source (:mod:`.warp_module`), and a
launch finds that entry only if Warp generates the same source. A stale list costs the builds that nobody asks for.
Lists of scripts lie in the store. A list that the user names is a file of the user, with the same content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from warp_tiles.compile.module import SWITCHES, ModuleSource, WarpCompileRequest, warp_headers_folder
from warp_tiles.errors import RecordError, shown, unless_signalled
from warp_tiles.solver.problem import Problem, problem_from_fields
from warp_tiles.store import STARTS
from warp_tiles.store.documents import DamagedError, Documents, parse_object
from warp_tiles.util.files import read_whole, write_output
from warp_tiles.util.warn import warn

_MOST_MODULES = 4096
_MOST_VALUES = 500_000  # a thousand bytes of memory each, at most
_MOST_NAME = 240  # bytes; the name of the binary is longer
_SUFFIXES = {"a": 90, "f": 100}  # the first architecture with each suffix
_CLUSTERS = 90  # the first architecture with them
_IN_CLUSTERS = tuple(f"WP_CLUSTER_DIMS({digit}" for digit in "123456789")  # in kernels, other than the macro itself
_TILE_CALLS = ("tile_matmul", "tile_fft", "tile_ifft", "tile_cholesky", "tile_lower_solve", "tile_upper_solve")


@dataclass(frozen=True)
class Linked:
    """What a module of warp_tiles is linked from, besides its source. Its suffix is ``a`` if loops need ``sm_90a``."""

    functions: tuple[Problem, ...]
    suffix: str
    register_limit: int | None

    @classmethod
    def from_json(cls, data: Any) -> Linked:
        """Read what ``asdict()`` has written, from untrusted JSON. Raises ValueError if a field is wrong."""
        names = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or data.keys() != names or not isinstance(data["functions"], list):
            raise ValueError("it has other fields")
        limit = data["register_limit"]
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"register_limit is {limit!r}")
        if data["suffix"] not in ("", "a"):
            raise ValueError(f"suffix is {data['suffix']!r}")
        return cls(tuple(map(problem_from_fields, data["functions"])), data["suffix"], limit)


@dataclass(frozen=True)
class StartModule:
    """One module, as Warp passed it to its compiler.

    Attributes:
        program: The name of its source in unmodified Warp, with the first digits of Warp's hash.
        suffix: Warp's suffix of the architecture, e.g. ``a``.
        switches: ``verify_fp``, ``fast_math``, ``fuse_fp`` and ``use_precompiled_headers``.
        meta: Warp's metadata of the kernels: bytes of shared memory, by name.
        linked: What a module of warp_tiles is linked from; None for a module that Warp's compiler builds.
    """

    name: str
    block_dim: int
    program: str
    arch: int
    suffix: str
    output: str
    optimization_level: int
    switches: tuple[bool, ...]
    meta: Mapping[str, int]
    source: str
    linked: Linked | None = None

    @classmethod
    def of(
        cls, name: str, block_dim: int, request: WarpCompileRequest, meta: Mapping[str, Any], linked: Linked | None
    ) -> StartModule:
        return cls(
            name, block_dim, request.name, request.arch, request.suffix, request.output, request.optimization_level,
            request.switches, dict(meta), request.source.decode("utf-8"), linked,
        )  # fmt: skip

    @classmethod
    def from_json(cls, data: object) -> StartModule:
        """Read what ``asdict()`` has written, from untrusted JSON. Raises DamagedError if a field is wrong."""
        kinds = {field.name: {"int": int, "str": str}.get(str(field.type), object) for field in fields(cls)}
        if not isinstance(data, dict) or data.keys() != kinds.keys():
            raise DamagedError("a module has other fields")
        for name, kind in kinds.items():
            if kind is not object and type(data[name]) is not kind:
                raise DamagedError(f"{name} is {shown(data[name])}")
        meta, switches = data["meta"], data["switches"]
        if not isinstance(meta, dict) or not all(type(size) is int for size in meta.values()):
            raise DamagedError("meta is no table of sizes")
        if not isinstance(switches, list) or [type(value) for value in switches] != [bool] * 4:
            raise DamagedError(f"switches is {shown(switches)}")
        if not data["name"].isprintable():  # terminals and logs show it
            raise DamagedError(f"name is {shown(data['name'])}")
        try:
            "".join((data["source"], *meta)).encode("utf-8")
        except UnicodeEncodeError as error:
            raise DamagedError(f"source or meta is no text: {error.reason}") from error
        if not _is_name(data["program"]) or data["suffix"] not in ("", *ascii_lowercase):
            raise DamagedError(f"program is {shown(data['program'])}, suffix is {shown(data['suffix'])}")
        if data["output"] not in ("cubin", "ptx") or not 0 < data["arch"] < 1000:
            raise DamagedError(f"output is {shown(data['output'])}, arch is {shown(data['arch'])}")
        try:
            linked = None if data["linked"] is None else Linked.from_json(data["linked"])
        except ValueError as error:
            raise DamagedError(f"linked: {error}") from error
        return cls(**{**data, "switches": tuple(switches), "linked": linked})

    @property
    def identity(self) -> tuple[str, int, int, str]:
        """What a newer version of the module replaces."""
        return self.name, self.block_dim, self.arch, self.output

    @property
    def file(self) -> str:
        """The path of its binary below Warp's kernel cache."""
        stem = self.program.removesuffix(".cu")
        return f"{stem}/{stem}.sm{self.arch}{self.suffix}.{self.output}"

    def reason_bound(self, arch: int) -> str:
        """Why this source is not that of the module for another architecture; empty if it is."""
        if arch == self.arch:
            return ""
        if arch < _SUFFIXES.get(self.suffix, 0):
            return f"sm_{arch} has no suffix {self.suffix}"
        if arch < _CLUSTERS and any(mark in self.source for mark in _IN_CLUSTERS):
            return f"sm_{arch} has no clusters of thread blocks"
        depends = self.linked is not None or any(call in self.source for call in _TILE_CALLS)
        return "its products, solvers or FFTs depend on it" if depends else ""

    def module_source(self) -> ModuleSource:
        """The module as Warp passes it to its compiler."""
        suffix = self.linked.suffix if self.linked is not None else ""
        keywords: dict[str, object] = {"optimization_level": self.optimization_level, "arch_suffix": self.suffix}
        keywords |= zip(SWITCHES, self.switches)
        return ModuleSource(self.program, self.arch, self.output, str(warp_headers_folder()), keywords, suffix)

    def request(self) -> WarpCompileRequest:
        return WarpCompileRequest.of(self.module_source(), self.source.encode("utf-8"))


@dataclass(frozen=True)
class StartList:
    """What a program loads.

    Attributes:
        warp: Version of Warp that generated the sources.
        modules: What the last run loaded, in the order in which runs have met them, then what only earlier runs loaded.
            Each run keeps at most as many of these as it has loaded itself, or half of the list, so that one short run
            loses little and stale modules go.
    """

    warp: str
    modules: tuple[StartModule, ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes) -> StartList:
        """Parse the text of a list. Raises DamagedError if it is none."""
        _require_bounded(data)
        fields = parse_object(data)
        if fields.keys() != {"warp", "modules"} or not isinstance(fields["warp"], str):
            raise DamagedError("it is no start list")
        if not fields["warp"].isprintable():
            raise DamagedError(f"warp is {shown(fields['warp'])}")
        given = fields["modules"]
        if not isinstance(given, list) or len(given) > _MOST_MODULES:
            raise DamagedError("it has no list of modules, or too long a one")
        return cls(fields["warp"], tuple(map(StartModule.from_json, given)))

    def to_bytes(self) -> bytes:
        """The text: JSON that is the same for the same modules. Raises RecordError if it would not be read."""
        data = (json.dumps(asdict(self), indent=1, ensure_ascii=True) + "\n").encode("ascii")
        try:
            _require_bounded(data)
        except DamagedError as error:
            raise RecordError(f"it would not be read again: {error}") from error
        return data

    def after(self, warp: str, built: Iterable[StartModule], loaded: Callable[[StartModule], bool]) -> StartList:
        """The list after a run that has ``built`` modules; this one if it has loaded nothing.

        ``loaded`` is true for a module of this list that the run has loaded from Warp's own folder.
        """
        before = self.modules if self.warp == warp else ()
        known = {module.identity: module for module in before}
        new = {module.identity: module for module in built}
        modules = [new.pop(identity, module) for identity, module in known.items() if identity in new or loaded(module)]
        modules += new.values()
        if not modules:
            return self
        here = {module.identity for module in modules}
        others = [module for module in before if module.identity not in here]
        kept = (*modules, *others[: max(len(modules), len(before) // 2)])
        return StartList(warp, kept[:_MOST_MODULES])


def _require_bounded(data: bytes) -> None:
    """Raise a DamagedError for a text that takes long to parse, or much memory."""
    if not data.isascii() or b"\0" in data:  # another encoding, in which these bytes mean something else
        raise DamagedError("it is not ASCII")
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # every quote left begins or ends a text
    structure = b"".join(plain.split(b'"')[::2]) if plain.count(b'"') <= 4 * _MOST_VALUES else plain
    if len(data) > STARTS.most_bytes or sum(map(structure.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise DamagedError(f"it has more than {STARTS.most_bytes} bytes or {_MOST_VALUES} values")


def _is_name(program: str) -> bool:
    """True for a name that Warp gives to a source, which is no path."""
    return (
        program.startswith("wp_")
        and program.endswith(".cu")
        and program.isprintable()
        and len(program.encode("utf-8")) <= _MOST_NAME
        and not set(program) & set("/\\")
    )


class StartLists(Documents[StartList]):
    """The start lists of scripts, in the store, and those in files that the user names, whose links are followed."""

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        super().__init__(root, STARTS, lambda data, name: StartList.from_bytes(data), StartList.to_bytes, shared=shared)

    def _unusable(self, name: str, error: Exception) -> None:
        warn(f"the start list {self.path(name)} cannot be used: {error}")

    def holds(self, file: Path) -> bool:
        """True if a file lies in the store, and not where the user says."""
        return file == self.path(file.stem)

    def read_file(self, file: Path) -> StartList | None:
        """The list of a file. See :func:`read_start_list`; of the store, :meth:`read`."""
        return self.read(file.stem) if self.holds(file) else read_start_list(file)

    def update(self, file: Path, change: Callable[[StartList | None], StartList | None], wait_s: float) -> None:
        """Replace the list of a file, which others may have written meanwhile, by what ``change`` returns, if not None.

        Raises a RecordError if the user's file cannot be used, or the new list would not be read again, and an OSError
        if it cannot be written, or another process changes lists for ``wait_s``.
        """
        with self.changing(wait_s):
            is_here = self.holds(file)
            listed = change(self.load_for_change(file.stem) if is_here else read_start_list(file))
            if listed is not None and is_here:
                self.store(file.stem, listed)
            elif listed is not None:
                write_output(file, listed.to_bytes())


def read_start_list(file: Path) -> StartList | None:
    """The start list of a user's file; None if there is none. Raises RecordError if it cannot be used."""
    try:
        return StartList.from_bytes(read_whole(file, STARTS.most_bytes)[0])
    except FileNotFoundError:
        return None
    except unless_signalled(OSError, DamagedError) as error:
        raise RecordError(
            f"the start list {file} cannot be used: {error}", "remove it; a run writes it again"
        ) from error
