"""Measures the cold start of a machine with a remote store, beside a local build and beside a store that is away.

    python benchmarks/remote.py --json benchmarks/results/remote.json

Each repeat runs in a fresh process with empty caches of Warp and of warp_tiles, without facts about the toolchain. The
time is from the import of warp_tiles to the last cubin. The store is a folder behind nginx with WebDAV if it is
installed, else behind Python's own HTTP server. No GPU is needed.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.compile_time import ARCH, EIGHT, ONE, THREADS
from benchmarks.machine import cpu_record
from benchmarks.measure import Job, Kernel, build
from benchmarks.processes import served, trust_and_push
from benchmarks.runner import Row

_NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1; user root;
events {{}}
http {{
  access_log off; client_max_body_size 1g; client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/t1; fastcgi_temp_path {folder}/t2; uwsgi_temp_path {folder}/t3; scgi_temp_path {folder}/t4;
  server {{ listen 127.0.0.1:{port}; root {store}; dav_methods PUT DELETE; create_full_put_path on; }}
}}
"""


@dataclass(frozen=True)
class Case:
    """Modules of one kernel each."""

    name: str
    kernels: tuple[Kernel, ...]


CASES = (Case("one module", (ONE,)), Case("eight modules", tuple(EIGHT)))


@contextlib.contextmanager
def _nginx(store: Path, folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, store=store, port=port))
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def compiled(case: Case, settings: dict[str, str], *, from_store: bool) -> float:
    """The seconds in which a fresh process with empty caches compiles the modules of a case."""
    with tempfile.TemporaryDirectory() as scratch:
        warp, tiles, out = (f"{scratch}/{name}" for name in ("warp", "tiles", "out"))
        given = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **settings}
        texts = tuple(kernel.source(None) for kernel in case.kernels)
        found = build(Job(texts, True, ARCH, THREADS, warp, tiles, out, tuple(given.items())))
    assert found["found"] == (len(texts) if from_store else 0), found
    return float(found["seconds"])


def measure(case: Case, sides: dict[str, dict[str, str]], repeats: int) -> Row:
    """The median seconds of all sides."""
    times = runner.alternately(
        {side: partial(compiled, case, settings, from_store=side == "store") for side, settings in sides.items()},
        repeats,
    )
    medians = {side: statistics.median(found) for side, found in times.items()}
    away = {side: round(medians[side] - medians["local"], 3) for side in ("closed port", "silent")}
    return {"seconds": medians, "all_seconds": times, "away_s": away, **runner.ratio(times["store"], times["local"])}


def main(arguments: list[str] | None = None) -> int:
    """Measure all cases."""
    options = runner.parser(__doc__, repeats=5).parse_args(arguments)
    cases = runner.select(CASES, options.only)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        top = Path(scratch)
        store, server = top / "store", top / "server"
        store.mkdir()
        server.mkdir()
        trust, push = trust_and_push(top)
        for case in cases:
            compiled(case, {**trust, **push, "WARP_TILES_REMOTE": store.as_uri()}, from_store=False)
        has_nginx = shutil.which("nginx") is not None
        url = stack.enter_context(_nginx(store, server) if has_nginx else served(store))
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        away = {"closed port": "http://127.0.0.1:1", "silent": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        remotes = {"store": url, **away}
        sides = {"local": trust} | {side: {**trust, "WARP_TILES_REMOTE": to} for side, to in remotes.items()}
        run = {**cpu_record(), "server": "nginx" if has_nginx else "python"}
        record = runner.Record(options.json, run, [case.name for case in CASES])
        return runner.measure(cases, record, options, lambda case: measure(case, sides, options.repeats))


if __name__ == "__main__":
    sys.exit(main())
