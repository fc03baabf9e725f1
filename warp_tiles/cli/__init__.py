"""The ``warp-tiles`` command."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType

import click

from warp_tiles.cli import bundling, cache_commands, doctor, plan_commands, run, tune
from warp_tiles.cli.common import VERBOSITY, StandardOutputError, json_option, print_rows, warp_remedy, written
from warp_tiles.cli.script import Script
from warp_tiles.errors import WarpTilesError
from warp_tiles.settings import ENVIRONMENT, SETTINGS, current
from warp_tiles.store import cache_root
from warp_tiles.util.version import __version__
from warp_tiles.util.warn import printable

NAME = "warp-tiles"
_SENTENCE = re.compile(r"\.(?=\s|$)")
_WIDEST_HELP = 100  # columns
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": _WIDEST_HELP}
#: One example for each command, which its help shows at the end.
EXAMPLES = {
    "": "warp-tiles run train.py",
    "run": "warp-tiles run --report report.html train.py --epochs 3",
    "plan": "warp-tiles plan --arch 90 --block-dim 128 train.py",
    "compile": "warp-tiles compile --arch 90 -o build train.py",
    "warm": "warp-tiles warm --arch 80,90 train.py --epochs 3",
    "settings": "WARP_TILES_POLICY=fast warp-tiles settings",
    "doctor": "warp-tiles doctor --json",
    "cache": "warp-tiles cache info",
    "cache info": "warp-tiles cache info --json",
    "cache list": "warp-tiles cache list",
    "cache verify": "warp-tiles cache verify",
    "cache explain": "warp-tiles cache explain 5d1c0a9f",
    "cache gc": "warp-tiles cache gc --max-size 500MB",
    "cache clear": "warp-tiles cache clear",
    "cache export": "warp-tiles cache export functions.bundle --key 5d1c0a9f --key 93b7e2d4",
    "cache import": "warp-tiles cache import functions.bundle",
    "cache push": "WARP_TILES_REMOTE=s3://bucket/warp WARP_TILES_SIGNING_KEY=$PWD/key.pem warp-tiles cache push",
    "cache pull": "WARP_TILES_REMOTE=s3://bucket/warp warp-tiles cache pull",
    "cache status": "warp-tiles cache status --json",
    "keys": "warp-tiles keys show",
    "keys new": "warp-tiles keys new -o key.pem",
    "keys show": "warp-tiles keys show key.pem",
    "keys trust": "warp-tiles keys trust ed25519:X6H3ivFnx302kV4sKV+16rr6IKHGtyBOWykUUyLqdPg= our CI",
    "bundle": "WARP_TILES_SIGNING_KEY=$PWD/key.pem warp-tiles bundle --arch 80,90 -o app.bundle train.py",
    "tune": "warp-tiles tune --budget 600 --devices cuda:0,cuda:1 train.py",
    "tune list": "warp-tiles tune list",
    "tune show": "warp-tiles tune show 5d1c0a9f",
    "tune contribute": "warp-tiles tune contribute gpu.records",
    "tune export": "warp-tiles tune export records.bundle 5d1c0a9f",
    "tune import": "warp-tiles tune import records.bundle --into app/records",
    "tune clear": "warp-tiles tune clear 5d1c0a9f",
}


class Commands(click.Group):
    """The commands. A script in place of one is answered with the command that runs it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if not args[0].endswith(".py"):
                raise
            raise click.UsageError(f"{error.message} To run a script: {NAME} run {args[0]}", ctx) from error


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name=NAME)
def commands() -> None:
    """Plan, build, cache and link the functions of wp.tile_matmul and of Warp's tile solvers."""


@click.command()
@json_option
def settings(as_json: bool) -> None:
    """Print the current value of every setting, its layer, and its environment variable."""
    now = current()
    data = now.to_json()
    shown = {name: item["value"] for name, item in data.items()} | {"cache_dir": cache_root(now.cache_dir)}
    rows = [(name, _shown(name, value), data[name]["layer"], ENVIRONMENT[name]) for name, value in shown.items()]
    print_rows(as_json, data, ("setting", "value", "layer", "variable"), rows)


