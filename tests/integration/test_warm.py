"""``warp-tiles warm SCRIPT``: what a script launches is compiled before its first start, also without a GPU."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import warp as wp
from click.testing import CliRunner

import warp_tiles
from benchmarks.stand_in import StandIn
from tests.integration.ahead_modules import SEEN, found_at_load
from tests.integration.commands import MATMULS, command, json_of
from tests.integration.helpers import FORWARD_ONLY, gemm, load
from tests.interpreter import python
from tests.nightly import some
from warp_tiles._warp import installed, reload
from warp_tiles._warp.intercept import intercepted
from warp_tiles._warp.modules import forget_modules
from warp_tiles.build.log import BuildLog
from warp_tiles.build.start_list import StartList, read_start_list
from warp_tiles.cli import commands
from warp_tiles.cli.run import LaunchedModules
from warp_tiles.errors import PlanError
from warp_tiles.store import start_file

pytestmark = pytest.mark.usefixtures("digesting")

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


def launched(program: Callable[[], object], archs: Sequence[int] = (90,)) -> LaunchedModules:
    """The modules that a program launches, compiled."""
    modules = LaunchedModules(installed().engine, archs)
    with intercepted(
        lambda launch: modules.at_launch(launch.kernel.module, launch.device, launch.block_dim),
        lambda kernel, on, threads: modules.at_launch(kernel.module, on, threads),
    ):
        program()
    modules.finish()
    return modules


def warmed(program: Callable[[], object]) -> dict[str, int]:
    """The states of the modules that a program launches, with their numbers. What was built is not recorded."""
    states = [row["state"] for row in launched(program).rows]
    installed().engine.log = BuildLog()
    return {state: states.count(state) for state in states}


def launch(kernel: Any, array: Any = None, **options: Any) -> None:
    """Launch a kernel with an array, by default of one number."""
    array = wp.zeros(1, dtype=float, device="cpu") if array is None else array
    wp.launch(kernel, dim=1, inputs=[array], device="cpu", **options)


@pytest.mark.parametrize("options", [{}, {"enable_mathdx_gemm": False}], ids=str)
def test_launches_find_what_was_compiled(options: dict[str, bool], device: StandIn) -> None:
    plain, product = load(KERNEL.format(name="plain", value=1.0)), load(gemm(decorator=FORWARD_ONLY), **options)
    never = load(KERNEL.format(name="never", value=2.0))
    arrays = [wp.zeros((16, 16), dtype=float, device="cpu") for _ in range(3)]

    def program() -> None:
        for threads in (32, 64, 64):
            wp.launch(plain.plain, dim=1, inputs=arrays[:1], block_dim=threads, device="cpu")
        wp.launch_tiled(product.gemm, dim=(1, 1), inputs=arrays, block_dim=64, device="cpu")

    assert warmed(program) == {"compiled": 3}
    assert warmed(program) == {"present": 3}
    for module, threads in ((plain, 32), (plain, 64), (product, 64), (never, None)):
        device.load(module.__name__, threads)
    assert found_at_load() == [True, True, True, False]


GROWS = """
def of(size):
    @wp.kernel(module=wp.get_module("grown"), enable_backward=False)
    def squared(s: wp.array2d(dtype=float)):
        tile = wp.tile_load(s, shape=(size, size))
        wp.tile_store(s, wp.tile_matmul(tile, tile))

    return squared
