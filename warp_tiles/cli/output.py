"""Output of the commands: JSON for programs, tables for people."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warp_tiles.errors import OutputError
from warp_tiles.reports.functions import filled
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


#: What to do if Warp raises an error of the system.
WARP_REMEDY = "check that there is memory, and that Warp may write its cache (WARP_CACHE_PATH)"


class StandardOutputError(Exception):
    """Standard output cannot be written."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"standard output cannot be written: {self.cause.strerror or self.cause}"


@contextlib.contextmanager
def written(stream: TextIO) -> Iterator[TextIO]:
    """Standard output, which is flushed after the block.

    Raises:
        StandardOutputError: It cannot be written.
    """
    try:
        yield stream
        stream.flush()
    except OSError as error:
        raise StandardOutputError(error) from error


def print_json(data: Any) -> None:
    """Print one JSON document on standard output, also after :func:`script_output_to_stderr`.

    Raises:
        StandardOutputError: Standard output cannot be written.
    """
    with written(_json_stream or sys.stdout) as stream:
        print(json.dumps(data, indent=2), file=stream)


def echo(text: str) -> None:
    """Print a text. Control sequences of terminals are escaped.

    Raises:
        StandardOutputError: Standard output cannot be written.
    """
    with written(sys.stdout) as stream:
        print(printable(text, lines=True), file=stream)


def note(text: str) -> None:
    """Print a text on standard error, unless the option ``--quiet`` is given. Control sequences are escaped."""
    context = click.get_current_context(silent=True)
    if context is None or not context.meta.get(_QUIET):
        click.echo(printable(text, lines=True), err=True)


_QUIET = "warp_tiles.quiet"


def add_verbosity(command: click.Command) -> None:
    """Add ``--verbose`` and ``--quiet`` to a command, and to the commands of a group."""

    def set_verbose(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            logger, messages = logging.getLogger("warp_tiles"), logging.StreamHandler()
            level = logger.level
            logger.addHandler(messages)
            logger.setLevel(logging.INFO)
            context.call_on_close(lambda: logger.removeHandler(messages))
            context.call_on_close(lambda: logger.setLevel(level))

    def set_quiet(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            import warp

            context.meta[_QUIET] = True
            configure_by_option("progress", "off")
            warp.config.log_level = logging.WARNING  # Warp's numbers are those of Python

    if isinstance(command, click.Group):
        for inner in command.commands.values():
            add_verbosity(inner)
    for names, callback, text in (
        (("-v", "--verbose"), set_verbose, "Print a line for each build, from the logger warp_tiles."),
        (("-q", "--quiet"), set_quiet, "Print only results, warnings and errors."),
    ):
        command.params.append(click.Option(names, is_flag=True, expose_value=False, callback=callback, help=text))


_NARROWEST = 24  # columns of text that wraps; shorter lines are hard to read


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table as wide as the terminal. Outside a terminal it is up to 200 columns wide.

    If a terminal is too narrow for the columns, each row becomes a list of its cells. No word is broken.

    Raises:
        StandardOutputError: Standard output cannot be written.
    """
    console = Console(width=None if sys.stdout.isatty() else 200)
    headings, cells = filled(
        headings, [[printable(str(each), lines=True).expandtabs() for each in row] for row in rows]
    )
    table = Table()
    needed = 1
    for number, heading in enumerate(headings):
        texts = [heading, *(row[number] for row in cells)]
        width, word = (
            max(map(cell_len, parts), default=0) for parts in ("\n".join(texts).split("\n"), " ".join(texts).split())
        )
        wraps = width > _NARROWEST >= word
        table.add_column(heading, overflow="fold", no_wrap=not wraps and sys.stdout.isatty())
        needed += (_NARROWEST if wraps else width) + 3  # and a space, a line and a space
    for row in cells:
        table.add_row(*map(Text, row))  # not markup, because a cell may hold brackets
    lists = ["\n".join(f"{name}: {cell}" for name, cell in zip(headings, row) if cell.strip()) for row in cells]
    with written(sys.stdout):
        if title:
            print(printable(title))
        if needed <= console.width or not sys.stdout.isatty():
            console.print(table)
        else:
            print("\n\n".join(lists))


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


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt the block as Ctrl-C does, so that it removes its temporary files."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    ending = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in ending:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


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
