"""Tables as a person sees them: no word is broken, and no value is cut."""

import io
import os
import pty
import re
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.integration.commands import command, json_of
from tests.integration.helpers import ARRAYS, REPOSITORY
from tests.integration.solvers import solver
from tests.nightly import some
from warp_tiles.cli.common import print_table
from warp_tiles.reports.descriptions import shortened

LONG_NAME = "kernel_of_a_network_layer_with_a_name_that_somebody_thought_about"
SCRIPT = f"""import warp as wp

wp.set_module_options({{"block_dim": 64}})
{solver("tile_cholesky", name="factor")}

@wp.kernel
def {LONG_NAME}({ARRAYS}):
    c = wp.tile_zeros(shape=(16, 16), dtype=wp.float32, storage="shared")
    for k in range(A.shape[1] // 16):
        a = wp.tile_load(A, shape=(16, 16), offset=(0, k * 16))
        b = wp.tile_load(B, shape=(16, 16), offset=(k * 16, 0))
        wp.tile_matmul(a, b, c)
    wp.tile_cholesky_inplace(c)
    wp.tile_store(C, c)
"""


def screen(*arguments: object, columns: int) -> list[str]:
    """The lines that ``warp-tiles`` writes to a terminal, without colours."""
    master, terminal = pty.openpty()
    paths = os.pathsep.join(path for path in (str(REPOSITORY), os.environ.get("PYTHONPATH", "")) if path)
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "PYTHONPATH": paths}
    with subprocess.Popen(
        [sys.executable, "-m", "warp_tiles", *map(str, arguments)], env=environment, stdin=subprocess.DEVNULL,
        stdout=terminal, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        os.close(terminal)
        written = b""
        with suppress(OSError):  # the process has closed its side
            while part := os.read(master, 1 << 16):
                written += part
    os.close(master)
    assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", written.decode("utf-8")).splitlines()


def test_the_page_about_plans_shows_the_plan_of_the_example() -> None:
    """docs/plan.md, which explains it row by row."""
    page = (REPOSITORY / "docs" / "plan.md").read_text("utf-8")
    (shown,) = re.findall(r"^```\n(module .*?)^```", page, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"^warp-tiles (.*plan .*gemm\.py)$", page, re.MULTILINE)
    *words, script = command.split()
    printed = [line for line in screen(*words, REPOSITORY / script, columns=80) if line]
    printed = [line.replace(f"{REPOSITORY}/", "") for line in printed]
    assert printed[-len(shown.splitlines()) :] == shown.splitlines()


def words(text: str) -> Counter[str]:
    return Counter(re.sub("[│┃━─┏┓┗┛┡┩└┘┬┴┼╇┳,]", " ", text).split())


def shown(module: dict[str, Any]) -> list[str]:
    """Some texts that the tables of a module show."""
    texts = [module["register_limit_reason"]]
    for row in module["functions"]:
        texts += [row["role"], row["reason"], row["provider"], row["key"][:12], *row["kernels"]]
    for loop in module["loops"]:
        texts += [loop["kernel"], f"{shortened(loop['file'])}:{loop['line']}", loop["reason"]]
    return texts


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A script with a loop of products, and solvers, and its plan."""
    path = tmp_path_factory.mktemp("planned") / "train.py"
    path.write_text(SCRIPT)
    (module,) = json_of(command("plan", path, cache=path.parent / "lto"))["modules"]
    assert [len(module[name]) for name in ("loops", "functions")] == [1, 6]
    return path, module


@pytest.mark.parametrize("columns", some([40, 140], 1, "slow"))
def test_a_plan_is_whole(planned: tuple[Path, dict[str, Any]], columns: int) -> None:
    path, module = planned
    lines = screen("plan", path, columns=columns)
    lines = lines[next(number for number, line in enumerate(lines) if line.startswith("module __main__")) :]
    expected = words("\n".join(shown(module)))
    assert expected - words("\n".join(lines)) == Counter()


def test_a_pipe_has_all_columns_side_by_side(planned: tuple[Path, dict[str, Any]]) -> None:
    path, module = planned
    lines = command("plan", path, as_json=False, COLUMNS="80").stdout.splitlines()
    assert len([line for line in lines if any(row["key"][:12] in line for row in module["functions"])]) == 6
    assert max(map(len, lines)) <= 200


@pytest.mark.slow
def test_help_is_as_wide_as_the_terminal_and_in_a_pipe_as_wide_as_it_may_be() -> None:
    widths = [max(map(len, screen("warm", "--help", columns=columns))) for columns in (60, 90, 200)]
    assert [50 < widths[0] <= 60, 60 < widths[1] <= 90, 90 < widths[2] <= 100] == [True] * 3
    for columns in ("60", "200"):
        piped = command("warm", "--help", as_json=False, COLUMNS=columns).stdout.splitlines()
        assert 90 < max(map(len, piped)) <= 100


class Terminal(io.StringIO):
    """Standard output of a terminal."""

    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, columns: int, headings: list[str], rows: list[list[str]]) -> list[str]:
    """The lines that a table has in a terminal, without colours."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "25")  # else rich takes 80 columns for a dumb terminal
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    print_table("a title", headings, rows)
    return terminal.getvalue().splitlines()


CELLS = st.text(st.sampled_from("abcdefgh      \n漢é"), max_size=60)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    count = draw(st.integers(1, 6))
    headings = draw(st.lists(st.sampled_from(["", "key", "reason", "what is done"]), min_size=count, max_size=count))
    return headings, draw(st.lists(st.lists(CELLS, min_size=count, max_size=count), max_size=4))


@given(tables(), st.integers(20, 200))
def test_no_word_is_broken_or_lost(table: tuple[list[str], list[list[str]]], columns: int) -> None:
    headings, rows = table
    with pytest.MonkeyPatch.context() as monkeypatch:
        lines = printed(monkeypatch, columns, headings, rows)
    expected = Counter(word for row in rows for cell in row for word in cell.split())
    assert expected - words("\n".join(lines)) == Counter()
    if any("│" in line for line in lines):
        assert max(map(cell_len, lines)) <= columns


def test_columns_are_side_by_side_where_each_is_legible(monkeypatch: pytest.MonkeyPatch) -> None:
    headings, rows = ["key", "reason"], [["5d1c0a9f", "word " * 20], ["93b7e2d4", ""]]
    assert "│" in printed(monkeypatch, 39, headings, rows)[-2]
    lines = printed(monkeypatch, 38, headings, rows)
    assert lines == ["a title", "key: 5d1c0a9f", f"reason: {'word ' * 20}", "", "key: 93b7e2d4"]
