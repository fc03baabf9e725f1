"""Output of the commands: JSON for programs, tables for people."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warp_tiles.cli.tables import column_widths, stacked, wrap
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


def print_json(data: Any) -> None:
    """Print one JSON document on standard output."""
    echo(json.dumps(data, indent=2))


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

    In a narrow terminal some columns follow below their row (:mod:`warp_tiles.cli.tables`).

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


@contextlib.contextmanager
def script_output_to_stderr(active: bool) -> Iterator[None]:
    """Redirect the output of a script and its C code to standard error, so that standard output holds only JSON."""
    if not active:
        yield
        return
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
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
