"""The toolchain of another machine: what keys need to know of it, where nothing is compiled.

A deployed machine needs neither compiler nor headers to find its modules, but it needs their digests, because
keys contain them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from warp_tiles.errors import ToolchainError
from warp_tiles.toolchain.search import Toolchain
from warp_tiles.toolchain.sources import DeviceSource, kernels_folder
from warp_tiles.toolchain.store import ToolchainStore

SCHEMA = 1


def _label(source: DeviceSource) -> str:
    """The name of a device source, which is the same on every machine."""
    return source.path.resolve().relative_to(kernels_folder().resolve()).as_posix()


def toolchain_facts(store: ToolchainStore, sources: Iterable[DeviceSource]) -> dict[str, Any]:
    """What keys contain of a toolchain, as JSON without names of this machine's folders.

    Raises:
        ToolchainError: There is no toolchain.
        OSError: A file cannot be read.
    """
    found = store.toolchain()
    linker = "nvjitlink" if found.nvjitlink is not None else None
    return {
        "schema": SCHEMA,
        "toolchain": found.to_json() | {"nvrtc": "nvrtc", "nvjitlink": linker, "include_dirs": []},
        "compiler": store.compiler_digest(),
        "linker": store.linker_digest(),
        "sources": {_label(source): store.source_digest(source) for source in sources},
    }


class RecordedStore(ToolchainStore):
    """A toolchain that is known by its facts alone. Nothing can be compiled with it.

    Args:
        facts: The JSON of :func:`toolchain_facts`.
        root: Folder of the cache, for digests of files of this machine.
        folder: Folder of those digests below the root.
        shared: Accept a root that others can write.

    Raises:
        ValueError: These are no facts of this version.
    """

    def __init__(self, facts: Any, root: Path, folder: str = "", *, shared: bool = False) -> None:
        super().__init__(root, folder, shared=shared)
        try:
            if facts["schema"] != SCHEMA:
                raise ValueError(f"facts of schema {facts['schema']!r:.40}")
            self._facts = Toolchain.from_json(facts["toolchain"])
            self._compiler, self._linker = str(facts["compiler"]), str(facts["linker"])
            self._sources = {str(label): str(digest) for label, digest in facts["sources"].items()}
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"no facts of a toolchain: {error!r:.100}") from error

    def toolchain(self) -> Toolchain:
        """The toolchain, whose paths lead nowhere."""
        return self._facts

    def compiler_digest(self) -> str:
        """See :meth:`ToolchainStore.compiler_digest`."""
        return self._compiler

    def linker_digest(self) -> str:
        """See :meth:`ToolchainStore.linker_digest`."""
        return self._linker

    def source_digest(self, source: DeviceSource) -> str:
        """See :meth:`ToolchainStore.source_digest`.

        Raises:
            ToolchainError: The facts lack this source.
        """
        label = _label(source)
        if label not in self._sources:
            raise ToolchainError(
                f"the bundle was made without the device source {label}",
                remedy="make the bundle again with this version of warp_tiles",
            )
        return self._sources[label]

    def take_digests(self, sources: Iterable[DeviceSource]) -> None:
        """Do nothing, because all digests are known."""
