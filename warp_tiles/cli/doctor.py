"""``warp-tiles doctor``: checks this machine, and prints findings and remedies."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple, dataclass

import click
from rich.filesize import decimal

from warp_tiles.cli.cache_commands import build_context
from warp_tiles.cli.common import bundle_option, json_option, print_rows, script_output_to_stderr, warp_remedy
from warp_tiles.compile.find import Toolchain, dotted, find_headers, find_toolchain
from warp_tiles.errors import ToolchainError, WarpTilesError
from warp_tiles.settings import current


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
    from warp_tiles.build.deployment import open_bundle

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
