"""The fresh processes that benchmarks measure."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT


class ProcessError(SystemExit):
    """A process failed. ``reason`` is the last line that it wrote, or its time limit."""

    def __init__(self, command: Sequence[str], reason: str, output: str = "") -> None:
        super().__init__(f"{' '.join(command)[:200]} failed:\n{output or reason}")
        self.reason = reason


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


def run_json(
    command: Sequence[str],
    environ: Mapping[str, str],
    given: Any = None,
    folder: Path = ROOT,
    limit_s: float | None = None,
) -> Any:
    """What a process prints in its last line, as JSON; None if it prints nothing.

    Args:
        command: The command.
        environ: Its environment.
        given: What it reads as JSON from its standard input.
        folder: Its working directory.
        limit_s: Seconds after which it is ended.

    Raises:
        ProcessError: The process failed, or took longer.
    """
    try:
        done = subprocess.run(
            command, input=json.dumps(given), env=environ, cwd=folder, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise ProcessError(command, f"it took longer than {limit_s:g} s") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ProcessError(command, reason, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads((done.stdout.strip().splitlines() or ["null"])[-1])


@contextlib.contextmanager
def remote_store(folder: Path) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """The variables of processes that fill a store in a folder, and of those that read it from Python's HTTP server."""
    from warp_tiles.store.keys import SigningKey

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    store, file = folder / "store", folder / "key.pem"
    store.mkdir()
    SigningKey.generate().write(file)
    trust = {
        "WARP_TILES_TRUSTED_KEYS": str(SigningKey.read(file).public), "XDG_CONFIG_HOME": str(folder / "config")
    }  # fmt: skip
    push = {"WARP_TILES_REMOTE_PUSH": "1", "WARP_TILES_SIGNING_KEY": str(file), "WARP_TILES_REMOTE": store.as_uri()}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=store)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield trust | push, {**trust, "NO_PROXY": "127.0.0.1", "WARP_TILES_REMOTE": url}
        server.shutdown()
