"""The ``warp-tiles`` command, with ``settings`` and ``doctor``, which show and check what it finds here."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple, dataclass
from types import TracebackType

import click
from rich.filesize import decimal

from warp_tiles.cli import bundling, cache_commands, plan_commands, run, tune
from warp_tiles.cli.cache_commands import build_context
from warp_tiles.cli.common import (
    VERBOSITY,
    StandardOutputError,
    bundle_option,
    json_option,
    print_rows,
    script_output_to_stderr,
    warp_remedy,
    written,
)
from warp_tiles.cli.script import Script
from warp_tiles.compile.find import Toolchain, dotted, find_headers, find_toolchain
from warp_tiles.errors import ToolchainError, WarpTilesError
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


# ---- checks of this machine


@dataclass(frozen=True)
class Finding:
    """One line of the doctor. The state is ``ok``, ``note`` (works, less well) or ``problem``."""

    subject: str
    state: str
    detail: str
    remedy: str = ""


def diagnose() -> Iterator[Finding]:
    """All findings, in the order in which data flows: interpreter, Warp, toolchain, GPU, cache."""
    checks = (
        _python, _platform, _warp, _internals, _toolchain, _archs, _headers, _gpus, _settings, _bundle, _packages,
        _cache,
    )  # fmt: skip
    for check in checks:
        try:
            if (finding := check()) is not None:
                yield finding
        except WarpTilesError as error:
            yield Finding(check.__name__.strip("_"), "problem", error.message, error.remedy)
        except Exception as error:  # any failure of a check is a finding; the other checks still run
            text = f"{type(error).__name__}: {error}"
            yield Finding(check.__name__.strip("_"), "problem", text, warp_remedy(error, "report this as a bug"))


def _python() -> Finding:
    return Finding("python", "ok", platform.python_version())


def _platform() -> Finding:
    name = f"{platform.system()} {platform.machine()}"
    if platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64"):
        return Finding("platform", "ok", name)
    remedy = "build on Linux x86-64 or aarch64; elsewhere kernels run only on the CPU"
    return Finding("platform", "problem", f"{name}: there is no NVRTC wheel for it", remedy)


def _warp() -> Finding:
    import warp

    from warp_tiles._warp.internals import mathdx_enabled

    toolkit = warp.get_cuda_toolkit_version()
    mathdx = "with" if mathdx_enabled() else "without"
    detail = f"warp-lang {warp.__version__}, CUDA {dotted(toolkit)}, {mathdx} MathDx"
    if toolkit is None:
        return Finding("warp", "problem", detail, "install a warp-lang that was built with CUDA")
    return Finding("warp", "ok", detail)


def _internals() -> Finding:
    from warp_tiles._warp.internals import check_internals

    return Finding("internals", "ok", f"this Warp has all {len(check_internals())} members that warp_tiles uses")


def _installed() -> Toolchain | ToolchainError:
    import warp

    try:
        return find_toolchain(warp.get_cuda_toolkit_version())
    except ToolchainError as error:
        return error


def _toolchain() -> Finding:
    import warp

    toolchain, toolkit = _installed(), warp.get_cuda_toolkit_version()
    if isinstance(toolchain, ToolchainError):
        if (bundle := current().bundle) is None:
            raise toolchain
        detail = f"none, and none is needed: modules come from {bundle} ({toolchain.message})"
        return Finding("toolchain", "note", detail)
    detail = (
        f"NVRTC {dotted(toolchain.nvrtc_version)} ({toolchain.nvrtc}), "
        f"nvJitLink {dotted(toolchain.nvjitlink_version)} ({toolchain.nvjitlink})"
    )
    detail = "; ".join([detail, *(f"not used: {reason}" for reason in toolchain.passed_over)])
    if not toolchain.can_link:
        suffix = "-cu12" if toolchain.nvrtc_version < (13, 0) else ""
        remedy = f"pip install 'nvidia-nvjitlink{suffix}>={dotted(toolchain.nvrtc_version)}'; until then Warp links"
        return Finding("toolchain", "note", detail, remedy)
    if toolkit is not None and toolchain.nvjitlink_version is not None and toolchain.nvjitlink_version > toolkit:
        detail += f"; newer than Warp's CUDA {dotted(toolkit)}, so Warp links modules that it compiles to PTX"
        remedy = "set wp.config.cuda_output to 'cubin' on drivers that are as new as Warp's CUDA"
        return Finding("toolchain", "note", detail, remedy)
    return Finding("toolchain", "ok", detail)


def _archs() -> Finding | None:
    """Compares the architectures of Warp's compiler with those of NVRTC and of this project. None without either."""
    import warp

    from warp_tiles.gemm.hardware import MIN_ARCH, MULTIPROCESSORS

    toolchain, known = _installed(), [arch for arch in warp.get_cuda_supported_archs() if arch >= MIN_ARCH]
    if isinstance(toolchain, ToolchainError) or not known:
        return None  # the finding "toolchain" or "warp" has the reason
    if unknown := [arch for arch in known if arch not in MULTIPROCESSORS]:
        return Finding("archs", "problem", f"this warp_tiles lacks {_listed(unknown)}", "install a newer warp_tiles")
    if lacking := [arch for arch in known if toolchain.reason_unsupported(arch)]:
        detail = f"NVRTC {dotted(toolchain.nvrtc_version)} cannot serve {_listed(lacking)}, which Warp knows"
        instead = "Warp's compiler builds own functions for these as part of each module"
        return Finding("archs", "note", detail, f"install a newer NVRTC; until then, {instead}")
    return Finding("archs", "ok", f"Warp and NVRTC know {_listed(known)}")


