"""``warp-tiles tune``: its output and its errors, with a fake search."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.interpreter import python
from tests.tuning.tuning_records import failure, key, timing
from warp_tiles import settings
from warp_tiles.cli import commands, common
from warp_tiles.cli.script import Discovery, Script
from warp_tiles.cli.tune import label, microseconds
from warp_tiles.errors import RecordError, ScriptError, SettingError
from warp_tiles.tuning.in_kernels import TunedTask
from warp_tiles.tuning.record import Record, Timing
from warp_tiles.tuning.store import RecordStore, open_store
from warp_tiles.tuning.tasks import TuningTask

FAST = timing({"provider": "own", "tile": {"m": 64}}, 10.0, shared_bytes=8192)
SLOW = timing({"provider": "own", "tile": {"m": 16}}, 25.0)
DEFAULT = timing({"pipeline": "auto"}, 25.0)
STAGED = timing({"pipeline": "stages=4"}, 10.0)
TASK = TuningTask(
    "loop", (("stage_bytes", 8192),), "loop of 64x64x32", ({"pipeline": "auto"}, {"pipeline": "stages=4"})
)
BROKEN = failure({"provider": "cublasdx"}, "needs [bold] 300 kB of [/shared] memory")


@dataclass
class Search:
    """A fake search for a script that records its calls."""

    calls: list[tuple[Path, tuple[str, ...], float]] = field(default_factory=list)
    devices: list[tuple[str, ...]] = field(default_factory=list)
    found: tuple[Any, ...] = ()
    ended: str = ""

    def tune_script(
        self, script: Script, *, budget_s: float, devices: tuple[str, ...], progress: Any, allow_incomplete: bool
    ) -> list[Any]:
        self.calls.append((Path(script.name), script.arguments, budget_s))
        common.require_complete(script, Discovery((), self.ended, {}, ()), allow_incomplete)
        self.devices.append(devices)
        os.write(1, b"the script prints")
        for item in self.found:
            progress(item.task, item.record)
        return list(self.found)


def tuned(*timings: Timing, measured: int = 2, error: str = "") -> TunedTask:
    record = Record(key("loop", stage_bytes=8192), timings)
    return TunedTask(TASK, "gemm", record, measured, error)


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    fake = Search()
    monkeypatch.setattr("warp_tiles.cli.tune.tune_script", fake.tune_script)
    return fake


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, with a script and its own cache."""
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("")
    with settings.override(cache_dir=tmp_path / "cache"):
        yield tmp_path


@pytest.fixture
def two(folder: Path) -> RecordStore:
    """Two records: three configurations of one key, one of another."""
    store = open_store()
    store.merge(key("gemm", m=64, n=32), [SLOW, FAST, BROKEN])
    store.merge(key(), [SLOW])
    return store


GEMM = key("gemm", m=64, n=32).digest


def tune(*words: object) -> Result:
    return CliRunner().invoke(commands, ["tune", *map(str, words)], prog_name="warp-tiles")


