"""The files that commands write on request: the record as a page or as JSON, and the trace."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from warp_tiles.cli.output import note, output_errors
from warp_tiles.errors import OutputError, ScriptError
from warp_tiles.launch.script import Script
from warp_tiles.util.version import __version__

F = TypeVar("F", bound=Callable[..., Any])
_PAGES = (".html", ".htm")


def record_options(command: F) -> F:
    """The options ``--report`` and ``--trace``, as the parameters ``report_file`` and ``trace_file``."""
    kind = click.Path(path_type=Path, dir_okay=False)
    report = click.option(
        "--report", "report_file", type=kind, help="Write the record here: a page if FILE ends in .html, else JSON.",
        metavar="FILE",
    )  # fmt: skip
    trace = click.option(
        "--trace", "trace_file", type=kind, help="Write the times of the builds here, for Perfetto.", metavar="FILE"
    )
    return report(trace(command))


def require_folders(files: Mapping[str, Path | None]) -> None:
    """Check, before anything runs, that the folders of output files exist.

    Args:
        files: The files by what they contain, e.g. ``the report``; None for one that is not written.

    Raises:
        ScriptError: There is no such folder.
    """
    for what, file in files.items():
        if file is not None and not file.absolute().parent.is_dir():
            raise ScriptError(f"{what} cannot be written: there is no folder {file.absolute().parent}")


def facts_of(script: Script, ended: BaseException | str | None = None) -> dict[str, str]:
    """Facts about a run, for the heading of its page.

    Args:
        script: The script and its arguments.
        ended: The exception that ended it, or its text; None or empty if it ended normally or did not run.
    """
    import warp

    facts = {"script": str(script)}
    if script.arguments:
        facts["arguments"] = " ".join(script.arguments)
    facts["time"] = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    facts["versions"] = f"warp_tiles {__version__}, Warp {warp.__version__}, Python {sys.version.split()[0]}"
    if ended and not _is_normal(ended):
        facts["ended by"] = ended if isinstance(ended, str) else f"{type(ended).__name__}: {ended}"
    return facts


def write_records(
    report: Path | None, trace: Path | None, document: Mapping[str, Any], title: str, facts: Mapping[str, str]
) -> None:
    """Write the files that the options of :func:`record_options` name.

    Raises:
        OutputError: A file cannot be written. If another exception is on its way, a note is printed instead.
    """
    ended = sys.exc_info()[1]
    try:
        if report is not None and report.suffix.lower() in _PAGES:
            write_page(report, document, title, facts)
        elif report is not None:
            _write(report, json.dumps(document, indent=2) + "\n")
        if trace is not None:
            from warp_tiles.reports.trace import trace as trace_of

            _write(trace, json.dumps(trace_of(document, facts), indent=1) + "\n")
    except OutputError as error:
        if ended is None or _is_normal(ended):
            raise
        note(f"warp-tiles: {error.message}")


def _is_normal(ended: BaseException | str) -> bool:
    """True for the exit of a script without an error."""
    return isinstance(ended, SystemExit) and not ended.code


def write_page(file: Path, document: Mapping[str, Any], title: str, facts: Mapping[str, str]) -> None:
    """Write a record or a plan as a page.

    Raises:
        OutputError: The file cannot be written.
    """
    from warp_tiles.reports.page import page

    _write(file, page(document, title, facts))


def _write(file: Path, text: str) -> None:
    from warp_tiles.util.files import write_output

    with output_errors(file):
        write_output(file, text.encode("utf-8"))
