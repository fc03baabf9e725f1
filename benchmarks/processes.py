"""The fresh processes that benchmarks measure."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT


def environment(inherited: Mapping[str, str] = os.environ, /, **changes: str | Path) -> dict[str, str]:
    """The environment of a process that imports this checkout, as an installed package is imported: with bytecode.

    Args:
        inherited: The variables to start from.
        **changes: Other values of variables.
    """
    given = {**inherited, **changes}
    given.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, each process would compile all that it imports
    given["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), str(given.get("PYTHONPATH", "")))))
    return {name: str(value) for name, value in given.items()}


def run_json(command: Sequence[str], environ: Mapping[str, str], given: Any = None, folder: Path = ROOT) -> Any:
    """What a process prints in its last line, as JSON.

    Args:
        command: The command.
        environ: Its environment.
        given: What it reads as JSON from its standard input.
        folder: Its working directory.

    Raises:
        SystemExit: The process failed.
    """
    done = subprocess.run(
        command, input=json.dumps(given), env=environ, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def run_in(state: Path, program: str, given: Any) -> Any:
    """:func:`run_json` for a program of a state of this checkout, with empty caches.

    Args:
        state: A worktree of the state, from which the process imports.
        program: The text of its Python program.
        given: What the program reads as JSON from its standard input.
    """
    with tempfile.TemporaryDirectory() as scratch:
        caches = {"WARP_CACHE_PATH": f"{scratch}/warp", "WARP_TILES_CACHE_DIR": f"{scratch}/tiles"}
        environ = {**environment(**caches), "PYTHONPATH": str(state.resolve())}
        return run_json([sys.executable, "-c", program], environ, given, Path(scratch))


@contextlib.contextmanager
def served(store: Path) -> Iterator[str]:
    """The URL at which Python's HTTP server serves a folder to this machine."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=store)) as server:
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
