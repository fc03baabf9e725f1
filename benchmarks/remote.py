"""Measures the cold start of a machine with a remote store, beside a local build and beside a store that is away.

    python benchmarks/remote.py --json benchmarks/results/remote.json [--repeats 5]

Each figure is the median of its repeats, which alternate. Each repeat runs in a fresh process with empty caches of Warp
and of warp_tiles, without facts about the toolchain. The time is from the import of warp_tiles to the last cubin;
``waited_s`` is the part in which builds waited for the store, added up over threads. The store is a folder
behind nginx with WebDAV if it is installed, else behind Python's own HTTP server. No GPU is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.compile_time import ARCH, EIGHT, ONE, THREADS
from benchmarks.machine import cpu_record
from benchmarks.measure import Job, build

MODULES = {"one module": (ONE,), "eight modules": tuple(EIGHT)}
SIDES = ("local", "store", "closed port", "silent")
_NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1; user root;
events {{}}
http {{
  access_log off; client_max_body_size 1g; client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/t1; fastcgi_temp_path {folder}/t2; uwsgi_temp_path {folder}/t3; scgi_temp_path {folder}/t4;
  server {{ listen 127.0.0.1:{port}; root {store}; dav_methods PUT DELETE; create_full_put_path on; }}
}}
"""


@contextlib.contextmanager
def _nginx(store: Path, folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, store=store, port=port))
    process = subprocess.Popen(
        ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def served(store: Path) -> Iterator[str]:
    """The URL at which Python's HTTP server serves a folder to this machine."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=store)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def trust_and_push(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The variables of those who trust the signing key of a folder, and those that pushing needs as well."""
    from warp_tiles.store.keys import SigningKey

    file = folder / "key.pem"
    if not file.exists():
        SigningKey.generate().write(file)
    key = SigningKey.read(file)
    trust = {"WARP_TILES_TRUSTED_KEYS": str(key.public), "XDG_CONFIG_HOME": str(folder / "config")}
    return trust, {"WARP_TILES_REMOTE_PUSH": "1", "WARP_TILES_SIGNING_KEY": str(file)}


def run(modules: tuple[Any, ...], settings: dict[str, str]) -> dict[str, Any]:
    """Compile modules in a fresh process with empty caches."""
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        texts = tuple(kernel.source(None) for kernel in modules)
        caches = (str(top / "warp"), str(top / "tiles"), str(top / "out"))
        environment = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **settings}
        return build(Job(texts, True, ARCH, THREADS, *caches, tuple(environment.items())))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        top = Path(scratch)
        store, server = top / "store", top / "server"
        store.mkdir()
        server.mkdir()
        trust, push = trust_and_push(top)
        for modules in MODULES.values():
            run(modules, {**trust, **push, "WARP_TILES_REMOTE": store.as_uri()})
        has_nginx = shutil.which("nginx") is not None
        url = stack.enter_context(_nginx(store, server) if has_nginx else served(store))
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        remotes = {
            "local": {},
            "store": {"WARP_TILES_REMOTE": url},
            "closed port": {"WARP_TILES_REMOTE": "http://127.0.0.1:1"},
            "silent": {"WARP_TILES_REMOTE": f"http://127.0.0.1:{silent.getsockname()[1]}"},
        }
        record: dict[str, Any] = {
            **cpu_record(),
            "server": "nginx" if has_nginx else "python",
        }
        record["cases"] = []
        for name, modules in MODULES.items():
            times: dict[str, list[float]] = {side: [] for side in SIDES}
            for _ in range(arguments.repeats):
                for side in SIDES:
                    result = run(modules, {**trust, **remotes[side]})
                    assert (result["lto_builds"] == 0) == (side == "store"), result
                    times[side].append(result["seconds"])
            medians = {side: statistics.median(found) for side, found in times.items()}
            case = {
                "modules": name,
                "seconds": medians,
                "all_seconds": times,
                "store_to_local": round(medians["store"] / medians["local"], 3),
                "away_s": {side: round(medians[side] - medians["local"], 3) for side in ("closed port", "silent")},
            }
            record["cases"].append(case)
            print(json.dumps({key: value for key, value in case.items() if key != "all_seconds"}), flush=True)
    arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
