"""``warp-tiles bundle --wheel``: a wheel of kernels, from what scripts launch."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from warp_tiles.cli.output import interrupted_by_signals, note, output_errors, print_result, script_output_to_stderr
from warp_tiles.errors import PlanError, ScriptError
from warp_tiles.launch.script import Script
from warp_tiles.settings import ENVIRONMENT, current
from warp_tiles.store import LTOIR, MODULE
from warp_tiles.store.cache import Cache
from warp_tiles.store.kinds import FUNCTIONS, MODULES
from warp_tiles.store.manifest import Entry
from warp_tiles.store.wheel import Distribution, kernel_files, write_wheel

_NAME = re.compile(r"([A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9])(==([0-9][A-Za-z0-9.!+]*))?")
_NO_CLIENTS = {"__main__", "warp", "warp_tiles"}
Row = dict[str, Any]


def bundle_wheel(
    given: Script, archs: Sequence[int], named: str, client: str | None, folder: Path | None, incomplete: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Run scripts without their launches, each in a process of its own, and write what they launch to a wheel.

    Args:
        given: The words of the command line: each is a script with its arguments.
        named: Name of the distribution, with ``==`` and its version or without.
        client: The distribution of the kernels; None to find it.
        incomplete: Accept scripts that stop early.

    Raises:
        ScriptError: A script or one of its modules failed.
        PlanError: The name is none, or the client is not installed or not found.
    """
    if (match := _NAME.fullmatch(named)) is None:
        raise PlanError(f"--wheel is {named!r}, which names no distribution", "give NAME or NAME==VERSION")
    scripts = [_script(word, given.is_module) for word in (given.name, *given.arguments)]
    for script in scripts:
        script.require()
    outside = script_output_to_stderr(as_json)  # Warp says which devices it finds
    with outside, interrupted_by_signals(), tempfile.TemporaryDirectory() as scratch:
        rows = [row for script in scripts for row in _warmed(script, archs, Path(scratch), incomplete)]
        for row in rows:
            if row["reason"]:
                note(f"warp-tiles: module {row['module']} for sm_{row['arch']} {row['state']}: {row['reason']}")
        kept = {row["key"]: row for row in rows if row["key"]}
        if not kept:
            raise ScriptError(
                "nothing that the scripts launch can be kept", "name scripts that launch kernels on a GPU"
            )
        distribution = _distribution(match[1], match[3], archs, clients_of(rows, client))
        entries = list(_entries(Path(scratch), kept))
        linked = {entry.key for _, entry in entries if _kind(entry) == "linked module"}
        modules: dict[str, list[tuple[int, int, bool]]] = {}
        for key, row in kept.items():
            modules.setdefault(row["module"], []).append((row["arch"], row["block_dim"], key in linked))
        files = kernel_files(distribution, *_made_with(), modules, entries)
        place = folder or Path()
        with output_errors(place):
            place.mkdir(parents=True, exist_ok=True)
            path = write_wheel(place, distribution, files)
    size = path.stat().st_size
    data = {"wheel": str(path), "bytes": size, "requires": list(distribution.requires), "modules": rows}
    print_result(as_json, data, f"{path}: {len(kept)} modules, {decimal(size)}")


def _script(word: str, is_module: bool) -> Script:
    name, *arguments = shlex.split(word) or [word]
    return Script(name, tuple(arguments), is_module)


def _warmed(script: Script, archs: Sequence[int], scratch: Path, incomplete: bool) -> list[Row]:
    """What ``warp-tiles warm`` says about a script, which it runs in an empty process, as a start does.

    Raises:
        ScriptError: It failed. Its messages are on this terminal.
    """
    start = scratch / "start.json"
    start.unlink(missing_ok=True)  # another script's modules are not this one's
    words = ["warm", "--json", "--arch", ",".join(map(str, archs)), "--start", str(start)]
    words += ["--allow-incomplete"] * incomplete + ["-m"] * script.is_module
    command = [sys.executable, "-m", "warp_tiles", *words, script.name, *script.arguments]
    own = {"cache_dir": scratch, "cache_shared": 0, "modules": "all"}
    own |= {"remote": "", "bundle": "", "kernel_packages": "none"}
    environment = {ENVIRONMENT[name]: str(value) for name, value in own.items()}
    environment |= {"WARP_CACHE_PATH": str(scratch / "warp"), "PYTHONHASHSEED": "0"}  # the order of Warp's variables
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    if done.returncode:
        raise ScriptError(
            f"{script}: `warp-tiles warm` ended with status {done.returncode}; its messages are above",
            "make that command succeed for this script, or leave the script out",
        )
    rows: list[Row] = json.loads(done.stdout)["modules"]
    return rows