"""


@pytest.mark.parametrize("tile", [True, False], ids=["product", "plain"])
def test_a_module_that_grows_is_compiled_as_it_is_at_each_launch(tile: bool, device: StandIn) -> None:
    def grown(then: Callable[[Any, int], object]) -> None:
        forget_modules(["grown"])
        factory = load(GROWS if tile else GROWS.replace("wp.tile_matmul(tile, tile)", "tile + tile"))
        kernels = [wp.get_module("grown")]  # Warp forgets kernels that nobody holds
        for size in (4, 8, 4, 16):
            kernels.append(factory.of(size))
            then(kernels[-1], size)

    def launched(kernel: Any, size: int) -> None:
        array = wp.zeros((size, size), dtype=float, device="cpu")
        wp.launch_tiled(kernel, dim=1, inputs=[array], block_dim=64, device="cpu")

    assert warmed(lambda: grown(launched)) == {"compiled": 3, "present": 1}
    grown(lambda *_: device.load("grown", 64))
    assert found_at_load() == [True] * 3, "the second module of one content is that of the first"


def test_a_question_about_occupancy_is_a_launch(device: StandIn) -> None:
    plain = load(KERNEL.format(name="asked", value=5.0))
    sizes: list[tuple[int, int]] = []
    launched(lambda: sizes.append(wp.get_suggested_block_size(plain.asked, device.alias)))
    assert sizes == [(64, 1)]
    device.load(plain.__name__)
    assert found_at_load() == [True]


def test_each_instance_of_a_generic_kernel_and_a_module_of_one_kernel_are_compiled(device: StandIn) -> None:
    unique = load(KERNEL.format(name="unique", value=6.0).replace("(enable", '(module="unique", enable')).unique
    assert unique.module.hashers, "Warp has hashed it to name it"
    text = KERNEL.format(name="plain", value="out[0]").replace("dtype=float", "dtype=Any")
    generic = load("from typing import Any\n" + text)
    arrays = [wp.zeros(1, dtype=kind, device="cpu") for kind in (float, int)]
    assert warmed(lambda: [launch(unique), *(launch(generic.plain, array) for array in arrays)]) == {"compiled": 3}


CALLER = """
{kernel}
def run(first, launches):
    global SIZE
    first()
    SIZE = SIZE + (launches == 65)
    launches -= launches == 65
    if launches:
        wp.launch(caller, dim=1, inputs=[wp.zeros(1, dtype=float, device="cpu")], device="cpu", block_dim=launches)
"""


@pytest.mark.parametrize(
    ("launches", "long", "generated", "compiled"),
    [
        (64, True, ["caller", "first"], ["first", "caller"]),
        (32, True, ["caller", "first", "caller"], ["first", "caller"]),
        (0, True, ["caller", "first"], ["first"]),
        (65, True, ["caller", "first", "caller"], ["first", "caller"]),
        (64, False, ["first", "caller"], ["first", "caller"]),
    ],
    ids=["launched", "with another block size", "not launched", "with another constant", "a short one"],
)
def test_a_long_module_whose_function_launches_another_one_is_compiled_first(
    launches: int, long: bool, generated: list[str], compiled: list[str], monkeypatch: pytest.MonkeyPatch,
    device: StandIn,
) -> None:  # fmt: skip
    """The command ends with its last build, and a long one that begins late is the last."""
    first = load(KERNEL.format(name="first", value=8.0))
    text = "SIZE = 9\n" + KERNEL.format(name="caller", value="float(SIZE)").replace(
        "    out[", "    # it is long\n" * 2000 * long + "    out["
    )
    caller = load(CALLER.format(kernel=text))
    names, seen = {first.__name__: "first", caller.__name__: "caller"}, []
    generate = reload.generate_launched

    def note(module: Any, *given: Any, **named: Any) -> Any:
        seen.append(names[module.name])
        return generate(module, *given, **named)

    monkeypatch.setattr(reload, "generate_launched", note)
    modules = launched(lambda: caller.run(lambda: launch(first.first), launches))
    assert seen == generated
    assert [names[row["module"]] for row in modules.rows] == compiled
    assert {row["state"] for row in modules.rows} == {"compiled"}
    assert [one is not None for one in modules.generated] == [True] * len(compiled)


def test_deferred_static_expressions_are_evaluated_at_the_launch(device: StandIn) -> None:
    other = load(SEEN)
    module = load(KERNEL.format(name="plain", value="late(7.0)").replace("@wp.kernel", "late = wp.abs\n@wp.kernel"))
    module.late = other.late  # type: ignore[attr-defined]
    own = load("seen = []\ndef evaluate(i): return seen.append(i) or float(i)\n" + OWN_STATIC)

    def program() -> None:
        assert not other.seen
        launch(module.plain)
        assert other.seen
        launch(own.plain)

    assert warmed(program) == {"compiled": 2}


def test_a_module_that_fails_is_said_and_the_others_are_compiled(device: StandIn) -> None:
    broken, fine = (load(KERNEL.format(name="plain", value=value)) for value in ("missing(1.0)", "1.0"))
    fft = load("""
