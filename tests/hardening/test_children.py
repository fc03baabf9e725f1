"""The processes that a script starts under ``warp-tiles run`` have warp_tiles and its settings."""

from pathlib import Path

import pytest

from tests.integration.commands import command
from tests.nightly import some

SCRIPT = """
import multiprocessing, os, sys

def show(queue, method, generations):
    import warp_tiles
    now = warp_tiles.settings.current()
    queue.put((os.getpid(), warp_tiles.is_enabled(), now.all_modules, now.policy, now.layer("policy")))
    if generations > 1:
        start(queue, method, generations - 1)

def start(queue, method, generations):
    child = multiprocessing.get_context(method).Process(target=show, args=(queue, method, generations))
    child.start()
    child.join()
    assert child.exitcode == 0

if __name__ == "__main__":
    import warp_tiles
    if sys.argv[2] == "disabled":
        warp_tiles.disable()
    queue = multiprocessing.get_context(sys.argv[1]).Manager().Queue()
    start(queue, sys.argv[1], 2)
    for _ in range(2):
        pid, *found = queue.get(timeout=60)
        print("found", pid != os.getpid(), *found)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "state"),
    some([("spawn", "enabled"), ("forkserver", "enabled"), ("spawn", "disabled"), ("fork", "enabled")], 3),
)
def test_children_and_grandchildren_have_warp_tiles_and_the_settings(tmp_path: Path, method: str, state: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = command("run", "--policy", "fast", "--start", tmp_path / "start.json", script, method, state, as_json=False)
    assert done.returncode == 0, done.stderr
    # settings go with warp_tiles; with a start list all modules pass through the cache
    expected = "True True fast command line" if state == "enabled" else "False False auto default"
    assert done.stdout.count(f"found True {expected}") == 2, done.stdout
