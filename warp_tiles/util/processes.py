"""Names of processes: for messages about locks that they hold, and for the temporary files that they write."""

from __future__ import annotations

import os
import time
import zlib
from functools import lru_cache
from pathlib import Path

from warp_tiles.util.threads import suppressed, unless_signalled

TEMP_PREFIX = ".tmp-"
DAY_S = 86400.0


def free_memory_bytes() -> int | None:
    """Memory that new processes may use, on this machine and in this container; None if that is not known."""
    free = None
    with suppressed(OSError, LookupError, ValueError):  # not on Linux, no container, or one without a limit
        free = _bytes_of("/proc/meminfo", "MemAvailable:") * 1024
        most, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        return min(free, most - used + _bytes_of("/sys/fs/cgroup/memory.stat", "inactive_file"))
    return free


def _bytes_of(path: str, name: str) -> int:
    rows = (line.split() for line in Path(path).read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows}[name]


def temporary_name() -> str:
    """A name for a temporary file, which shows the process that writes it."""
    return f"{TEMP_PREFIX}{host()}-{os.getpid()}-{os.urandom(16).hex()}"


def _is_abandoned(name: str) -> bool:
    """True if the process that wrote a temporary file has ended. False also if that cannot be known."""
    parts = name.removeprefix(TEMP_PREFIX).split("-")
    if len(parts) != 3 or parts[0] != host() or not parts[1].isdecimal():
        return False
    try:
        os.kill(int(parts[1]), 0)
    except ProcessLookupError:
        return True
    except unless_signalled(OSError, OverflowError):
        pass
    return False


def _node() -> str:
    return os.uname().nodename if hasattr(os, "uname") else ""


def is_leftover(name: str, modified_s: float) -> bool:
    """Returns True for a temporary file that is no longer written: its process has ended, or it is a day old.

    Args:
        modified_s: Time of its last modification, in seconds since 1970.
    """
    return name.startswith(TEMP_PREFIX) and (_is_abandoned(name) or time.time() - modified_s > DAY_S)


@lru_cache(maxsize=1)
def host() -> str:
    """A short text for the start of the host, and on Linux for the namespace of process numbers (of a container)."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except unless_signalled(OSError):
        namespace = ""
    boot = b""
    with suppressed(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return f"{zlib.crc32(f'{_node()} {namespace}'.encode('utf-8', 'replace') + boot):08x}"


def this_process() -> bytes:
    """A text that :func:`described` reads in other processes: the number of this process and its host."""
    return f"{os.getpid()} {_node()}".encode("utf-8", "replace")


def described(data: bytes) -> str:
    """A process for a message, e.g. ``process 1234 on 'node7'``, from :func:`this_process`."""
    number, _, node = data.decode("utf-8", "replace").partition(" ")
    if not (number.isascii() and number.isdigit() and len(number) < 20):
        return "another process"
    return f"process {number} on {node[:80]!r}"
