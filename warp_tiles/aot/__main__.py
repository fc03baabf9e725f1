"""``python -m warp_tiles.aot``, which ``CMakeLists.txt`` calls. It is not part of the ``warp-tiles`` command."""

from __future__ import annotations

from pathlib import Path

import click

from warp_tiles import cli
from warp_tiles.aot.checks import compile_checks, unchecked
from warp_tiles.cli.depfile import write_depfile
from warp_tiles.errors import BuildError


@click.group()
def commands() -> None:
    """Serve CMake."""


@commands.command()
@click.option("--stamp", type=click.Path(path_type=Path), help="A file to write at success, and beside it a depfile.")
def check(stamp: Path | None) -> None:
    """Compile functions that together contain every branch of the device sources in kernels/."""
    missed = unchecked()
    if missed:
        raise BuildError(
            f"the kernel check compiles none of {', '.join(missed)}",
            remedy="include it from a provider's source and add its configuration to warp_tiles/aot/checks.py",
        )
    compiled, known = compile_checks()
    if stamp is not None:
        write_depfile(stamp)
        stamp.touch()
    print(f"kernel check: {compiled} functions compiled, {known} unchanged")


@commands.command()
def folder() -> None:
    """Print the folder of CMakeLists.txt, for `cmake -S`."""
    package = Path(__file__).resolve().parents[1]
    for place in (package / "cmake", package.parent):
        if (place / "CMakeLists.txt").is_file():
            print(place)
            return
    raise BuildError(f"no CMakeLists.txt in {package / 'cmake'} or {package.parent}", remedy="install warp-tiles again")


if __name__ == "__main__":
    cli.main(commands, "python -m warp_tiles.aot")
