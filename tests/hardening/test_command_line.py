"""Bad input of the commands gives one clear message: exit status 2, and no traceback."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

import warp_tiles
from tests.hardening.devices import device
from tests.integration.commands import MAIN
from tests.integration.helpers import gemm, load
from tests.interpreter import REPOSITORY, python
from tests.nightly import some
from warp_tiles import cli, settings
from warp_tiles import settings as layers
from warp_tiles._warp.internals import find
from warp_tiles.errors import PlanError, SettingError
from warp_tiles.util.warn import printable

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a command in this process, and returns its exit status and its messages."""

    def call(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["warp-tiles", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        messages = capfd.readouterr().err
        assert "Traceback" not in messages
        return int(end.value.code or 0), messages

    yield call
    find("context.user_modules").pop("__main__", None)  # the kernels of these scripts are not those of others
    warp_tiles.disable()
    warp_tiles.configure(policy=None)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return written(tmp_path, MAIN)


def written(folder: Path, text: str) -> Path:
    """A script with a text."""
    path = folder / "script.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("command", ["plan", "compile"])
@pytest.mark.parametrize("arch", [999, 50, 91])
def test_an_unknown_architecture_is_refused_before_the_script_runs(
    run: Run, tmp_path: Path, command: str, arch: int
) -> None:
    script = written(tmp_path, "raise SystemExit('it ran')")
    output = ["-o", tmp_path / "out"] if command == "compile" else []
    status, messages = run(command, "--arch", arch, *output, script)
    assert status == 2
    assert f"arch is {arch}, which Warp's compiler does not know" in messages
    assert "it ran" not in messages
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("block_dim", [-1, 1025])
def test_a_block_size_that_no_block_has_is_refused(run: Run, tmp_path: Path, block_dim: int) -> None:
    script = written(tmp_path, MAIN.replace("block_dim=64", f"block_dim={block_dim}"))
    status, messages = run("plan", script, tmp_path)
    assert status == 2
    assert f"block_dim is {block_dim}" in messages


@pytest.mark.parametrize("error", some([MemoryError("bad allocation"), KeyError("a name")], 1, "slow"))
def test_an_error_of_warp_is_one_message(
    run: Run, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(find("context.Module"), "_write_meta", fail)
    status, messages = run("compile", "-o", tmp_path / "out", script, tmp_path)
    assert status == 2
    assert f"warp-tiles: Warp failed: {type(error).__name__}: {error}\nRemedy: " in messages
    assert ("there is memory" in messages) == isinstance(error, MemoryError)
    assert sorted(tmp_path.glob("out/**/")) == [tmp_path / "out", tmp_path / "out" / "sm_90"], "no temporary folder"


@pytest.mark.parametrize("words", [("plan",), ("bundle", "-o", "out"), ("warm",), ("warm", "--arch", "90")])
def test_a_missing_script_is_reported_before_anything_is_said_or_started(
    run: Run, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warp_tiles.api.enable", lambda: pytest.fail("Warp has started"))
    status, messages = run(*words, "absent.py")
    assert status == 2
    assert messages == "warp-tiles: there is no script absent.py\nRemedy: give the path of a Python file\n"


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_script_without_its_arguments_is_not_told_to_ask_for_planning(run: Run, tmp_path: Path, place: str) -> None:
    parse = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('size')\nparser.parse_args()\n"
    late = MAIN + parse.replace("('size')", "('size', type=int)")
    script = written(tmp_path, parse + MAIN if place == "before" else late)
    status, messages = run("plan", script, *(() if place == "before" else (tmp_path,)))
    assert status == 2
    assert "SystemExit: 2" in messages
    assert "Remedy: give the arguments that it needs" in messages
    assert "is_planning" not in messages


def test_an_error_of_warp_in_a_script_that_runs_has_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    script = written(tmp_path, "import warp as wp\nwp.get_device('no such device')\n")
    monkeypatch.setattr(sys, "argv", ["warp-tiles", "run", str(script)])
    request.addfinalizer(warp_tiles.disable)
    with pytest.raises(ValueError, match="no such device"):
        cli.main()


@pytest.mark.usefixtures("enabled")
def test_arguments_of_plan_are_checked() -> None:
    module = load(gemm())
    for arch, block_dim in (("x", None), (70, None), (90.0, None), (True, None), (90, -1), (90, 0), (90, "64")):
        with pytest.raises(PlanError, match=r"arch is|block_dim is"):
            warp_tiles.plan(module, arch=arch, block_dim=block_dim)
    assert warp_tiles.plan(module, arch=90, block_dim=64).needed


@pytest.mark.parametrize(
    ("words", "place"),
    [
        *(("compile -o", place) for place in ("{}/script.py/out", "/proc/warp_tiles", "/dev/null/out")),
        *(("run --report", place) for place in ("/proc/report", "/proc/self/status", "{}/absent/report")),
    ],
)
def test_an_output_that_cannot_be_written(run: Run, script: Path, tmp_path: Path, words: str, place: str) -> None:
    status, messages = run(*words.split(), place.format(tmp_path), script, tmp_path)
    assert status == 2
    assert "cannot be written" in messages


STRIPPED = """
import sys
import warp as wp

@wp.kernel(enable_backward=False)
def fill(a: wp.array(dtype=float)):
    a[0] = float(wp.static(int(sys.argv[1])))

wp.set_module_options({"strip_hash": True})
for threads in map(int, sys.argv[2:]):
    wp.launch(fill, dim=1, inputs=[wp.zeros(1)], block_dim=threads)
"""


def test_files_whose_names_have_no_hash_are_never_up_to_date(run: Run, tmp_path: Path) -> None:
    script, built = written(tmp_path, STRIPPED), []
    for number in (1, 2):
        assert run("compile", "-o", tmp_path / "out", script, number, 64)[0] == 0
        (cubin,) = (tmp_path / "out" / "sm_90").glob("*.cubin")
        built.append(cubin.read_bytes())
    assert built[0] != built[1], "the kernel has changed"
    status, messages = run("compile", "-o", tmp_path / "out", script, 1, 64, 128)
    assert status == 2
    assert "sm90.cubin is for one of 2 block sizes, whose files have one name by strip_hash" in messages


@pytest.mark.slow
def test_a_full_output_folder(script: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for a disk without space."""
    code = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from warp_tiles import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.argv = ["warp-tiles", "compile", "-o", {str(tmp_path / "out")!r}, {str(script)!r}, {str(tmp_path)!r}]
cli.main()
"""
    done = python("-c", code, status=2)
    assert "cannot be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").rglob("*.cubin"))


def warp_tiles_command(*words: str, **streams: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "warp_tiles", *words]
    return subprocess.run(command, cwd=REPOSITORY, stderr=subprocess.PIPE, check=False, **streams)


@pytest.mark.parametrize("words", some(["settings", "plan --json {script} {folder}"], 1, "slow"))
def test_standard_output_that_is_full(script: Path, tmp_path: Path, words: str) -> None:
    with open(device(tmp_path, "full"), "wb") as full:
        refused = warp_tiles_command(*words.format(script=script, folder=tmp_path).split(), stdout=full)
    assert refused.returncode == 1, refused.stderr
    *others, message = refused.stderr.splitlines()
    assert message == b"warp-tiles: standard output cannot be written: No space left on device"
    assert b"Traceback" not in b"".join(others)


@pytest.mark.slow
def test_standard_output_that_is_closed_or_a_closed_pipe() -> None:
    closed = warp_tiles_command("settings", preexec_fn=lambda: os.close(1))
    assert (closed.returncode, closed.stderr) == (0, b"")
    reader, writer = os.pipe()
    os.close(reader)
    ended = warp_tiles_command("settings", stdout=writer)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.usefixtures("clean_settings")
@pytest.mark.parametrize(
    ("text", "size", "reason"),
    [
        ("[tool.warp_tiles]\na = " + "[" * 100_000, 0, "cannot be read"),
        ("", 2 << 30, "more than 1048576 bytes"),
        ("a." * 100_000 + "b = 1\n[tool.warp_tiles]\n", 0, "hundreds of parts"),  # takes the square of its parts
        ("a." * 100_000 + "b = 1\n<<<<<<< this is no TOML", 0, ""),  # has no table of this package
    ],
    ids=["nested", "huge", "slow", "of others"],
)
def test_a_hostile_project_file_is_refused_soon(
    tmp_path: Path, text: str, size: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "a.a." in text:
        monkeypatch.setattr(layers.tomllib, "loads", lambda text: pytest.fail("it is parsed"))
    with open(tmp_path / "pyproject.toml", "w") as file:
        file.write(text)
        file.truncate(size or len(text))
    if not reason:
        assert settings.current().policy == "auto"
        return
    with pytest.raises(SettingError, match=reason):
        settings.current()


@pytest.mark.usefixtures("clean_settings")
def test_numbers_and_paths_that_nothing_can_bear() -> None:
    for value in ("9" * 5000, 10**5000, "9" * 40):
        with pytest.raises(SettingError, match="cache_max_bytes"):
            settings.configure(cache_max_bytes=value)
    for path, reason in (("/x/\ud800", "no file can have"), ("a\0b", "contains a NUL")):
        with pytest.raises(SettingError, match=reason):
            settings.configure(cache_dir=path)
    for jobs in ("999999999999", "9" * 5000, 10**5000, "0" * 18 + "2000"):
        with settings.override(jobs=jobs) as now:
            assert now.jobs == settings.table.MAX_JOBS
    with settings.override(jobs="0" * 18 + "5") as now:
        assert now.jobs == 5


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert printable("\x1b]0;title\x07 \x9b31m \u202e\udcff") == r"\x1b]0;title\x07 \x9b31m \u202e\udcff"
    assert printable("plain, ünïcode → ✓") == "plain, ünïcode → ✓"
    assert printable("two\nlines\tand a tab", lines=True) == "two\nlines\tand a tab"
    assert printable("two\nlines") == r"two\nlines"


def test_an_entry_of_the_search_path_that_python_ignores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from warp_tiles.compile.pool import CompilerPool
    from warp_tiles.compile.toolchain import search_state

    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path, 3])
    assert search_state()
    with CompilerPool(1) as pool:
        pool.start_processes(1)
        assert pool._processes[0]._process is not None


def test_the_status_that_a_command_asks_for_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    command = click.Command("ends", callback=lambda: click.get_current_context().exit(3))
    monkeypatch.setitem(cli.commands.commands, "ends", command)
    monkeypatch.setattr(sys, "argv", ["warp-tiles", "ends"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 3
