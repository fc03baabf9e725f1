"""The strict subset of tar that bundles use: uncompressed, regular files only, short ASCII names.

Layout of a header: POSIX.1-2001 ustar, https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html
Links, devices, folders, long names and extensions are refused by type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from warp_tiles.errors import BundleError

BLOCK_BYTES = 512
_END = bytes(BLOCK_BYTES)
_TYPES = {b"1": "hard link", b"2": "symbolic link", b"3": "device", b"4": "device", b"5": "folder", b"6": "FIFO"}


def malformed(reason: str) -> BundleError:
    """The error for a malformed bundle."""
    return BundleError(f"not a sound bundle: {reason}", remedy="export the bundle again, and copy it unchanged")


def header(name: str, size: int) -> bytes:
    """A header without owner or times, so that equal content gives an equal file."""
    encoded = name.encode("ascii")
    if len(encoded) > 100 or not 0 <= size < 8**11:
        raise ValueError(f"no header for {name!r} of {size} bytes")
    fields = b"".join(
        (
            encoded.ljust(100, b"\0"),
            b"0000600\0",
            b"0000000\0",
            b"0000000\0",
            b"%011o\0" % size,
            b"00000000000\0",
            b" " * 8,
            b"0",
            bytes(100),
            b"ustar\x0000",
        )
    ).ljust(BLOCK_BYTES, b"\0")
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def padding(size: int) -> bytes:
    """Zero bytes up to the next block."""
    return bytes(-size % BLOCK_BYTES)


def members(stream: BinaryIO) -> Iterator[tuple[str, int]]:
    """Iterate over names and sizes. The caller reads exactly ``size`` bytes of the stream for each.

    Raises:
        BundleError: The stream is not a bundle, or has a member that a bundle must not have.
    """
    while True:
        block = stream.read(BLOCK_BYTES)
        if block == _END:
            _check_end(stream)
            return
        name, size = _parse(block)
        yield name, size
        if stream.read(-size % BLOCK_BYTES) != padding(size):
            raise malformed(f"the padding after {name} is cut short or not zero")


def _check_end(stream: BinaryIO) -> None:
    rest = stream.read(BLOCK_BYTES)
    if rest != _END:
        raise malformed("it is cut short at its end")
    while rest := stream.read(1 << 16):  # tar rounds a file up to its record size
        if rest.strip(b"\0"):
            raise malformed("data follows its end")


def _parse(block: bytes) -> tuple[str, int]:
    if len(block) != BLOCK_BYTES:
        raise malformed("it is cut short")
    total = _octal(block[148:156], "checksum")
    if total != sum(block) - sum(block[148:156]) + 8 * 0x20:
        raise malformed("a header does not match its checksum")
    if block[257:262] != b"ustar":
        raise malformed("a header is not of the ustar format")
    kind = block[156:157]
    raw = block[:100].split(b"\0", 1)[0]
    if kind not in (b"0", b"\0"):
        raise malformed(f"{raw!r} is a {_TYPES.get(kind, 'special member')}, only regular files are accepted")
    if block[345:500].strip(b"\0"):
        raise malformed(f"{raw!r} has a long name")
    try:
        return raw.decode("ascii"), _octal(block[124:136], "size")
    except UnicodeDecodeError:
        raise malformed(f"the name {raw!r} is not ASCII") from None


def _octal(field: bytes, what: str) -> int:
    digits = field.strip(b"\0 ")
    if not digits or digits.strip(b"01234567"):
        raise malformed(f"the {what} {field!r} of a header is not a number")
    return int(digits, 8)
