"""Scripts that one process runs after another."""

from pathlib import Path

import pytest
import warp

from warp_tiles.cli.script import Script, discover

SCRIPT = """
import warp as wp

@wp.kernel
def {name}(out: wp.array(dtype=int)):
    out[wp.tid()] = 1
"""


def test_a_program_that_plans_a_script_keeps_its_own_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = warp._src.context.Module("__main__", None)
    monkeypatch.setitem(warp._src.context.user_modules, "__main__", own)
    (tmp_path / "script.py").write_text(SCRIPT.format(name="planned") + "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        discover(Script(str(tmp_path / "script.py")))
    assert warp._src.context.user_modules["__main__"] is own


def test_a_script_does_not_get_the_kernels_of_the_script_before_it(tmp_path: Path) -> None:
    found = []
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(SCRIPT.format(name=name))
        (target,) = discover(Script(str(tmp_path / f"{name}.py"))).targets
        found.append((target.module.name, list(target.module.kernels)))
    assert found == [("__main__", ["first"]), ("__main__", ["second"])]
