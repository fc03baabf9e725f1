"""``warp-tiles bundle``: one signed file of a script's modules, or a wheel of what scripts launch."""

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
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import click
from rich.filesize import decimal

from warp_tiles import api
from warp_tiles._warp import require_hooks
from warp_tiles.build.module_build import LINKED_MODULE
from warp_tiles.build.warp_module import WarpOutput
from warp_tiles.cli import common
from warp_tiles.cli.cache_commands import build_context
from warp_tiles.cli.plan_commands import MOST_THREADS, Wanted, takes_targets
from warp_tiles.cli.run import compile_matmul_kernels
from warp_tiles.cli.script import Script, Target
from warp_tiles.errors import PlanError, ScriptError
from warp_tiles.reports.descriptions import compiled_again
from warp_tiles.settings import ENVIRONMENT, current, override
from warp_tiles.store import ANY_TOOLCHAIN, FUNCTIONS, MODULE, MODULES, RECORDS, TOOLCHAIN, cache_root
from warp_tiles.store.cache import Cache
from warp_tiles.store.key import Entry
from warp_tiles.store.keys import SigningKey, signer_of
from warp_tiles.store.packages import Distribution, kernel_files, write_wheel
from warp_tiles.tuning.store import open_store, records_entry
from warp_tiles.util.threads import side_by_side


@click.command(context_settings=common.GRAMMAR)
@takes_targets
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File of the bundle, or folder of the wheel.")
@click.option("--wheel", metavar="NAME", help="Write a wheel of kernels, NAME or NAME==VERSION, for several scripts.")
@click.option("--client", metavar="NAME", help="The distribution of the kernels, where the scripts do not show it.")
@common.json_option
def bundle(wanted: Wanted, output: Path | None, wheel: str | None, client: str | None, as_json: bool) -> None:
    """Build every module of SCRIPT, and the kernels of matmul, sign them, and write all to one bundle.

    The script runs as under "plan": its launches are recorded and not executed. The bundle also holds the tuning
    records, and the facts about the compiler that keys contain. `warp-tiles run --bundle FILE SCRIPT` needs no more.

    With --wheel, every argument is a script, with its own arguments in quotes: "train.py --size 4". Each runs as under
    "warm", and the wheel holds what all launch. Installed, it is found without an option. An argument that ends with
    .json is a start list, of a program whose launches depend on results of others. It needs --client.
    """
    if wheel is not None:
        if wanted.block_dim is not None:
            raise click.UsageError("--block-dim does not go with --wheel")
        _write_wheel(wanted, wheel, client, output or Path(), as_json)
    elif output is None or client is not None:
        raise click.UsageError("give -o FILE; --client goes with --wheel")
    else:
        _write_bundle(wanted, output, as_json)


def _write_bundle(wanted: Wanted, file: Path, as_json: bool) -> None:
    from warp_tiles._warp.modules import compile_module
    from warp_tiles.store.bundle import write_bundle

    now = current()
    wanted.script.require()
    common.require_folders({"the bundle": file})
    signer = signer_of(now)
    own_records = cache_root(now.cache_dir) / "tuning"
    records = (*now.record_paths, *([own_records] if own_records.is_dir() else []))  # a missing folder is warned of
    outside = common.script_output_to_stderr(as_json)
    with outside, common.interrupted_by_signals(), tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        kept: Literal["all", "tiles"] = "all" if now.modules == "all" else "tiles"
        with override(cache_dir=folder, modules=kept, remote="", record_paths=records, kernel_packages="none"):
            api.enable()
            discovery = wanted.discovered()

            def build(job: tuple[Target, int]) -> None:
                target, arch = job
                compile_module(target.module, arch, target.block_dim, folder / f"sm_{arch}")

            with wanted.kernel_errors():
                side_by_side(build, wanted.targets(discovery), MOST_THREADS)
            compiled = compile_matmul_kernels(require_hooks("bundle").engine, discovery, wanted.archs)
            common.note_reasons(compiled)
            objects = _signed(signer)
        write_bundle(file, sorted(objects))
    held = {key for _, key, _ in objects}
    built = discovery.with_launched(api.report()["modules"])
    rows = [_bundled(build, held) for build in built if "output" in build]
    rows.sort(key=lambda row: (row["module"], row["arch"], row["block_dim"]))  # they are logged as they end
    for row in rows:
        if not row["bundled"]:
            module = f"module {row['module']} for sm_{row['arch']}"
            common.note(f"warp-tiles: {module} is not in the bundle: {row['reason']}")
    kernels, shown = [row for row in compiled if row["key"]], ("module", "arch", "block_dim", "key", "cubin_bytes")
    data = {
        "bundle": str(file), "bytes": file.stat().st_size, "signer": str(signer.public), "modules": rows,
        "matmul": [{name: row[name] for name in shown} for row in kernels],
    }  # fmt: skip
    table = [
        (row["module"], f"sm_{row['arch']}", row["block_dim"], decimal(row["cubin_bytes"])) for row in (*rows, *kernels)
    ]
    common.print_rows(as_json, data, ("module", "target", "threads", "cubin"), table, str(file))
    for text in () if as_json else compiled_again(built):
        common.echo(text)
    common.require_complete(wanted.script, discovery, wanted.allow_incomplete)


