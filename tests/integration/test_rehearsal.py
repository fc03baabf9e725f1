"""``warp-tiles run --rehearse``: a second process compiles what the script launches."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import warp as wp

from benchmarks.stand_in import StandIn
from tests.integration.commands import command
from tests.integration.helpers import FORWARD_ONLY, gemm, load
from tests.integration.test_idle import SEEN
from tests.waiting import until
from warp_tiles._warp import installed
from warp_tiles.build.idle import IdleModule
from warp_tiles.build.start_record import StartRecord
from warp_tiles.cli import run as run_command
from warp_tiles.cli.run import Rehearsal, compile_launched
from warp_tiles.errors import CacheError
from warp_tiles.launch.script import Script

KERNEL = """
@wp.kernel(enable_backward=False)
def {name}(out: wp.array(dtype=float)):
    out[wp.tid()] = {value}
"""


OWN_STATIC = """
@wp.kernel(enable_backward=False)
def plain(out: wp.array(dtype=float)):
    for i in range(3):
        out[i] = wp.static(evaluate(i))
"""


def rehearsed(program: Callable[[], object], device: StandIn | None = None) -> tuple[int, str]:
    """The answer of the rehearsal. What it has built is not recorded."""
    answer = compile_launched(program, device)
    installed().engine.recorder.clear()
    return answer


def launch(kernel: Any, array: Any = None, **options: Any) -> None:
    """Launch a kernel with an array, by default of one number."""
    array = wp.zeros(1, dtype=float, device="cpu") if array is None else array
    wp.launch(kernel, dim=1, inputs=[array], device="cpu", **options)


def built() -> int:
    """The number of modules that were built since the rehearsal."""
    return sum(not record.found for record in installed().engine.recorder.records)


def test_what_a_program_launches_is_compiled_and_its_launches_find_it(device: StandIn) -> None:
    plain, product = load(KERNEL.format(name="plain", value=1.0)), load(gemm(m=16, n=16, k=16, decorator=FORWARD_ONLY))
    never = load(KERNEL.format(name="never", value=2.0))
    arrays = [wp.zeros((16, 16), dtype=float, device="cpu") for _ in range(3)]

    def program() -> None:
        for threads in (32, 64, 64):
            wp.launch(plain.plain, dim=1, inputs=arrays[:1], block_dim=threads, device="cpu")
        wp.launch_tiled(product.gemm, dim=(1, 1), inputs=arrays, block_dim=64, device="cpu")
        sys.exit(3)

    assert rehearsed(program, device) == (3, "SystemExit: 3")
    for module, threads in ((plain, 32), (plain, 64), (product, 64)):
        device.load(module.__name__, threads)
    assert built() == 0, "the launches found the modules"
    device.load(never.__name__)
    assert built() == 1


def test_a_kernel_that_is_added_after_a_launch_is_compiled_too(device: StandIn) -> None:
    module = load(KERNEL.format(name="first", value=1.0))

    def program() -> None:
        launch(module.first)
        exec(
            compile(Path(str(module.__file__)).read_text().replace("first", "second"), str(module.__file__), "exec"),
            vars(module),
        )
        launch(module.second)

    assert rehearsed(program, device) == (2, "")
    device.load(module.__name__)
    assert built() == 0, "the launch found the module with both kernels"


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[list[ModuleType], list[IdleModule]]:
    """A module whose function ``program()`` launches the kernel of the other one first, and what is compiled of both.

    The modules are in the order of their launches.
    """
    caller = KERNEL.format(name="last", value=2.0) + "def program(first):\n    launch(first)\n    launch(last)\n"
    modules = [load(KERNEL.format(name="first", value=1.0)), load(caller)]
    order, compiled = list[IdleModule](), run_command.compiled

    def note(engine: Any, one: IdleModule) -> bool:
        order.append(one)
        return compiled(engine, one)

    monkeypatch.setattr(run_command, "compiled", note)
    monkeypatch.setattr(run_command, "available_cores", lambda: 1)
    monkeypatch.setitem(vars(modules[1]), "launch", functools.partial(launch, block_dim=64))
    return modules, order


def test_modules_of_running_functions_are_compiled_before_their_launches(
    device: StandIn, two: tuple[list[ModuleType], list[IdleModule]]
) -> None:
    (first, second), order = two
    other = load(KERNEL.format(name="never", value=3.0))
    assert rehearsed(lambda: second.program(first.first), device) == (2, "")
    names = [one.module.name for one in order]
    assert names == [first.__name__, second.__name__], "its launch does not generate it again"
    for module in (first, second):
        device.load(module.__name__, 64)
    assert built() == 0
    device.load(other.__name__)
    assert built() == 1


def test_launches_teach_the_block_size_of_the_others(
    device: StandIn, two: tuple[list[ModuleType], list[IdleModule]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, second), order = two
    monkeypatch.setattr("warp_tiles._warp.idle._package", lambda _: "one package")
    wp.get_module(second.__name__).options["block_dim"] = 32
    assert rehearsed(lambda: second.program(first.first), device) == (2, "")
    assert [one.module.block_dim for one in order] == [64, 64]


def test_a_question_about_occupancy_loads_nothing_and_is_answered(device: StandIn) -> None:
    plain = load(KERNEL.format(name="asked", value=5.0))
    answers = []
    compiled = rehearsed(lambda: answers.append(wp.get_suggested_block_size(plain.asked, device.alias)))
    assert compiled == (1, "")
    assert answers == [(64, 1)]
    assert device.loaded == []
    device.load(plain.__name__)
    assert built() == 0, "the load of the question finds the module"


def test_a_kernel_of_a_module_of_its_own_is_compiled(device: StandIn) -> None:
    text = KERNEL.format(name="unique", value=6.0).replace("(enable", '(module="unique", enable')
    kernel = load(text).unique
    assert kernel.module.hashers, "Warp has hashed it to name it"
    assert rehearsed(lambda: launch(kernel), device) == (1, "")


def test_deferred_static_expressions_are_evaluated_at_the_launch(device: StandIn) -> None:
    other = load(SEEN)
    module = load(KERNEL.format(name="plain", value="late(7.0)").replace("@wp.kernel", "late = wp.abs\n@wp.kernel"))
    module.late = other.late  # type: ignore[attr-defined]

    def program() -> None:
        assert not other.seen
        launch(module.plain)
        assert other.seen

    assert rehearsed(program, device) == (1, "")


def test_deferred_static_expressions_of_the_kernel_itself_are_evaluated(device: StandIn) -> None:
    module = load("seen = []\ndef evaluate(i): return seen.append(i) or float(i)\n" + OWN_STATIC)
    assert wp.get_module(module.__name__).has_unresolved_static_expressions
    assert rehearsed(lambda: launch(module.plain), device) == (1, "")


def test_another_instance_of_a_generic_kernel_is_compiled(device: StandIn) -> None:
    module = load(
        "from typing import Any\n" + KERNEL.format(name="plain", value="out[0]").replace("dtype=float", "dtype=Any")
    )
    arrays = [wp.zeros(1, dtype=kind, device="cpu") for kind in (float, int)]

    def program() -> None:
        for array in arrays:
            launch(module.plain, array)

    assert rehearsed(program, device) == (2, "")


def test_a_program_that_launches_nothing_new_is_ended(device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(KERNEL.format(name="plain", value=8.0))

    def program() -> None:
        while True:
            with contextlib.suppress(Exception):
                launch(module.plain)

    monkeypatch.setattr(run_command, "QUIET_S", 0.2)
    assert rehearsed(program, device) == (1, "")


def test_a_cache_that_keeps_nothing_ends_the_compilations(device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise CacheError("it cannot be kept", "")

    monkeypatch.setattr(run_command, "compiled", fail)
    modules = [load(KERNEL.format(name="plain", value=f"{number}.5")) for number in range(3)]

    def program() -> None:
        for module in modules:
            launch(module.plain)

    assert rehearsed(program, device) == (0, "")


def test_nothing_is_compiled_for_the_cpu(device: StandIn) -> None:
    plain = load(KERNEL.format(name="plain", value=3.0))
    out = wp.zeros(1, dtype=float, device="cpu")
    assert rehearsed(lambda: launch(plain.plain, out)) == (0, "")
    assert out.numpy()[0] == 0.0, "launches do nothing"


# ---- the command

SCRIPT = (
    """
