"""Reads cubins, which are ELF files of 64 bits."""

from __future__ import annotations

import struct


def sections(cubin: bytes) -> list[tuple[str, bytes]]:
    """The names and contents of all sections, in order."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + number * size) for number in range(count)]
    strings = headers[names][4]
    return [
        (string_at(cubin, strings + name), cubin[offset : offset + length]) for name, _, _, _, offset, length in headers
    ]


def string_at(data: bytes, start: int) -> str:
    """A string that ends with a zero byte."""
    return data[start : data.index(b"\0", start)].decode()
