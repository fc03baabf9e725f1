"""What the commands share: options, scripts, JSON for programs, tables for people, and the files that they write.

These are the report as a page or as JSON, the trace, and the depfile. What prints here raises
:class:`StandardOutputError` if standard output cannot be written.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warp_tiles.cli.script import Discovery, Script
from warp_tiles.errors import OutputError, PlanError, ScriptError
from warp_tiles.gemm.hardware import parse_arch
from warp_tiles.reports.descriptions import filled
from warp_tiles.settings import POLICIES, configure_by_option, configured, current
from warp_tiles.util.files import write_output
from warp_tiles.util.version import __version__
from warp_tiles.util.warn import printable

F = TypeVar("F", bound=Callable[..., Any])
FILE = click.Path(path_type=Path, dir_okay=False)


def _set(context: click.Context, option: click.Parameter, value: str | None) -> None:
    """Set the setting of an option for the process. With a bundle, the policy is ``locked`` unless another is given."""
    if value is not None:
        configure_by_option(str(option.name), value)
        if option.name == "bundle" and "policy" not in configured():
            configure_by_option("policy", "locked")


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
bundle_option = click.option(
    "--bundle", type=click.Path(), expose_value=False, callback=_set,
    help="Take every module from this file of `warp-tiles bundle`, and build nothing.",
)  # fmt: skip
policy_option = click.option(
    "--policy", type=click.Choice(list(POLICIES)), expose_value=False, callback=_set,
    help="The policy, which decides what is built and tuned; it overrides modules, environment and project file.",
)  # fmt: skip


def warp_remedy(error: Exception, otherwise: str) -> str:
    """What to do if Warp raises an error: one of the system, or else another one."""
    if isinstance(error, (OSError, MemoryError)):
        return "check that there is memory, and that Warp may write its cache (WARP_CACHE_PATH)"
    return otherwise


class StandardOutputError(Exception):
    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"standard output cannot be written: {self.cause.strerror or self.cause}"


@contextlib.contextmanager
def written(stream: TextIO) -> Iterator[TextIO]:
    """Standard output, which is flushed after the block. Raises StandardOutputError if it cannot be written."""
    try:
        yield stream
        stream.flush()
    except OSError as error:
        raise StandardOutputError(error) from error


def print_json(data: Any) -> None:
    """Print one JSON document on standard output, also after :func:`script_output_to_stderr`."""
    with written(_json_stream or sys.stdout) as stream:
        print(json.dumps(data, indent=2), file=stream)


def print_rows(
    as_json: bool, data: Any, headings: Sequence[str], rows: Sequence[Sequence[object]], title: str = ""
) -> None:
    if as_json:
        print_json(data)
    else:
        print_table(title, headings, rows)


def echo(text: str) -> None:
    """Print a text. Control sequences of terminals are escaped."""
    with written(sys.stdout) as stream:
        print(printable(text, lines=True), file=stream)


def print_result(as_json: bool, data: Any, text: str) -> None:
    if as_json:
        print_json(data)
    else:
        echo(text)


def note(text: str) -> None:
    """Print a text on standard error, unless the option ``--quiet`` is given. Control sequences are escaped."""
    context = click.get_current_context(silent=True)
    if context is None or not context.meta.get(_QUIET):
        click.echo(printable(text, lines=True), err=True)


def note_reasons(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print why modules are not as they were asked for."""
    for row in rows:
        if row["reason"]:
            note(f"warp-tiles: module {row['module']} for sm_{row['arch']} {row['state']}: {row['reason']}")


_QUIET = "warp_tiles.quiet"


