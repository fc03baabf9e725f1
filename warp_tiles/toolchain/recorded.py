"""The toolchain of another machine: what keys need to know of it, where nothing is compiled.

A deployed machine needs neither compiler nor headers to find its modules, but it needs their digests, because
keys contain them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warp_tiles.errors import ToolchainError
from warp_tiles.toolchain.search import Toolchain
from warp_tiles.toolchain.sources import DeviceSource, kernels_folder
from warp_tiles.toolchain.store import ToolchainStore

SCHEMA = 1


def source_label(source: DeviceSource) -> str:
    """The name of a device source, which is the same on every machine."""
    return source.path.resolve().relative_to(kernels_folder().resolve()).as_posix()


@dataclass(frozen=True)
class ToolchainFacts:
    """What keys contain of a toolchain.

    Attributes:
        toolchain: Versions and architectures. Its paths do not count.
        compiler: Digest of the compiler's libraries.
        linker: Digest of the linker's library; empty without one.
        sources: Digest of each device source with its includes, by label.
    """

    toolchain: Toolchain
    compiler: str
    linker: str
    sources: Mapping[str, str]

    @classmethod
    def take(cls, store: ToolchainStore, sources: Iterable[DeviceSource]) -> ToolchainFacts:
        """The facts of this machine.

        Raises:
            ToolchainError: There is no toolchain.
            OSError: A file cannot be read.
        """
        digests = {source_label(source): store.source_digest(source) for source in sources}
        return cls(store.toolchain(), store.compiler_digest(), store.linker_digest(), digests)

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON, without names of this machine's folders."""
        toolchain = self.toolchain.to_json()
        linker = "nvjitlink" if self.toolchain.nvjitlink is not None else None
        toolchain |= {"nvrtc": "nvrtc", "nvjitlink": linker, "include_dirs": []}
        return {
            "schema": SCHEMA,
            "toolchain": toolchain,
            "compiler": self.compiler,
            "linker": self.linker,
            "sources": dict(self.sources),
        }

    @classmethod
    def from_json(cls, data: Any) -> ToolchainFacts:
        """Rebuild facts.

        Raises:
            ValueError: They are not those of this version.
        """
        try:
            if data["schema"] != SCHEMA:
                raise ValueError(f"facts of schema {data['schema']!r:.40}")
            sources = {str(label): str(digest) for label, digest in data["sources"].items()}
            toolchain = Toolchain.from_json(data["toolchain"])
            return cls(toolchain, str(data["compiler"]), str(data["linker"]), sources)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"no facts of a toolchain: {error!r:.100}") from error


class RecordedStore(ToolchainStore):
    """A toolchain that is known by its facts alone. Nothing can be compiled with it.

    Args:
        facts: The facts.
        root: Folder of the cache, for digests of files of this machine.
        folder: Folder of those digests below the root.
        shared: Accept a root that others can write.
    """

    def __init__(self, facts: ToolchainFacts, root: Path, folder: str = "", *, shared: bool = False) -> None:
        super().__init__(root, folder, shared=shared)
        self._facts = facts

    def toolchain(self) -> Toolchain:
        """The toolchain, whose paths lead nowhere."""
        return self._facts.toolchain

    def compiler_digest(self) -> str:
        """See :meth:`ToolchainStore.compiler_digest`."""
        return self._facts.compiler

    def linker_digest(self) -> str:
        """See :meth:`ToolchainStore.linker_digest`."""
        return self._facts.linker

    def source_digest(self, source: DeviceSource) -> str:
        """See :meth:`ToolchainStore.source_digest`.

        Raises:
            ToolchainError: The facts lack this source.
        """
        label = source_label(source)
        if label not in self._facts.sources:
            raise ToolchainError(
                f"the bundle was made without the device source {label}",
                remedy="make the bundle again with this version of warp_tiles",
            )
        return self._facts.sources[label]

    def take_digests(self, sources: Iterable[DeviceSource]) -> None:
        """Do nothing, because all digests are known."""
