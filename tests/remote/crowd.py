"""Machines that ask one store for the same cold key: ``python -m tests.remote.crowd FOLDER ROUNDS COUNT one|many``.

Each machine is a forked process with a cache of its own; with ``one``, all are on one machine and share its cache.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.hardening.writers import child
from tests.remote.subjects import SIGNER, connect, entry
from warp_tiles.cache import Cache
from warp_tiles.remote.client import Client  # noqa: F401  the processes find every module imported
from warp_tiles.remote.store import LTOIR

ENTRY = entry("crowd", b"payload " * 5000)


def ask(cache: Path, folder: Path) -> None:
    """Ask for the key. A build leaves a mark."""
    store = connect(folder / "store", wait_s=60.0, signer=SIGNER)
    store.require()
    wanted = ENTRY.manifest.key

    def build() -> tuple[bytes, dict[str, object]]:
        (folder / "log" / str(os.getpid())).touch()
        time.sleep(0.2)
        return ENTRY.payload, {"build_seconds": 0.2}

    found, _ = Cache(cache).get_or_build(wanted, build, lambda: store.flight(LTOIR, wanted.digest, 60.0))
    assert found.payload == ENTRY.payload
    assert not store.off, store.off


def one_round(folder: Path, count: int, shared: bool) -> None:
    """Start the machines at once, and print how many failed and how many have built."""
    for name in ("log", "store"):
        (folder / name).mkdir(parents=True)
    reader, writer = os.pipe()

    def wait_and_ask(number: int) -> None:
        os.close(writer)
        os.read(reader, 1)  # returns when the parent closes the other end
        ask(folder / ("cache" if shared else f"cache {number}"), folder)

    pids = [child(lambda n=n: wait_and_ask(n)) for n in range(count)]  # type: ignore[misc]
    os.close(writer)
    failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
    os.close(reader)
    print(f"{failed} failed, {len(list((folder / 'log').iterdir()))} builds", flush=True)


def main(folder: str, rounds: str, count: str, machines: str) -> None:
    """Entry point."""
    for number in range(int(rounds)):
        one_round(Path(folder) / str(number), int(count), machines == "one")


if __name__ == "__main__":
    main(*sys.argv[1:])