def _bundled(build: dict[str, Any], held: set[str]) -> dict[str, Any]:
    bundled = build["module_key"] in held
    reason = build["linker_reason"] or "it names files of this machine"
    if build["lto_builds"] + build["lto_hits"] == 0:
        reason = "it has no function from here, so Warp builds it"
    facts = {name: build[name] for name in ("arch", "block_dim", "cubin_bytes")}
    return {"module": build["name"], **facts, "bundled": bundled, "reason": "" if bundled else reason}


def _signed(signer: SigningKey) -> list[tuple[str, str, bytes]]:
    """The signed objects of all modules, of the tuning records, and of the facts about the toolchain.

    The start keys of modules with products are left out, because a deployment asks for none.
    """
    from warp_tiles.array_products.tensor_matmul import kernel_sources
    from warp_tiles.compile.toolchain import facts_entry
    from warp_tiles.store.envelope import pack

    now = current()
    engine = require_hooks("bundle").engine
    context = engine.build_context(now)
    sources = [*engine.device_sources(now), *kernel_sources().values()]
    entries = [(TOOLCHAIN, facts_entry(now, context.facts, sources), ANY_TOOLCHAIN)]
    modules = (context.modules.read_verified(item.key) for item in context.modules.entries())
    kept = (entry for entry in modules if entry is not None and not _is_start_of_linked(entry))
    entries += [(MODULE, entry, context.toolchain_text(MODULE)) for entry in kept]
    if records := open_store(now).united():
        entries.append((RECORDS, records_entry(records, signer), ANY_TOOLCHAIN))
    return [(kind, entry.key, pack(kind, entry, toolchain, signer)) for kind, entry, toolchain in entries]


def _is_start_of_linked(entry: Entry) -> bool:
    return "linker" in [field.label for field in entry.manifest.key.fields] and "content_key" in entry.manifest.info


# ---- a wheel of kernels

_NAME = re.compile(r"([A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9])(==([0-9][A-Za-z0-9.!+]*))?")
_START_LIST = ".json"
_NO_CLIENTS = {"__main__", "warp", "warp_tiles"}
Row = dict[str, Any]


def _write_wheel(wanted: Wanted, named: str, client: str | None, folder: Path, as_json: bool) -> None:
    """Run scripts without their launches, each in a process of its own, and write what they launch to a wheel.

    Each word of the command line is a script with its arguments, or a start list.
    """
    import warp

    if (match := _NAME.fullmatch(named)) is None:
        raise PlanError(f"--wheel is {named!r}, which names no distribution", "give NAME or NAME==VERSION")
    if find_spec("_lzma") is None:
        raise PlanError("this Python was built without the module lzma, which compresses a wheel", "use another Python")
    scripts = []
    for word in (wanted.script.name, *wanted.script.arguments):
        name, *arguments = shlex.split(word) or [word]
        scripts.append(Script(name, tuple(arguments), wanted.script.is_module))
        scripts[-1].require()
        if name.endswith(_START_LIST) and (client is None or arguments):
            what = "takes no arguments" if arguments else "does not say whose kernels it has"
            remedy = "leave them out" if arguments else "name the distribution with --client NAME"
            raise PlanError(f"{name} is a start list, which {what}", remedy)
    outside = common.script_output_to_stderr(as_json)  # Warp says which devices it finds
    with outside, common.interrupted_by_signals(), tempfile.TemporaryDirectory() as scratch:
        rows = [row for script in scripts for row in _warmed(script, wanted, Path(scratch))]
        common.note_reasons(rows)
        kept = {row["key"]: row for row in rows if row["key"]}
        if not kept:
            raise ScriptError(
                "nothing that the scripts launch can be kept", "name scripts that launch kernels on a GPU"
            )
        distribution = _distribution(match[1], match[3], wanted.archs, clients_of(rows, client))
        entries = list(_entries(Path(scratch), kept))
        context = build_context(warp.get_cuda_toolkit_version())
        if any(script.name.endswith(_START_LIST) for script in scripts) and not context.settings.cache_shared:
            entries += _known_starts(context.modules, [entry for _, entry in entries])
        linked = {
            entry.key
            for _, entry in entries
            if ("kind", LINKED_MODULE) in [(field.label, field.shown) for field in entry.manifest.key.fields]
        }
        modules: dict[str, list[tuple[int, int, bool]]] = {}
        for key, row in kept.items():
            modules.setdefault(row["module"], []).append((row["arch"], row["block_dim"], key in linked))
        toolchain = context.toolchain_text(MODULE) if context.try_toolchain() is not None else ""
        files = kernel_files(distribution, context.warp_version, toolchain, modules, entries)
        with common.output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            path = write_wheel(folder, distribution, files)
    size = path.stat().st_size
    data = {"wheel": str(path), "bytes": size, "requires": list(distribution.requires), "modules": rows}
    common.print_result(as_json, data, f"{path}: {len(kept)} modules, {decimal(size)}")


