"""``python -m warp_tiles.aot``, which ``CMakeLists.txt`` calls. It is not part of the ``warp-tiles`` command.

``variants`` prints JSON, because CMake reads it. The other commands print text.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from warp_tiles import cli
from warp_tiles.aot import bundle as aot
from warp_tiles.aot import manifest
from warp_tiles.aot.checks import check_jobs, unchecked
from warp_tiles.cli.output import human_bytes, output_errors, print_json, script_output_to_stderr
from warp_tiles.errors import BuildError
from warp_tiles.toolchain.search import require_linkable
from warp_tiles.toolchain.store import ToolchainStore

_path = click.Path(path_type=Path)
_state = click.option("--state", type=_path, required=True, help="Folder that stores digests of the toolchain.")


@click.group()
def commands() -> None:
    """Build plans ahead of time. CMake calls this."""


@commands.command()
@click.option("--manifest", "plan", type=_path, help="Output of `warp-tiles plan --json`.")
@click.option("--archs", default="", help='Compute capabilities, e.g. "80;90"; by default the plan\'s own.')
@click.option("--checks", is_flag=True, help="The configurations of the kernel check, in place of a manifest.")
@click.option("--folder", type=_path, required=True, help="Folder for one file per variant.")
@_state
def variants(plan: Path | None, archs: str, checks: bool, folder: Path, state: Path) -> None:
    """Write one file per function, and print their names and dependencies."""
    store = ToolchainStore(state)
    if checks == (plan is not None):
        raise click.UsageError("give either --manifest or --checks")
    if plan is None:
        known = aot.known_targets(store)
        unknown = sorted({job.variant.arch for job in check_jobs()} - set(known))
        selection = manifest.Selection(
            tuple(job for job in check_jobs() if job.variant.arch in known),
            tuple(f"the kernel check leaves out sm_{arch}, which this NVRTC does not know" for arch in unknown),
        )
    else:
        selection = manifest.select(manifest.read_manifest(plan), manifest.parse_archs(archs))
    names = aot.write_variants(folder, selection.jobs, store)
    if plan is not None:
        with script_output_to_stderr(True):
            from warp_tiles._warp.internals import toolkit_version

            require_linkable(store.toolchain(), toolkit_version())
    providers = sorted({aot.provider_class(job) for job in selection.jobs}, key=lambda provider: provider.__name__)
    kernels = [str(path) for path in aot.kernel_sources(store, providers).values()]
    watched = aot.watched(store, providers)
    print_json({"variants": names, "kernels": kernels, "watched": watched, "notes": list(selection.notes)})


@commands.command()
@click.argument("description", type=_path)
@click.option("-o", "--output", type=_path, required=True, help="LTO-IR to write.")
@click.option("--depfile", type=_path, help="Depfile to write, with all inputs of the LTO-IR.")
@click.option("--exact", is_flag=True, help="Do not fall back to a weaker promise about alignment.")
@_state
def build(description: Path, output: Path, depfile: Path | None, exact: bool, state: Path) -> None:
    """Compile one function to LTO-IR."""
    store = ToolchainStore(state)
    job = aot.read_job(description)
    with output_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    warning = aot.build(job, output, store, fallback=not exact)
    if warning:
        print(f"warp-tiles: {warning}", file=sys.stderr)
    if depfile is not None:
        aot.write_depfile(depfile, job, output, store)


@commands.command()
@click.argument("index", type=_path)
@click.option("-o", "--output", type=_path, required=True, help="Bundle to write.")
def pack(index: Path, output: Path) -> None:
    """Pack the LTO-IR beside INDEX into a bundle for `warp-tiles cache import`."""
    with output_errors(output):
        report = aot.pack(index, output)
    print(f"{output.name}: {report.added} variants, {human_bytes(report.payload_bytes)} of LTO-IR")


@commands.command()
@_state
def coverage(state: Path) -> None:
    """Fail if no check compiles a device source of kernels/."""
    missed = unchecked(ToolchainStore(state))
    if missed:
        raise BuildError(
            f"the kernel check compiles none of {', '.join(missed)}",
            remedy="include it from a provider's source and add its configuration to warp_tiles/aot/checks.py",
        )


@commands.command()
def folder() -> None:
    """Print the folder of CMakeLists.txt, for `cmake -S`."""
    package = Path(aot.__file__).resolve().parents[1]
    for place in (package / "cmake", package.parent):
        if (place / "CMakeLists.txt").is_file():
            print(place)
            return
    raise BuildError(f"no CMakeLists.txt in {package / 'cmake'} or {package.parent}", remedy="install warp-tiles again")


def main() -> None:
    """Entry point. Errors of this package are printed as one message, with exit status 2."""
    cli.main(commands, "python -m warp_tiles.aot")
