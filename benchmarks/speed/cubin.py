"""Reads cubins, which are ELF files of 64 bits."""

from __future__ import annotations

import struct

from warp_tiles.gemm.hardware import WGMMA_ARCH, multiprocessor

REGISTERS_OF, FRAME_OF = 0x2F, 0x11  # EIATTR_REGCOUNT and EIATTR_FRAME_SIZE in the section .nv.info


def _headers(cubin: bytes) -> list[tuple[str, int, int]]:
    """The names, offsets and sizes of all sections, in order."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + number * size) for number in range(count)]
    strings = headers[names][4]
    return [(string_at(cubin, strings + name), offset, length) for name, _, _, _, offset, length in headers]


def sections(cubin: bytes) -> list[tuple[str, bytes]]:
    """The names and contents of all sections, in order."""
    return [(name, cubin[offset : offset + length]) for name, offset, length in _headers(cubin)]


def string_at(data: bytes, start: int) -> str:
    """A string that ends with a zero byte."""
    return data[start : data.index(b"\0", start)].decode()


def registers(cubin: bytes) -> dict[str, int]:
    return _attribute(cubin, REGISTERS_OF)


def stack_bytes(cubin: bytes) -> dict[str, int]:
    """Bytes of a thread's stack frame, by function. Spilled registers lie there."""
    return _attribute(cubin, FRAME_OF)


def static_shared_bytes(cubin: bytes, function: str, arch: int) -> int:
    """Bytes of static shared memory of a kernel, as ptxas prints them.

    The section of this memory has a size and no content. From sm_90 on, it begins with what the system reserves.
    """
    found = next((size for name, _, size in _headers(cubin) if name == f".nv.shared.{function}"), 0)
    return max(0, found - multiprocessor(arch).reserved_bytes) if arch >= WGMMA_ARCH else found


def _attribute(cubin: bytes, wanted: int) -> dict[str, int]:
    """An attribute of the functions of a cubin: the number of a symbol, and its value."""
    content = dict(sections(cubin))
    attributes, symbols, names = (content[name] for name in (".nv.info", ".symtab", ".strtab"))
    found = {}
    at = 0
    while at < len(attributes):
        kind, attribute, value = struct.unpack_from("<BBH", attributes, at)
        if attribute == wanted:
            symbol, number = struct.unpack_from("<II", attributes, at + 4)
            (name,) = struct.unpack_from("<I", symbols, 24 * symbol)
            found[string_at(names, name)] = number
        at += 4 + (value if kind == 4 else 0)
    return found
