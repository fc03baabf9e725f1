"""Digests of output files, in a file beside them that ``sha256sum -c`` reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from warp_tiles.util.files import read_whole, sha256_of, write_output
from warp_tiles.util.warn import WarnedTexts, warn

SUFFIX = ".sha256"
_MOST_BYTES = 1 << 30
_warned = WarnedTexts()


def digests_of(output: Path) -> Path:
    """The file that holds the digests of an output."""
    return output.with_name(output.name + SUFFIX)


def write_digests(output: Path, others: Sequence[Path] = ()) -> None:
    """Write the digests of an output, and of files that belong to it, to ``<output>.sha256``.

    Raises:
        OSError: A file cannot be read, or the digests cannot be written.
    """
    lines = [f"{sha256_of(path, _MOST_BYTES)}  {path.name}\n" for path in (output, *others)]
    write_output(digests_of(output), "".join(lines).encode("utf-8", "surrogateescape"))


def has_digests(output: Path) -> bool:
    """Returns True if digests of an output were written."""
    return digests_of(output).is_file()


def matches(output: Path, others: Sequence[Path] = ()) -> bool:
    """Returns True if the output and the other files are as they were when their digests were written."""
    with suppress(OSError, ValueError):
        data, _ = read_whole(digests_of(output), 1 << 20)
        lines = data.decode("utf-8", "surrogateescape").splitlines()
        known = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        return all(known.get(path.name) == sha256_of(path, _MOST_BYTES) for path in (output, *others))
    return False


def is_kept(output: Path, others: Sequence[Path] = ()) -> bool:
    """Returns True if an output of an earlier build can be kept. Warns once of one that has changed since.

    Args:
        output: The output.
        others: Files that belong to it.
    """
    if matches(output, others):
        return True
    if has_digests(output) and output.is_file():
        warn(f"{output} or its metadata does not match {digests_of(output).name}, so it is built again", _warned)
    return False