def _shown(name: str, value: object) -> str:
    if value in (None, "", []):
        return SETTINGS[name].unset
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def every_command(command: click.Command = commands, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Each command with its path, e.g. ``cache gc``."""
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from every_command(inner, f"{path} {name}".strip())


groups = (cache_commands.cache, cache_commands.keys, tune.tune, bundling.bundle)
for command in (run.run, plan_commands.plan, plan_commands.compile_, run.warm, *groups, settings, doctor.doctor):
    commands.add_command(command)
for path, command in every_command():
    command.epilog = f"\b\nExample:\n  {EXAMPLES[path]}"
    command.short_help = f"{re.split(_SENTENCE, command.help or '')[0]}."  # click would cut it
    command.params += VERBOSITY


def main() -> None:
    """Entry point. Errors of this package are printed as one message, with exit status 2.

    An interrupted command ends at once and by the signal, so that a shell sees it. Builds that still run are killed;
    a file is written whole or not at all.
    """
    _open_standard_streams()
    try:
        status = _run()
        if not getattr(sys.stdout, "closed", True):  # a script may have closed it
            with written(sys.stdout):
                pass
    except KeyboardInterrupt as end:
        print("warp-tiles: interrupted", file=sys.stderr)
        _end_by(next((number for number in end.args if isinstance(number, int)), signal.SIGINT))
    except StandardOutputError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes the rest
        if error.cause.errno != errno.EPIPE:  # a reader that closed its pipe has read enough
            print(f"warp-tiles: {error}", file=sys.stderr)
        status = 1
    sys.exit(status)


def _run() -> int:
    try:
        if "_WARP_TILES_COMPLETE" in os.environ:
            commands.main(prog_name=NAME)  # the shell's completion, which exits
        # main() would swallow errors of a script
        width = None if sys.stdout.isatty() else _WIDEST_HELP  # whatever COLUMNS says
        with commands.make_context(NAME, sys.argv[1:], terminal_width=width) as context:
            commands.invoke(context)
    except WarpTilesError as error:
        print(f"warp-tiles: {printable(str(error), lines=True)}", file=sys.stderr)
        return 2
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Exception as error:
        if not _is_of_warp(error):
            if sys.excepthook is sys.__excepthook__:  # the script's own hook gets the whole traceback
                sys.excepthook = _show_as_python
            raise
        text = f"Warp failed: {type(error).__name__}: {error}"
        remedy = warp_remedy(error, "change what the message names; if it is not yours, report this as a bug")
        print(f"warp-tiles: {printable(text, lines=True)}\nRemedy: {remedy}", file=sys.stderr)
        return 2
    return 0


def _is_of_warp(error: Exception) -> bool:
    """True if Warp raised the error when this package called it, and not a script that "run" runs."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = [name.partition(".")[0] for name in modules]
    called = packages[len(packages) - packages[::-1].index(__name__.partition(".")[0]) :]
    return "warp" in called and "__main__" not in packages


def _show_as_python(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error of a script as Python does, without the frames of what runs the script."""
    shown, runs_script = trace, False
    while shown is not None:
        module = shown.tb_frame.f_globals.get("__name__")
        runs_script = runs_script or module == Script.__module__
        if runs_script and module not in (Script.__module__, "runpy", "contextlib"):
            break
        shown = shown.tb_next
    shown = shown or trace
    sys.__excepthook__(kind, error.with_traceback(shown), shown)


def _open_standard_streams() -> None:
    """Open the null device for standard streams that were closed, whose numbers would go to other files."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  it stays open
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _end_by(number: int) -> None:
    from warp_tiles._warp import installed
    from warp_tiles._warp.internals import find
    from warp_tiles.util.files import remove_staged

    if (hooks := installed()) is not None:
        hooks.engine.close()  # kills the compiler processes
        find("codegen._codegen_lock").acquire(timeout=0.5)  # then no thread makes another folder
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    signal.signal(number, signal.SIG_DFL)
    remove_staged()
    os.kill(os.getpid(), number)  # the interpreter's own end would meet threads inside compilers