def parsed(*words: str) -> Any:
    """The JSON of a command, which is all that it prints on standard output."""
    result = tune("--json", *words) if words[0].endswith(".py") else tune(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def table(*words: object) -> str:
    result = tune(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


_PRINTS_LATER = """
import atexit, ctypes, threading

go_on = threading.Event()

def tune_script(*arguments, **options):
    ctypes.CDLL(None).printf(b"buffered in C\\n")
    build = threading.Thread(target=lambda: go_on.wait() and print("a build that ends late", flush=True))
    build.start()
    atexit.register(print, "at the end")
    threading._register_atexit(go_on.set)
    return []

from warp_tiles.cli import main, tune
tune.tune_script = tune_script
main()
"""


class TestScript:
    def test_a_script_that_stops_early_is_tuned_only_on_request(self, search: Search) -> None:
        assert "launches no kernel that can be tuned" in tune("script.py").stderr
        search.ended = "SystemExit: the result is wrong"
        result = tune("--json", "script.py")
        assert isinstance(result.exception, ScriptError)
        assert "script.py stopped early" in str(result.exception)
        assert "--allow-incomplete" in result.exception.remedy
        result = tune("--json", "--allow-incomplete", "script.py")
        assert "script.py stopped early" in result.stderr
        assert json.loads(result.stdout) == {"tasks": []}

    @pytest.mark.parametrize(
        ("words", "arguments", "budget_s", "devices"),
        [
            (["script.py", "a", "-x", "--flag=1"], ("a", "-x", "--flag=1"), 12.0, ()),
            (["--budget", "5", "script.py"], (), 5.0, ()),
            (["--budget", "0", "script.py", "--budget", "2.5", "a"], ("--budget", "2.5", "a"), 0.0, ()),
            (["--budget", "1e-5", "script.py"], (), 1e-5, ()),
            (["script.py", "--", "--budget", "7", "--json"], ("--budget", "7", "--json"), 12.0, ()),
            (["--devices", "cuda:1", "script.py"], (), 12.0, ("cuda:1",)),
            (["--devices", "cuda:1, cuda:0,cuda:1", "script.py", "a"], ("a",), 12.0, ("cuda:1", "cuda:0")),
        ],
    )
    def test_options_belong_to_the_command_and_the_rest_to_the_script(
        self, search: Search, words: list[str], arguments: tuple[str, ...], budget_s: float, devices: tuple[str, ...]
    ) -> None:
        with settings.override(tune_budget_s=12):
            assert tune(*words).exit_code == 0
        assert search.calls == [(Path("script.py"), arguments, budget_s)]
        assert search.devices == [devices]

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            *(("--devices", value) for value in ("", "cuda:0,", ",")),
            *(("--budget", value) for value in ("-1", "soon", "", "nan", "inf", "1e400")),
        ],
    )
    def test_an_invalid_option_is_refused(self, search: Search, option: str, value: str) -> None:
        result = tune(option, value, "script.py")
        assert (result.exit_code, search.calls) == (2, [])
        assert option in result.stderr

    def test_winners_are_printed_beside_the_default_and_failures_after_them(self, search: Search) -> None:
        slower = timing({"pipeline": "stages=4"}, 24.9)
        search.found = (tuned(DEFAULT, STAGED), tuned(DEFAULT, slower, measured=0))
        (first, second) = parsed("script.py")["tasks"]
        assert (first["key"], first["measured"]) == (search.found[0].record.key.digest, 2)
        assert (first["winner"]["config"], first["device"]) == (STAGED.config, "NVIDIA H200")
        assert first["default"]["median_us"] == 25.0
        assert (first["kernel"], first["subject"], first["problem"]) == ("gemm", "loop", TASK.title)
        assert second["winner"]["config"] == {"pipeline": "auto"}
        text = table("script.py")
        assert "the default" in " ".join(text.replace("│", "").split())
        assert "2 of 2" in text
        search.found = (tuned(DEFAULT, STAGED), tuned(measured=0, error="the argument a cannot be copied"))
        result = tune("script.py")
        assert result.exit_code == 1
        assert "stages=4" in "".join(result.stdout.split())
        assert "none so far" in result.stdout
        assert "unfinished: the argument a cannot be copied" in result.stderr
        result = tune("--json", "script.py")
        assert result.exit_code == 1
        errors = [row["error"] for row in json.loads(result.stdout)["tasks"]]
        assert errors == [None, "the argument a cannot be copied"]

    def test_a_script_may_have_a_commands_name_and_a_command_has_no_option_of_scripts(self, search: Search) -> None:
        Path("list").write_text("")
        assert tune("./list", "all").exit_code == 0
        assert search.calls == [(Path("list"), ("all",), 0.0)]
        assert json.loads(tune("--json", "list").stdout) == {"records": []}
        assert "no module list" in str(tune("-m", "list", "all").exception)
        for option in (["--budget", "5"], ["--devices", "cuda:0"], ["--allow-incomplete"]):
            result = tune(*option, "list")
            assert result.exit_code == 2
            assert f"{option[0]} is an option of `tune SCRIPT`, and not of `tune list`" in result.output

    def test_output_of_the_script_does_not_mix_with_json_or_progress(
        self, search: Search, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert parsed("script.py") == {"tasks": []}
        assert capfd.readouterr() == ("", "the script prints")
        table("script.py")
        assert capfd.readouterr() == ("the script prints", "")
        search.found = (tuned(DEFAULT, STAGED),)
        for progress, lines in (("on", ["loop of 64x64x32: 2 candidates, best 10 µs, pipeline=stages=4"]), ("off", [])):
            with settings.override(progress=progress):
                assert tune("script.py").stderr.splitlines() == lines

    def test_what_is_printed_after_the_search_does_not_follow_the_json(self, folder: Path) -> None:
        done = python("-c", _PRINTS_LATER, "tune", "--json", "script.py", folder=folder)
        assert json.loads(done.stdout) == {"tasks": []}
        for text in ("buffered in C", "a build that ends late", "at the end"):
            assert text in done.stderr

    def test_a_missing_script_is_an_error_that_names_the_commands(
        self, search: Search, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for words in (["gone.py"], ["lst"], ["--json", "folder"]):
            result = tune(*words)
            assert isinstance(result.exception, ScriptError)
            assert "list" in result.exception.remedy
            assert ("did you mean `tune list`?" in result.exception.remedy) == (words == ["lst"])
        monkeypatch.setenv("WARP_TILES_TUNE_BUDGET_S", "soon")
        assert isinstance(tune("gone.py").exception, SettingError), "it is reported first"
        assert search.calls == []


class TestList:
    def test_every_record_is_listed_with_its_winner(self, two: RecordStore) -> None:
        rows = {row["key"]: row for row in parsed("list")["records"]}
        assert rows.keys() == {GEMM, key().digest}
        assert rows[GEMM]["configurations"] == {"ok": 2, "dropped": 0, "failed": 1}
        assert rows[GEMM]["winner"]["config"] == FAST.config
        assert rows[GEMM]["values"] == {"m": 64, "n": 32}
        text = table("list")
        assert GEMM[:12] in text
        assert "m=64, n=32" in text

    def test_read_only_folders_are_named_also_if_they_are_not_unicode(self, two: RecordStore, folder: Path) -> None:
        shipped = two.root.rename(os.fsdecode(os.fsencode(folder) + b"/caf\xe9"))
        with settings.override(cache_dir=folder / "empty", record_paths=[shipped]):
            assert [row["read_only"] for row in parsed("list")["records"]] == [True, True]
            folded = [line.split("│")[-2].strip() for line in table("list").splitlines() if "│" in line]
            assert f"{folder}/caf\\udce9" in "".join(folded)
            result = tune("clear", GEMM)
            assert isinstance(result.exception, RecordError)
            assert str(folder) in result.exception.message
            assert parsed("clear", "--all") == {"removed": 0}
            assert len(open_store().records()) == 2


class TestShow:
    def test_timings_are_sorted_and_the_winner_is_marked(self, two: RecordStore) -> None:
        lines = table("show", GEMM[:8]).splitlines()
        (winner,) = [task for task, line in enumerate(lines) if "winner" in line]
        (slow,) = [task for task, line in enumerate(lines) if "25 µs" in line]
        (failed,) = [task for task, line in enumerate(lines) if "failed" in line]
        assert winner < slow < failed
        assert "tile.m=64" in lines[winner]
        assert "9.5 µs to 10.5 µs" in lines[winner]
        assert "needs [bold] 300 kB of [/shared] memory" in lines[failed]
        assert any(GEMM in line for line in lines)
        shown = parsed("show", GEMM[:8])
        assert [item["status"] for item in shown["timings"]] == ["ok", "ok", "failed"]
        assert shown["winner"] == FAST.to_json()
        assert shown["environment"]["device"] == "NVIDIA H200"

    @pytest.mark.parametrize("words", [["show", "f00"], ["export", "out.json", "f00"], ["clear", "f00"]])
    def test_an_unknown_key_is_an_error_that_names_the_known_ones(self, two: RecordStore, words: list[str]) -> None:
        assert not GEMM.startswith("f00")
        result = tune(*words)
        assert isinstance(result.exception, RecordError)
        assert GEMM[:12] in result.exception.message
        assert len(open_store().records()) == 2


def test_exported_records_travel_in_one_file_and_a_folder_to_ship_is_made_readable_for_others(
    two: RecordStore, folder: Path
) -> None:
    assert parsed("export", "all.json")["records"] == 2
    assert "1 record written" in table("export", "one.json", GEMM[:10])
    (folder / "shipped").mkdir(mode=0o755)
    with settings.override(cache_dir=folder / "other"):
        assert parsed("import", "one.json")["records"] == 1
        assert [row["key"] for row in parsed("list")["records"]] == [GEMM]
        assert "2 records added" in table("import", "all.json")
        assert parsed("import", "all.json", "--into", "shipped")["records"] == 2
    with settings.override(cache_dir=folder / "empty", record_paths=[folder / "shipped"]):
        assert open_store().load(key()) == two.load(key())
    files = list((folder / "shipped").rglob("*.json"))
    assert {path.stat().st_mode & 0o777 for path in files} == {0o644}
    assert {path.parent.stat().st_mode & 0o777 for path in files} == {0o755}


def test_keys_or_all_records_are_cleared(two: RecordStore) -> None:
    for words in ([], ["--all", GEMM]):
        assert tune("clear", *words).exit_code == 2
    assert parsed("clear", GEMM[:8]) == {"removed": 1}
    assert [row["key"] for row in parsed("list")["records"]] == [key().digest]
    assert "1 record removed" in table("clear", "--all")
    assert parsed("clear", "--all") == {"removed": 0}


# ---- configurations and times as texts


def test_a_dot_joins_nested_names_and_an_x_joins_sizes() -> None:
    config = {"provider": "own", "tile": {"m": 64, "warps": [2, 4]}, "fast": True, "none": None, "empty": {}}
    assert label(config) == "provider=own tile.m=64 tile.warps=2x4 fast=true none=null empty={}"
    assert label({}) == "-"


@pytest.mark.parametrize(
    ("time_us", "text"),
    [(1.23456, "1.235 µs"), (999.0, "999 µs"), (12_345.0, "12.35 ms"), (3e6, "3 s"), (math.nan, "-"), (math.inf, "-")],
)
def test_times_have_the_unit_that_fits(time_us: float, text: str) -> None:
    assert microseconds(time_us) == text
