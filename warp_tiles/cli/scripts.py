"""What the commands that take a script share: their grammar, their options, and their messages about the script."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from warp_tiles.cli.output import F, note
from warp_tiles.errors import PlanError, ScriptError
from warp_tiles.gemm.hardware import parse_arch
from warp_tiles.launch.script import Discovery, Script

#: Options come before the script. A misspelt one is an error; what follows the script belongs to the script.
GRAMMAR = {"allow_interspersed_args": False}


module_option = click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
incomplete_option = click.option(
    "--allow-incomplete",
    is_flag=True,
    help="Succeed also if SCRIPT stops early, so that what it would have launched after that is missing.",
)


def _as_archs(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Parse compute capabilities (:func:`parse_arch`), with commas between them."""
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
    if found := [word for word in value if word.partition("=")[0] in known]:
        names = ", ".join(found)
        note(
            f"warp-tiles: {names} stands behind the script, which gets it; options of warp-tiles come before the "
            f"script, and a -- behind the script hides this note"
        )
    return value


def require_complete(script: Script, found: Discovery, allowed: bool) -> None:
    """Report a script that stopped early, after the results about what it had launched by then.

    Args:
        allowed: Print a note in place of the error.

    Raises:
        ScriptError: It stopped early, and this is not allowed.
    """
    if not found.stopped:
        return
    message = f"{script} stopped early, while its launches were recorded and not executed: {found.stopped}"
    if not allowed:
        remedy = "if it needs results, let it ask warp_tiles.is_planning()"
        if found.usage_error:
            remedy = "give the arguments that it needs"
        raise ScriptError(
            f"{message}; what it would have launched after that is missing",
            remedy=f"{remedy}; if this is all, give --allow-incomplete",
        )
    note(f"warp-tiles: {message}")
