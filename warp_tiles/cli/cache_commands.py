"""``warp-tiles cache`` and ``keys``: the cache, the remote store behind it, and the keys that sign its entries."""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.filesize import decimal

from warp_tiles.build.log import is_enabled, new_bar
from warp_tiles.cli.common import FILE, echo, json_option, print_json, print_result, print_rows, print_table
from warp_tiles.errors import CacheError, RemoteError
from warp_tiles.settings import current
from warp_tiles.settings.table import parse_size, without_password
from warp_tiles.store import RECORDS
from warp_tiles.store.cache import Cache, find
from warp_tiles.store.key import MissedKeys, explain_among
from warp_tiles.store.keys import PublicKey, SigningKey, TrustedKeys, signer_if_any, trusted_by
from warp_tiles.tuning.store import open_store as open_records

if TYPE_CHECKING:
    from warp_tiles.build.context import BuildContext
    from warp_tiles.compile.find import Version
    from warp_tiles.store.remote import RemoteStore
    from warp_tiles.store.transfer import Transfer


def build_context(warp_toolkit: Version | None = None) -> BuildContext:
    """The resources under the current settings, without an engine."""
    from warp_tiles.build.context import BuildContext, Resources

    return BuildContext(Resources(warp_toolkit), current())


def _caches() -> tuple[Cache, Cache]:
    return (context := build_context()).cache, context.modules


def _report(report: Any, as_json: bool) -> None:
    data = json.loads(json.dumps(asdict(report), default=str))  # with paths as text
    shown = {name: value for name, value in data.items() if name != "parts"}
    shown |= {f"{part}_bytes": size for part, size in data.get("parts", {}).items()}
    print_rows(as_json, data, ("what", "value"), [_row_of(name, value) for name, value in shown.items()])


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


@cache.command()
@json_option
def info(as_json: bool) -> None:
    """Print the folder, the number of functions, and the size of everything in it."""
    _report(build_context().cache.info(), as_json)


