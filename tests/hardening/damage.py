"""Damage of files: mutations of their bytes, with or without another modification time, and what replaces them."""

import os
import random
from collections.abc import Callable
from pathlib import Path

Mutation = Callable[[bytes, random.Random], bytes]


def _flip_bit(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]


def _replace_byte(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + draw.randbytes(1) + data[place + 1 :]


def _replace_digit(data: bytes, draw: random.Random) -> bytes:
    places = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    place = draw.choice(places) if places else len(data)
    return data[:place] + (b"%d" % draw.randrange(10) if places else b"") + data[place + 1 :]


def _zero_range(data: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(data))
    end = min(len(data), start + 1 + draw.randrange(4096))
    return data[:start] + bytes(end - start) + data[end:]


def _repeat_range(data: bytes, draw: random.Random) -> bytes:
    start, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[start:end] + data[end:]


def _remove_range(data: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(data))
    return data[:start] + data[start + 1 + draw.randrange(64) :]


MUTATIONS: dict[str, Mutation] = {
    "a flipped bit": _flip_bit,
    "another byte": _replace_byte,
    "another digit": _replace_digit,
    "zeros": _zero_range,
    "a repeated part": _repeat_range,
    "a missing part": _remove_range,
    "cut": lambda data, draw: data[: draw.randrange(len(data))],
    "grown": lambda data, draw: data + draw.randbytes(1 + draw.randrange(100)),
    "noise": lambda data, draw: draw.randbytes(draw.randrange(200)),
    "nested": lambda data, draw: b'{"sha256":"' + b"[" * 20_000,
}


def damage(path: Path, mutation: str, draw: random.Random, *, keep_times: bool) -> bool:
    """Mutate a file in place. Returns False if the mutation happens to give the same bytes."""
    before, status = path.read_bytes(), path.stat()
    after = MUTATIONS[mutation](before, draw)
    path.write_bytes(after)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + (0 if keep_times else 1_000_000_000)))
    return after != before


def _instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


#: What may stand in the place of a file.
REPLACEMENTS: dict[str, Callable[[Path], object]] = {
    "a huge file": lambda path: os.truncate(path, 3 << 30),  # takes no space on the disk
    "a FIFO": _instead(os.mkfifo),
    "a folder": _instead(Path.mkdir),
    "a link to itself": _instead(lambda path: path.symlink_to(path)),
    "a link to a sound file": lambda path: path.symlink_to(path.rename(path.with_name("elsewhere"))),
}
