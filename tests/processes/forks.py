"""Commands in processes that are forked from one that has imported the package, which takes most of a short command.

The process reads a JSON object a line, and answers each with the exit status of its command. It is used through
:func:`forked`; alone it is ``python -m tests.processes.forks``.
"""

import functools
import gc
import json
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO

SECONDS = 300  # of one command


@functools.cache
def _parent(environment: tuple[tuple[str, str], ...]) -> subprocess.Popen[str]:
    """The process that forks, for one state of what Python reads when it starts."""
    command = [sys.executable, "-m", "tests.processes.forks"]
    folder = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        command, cwd=folder, env=dict(environment), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def forked(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``python -m module`` in the current folder, with this environment alone."""
    fixed = {name: value for name, value in environment.items() if name.startswith("PYTHON") or name == "PATH"}
    parent = _parent(tuple(sorted(fixed.items())))
    assert parent.stdin is not None
    assert parent.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        outputs = [os.path.join(folder, name) for name in ("out", "err")]
        words = {"module": module, "arguments": list(arguments), "environment": dict(environment)}
        print(json.dumps({**words, "folder": os.getcwd(), "outputs": outputs}), file=parent.stdin, flush=True)
        status = int(parent.stdout.readline())
        out, err = (Path(path).read_text("utf-8") for path in outputs)
    return subprocess.CompletedProcess([module, *arguments], status, out, err)


def main() -> None:
    """Import the package; fork for each line, and let the child run the command and end as any process does."""
    import warp_tiles

    for module in pkgutil.walk_packages(warp_tiles.__path__, "warp_tiles."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):  # of an extra
                import_module(module.name)
    gc.collect()
    gc.freeze()  # children end without a search through all that was imported
    answers: IO[str] = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
            continue
        answers.close()
        signal.alarm(SECONDS)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(asked["outputs"], 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        sys.argv, sys.path[0] = [asked["module"], *asked["arguments"]], asked["folder"]
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
        return


if __name__ == "__main__":
    main()