def _listed(archs: Iterable[int]) -> str:
    return ", ".join(f"sm_{arch}" for arch in archs)


def _headers() -> Finding:
    toolchain = _installed()
    try:
        folders, version = find_headers(None if isinstance(toolchain, ToolchainError) else toolchain.nvrtc_version)
    except ToolchainError as error:
        detail = f"{error.message}; the provider own needs none, cublasdx is not available"
        return Finding("headers", "note", detail, error.remedy)
    return Finding("headers", "ok", f"nvidia-mathdx {version}, headers in {', '.join(map(str, folders))}")


def _gpus() -> Finding:
    import warp

    devices = warp.get_cuda_devices()
    if not devices:
        return Finding("gpu", "note", "none: kernels run on the CPU, and can be compiled for any GPU", "")
    driver = warp.get_cuda_driver_version()
    names = ", ".join(f"{device.name} (sm_{device.arch})" for device in devices)
    return Finding("gpu", "ok", f"{names}; driver for CUDA {dotted(driver)}")


def _settings() -> Finding:
    now = current()
    _ = now.providers  # a provider that the policy forbids is a problem
    named = [f"{name}={getattr(now, name)} ({layer})" for name, layer in now.layers]
    return Finding("settings", "ok", ", ".join(named) or "all settings have their defaults")


def _bundle() -> Finding | None:
    from warp_tiles.compile.toolchain import open_bundle

    if (now := current()).bundle is None:
        return None
    with contextlib.closing(open_bundle(now)) as bundle:
        return Finding("bundle", "ok", f"{bundle.path}: signed by a trusted key, made with these versions and settings")


def _packages() -> Finding | None:
    """The installed kernel packages: what they have, and why one cannot serve. None without one."""
    import warp

    packages = build_context(warp.get_cuda_toolkit_version()).packages
    if packages is None:
        return None
    parts, state = [], "ok"
    for package in packages.found:
        reason = package.reason_unusable
        if package.index is None and not reason:  # a folder without an index
            continue
        state = "note" if reason else state
        parts.append(f"{package.summary()}; it is not used: {reason}" if reason else package.summary())
    for first, second, count in packages.shared_modules():
        parts.append(f"{second.title} has {count} keys of modules that {first.title} has, and that one serves")
        state = "note"
    if not parts:
        return None
    remedy = "" if state == "ok" else "install packages for this Warp, one for each client (pip uninstall removes one)"
    return Finding("packages", state, "; ".join(parts), remedy)


def _cache() -> Finding:
    cache = build_context().cache
    info = cache.info()
    report = cache.verify()
    used, bound, total = map(decimal, (info.size_bytes, cache.max_bytes, info.total_bytes))
    detail = (
        f"{cache.root}: {info.entries} functions, {used} of at most {bound}; {total} with modules, headers and records"
    )
    if not report.ok:
        return Finding("cache", "problem", f"{detail}; damaged entries", "run `warp-tiles cache verify`")
    if cache.faults:
        return Finding("cache", "problem", f"{detail}; {cache.faults[0]}", cache.faults[0].remedy)
    if former := info.parts["former_versions"]:
        detail += f"; {decimal(former)} of former versions, which nothing reads"
        return Finding("cache", "note", detail, "run `warp-tiles cache gc`, which removes them")
    return Finding("cache", "ok", detail)


@click.command()
@bundle_option
@json_option
def doctor(as_json: bool) -> None:
    """Check Python, Warp, compiler, headers, linker, GPUs and the cache. Exit with 1 if there is a problem."""
    with script_output_to_stderr(as_json):
        findings = list(diagnose())
    data = {"findings": [asdict(finding) for finding in findings]}
    print_rows(as_json, data, ("what", "state", "found", "remedy"), list(map(astuple, findings)))
    sys.exit(1 if any(finding.state == "problem" for finding in findings) else 0)


# ---- all commands


def every_command(command: click.Command = commands, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Each command with its path, e.g. ``cache gc``."""
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from every_command(inner, f"{path} {name}".strip())


groups = (cache_commands.cache, cache_commands.keys, tune.tune, bundling.bundle)
for command in (run.run, plan_commands.plan, plan_commands.compile_, run.warm, *groups, settings, doctor):
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
