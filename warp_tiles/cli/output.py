"""Output of the commands: JSON for programs, tables for people."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warp_tiles.errors import OutputError, ScriptError, WarpTilesError
from warp_tiles.launch.script import Discovery
from warp_tiles.settings import configure_by_option, configured
from warp_tiles.settings.policy import POLICIES
from warp_tiles.util.warn import printable

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """The ``--json`` flag that every command has."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def bundle_option(command: F) -> F:
    """The ``--bundle`` option, which sets the bundle and, unless another is given, the policy ``locked``."""

    def set_bundle(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            configure_by_option("bundle", value)
            if "policy" not in configured():
                configure_by_option("policy", "locked")

    return click.option(
        "--bundle", type=click.Path(), expose_value=False, callback=set_bundle,
        help="Take every module from this file of `warp-tiles bundle`, and build nothing.",
    )(command)  # fmt: skip


def policy_option(command: F) -> F:
    """The ``--policy`` option, which sets the policy for the process."""

    def set_policy(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            configure_by_option("policy", value)

    return click.option(
        "--policy", type=click.Choice(list(POLICIES)), expose_value=False, callback=set_policy,
        help="The policy, which decides what is built and tuned; it overrides modules, environment and project file.",
    )(command)  # fmt: skip


class StandardOutputError(Exception):
    """Standard output cannot be written."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"standard output cannot be written: {cause.strerror or cause}")
        self.is_closed_pipe = cause.errno == errno.EPIPE


def print_json(data: Any) -> None:
    """Print one JSON document on standard output, also after :func:`script_output_to_stderr`.

    Raises:
        StandardOutputError: Standard output cannot be written.
    """
    try:
        print(json.dumps(data, indent=2), file=_json_stream or sys.stdout, flush=True)
    except OSError as error:
        raise StandardOutputError(error) from error


def echo(text: str) -> None:
    """Print a text. Control sequences of terminals are escaped.

    Raises:
        OSError: Standard output cannot be written; the command ends with a message.
    """
    print(printable(text, lines=True), flush=True)


def note(text: str) -> None:
    """Print a text on standard error. Control sequences of terminals are escaped."""
    click.echo(printable(text, lines=True), err=True)


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table as wide as the terminal. Outside a terminal it is up to 200 columns wide.

    In a narrow terminal some columns follow below their row.

    Raises:
        OSError: Standard output cannot be written; the command ends with a message.
    """
    title = printable(title)
    cells = [[printable(str(cell), lines=True).expandtabs() for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _print_columns(Console(width=200), title, headings, cells, [None] * len(headings))
        return
    console = Console()
    columns = [[heading, *(row[number] for row in cells)] for number, heading in enumerate(headings)]
    widths = column_widths(columns, console.width)
    _print_lines(console, [Text(line, "italic") for line in wrap(title, console.width) if line])
    if widths is not None:
        _print_columns(console, "", headings, cells, widths)
    else:
        rule = "-" if console.options.ascii_only else "─"
        _print_lines(console, stacked(headings, cells, console.width, rule))


def print_text(text: str) -> None:
    """Print sentences. In a terminal, their lines end between words.

    Raises:
        OSError: Standard output cannot be written; the command ends with a message.
    """
    echo("\n".join(wrap(printable(text, lines=True), Console().width)) if sys.stdout.isatty() else text)


def _print_lines(console: Console, lines: Iterable[Text]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)  # a longer word is left to the terminal
    sys.stdout.flush()


def _print_columns(
    console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int | None]
) -> None:
    table = Table(title=Text(title) if title else None, title_justify="left")
    for heading, width in zip(headings, widths):
        table.add_column(heading, overflow="fold", width=width)
    for row in rows:
        table.add_row(*map(Text, row))  # not markup, because a cell may hold brackets
    console.print(table)
    sys.stdout.flush()


@contextlib.contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Convert errors of the file system to an error that is printed without a traceback.

    Raises:
        OutputError: In place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{error.filename or path} cannot be written: {error.strerror or error}",
            remedy="name a place in an existing folder that you may write, on a disk with space",
        ) from error


def human_bytes(count: int) -> str:
    """A size for display, in powers of ten."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


_json_stream: TextIO | None = None  # standard output, once its descriptor leads to standard error


@contextlib.contextmanager
def script_output_to_stderr(active: bool) -> Iterator[None]:
    """Redirect the output of a script and its C code to standard error, so that standard output holds only JSON.

    It stays redirected until the process ends, because threads that still build and C buffers write later. A caller
    that has replaced ``sys.stdout`` gets the descriptor back at the end of the block.
    """
    global _json_stream
    if not active or _json_stream is not None:
        yield
        return
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    if sys.stdout is sys.__stdout__:
        _json_stream = open(saved, "w", encoding="utf-8")  # noqa: SIM115  it stays open
        yield
        return
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


@contextlib.contextmanager
def kernel_errors(script: Path) -> Iterator[None]:
    """Convert Warp's errors about a kernel to an error that is printed without a traceback.

    Raises:
        ScriptError: In place of a TypeError or ValueError.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(error, WarpTilesError):
            raise
        raise ScriptError(f"{script}: {error}", remedy="change the kernel, or the provider of its products") from error


def print_notes(script: Path, found: Discovery) -> None:
    """Print where a script differed from a normal run: other devices, and an early end."""
    for missing, device in found.substituted.items():
        note(f"warp-tiles: {script} names {missing}, which this machine lacks: {device} stands for it")
    if found.stopped:
        print_stopped(script, found.stopped)


def print_stopped(script: Path, reason: str) -> None:
    """Print the reason why a script ended early. Its launches were recorded, not executed."""
    note(f"warp-tiles: {script} stopped early, nothing was computed: {reason}")
    note("            (where it needs results, a script can ask warp_tiles.is_planning())")


NARROWEST = 24  # columns of text that wraps; shorter lines are hard to read
BORDERS = 3  # columns beside each cell: a space, a line and a space
GAP, INDENT = "  ", "  "  # between the cells of a line, and before the cells below it


def wrap(text: str, width: int) -> list[str]:
    """The lines of a text in a width, broken between words only."""
    lines: list[str] = []
    for paragraph in text.expandtabs().splitlines() or [""]:
        line, *words = paragraph.split(" ")
        for word in words:
            longer = f"{line} {word}"
            if line.strip() and cell_len(longer) > width:
                lines.append(line.rstrip())
                line = word
            else:
                line = longer
        lines.append(line.rstrip())
    return lines


def column_widths(columns: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """The widths in which columns fit side by side with borders, or None if text would have to be broken or squeezed.

    Args:
        columns: The cells of each column, its heading among them.
        width: The columns of the screen.
    """
    available = width - BORDERS * len(columns) - 1
    natural = [_widest(cells) for cells in columns]
    least = [max(_longest_word(cells), min(full, NARROWEST)) for cells, full in zip(columns, natural)]
    if sum(least) > available:
        return None
    widths = least
    for limit in range(NARROWEST, max(natural, default=0) + 1):  # columns of long texts become equally wide
        wider = [max(low, min(full, limit)) for low, full in zip(least, natural)]
        if sum(wider) > available:
            break
        widths = wider
    return widths


def stacked(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, rule: str = "─") -> Iterator[Text]:
    """The lines of a table whose columns do not fit side by side.

    Args:
        headings: The name of each column; it may be empty.
        rows: The cells of each row, one for each heading.
        width: The columns of the screen.
        rule: The character of the line below the headings.
    """
    chosen = _columns_that_fit([[heading, *cells] for heading, *cells in zip(headings, *rows)], width)
    if chosen:
        yield Text(_side_by_side(headings, chosen), "bold")
        yield Text(_side_by_side([rule * chosen.get(number, 0) for number in range(len(headings))], chosen))
    for row in rows:
        if chosen:
            yield Text(_side_by_side(row, chosen))
        others = [(heading, cell) for number, (heading, cell) in enumerate(zip(headings, row)) if number not in chosen]
        yield from _below(others, width, INDENT if chosen else "")


def _columns_that_fit(columns: Sequence[Sequence[str]], width: int) -> dict[int, int]:
    """The columns in the first line of each row, with their widths: the first one and each that fits beside it."""
    chosen: dict[int, int] = {}
    for number, cells in enumerate(columns):
        if number and not chosen:
            break
        needed = _widest(cells)
        if sum(chosen.values()) + len(GAP) * len(chosen) + needed <= width and not any("\n" in cell for cell in cells):
            chosen[number] = needed
    return chosen


def _side_by_side(cells: Sequence[str], widths: dict[int, int]) -> str:
    padded = [cells[number] + " " * (size - cell_len(cells[number])) for number, size in widths.items()]
    return GAP.join(padded).rstrip()


def _below(cells: Iterable[tuple[str, str]], width: int, indent: str) -> Iterator[Text]:
    """Lines of ``heading: value``, several on a line if they fit. A value that wraps has lines of its own."""
    line = Text(indent)
    for heading, cell in cells:
        if not cell.strip():
            continue
        label = f"{heading}: " if heading else ""
        first, *more = wrap(label + cell, width - len(indent + INDENT))
        pair = Text(first)
        pair.stylize("bold", 0, len(label))
        if line.plain != indent and (more or line.cell_len + len(GAP) + pair.cell_len > width):
            yield line
            line = Text(indent)
        line.append("" if line.plain == indent else GAP).append_text(pair)
        if more:
            yield line
            yield from (Text(indent + INDENT + part) for part in more[:-1])
            line = Text(indent + INDENT + more[-1])
    if line.plain != indent:
        yield line


def _widest(cells: Iterable[str]) -> int:
    return max((cell_len(line) for cell in cells for line in cell.splitlines()), default=0)


def _longest_word(cells: Iterable[str]) -> int:
    return max((cell_len(word) for cell in cells for word in cell.split()), default=0)