import os, pathlib, sys
import warp as wp
import warp_tiles
folder = pathlib.Path(sys.argv[1])
(folder / f"{warp_tiles.is_planning()} {os.getpid()}").write_text(" ".join(sys.argv[2:]))
print("said")
"""
    + KERNEL.format(name="plain", value=4.0)
    + """
wp.launch(plain, dim=1, inputs=[wp.zeros(1, dtype=float, device="cpu")], device="cpu")
"""
)
WAITS = """
import time
def ended():
    for path in folder.glob("True *"):
        stat = pathlib.Path("/proc", path.name.split()[1], "stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
end = time.monotonic() + 60
while not warp_tiles.is_planning() and not ended() and time.monotonic() < end:
    time.sleep(0.05)
"""
ENDLESS = "import time, warp_tiles\nwhile warp_tiles.is_planning():\n    time.sleep(0.1)\n"


def rehearse(folder: Path, text: str, *options: object) -> tuple[str, list[str]]:
    """Standard error, and the files that the script's two processes have written."""
    (folder / "script.py").write_text(text)
    files = folder / "files"
    files.mkdir(exist_ok=True)
    done = command(
        "run", "--rehearse", *options, folder / "script.py", files, "word", as_json=False, cache=folder / "lto"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("said") == text.count("said"), "the other process prints nothing"
    return done.stdout + done.stderr, sorted(path.name.split()[0] for path in files.iterdir())


def test_the_script_runs_twice_and_prints_once(folder: Path) -> None:
    shown, files = rehearse(folder, SCRIPT + WAITS)
    assert files == ["False", "True"]
    assert re.search(r"^warp_tiles: .*compiled by the rehearsal: 0$", shown, re.M)


def test_an_error_in_the_rehearsal_is_warned_of(folder: Path) -> None:
    shown, _ = rehearse(
        folder, SCRIPT + "if warp_tiles.is_planning():\n    raise ValueError('needs a result')\n" + WAITS
    )
    assert "the rehearsal stopped early with ValueError: needs a result" in shown
    assert re.search(r"^warp_tiles: .*compiled by the rehearsal: 0$", shown, re.M)


def test_a_rehearsal_that_does_not_end_is_ended_with_its_children(folder: Path) -> None:
    assert "the rehearsal did not finish" in rehearse(folder, ENDLESS)[0]
    for path in (folder / "files").iterdir():
        pid = int(path.name.split()[1])
        until(lambda pid=pid: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())  # type: ignore[misc]


def test_with_a_start_record_there_is_no_rehearsal(folder: Path) -> None:
    record = folder / "start.json"
    record.write_bytes(StartRecord(str(wp.__version__)).to_bytes())
    shown, files = rehearse(folder, SCRIPT, "--start", record)
    assert files == ["False"]
    assert "rehearsal" not in shown


def test_without_a_record_there_is_nothing_to_rehearse_for(folder: Path) -> None:
    done = command("run", "--rehearse", "--no-start", folder / "main.py", as_json=False)
    assert done.returncode == 2
    assert "--rehearse keeps a start record and --no-start keeps none: give only one of them" in done.stderr


def test_modules_tiles_is_refused(folder: Path) -> None:
    done = command("run", "--rehearse", folder / "main.py", as_json=False, WARP_TILES_MODULES="tiles")
    assert done.returncode == 2
    assert "--rehearse was given, and modules is 'tiles'" in done.stderr


def test_a_process_that_cannot_be_started_costs_only_the_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/missing/python")
    with pytest.warns(RuntimeWarning, match="there is no rehearsal"), Rehearsal(Script("script.py")) as other:
        assert other.summary() == "the rehearsal did not finish"


def test_a_policy_that_builds_nothing_is_said(folder: Path) -> None:
    (folder / "script.py").write_text("print('said')\n")
    done = command("run", "--rehearse", "--policy", "locked", folder / "script.py", as_json=False, cache=folder / "lto")
    assert done.returncode == 0, done.stderr
    assert "nothing is rehearsed, because the policy is 'locked'" in done.stderr
