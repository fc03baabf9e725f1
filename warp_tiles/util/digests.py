"""Digests of output files, in a file beside them that ``sha256sum -c`` reads."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from warp_tiles.util.files import read_whole, write_output

SUFFIX = ".sha256"
_MOST_BYTES = 1 << 30


def write_digests(output: Path, others: Sequence[Path] = ()) -> None:
    """Write the digests of an output, and of files that belong to it, to ``<output>.sha256``.

    Raises:
        OSError: A file cannot be read, or the digests cannot be written.
    """
    lines = [f"{_digest(path)}  {path.name}\n" for path in (output, *others)]
    write_output(output.with_name(output.name + SUFFIX), "".join(lines).encode("utf-8", "surrogateescape"))


def has_digests(output: Path) -> bool:
    """Returns True if digests of an output were written."""
    return output.with_name(output.name + SUFFIX).is_file()


def matches(output: Path, others: Sequence[Path] = ()) -> bool:
    """Returns True if the output and the other files are as they were when their digests were written."""
    with suppress(OSError, ValueError):
        data, _ = read_whole(output.with_name(output.name + SUFFIX), 1 << 20)
        lines = data.decode("utf-8", "surrogateescape").splitlines()
        known = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        return all(known.get(path.name) == _digest(path) for path in (output, *others))
    return False


def _digest(path: Path) -> str:
    return hashlib.sha256(read_whole(path, _MOST_BYTES)[0]).hexdigest()