def _entries(root: Path, kept: Mapping[str, Row]) -> Iterator[tuple[str, Entry]]:
    """The entries of some modules under all of their keys, and of all functions, with the kinds of their objects."""
    for kind, name in ((MODULES, MODULE), (FUNCTIONS, LTOIR)):
        cache = Cache(root, kind)
        for item in cache.entries():
            content = str(item.manifest.info.get("content_key", item.key))
            if (kind is FUNCTIONS or content in kept) and (entry := cache.read_verified(item.key)) is not None:
                yield name, entry


def _kind(entry: Entry) -> str:
    return next((field.shown for field in entry.manifest.key.fields if field.label == "kind"), "")


def _made_with() -> tuple[str, str]:
    """Warp, and the toolchain, as an index has them."""
    import warp

    from warp_tiles.build.context import BuildContext, Resources

    context = BuildContext(Resources(warp.get_cuda_toolkit_version()), current())
    return context.warp_version, context.toolchain_text(MODULE) if context.try_toolchain() is not None else ""


# ---- what the wheel says about itself


def clients_of(rows: Sequence[Row], client: str | None) -> dict[str, str]:
    """The distributions that define the kernels, with their versions.

    Args:
        rows: Modules with the Python packages of their kernels.
        client: The distribution that the user names; None to find it.

    Raises:
        PlanError: It is not installed, or not found.
    """
    packages = {package for row in rows for package in row["packages"]} - _NO_CLIENTS
    known = {} if client is not None else metadata.packages_distributions()
    names = {client} if client is not None else {name for package in packages for name in known.get(package, ())}
    missing = sorted(package for package in packages if client is None and package not in known)
    if missing or not names:
        what = f"of the packages {', '.join(missing)}" if missing else "of the scripts' kernels"
        raise PlanError(f"no installed distribution is that {what}", "name the distribution with --client NAME")
    try:
        return {name: metadata.version(name) for name in sorted(names)}
    except metadata.PackageNotFoundError as error:
        raise PlanError(f"the distribution {error.name} is not installed", "name another with --client") from error


def _distribution(name: str, version: str | None, archs: Sequence[int], clients: Mapping[str, str]) -> Distribution:
    """The distribution of the wheel.

    Raises:
        PlanError: No version is given, and it does not follow from one client.
    """
    warp, packages = metadata.version("warp-lang"), [f"{client} {found}" for client, found in clients.items()]
    if version is None and len(clients) > 1:
        raise PlanError(f"the kernels are of {', '.join(packages)}", f"give the wheel a version: --wheel {name}==1.0")
    local = re.sub(r"[^a-z0-9]+", ".", warp.lower())
    own = next(iter(clients.values()))
    version = version or f"{own}{'.' if '+' in own else '+'}warp{local}"
    targets = ", ".join(f"sm_{arch}" for arch in sorted(archs))
    summary = f"Compiled kernels of {' and '.join(packages)} with Warp {warp} for {targets}, which warp-tiles loads"
    requires = (*(f"{client}=={found}" for client, found in clients.items()), f"warp-lang=={warp}", "warp-tiles")
    return Distribution(name, version, summary, f"py3-none-{_platform()}", requires)


def _platform() -> str:
    """The platform of the installed Warp, because keys cover its library."""
    text = metadata.distribution("warp-lang").read_text("WHEEL") or ""
    tags = re.findall(r"^Tag: [^-\s]+-[^-\s]+-(\S+)$", text, re.MULTILINE)
    return ".".join(sorted(tags)) or re.sub(r"[-.]", "_", sysconfig.get_platform())