@wp.kernel(enable_backward=False)
def plain(out: wp.array2d(dtype=wp.vec2f)):
    tile = wp.tile_load(out, shape=(8, 8))
    wp.tile_fft(tile)
    wp.tile_store(out, tile)
""")
    spectrum = wp.zeros((8, 8), dtype=wp.vec2f, device="cpu")

    def program() -> None:
        launch(broken.plain)
        launch(fft.plain, spectrum)
        launch(fine.plain)

    assert warmed(program) == {"failed": 1, "left out": 1, "compiled": 1}


def test_launches_on_the_cpu_beside_a_gpu_are_left_out(device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warp_tiles._warp.lookups.gpus_here", lambda: {90: device})
    plain = load(KERNEL.format(name="plain", value=3.0))
    out = wp.zeros(1, dtype=float, device="cpu")

    def program() -> None:
        launch(plain.plain, out)
        wp.launch(plain.plain, dim=1, inputs=[out], device=device)

    assert [row["arch"] for row in launched(program, ()).rows] == [90]
    assert out.numpy()[0] == 0.0, "launches do nothing"
    device.load(plain.__name__)
    assert found_at_load() == [True]


def test_without_a_gpu_an_architecture_is_asked_for(device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warp_tiles._warp.lookups.gpus_here", dict)
    with pytest.raises(PlanError, match="this machine has no GPU") as error:
        LaunchedModules(installed().engine)
    assert "--arch 80,90" in error.value.remedy


# ---- the command

SCRIPT = (
    """
import sys
import warp as wp
import warp_tiles
"""
    + KERNEL.format(name="plain", value="float(out.shape[0])")
    + """
if __name__ == "__main__":
    out = wp.zeros(4, dtype=float, device="cpu")
    wp.launch(plain, dim=4, inputs=[out], device="cpu")
    print("saved", out.numpy().sum(), *sys.argv[1:])
    if warp_tiles.is_planning():
        warp_tiles.prefetch("__main__")
"""
)
# as a launch on a GPU loads the module
LOADS = """
from pathlib import Path
from benchmarks.stand_in import stand_in
warp_tiles.enable()
with stand_in(Path(sys.argv[1])) as device:
    device.load("__main__", 256)
    print([record["found"] for record in warp_tiles.report()["modules"] if "output" in record])