def _set_verbose(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        logger, messages = logging.getLogger("warp_tiles"), logging.StreamHandler()
        level = logger.level
        logger.addHandler(messages)
        logger.setLevel(logging.INFO)
        context.call_on_close(lambda: logger.removeHandler(messages))
        context.call_on_close(lambda: logger.setLevel(level))


def _set_quiet(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        import warp

        context.meta[_QUIET] = True
        configure_by_option("progress", "off")
        warp.config.log_level = logging.WARNING  # Warp's numbers are those of Python


#: ``--verbose`` and ``--quiet``, which every command has.
VERBOSITY = [
    click.Option(names, is_flag=True, expose_value=False, callback=callback, help=text)
    for names, callback, text in (
        (("-v", "--verbose"), _set_verbose, "Print a line for each build, from the logger warp_tiles."),
        (("-q", "--quiet"), _set_quiet, "Print only results, warnings and errors."),
    )
]


_NARROWEST = 24  # columns of text that wraps; shorter lines are hard to read


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table as wide as the terminal. Outside a terminal it is up to 200 columns wide.

    If a terminal is too narrow for the columns, each row becomes a list of its cells. No word is broken. Without rows
    it says "none".
    """
    if not rows:
        echo(f"{title}: none" if title else "none")
        return
    console = Console(width=None if sys.stdout.isatty() else 200)
    headings, cells = filled(
        headings, [[printable(str(cell), lines=True).expandtabs() for cell in row] for row in rows]
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
    """Convert errors of the file system to an OutputError, which is printed without a traceback."""
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


# ---- scripts

#: Options come before the script. A misspelt one is an error; what follows the script belongs to the script.
GRAMMAR = {"allow_interspersed_args": False}
module_option = click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
incomplete_option = click.option(
    "--allow-incomplete",
    is_flag=True,
    help="Succeed also if SCRIPT stops early, so that what it would have launched after that is missing.",
)


def _as_archs(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    if value is None:
        return ()
    try:
        return tuple(dict.fromkeys(map(parse_arch, value.split(","))))
    except PlanError as error:
        raise click.BadParameter(f"{error.message}; {error.remedy}, or several: 80,90") from error


def arch_option(default: str | None, otherwise: str) -> Callable[[F], F]:
    """The option ``--arch``, as the parameter ``archs``."""
    return click.option(
        "--arch", "archs", callback=_as_archs, metavar="LIST", default=default, show_default=True,
        help=f"Compute capability, such as 90, sm_90, 90a or 9.0, or several with commas between them{otherwise}.",
    )  # fmt: skip


def takes_script(command: F, *, required: bool = True) -> F:
    """``[-m] SCRIPT [ARGUMENTS]...``, as the parameter ``script`` of the command: None without one."""

    @functools.wraps(command)
    def call(script: str | None, arguments: tuple[str, ...], is_module: bool, **given: Any) -> Any:
        return command(script=None if script is None else Script(script, arguments, is_module), **given)

    for add in (
        click.argument("arguments", nargs=-1, type=click.UNPROCESSED, callback=_of_the_script),
        click.argument("script", type=click.Path(), required=required),
        module_option,
    ):
        call = add(call)
    return call  # type: ignore[return-value]


def _of_the_script(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """The words behind the script. Options of the command are named there, unless a ``--`` comes first."""
    if value[:1] == ("--",):
        return value[1:]
    options = [option for option in context.command.params if isinstance(option, click.Option)]
    known = {name for option in options for name in option.opts}
    if misplaced := [word for word in value if word.partition("=")[0] in known]:
        note(
            f"warp-tiles: {', '.join(misplaced)} stands behind the script, which gets it; options of warp-tiles come "
            "before the script, and a -- behind the script hides this note"
        )
    return value


def require_complete(script: Script, discovery: Discovery, allowed: bool, otherwise: str = "") -> None:
    """Report a script that stopped early, after its results: by a ScriptError, or by a note if that is allowed.

    Args:
        otherwise: What else helps a script that needs results.
    """
    if not discovery.stopped:
        return
    message = f"{script} stopped early, while its launches were recorded and not executed: {discovery.stopped}"
    if not allowed:
        remedy = f"if it needs results, let it ask warp_tiles.is_planning(){otherwise}"
        if discovery.usage_error:
            remedy = "give the arguments that it needs"
        raise ScriptError(
            f"{message}; what it would have launched after that is missing",
            remedy=f"{remedy}; if this is all, give --allow-incomplete",
        )
    note(f"warp-tiles: {message}")


# ---- files

_PAGES = (".html", ".htm")


def record_options(command: F) -> F:
    """The options ``--report`` and ``--trace``, as the parameters ``report_file`` and ``trace_file``."""
    report = click.option(
        "--report", "report_file", type=FILE, help="Write the report here: a page if FILE ends in .html, else JSON.",
        metavar="FILE",
    )  # fmt: skip
    trace = click.option(
        "--trace", "trace_file", type=FILE, help="Write the times of the builds here, for Perfetto.", metavar="FILE"
    )
    return report(trace(command))


def require_folders(files: Mapping[str, Path | None]) -> None:
    """Check, before anything runs, that the folders of output files exist, which go by their content."""
    for what, file in files.items():
        if file is not None and not file.absolute().parent.is_dir():
            raise ScriptError(f"{what} cannot be written: there is no folder {file.absolute().parent}")


def facts_of(script: Script, ended: BaseException | str | None) -> dict[str, str]:
    """Facts about a run, for the heading of its page; ``ended`` is the exception, or its text, that ended it."""
    import warp

    facts = {"script": str(script)}
    if script.arguments:
        facts["arguments"] = " ".join(script.arguments)
    facts["time"] = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    facts["versions"] = f"warp_tiles {__version__}, Warp {warp.__version__}, Python {sys.version.split()[0]}"
    if ended and not _is_normal(ended):
        facts["ended by"] = ended if isinstance(ended, str) else f"{type(ended).__name__}: {ended}"
    return facts


def write_reports(
    report: Path | None, trace: Path | None, document: Mapping[str, Any], title: str, facts: Mapping[str, str]
) -> None:
    """Write the files of :func:`record_options`. Raises OutputError, or prints it if another error is on its way."""
    ended = sys.exc_info()[1]
    try:
        if report is not None and report.suffix.lower() in _PAGES:
            write_page(report, document, title, facts)
        elif report is not None:
            _write(report, json.dumps(document, indent=2) + "\n")
        if trace is not None:
            from warp_tiles.reports.timeline import trace as trace_of

            _write(trace, json.dumps(trace_of(document, facts), indent=1) + "\n")
    except OutputError as error:
        if ended is None or _is_normal(ended):
            raise
        note(f"warp-tiles: {error.message}")


def _is_normal(ended: BaseException | str) -> bool:
    """True for the exit of a script without an error."""
    return isinstance(ended, SystemExit) and not ended.code


def write_page(file: Path, document: Mapping[str, Any], title: str, facts: Mapping[str, str]) -> None:
    """Write a report or a plan as a page. Raises OutputError if the file cannot be written."""
    from warp_tiles.reports.page import page

    _write(file, page(document, title, facts))


def _write(file: Path, text: str) -> None:
    with output_errors(file):
        write_output(file, text.encode("utf-8"))


def write_depfile(output: Path, *scripts: Path) -> None:
    """Write the depfile ``<output>.d`` in the syntax of make, for build systems.

    It names what decides about an output: every Python module that this process has imported, the device sources, and
    the compiler.
    """
    import warp

    from warp_tiles.build.engine import Engine
    from warp_tiles.compile.sources import code_files

    engine, now = Engine(), current()
    facts = engine.build_context(now).facts
    inputs = [*scripts, *code_files().values(), *facts.toolchain().libraries.values()]
    inputs += [Path(path) for source in engine.device_sources(now) for path in facts.closure(source).values()]
    inputs += (Path(warp.__file__).parent / "native").rglob("*.h")
    inputs += [Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))]
    names = sorted({_escaped(os.path.abspath(path)) for path in inputs if path.is_file()})
    _write(output.with_name(f"{output.name}.d"), f"{_escaped(os.path.abspath(output))}: {' '.join(names)}\n")


def _escaped(path: str) -> str:
    return path.replace("\\", "/").replace("$", "$$").replace("#", "\\#").replace(" ", "\\ ")
