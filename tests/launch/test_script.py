"""Scripts that one process runs after another."""

from __future__ import annotations

from pathlib import Path

from warp_tiles.launch.script import discover

SCRIPT = """
import warp as wp

@wp.kernel
def {name}(out: wp.array(dtype=int)):
    out[wp.tid()] = 1
"""


def test_a_script_does_not_get_the_kernels_of_the_script_before_it(tmp_path: Path) -> None:
    found = []
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(SCRIPT.format(name=name))
        (target,) = discover(tmp_path / f"{name}.py").targets
        found.append((target.module.name, list(target.module.kernels)))
    assert found == [("__main__", ["first"]), ("__main__", ["second"])]