"""


@pytest.mark.parametrize("starts", some(["enable()", "run"], 1, "slow"))
def test_runs_of_a_warmed_script_build_nothing(starts: str, tmp_path: Path) -> None:
    script, cache = tmp_path / "script.py", tmp_path / "cache"
    script.write_text(SCRIPT + "    if not warp_tiles.is_planning():" + LOADS.replace("\n", "\n        "))
    done = command("warm", "--arch", "80,90", script, "word", cache=cache)
    rows = json_of(done)["modules"]
    assert [(row["arch"], row["state"]) for row in rows] == [(80, "compiled"), (90, "compiled")]
    assert done.stderr.startswith(f"warp-tiles: the launches of {script} compute nothing, so results that it saves")
    assert "planned| saved 0.0 word" in done.stderr
    record = start_file(cache, script)
    assert json_of(done)["start"] == str(record)
    assert [module.arch for module in read_start_list(record).modules] == [80, 90]
    prefix = ("-m", "warp_tiles", "run") if starts == "run" else ()
    run = python(*prefix, script, tmp_path / "kernels", WARP_TILES_CACHE_DIR=str(cache))
    assert "saved 16.0" in run.stdout
    assert "\n[True]\n" in run.stdout


def test_kernels_of_matmul_are_compiled_unless_a_call_generates_their_code(tmp_path: Path) -> None:
    script, cache = tmp_path / "script.py", tmp_path / "cache"
    script.write_text(MATMULS)
    for state in ("compiled", "present"):
        rows = json_of(command("warm", "--arch", "80,90", script, cache=cache))["modules"]
        kernels = {(row["module"].partition("_float")[0], row["arch"], row["state"], row["reason"]) for row in rows}
        epilogue = "Warp generates the code of its epilogue at the call"
        assert {kernel for kernel in kernels if kernel[0] in ("matmul", "lane_matmul")} == {
            (name, 90, *outcome)
            for name in ("matmul", "lane_matmul")
            for outcome in ((state, ""), ("left out", epilogue))
        }
    with_others = json_of(command("warm", "--arch", "80", script, cache=cache))["modules"]
    assert {row["arch"] for row in with_others} == {80}
    assert not [row for row in with_others if row["module"].startswith(("matmul_float", "lane_matmul_float"))]


def test_a_module_is_run_as_python_runs_it_and_its_record_lies_where_it_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package").mkdir()
    text = SCRIPT.replace("if __name__", "warp_tiles.enable(start='own.json')\nif __name__")
    (tmp_path / "package" / "__main__.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    done = command("warm", "--arch", "90", "-m", "package", cache=tmp_path / "cache")
    assert json_of(done)["start"] == str(tmp_path / "own.json")
    assert len(read_start_list(tmp_path / "own.json").modules) == 1


def test_a_script_that_stops_half_way_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "    raise ValueError('needs a result')\n")
    for option, status in (("--arch=90", 2), ("--arch=90", 2), ("--allow-incomplete", 0)):
        done = command("warm", "--arch=90", option, script, as_json=False, cache=tmp_path / "cache")
        assert done.returncode == status
        assert "stopped early, while its launches were recorded and not executed: ValueError: needs" in done.stderr
        assert ("give `warp-tiles warm --record FILE`" in done.stderr) == bool(status)
        assert "1 compiled" in done.stdout or "1 present" in done.stdout
    assert len(read_start_list(start_file(tmp_path / "cache", script)).modules) == 1


@pytest.mark.parametrize(
    ("words", "settings", "said"),
    [
        ((), {}, "give a script or --record FILE"),
        (("--record", "a.json", "script.py"), {}, "give a script or --record FILE"),
        (("--record", "a.json", "--start", "b.json"), {}, "--start FILE only with a script"),
        (("--arch=90", "script.py"), {"WARP_TILES_POLICY": "locked"}, "which builds nothing"),
    ],
)
def test_what_cannot_be_warmed_is_refused(
    words: tuple[str, ...], settings: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("raise SystemExit('it ran')\n")
    done = CliRunner().invoke(commands, ["warm", *words], env=settings)
    assert said in done.output + str(done.exception)
    assert done.exit_code


def test_help_says_what_the_script_saves() -> None:
    shown = CliRunner().invoke(commands, ["warm", "--help"]).output
    shown = " ".join(shown.split())
    assert "results that it saves are zeros" in shown
    assert "warp_tiles.is_planning()" in shown


def test_only_the_script_that_was_warmed_has_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    record = start_file(tmp_path / "cache", script)
    record.parent.mkdir(parents=True, mode=0o700)
    (tmp_path / "cache").chmod(0o700)
    record.write_bytes(StartList(str(wp.__version__)).to_bytes())
    with warp_tiles.override(cache_dir=tmp_path / "cache"):
        warp_tiles.disable()
        for file, expected in ((script, record), ("b.py", None)):
            monkeypatch.setattr(sys.modules["__main__"], "__file__", str(file))
            with warp_tiles.enabled():
                start = installed().program_start
                assert (None if start is None else start.file) == expected
