"""The processes that a script starts under ``warp-tiles run`` have warp_tiles and its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.commands import command
from tests.nightly import some

SCRIPT = """
import multiprocessing, os, sys

def show(queue):
    import warp_tiles
    now = warp_tiles.settings.current()
    queue.put((os.getpid(), warp_tiles.is_enabled(), now.policy, now.layer("policy")))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    child = context.Process(target=show, args=(queue,))
    child.start()
    pid, *found = queue.get(timeout=60)
    child.join()
    print("found", pid != os.getpid(), *found, child.exitcode)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", some(["spawn", "forkserver", "fork"], 2))
def test_a_child_has_warp_tiles_and_the_settings(tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = command("run", "--policy", "fast", script, method, as_json=False)
    assert done.returncode == 0, done.stderr
    assert "found True True fast command line 0" in done.stdout


NESTED = """
import multiprocessing, sys

def grandchild(queue):
    import warp_tiles
    queue.put(warp_tiles.is_enabled())

def child(queue, method):
    process = multiprocessing.get_context(method).Process(target=grandchild, args=(queue,))
    process.start()
    process.join()

if __name__ == "__main__":
    import warp_tiles
    if sys.argv[2] == "disabled":
        warp_tiles.disable()
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Manager().Queue()
    process = context.Process(target=child, args=(queue, sys.argv[1]))
    process.start()
    process.join()
    print("grandchild", queue.get(timeout=60))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("state", "expected"), [("enabled", True), ("disabled", False)])
def test_a_grandchild_is_as_its_parents_are(tmp_path: Path, state: str, expected: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(NESTED)
    done = command("run", script, "spawn", state, as_json=False)
    assert done.returncode == 0, done.stderr
    assert f"grandchild {expected}" in done.stdout
