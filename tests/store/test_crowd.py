"""64 processes of one machine that ask for one cold key: ``python -m tests.store.test_crowd FOLDER COUNT KIND``.

Of the kind ``fetch``, the entry is in the store already, which then is an HTTP server.
"""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.hardening.writers import at_once
from tests.interpreter import python
from tests.store.cache_workers import get_or_build
from tests.store.server import Server, files
from tests.store.subjects import SIGNER, connect, entry, signed, write_object
from warp_tiles.store import LTOIR
from warp_tiles.store.cache import Cache

PROCESSES = 64
ENTRY = entry("crowd", b"payload " * 5000)


def ask(url: str, cache: Path, log: Path, *, writes: bool) -> None:
    """Ask for the key. A build leaves a mark."""
    store = connect(url, wait_s=60.0, signer=SIGNER if writes else None)
    store.require()
    wanted = ENTRY.manifest.key

    def build() -> tuple[bytes, dict[str, object]]:
        (log / str(os.getpid())).touch()
        time.sleep(0.2)
        return ENTRY.payload, {"build_seconds": 0.2}

    found, _ = get_or_build(Cache(cache), wanted, build, lambda: store.upstream(LTOIR, wanted.digest))
    assert found.payload == ENTRY.payload
    assert not store.off, store.off


def one_round(folder: Path, count: int, kind: str) -> None:
    """Start the processes at once, and print how many failed, how many have built, and the requests to the server."""
    for name in ("log", "store"):
        (folder / name).mkdir(parents=True)
    server, fetches = Server(files(folder / "store")), kind == "fetch"
    url = server.url if fetches else (folder / "store").as_uri()
    if fetches:
        write_object(folder / "store", ENTRY, signed(ENTRY))
    failed = at_once(
        count,
        lambda: ask(url, folder / "cache", folder / "log", writes=not fetches),
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start,
    )
    server.shutdown()
    server.server_close()
    built = len(list((folder / "log").iterdir()))
    print(f"{failed} failed, {built} builds, {len(server.requests)} requests", flush=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "expected"), [("one", "0 failed, 1 builds, 0 requests\n"), ("fetch", "0 failed, 0 builds, 1 requests\n")]
)
def test_one_build_or_one_request(tmp_path: Path, kind: str, expected: str) -> None:
    done = python("-m", "tests.store.test_crowd", tmp_path, PROCESSES, kind, NO_PROXY="127.0.0.1")
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    assert done.stdout == expected


if __name__ == "__main__":
    one_round(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
