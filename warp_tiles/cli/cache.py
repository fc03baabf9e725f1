"""``warp-tiles cache``: inspects and maintains the cache."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.filesize import decimal

from warp_tiles.cli.output import echo, json_option, print_json, print_table
from warp_tiles.cli.remote import pull, push, status
from warp_tiles.errors import CacheError
from warp_tiles.store.cache import Cache, find
from warp_tiles.store.explain import MissedKeys
from warp_tiles.store.maintain import EntryInfo


def _open_cache() -> Cache:
    from warp_tiles.build.engine import Engine

    return Engine().cache


def _report(report: Any, as_json: bool) -> None:
    data = json.loads(json.dumps(asdict(report), default=str))  # with paths as text
    if as_json:
        print_json(data)
        return
    parts = {f"{part}_bytes": size for part, size in data.pop("parts", {}).items()}
    print_table("", ("what", "value"), [_row_of(name, value) for name, value in {**data, **parts}.items()])


def _row_of(name: str, value: Any) -> tuple[str, object]:
    """A fact with a readable size, the number of some keys, or the faults of some files."""
    if name.endswith("_bytes"):
        return name.replace("size_bytes", "size").replace("_bytes", " size").replace("_", " "), decimal(value)
    if isinstance(value, list):
        faults = [f"{item['path']}: {item['reason']}" for item in value if isinstance(item, dict)]
        return name, "\n".join(faults) or len(value)
    return name.replace("_", " "), value


@click.group()
def cache() -> None:
    """The cache of LTO-IR, and the remote store behind it."""


for command in (push, pull, status):
    cache.add_command(command)


@cache.command()
@json_option
def info(as_json: bool) -> None:
    """Print the folder, the number of functions, and the size of everything in it."""
    _report(_open_cache().info(), as_json)


def _row(listed: EntryInfo) -> dict[str, Any]:
    return {"key": listed.key, **listed.manifest.as_json(), "used_at_ns": listed.used_at_ns}


@cache.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List every entry, the most recently used first."""
    entries = sorted(_open_cache().entries(), key=lambda listed: -listed.used_at_ns)
    if as_json:
        print_json({"entries": [_row(listed) for listed in entries]})
        return
    rows = [
        (
            e.key[:12],
            e.manifest.info.get("symbol", ""),
            decimal(e.manifest.payload_bytes),
            e.manifest.info.get("compiler", ""),
        )
        for e in entries
    ]
    print_table("", ("key", "symbol", "LTO-IR", "compiler"), rows)


@cache.command()
@json_option
def verify(as_json: bool) -> None:
    """Verify every entry, and remove damaged ones. Exit with 1 if there are any."""
    report = _open_cache().verify(remove=True)
    _report(report, as_json)
    sys.exit(0 if report.ok else 1)


@cache.command()
@click.argument("key")
@json_option
def explain(key: str, as_json: bool) -> None:
    """Print the inputs of KEY, and its differences from the nearest stored key.

    A KEY may be shortened to its first digits. It may be a key that a plan missed, so that the miss
    can be explained.
    """
    store = _open_cache()
    try:
        found = store.explain(key)
    except CacheError:
        missed = MissedKeys(store.root, shared=store.shared).find(key)
        if missed is None:
            raise
        found = store.explain(missed)
    if as_json:
        differences = [asdict(difference) for difference in found.differences]
        state = {"key": found.key.digest, "stored": found.stored, "nearest": found.nearest, "differences": differences}
        print_json({**state, "transcript": found.key.transcript})
        return
    rows = [(field.label, field.kind, field.shown) for field in found.key.fields]
    print_table(f"key {found.key.digest}", ("input", "kind", "value"), rows)
    echo(str(found))


@cache.command()
@click.option("--max-size", default=None, help="Bytes, or a number with kB, MB, GB, KiB, MiB or GiB.")
@json_option
def gc(max_size: str | None, as_json: bool) -> None:
    """Remove the least recently used entries above a size, and leftovers of killed processes."""
    from warp_tiles.settings.values import parse_size

    _report(_open_cache().gc(None if max_size is None else parse_size("--max-size", max_size)), as_json)


@cache.command()
@click.option("--all", "everything", is_flag=True, help="Also precompiled headers, facts and transcripts.")
@json_option
def clear(everything: bool, as_json: bool) -> None:
    """Remove every function and every linked module. Tuning records stay; `tune clear` removes them."""
    _report(_open_cache().clear(everything=everything), as_json)


def _caches() -> dict[str, Cache]:
    """The cache of each kind of entries."""
    from warp_tiles.build.engine import Engine
    from warp_tiles.settings import current
    from warp_tiles.store import LTOIR, MODULE

    context = Engine().build_context(current())
    return {LTOIR: context.cache, MODULE: context.modules}


@cache.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--key", "keys", multiple=True, help="Only this entry; may be given again.")
@json_option
def export(file: Path, keys: tuple[str, ...], as_json: bool) -> None:
    """Write functions and linked modules to one bundle FILE, signed if there is a signing key."""
    from warp_tiles.build.stores import signer_if_any
    from warp_tiles.settings import current
    from warp_tiles.store.transfer import export

    caches = _caches()
    chosen = {manifest.key.digest: kind for kind, manifest in (find(caches, key) for key in keys)}
    _report(export(caches, file, signer_if_any(current()), chosen), as_json)


@cache.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option
def import_(file: Path, as_json: bool) -> None:
    """Verify the bundle FILE, and add its functions and linked modules to the cache.

    An unsigned bundle is accepted: import only what you built, or what comes from a source whose programs you would
    run. A signed one needs the signature of a trusted key.
    """
    from warp_tiles.build.stores import trusted_by
    from warp_tiles.settings import current
    from warp_tiles.store.transfer import import_bundle

    _report(import_bundle(_caches(), file, trusted_by(current())), as_json)
