"""Reads cubins, which are ELF files of 64 bits."""

from __future__ import annotations

import struct

REGISTERS_OF = 0x2F  # EIATTR_REGCOUNT in the section .nv.info: the number of a symbol, and its registers


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


def registers(cubin: bytes) -> dict[str, int]:
    """Registers of a thread, by function."""
    content = dict(sections(cubin))
    attributes, symbols, names = (content[name] for name in (".nv.info", ".symtab", ".strtab"))
    found = {}
    at = 0
    while at < len(attributes):
        kind, attribute, value = struct.unpack_from("<BBH", attributes, at)
        if attribute == REGISTERS_OF:
            symbol, number = struct.unpack_from("<II", attributes, at + 4)
            (name,) = struct.unpack_from("<I", symbols, 24 * symbol)
            found[string_at(names, name)] = number
        at += 4 + (value if kind == 4 else 0)
    return found