def _warmed(script: Script, wanted: Wanted, scratch: Path) -> list[Row]:
    """What ``warp-tiles warm`` says about a start list, or about a script, which it runs in an empty process."""
    start = scratch / "start.json"
    start.unlink(missing_ok=True)  # another script's modules are not this one's
    words = ["warm", "--json", "--arch", ",".join(map(str, wanted.archs))]
    if script.name.endswith(_START_LIST):
        words += ["--record", script.name]
    else:
        words += ["--start", str(start), *["--allow-incomplete"] * wanted.allow_incomplete, *["-m"] * script.is_module]
        words += [script.name, *script.arguments]
    command = [sys.executable, "-m", "warp_tiles", *words]
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
    for kind in (MODULES, FUNCTIONS):
        cache = Cache(root, kind)
        for item in cache.entries():
            content = str(item.manifest.info.get("content_key", item.key))
            if (kind is FUNCTIONS or content in kept) and (entry := cache.read_verified(item.key)) is not None:
                yield kind.object, entry


def _known_starts(cache: Cache, packed: Sequence[Entry]) -> Iterator[tuple[str, Entry]]:
    """The entries of a user's cache by which a start finds packed modules without generating them.

    A start list binds nothing. But a program that ran here has bound the start keys of what it generated.
    """
    contents = {entry.key: entry for entry in packed}
    for item in cache.entries():
        content = contents.get(str(item.manifest.info.get("content_key")))
        if content is None or item.key in contents or (entry := cache.read_verified(item.key)) is None:
            continue
        output, packed_as = WarpOutput.of(entry), WarpOutput.of(content)
        if output is not None and packed_as is not None and replace(output, warnings=packed_as.warnings) == packed_as:
            yield MODULES.object, entry


# ---- what the wheel says about itself


def clients_of(rows: Sequence[Row], client: str | None) -> dict[str, str]:
    """The distributions that define the kernels, with their versions: the client, or those that are found."""
    from importlib import metadata  # takes long

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
    from importlib import metadata

    packages = [f"{client} {installed}" for client, installed in clients.items()]
    if version is None and len(clients) > 1:
        raise PlanError(f"the kernels are of {', '.join(packages)}", f"give the wheel a version: --wheel {name}==1.0")
    warp = metadata.distribution("warp-lang")
    tags = re.findall(r"^Tag: [^-\s]+-[^-\s]+-(\S+)$", warp.read_text("WHEEL") or "", re.MULTILINE)
    platform = ".".join(sorted(tags)) or re.sub(r"[-.]", "_", sysconfig.get_platform())  # keys cover Warp's library
    local = re.sub(r"[^a-z0-9]+", ".", warp.version.lower())
    own = next(iter(clients.values()))
    version = version or f"{own}{'.' if '+' in own else '+'}warp{local}"
    targets = ", ".join(f"sm_{arch}" for arch in sorted(archs))
    made_with = f"with Warp {warp.version} for {targets}"
    summary = f"Compiled kernels of {' and '.join(packages)} {made_with}, which warp-tiles loads"
    requires = [f"{client}=={installed}" for client, installed in clients.items()]
    requires += [f"warp-lang=={warp.version}", "warp-tiles"]
    return Distribution(name, version, summary, f"py3-none-{platform}", tuple(requires))