@cache.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List every entry, the most recently used first."""
    entries = build_context().cache.entries()
    data = [{"key": e.key, **e.manifest.as_json(), "used_at_ns": e.used_at_ns} for e in entries]
    rows = [
        (
            e.key[:12],
            e.manifest.info.get("symbol", ""),
            decimal(e.manifest.payload_bytes),
            e.manifest.info.get("compiler", ""),
            datetime.datetime.fromtimestamp(e.used_at_ns / 1e9).strftime("%Y-%m-%d %H:%M"),
        )
        for e in entries
    ]
    print_rows(as_json, {"entries": data}, ("key", "symbol", "LTO-IR", "compiler", "last used"), rows)


@cache.command()
@json_option
def verify(as_json: bool) -> None:
    """Verify every entry, and remove damaged ones. Exit with 1 if there are any."""
    report = build_context().cache.verify(remove=True)
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
    store, _ = caches = _caches()
    try:
        store, manifest = find(caches, key)
        wanted = manifest.key
    except CacheError:
        missed = MissedKeys(store.root, shared=store.shared).find(key)
        if missed is None:
            raise
        wanted = missed
    report = explain_among(wanted, (item.manifest.key for item in store.entries()))  # the most recently used come first
    if as_json:
        state = {"key": report.key.digest, "stored": report.stored, "nearest": report.nearest}
        differences = [asdict(difference) for difference in report.differences]
        print_json({**state, "differences": differences, "transcript": report.key.transcript})
        return
    rows = [(field.label, field.kind, field.shown) for field in report.key.fields]
    print_table(f"key {report.key.digest}", ("input", "kind", "value"), rows)
    echo(str(report))


@cache.command()
@click.option("--max-size", default=None, help="Bytes, or a number with kB, MB, GB, KiB, MiB or GiB.")
@json_option
def gc(max_size: str | None, as_json: bool) -> None:
    """Remove the least recently used entries above a size, and leftovers of killed processes."""
    _report(build_context().cache.gc(None if max_size is None else parse_size("--max-size", max_size)), as_json)


@cache.command()
@click.option("--all", "everything", is_flag=True, help="Also facts and transcripts.")
@json_option
def clear(everything: bool, as_json: bool) -> None:
    """Remove every function and every linked module.

    Tuning records stay, which `tune clear` removes.
    """
    _report(build_context().cache.clear(everything=everything), as_json)


@cache.command()
@click.argument("file", type=FILE)
@click.option("--key", "keys", multiple=True, help="Only this entry; may be given again.")
@json_option
def export(file: Path, keys: tuple[str, ...], as_json: bool) -> None:
    """Write functions and linked modules to one bundle FILE, signed if there is a signing key.

    Modules of a start list that no launch has generated are not signed, unless --key names them.
    """
    from warp_tiles.store.transfer import export

    caches = _caches()
    stored = (find(caches, key) for key in keys)
    chosen = list(dict.fromkeys((cache, manifest.key.digest) for cache, manifest in stored))
    _report(export(caches, file, signer_if_any(current()), chosen), as_json)


@cache.command("import")
@click.argument("file", type=FILE)
@json_option
def import_(file: Path, as_json: bool) -> None:
    """Verify the bundle FILE, and add its functions and linked modules to the cache.

    An unsigned bundle is accepted: import only what you built, or what comes from a source whose programs you would
    run. A signed one needs the signature of a trusted key.
    """
    from warp_tiles.store.transfer import import_bundle

    _report(import_bundle(_caches(), file, trusted_by(current())), as_json)


# ---- the remote store


@contextlib.contextmanager
def _opened(*, writes: bool) -> Iterator[tuple[BuildContext, RemoteStore]]:
    """The build context and the remote store of the settings, to which own entries may be signed and written."""
    from warp_tiles.store.remote import open_store

    context = build_context()
    if writes and context.settings.cache_shared:
        raise RemoteError(
            "other users can write this cache, so that its entries are not signed",
            remedy="push from a cache of your own, without WARP_TILES_CACHE_SHARED",
        )
    remote = open_store(context.settings, context.toolchain_text, writes=writes)
    try:
        remote.require()
        yield context, remote
    finally:
        remote.close()


@contextlib.contextmanager
def counted(what: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Counts what is done on a terminal. The total is None if it is not known."""
    if not is_enabled():
        yield lambda: None
        return
    with new_bar(what, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


def _end(transfers: dict[str, Transfer], verb: str, as_json: bool) -> NoReturn:
    """Print what was moved. The exit status is 1 if anything failed."""
    rows = [(kind, t.moved, t.present, t.skipped, t.failed, decimal(t.moved_bytes)) for kind, t in transfers.items()]
    data = {kind: asdict(transfer) for kind, transfer in transfers.items()}
    print_rows(as_json, data, ("entries", verb, "present", "skipped", "failed", "size"), rows)
    sys.exit(1 if any(transfer.failed for transfer in transfers.values()) else 0)


def require_push() -> None:
    """Check what :func:`sign_and_write` needs, and raise its errors."""
    with _opened(writes=True):
        pass


def sign_and_write(keys: Collection[str] | None = None) -> dict[str, Transfer]:
    """Sign and write what the store lacks of some linked modules, by default of the whole cache and all records."""
    from warp_tiles.compile.module import warp_library
    from warp_tiles.store import transfer

    with _opened(writes=True) as (context, remote), counted("pushed") as done:
        digests = {"compiler": context.facts.compiler_digest(), "linker": context.facts.linker_digest()}
        digests["warp"] = context.facts.digests.digest(warp_library())
        caches = (context.cache, context.modules) if keys is None else (context.modules,)
        pushed = {cache.object: transfer.push(cache, remote, digests, done, keys) for cache in caches}
        if keys is None:
            pushed[RECORDS] = open_records(context.settings).push(remote)
        return pushed


@cache.command()
@json_option
def push(as_json: bool) -> None:
    """Sign the entries of the cache and the tuning records, and write them to the remote store.

    Entries that the store has, entries of other compilers, and entries that somebody else has signed are skipped. So
    are modules of a start list that no launch has generated, which `warm --push` pushes. You vouch for the rest,
    including imported bundles. A cache that other users can write is refused.
    """
    _end(sign_and_write(), "pushed", as_json)


@cache.command()
@json_option
def pull(as_json: bool) -> None:
    """Fetch and verify all entries of the remote store that are for this toolchain, and all tuning records."""
    from warp_tiles.store import transfer

    with _opened(writes=False) as (context, remote), counted("pulled") as done:
        pulled = {cache.object: transfer.pull(cache, remote, done) for cache in (context.cache, context.modules)}
        pulled[RECORDS] = open_records(context.settings).pull(remote)
    _end(pulled, "pulled", as_json)


@cache.command()
@json_option
def status(as_json: bool) -> None:
    """Print the state of the remote store, and the trusted keys."""
    now, context, state = current(), build_context(), "there is none"
    if now.remote:
        try:
            with _opened(writes=False):
                state = "it answers"
        except RemoteError as error:
            state = error.message
    data: dict[str, Any] = {
        "remote": without_password(now.remote),
        "state": state,
        "writes": now.remote_push,
        "trusted": sorted(trusted_by(now)),
        "functions": context.cache.info().entries,
        "modules": context.modules.info().entries,
    }
    rows = [
        ("remote store", data["remote"] or "none"),
        ("state", state),
        ("builds are pushed", "yes" if now.remote_push else "no"),
        ("trusted keys", " ".join(data["trusted"]) or "none"),
        ("functions in the cache", data["functions"]),
        ("modules in the cache", data["modules"]),
    ]
    print_rows(as_json, data, ("what", "value"), rows)


# ---- who signs, and whose signatures are trusted


@click.group()
def keys() -> None:
    """Keys of a remote store: who signs entries, and whose signatures are trusted."""


@keys.command()
@click.option("-o", "--output", "file", type=FILE, required=True, help="Write the private key here.")
@json_option
def new(file: Path, as_json: bool) -> None:
    """Write a new private key to a file, and print its public key.

    An existing file is never replaced. Whoever has the private key can choose code for everybody who trusts it.
    """
    key = SigningKey.generate()
    key.write(file)
    _print_public(key.public, as_json)


@keys.command()
@click.argument("file", type=FILE, required=False)
@json_option
def show(file: Path | None, as_json: bool) -> None:
    """Print the public key of the private key FILE; without FILE, the signing key and the trusted keys."""
    if file is not None:
        _print_public(SigningKey.read(file).public, as_json)
        return
    now = current()
    signing = SigningKey.read(now.signing_key).public if now.signing_key is not None else None
    trusted = sorted(trusted_by(now).values(), key=str)
    rows = [{"public": str(k), "id": k.key_id, "comment": k.comment} for k in trusted]
    data = {"signing": str(signing) if signing is not None else None, "trusted": rows}
    table: list[tuple[str, ...]] = [("signs", str(signing), signing.key_id, "")] if signing is not None else []
    table += [("trusted", *row.values()) for row in rows]
    print_rows(as_json, data, ("what", "public key", "id", "comment"), table)


@keys.command()
@click.argument("public", nargs=-1, required=True)
@json_option
def trust(public: tuple[str, ...], as_json: bool) -> None:
    """Trust the key PUBLIC, and load what its owner has signed. Words after the key are a comment.

    Its owner can then choose the code that runs on your GPU, and your user's rights with it.
    """
    key, file = PublicKey.parse(" ".join(public)), TrustedKeys()
    added = file.add(key)
    data = {"public": str(key), "id": key.key_id, "comment": key.comment, "added": added}
    print_result(as_json, data, f"{'added to' if added else 'already in'} {file.path}: {key}")


def _print_public(key: PublicKey, as_json: bool) -> None:
    print_result(as_json, {"public": str(key), "id": key.key_id}, str(key))
