"""``warp-tiles cache push``, ``pull`` and ``status``: the remote store behind the cache."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.filesize import decimal

from warp_tiles.cli.output import json_option, print_json, print_table
from warp_tiles.errors import RemoteError

if TYPE_CHECKING:
    from warp_tiles.build.context import BuildContext
    from warp_tiles.store.remote import RemoteStore
    from warp_tiles.store.transfer import Transfer


@contextlib.contextmanager
def _opened(*, writes: bool) -> Iterator[tuple[BuildContext, RemoteStore]]:
    """The build context and the remote store of the settings.

    Args:
        writes: True to sign and write entries.

    Raises:
        RemoteError: There is none, or it does not answer.
    """
    from warp_tiles.build.engine import Engine
    from warp_tiles.build.stores import open_store
    from warp_tiles.settings import current

    context = Engine().build_context(current())
    remote = open_store(context.settings, context.toolchain_text, writes=writes)
    try:
        remote.require()
        yield context, remote
    finally:
        remote.close()


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[], None]]:
    """Counts entries on a terminal."""
    from warp_tiles.build.progress import is_enabled

    if not is_enabled():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), TextColumn("{task.completed} entries"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda: bar.advance(task)


def _end(found: dict[str, Transfer], verb: str, as_json: bool) -> NoReturn:
    """Print what was moved. The exit status is 1 if anything failed."""
    if as_json:
        print_json({kind: asdict(transfer) for kind, transfer in found.items()})
    else:
        rows = [(kind, t.moved, t.present, t.skipped, t.failed, decimal(t.moved_bytes)) for kind, t in found.items()]
        print_table("", ("entries", verb, "present", "skipped", "failed", "size"), rows)
    sys.exit(1 if any(each.failed for each in found.values()) else 0)


@click.command()
@json_option
def push(as_json: bool) -> None:
    """Sign the entries of the cache and the tuning records, and write them to the remote store.

    Entries that the store has, entries of other compilers, and entries that somebody else has signed are skipped. You
    vouch for the rest, including imported bundles. A cache that other users can write is refused.
    """
    from warp_tiles.store import LTOIR, MODULE, RECORDS, transfer
    from warp_tiles.tuning.store import open_store

    with _opened(writes=True) as (context, remote), _progress("pushed") as done:
        if context.settings.cache_shared:
            raise RemoteError(
                "other users can write this cache, so that its entries are not signed",
                remedy="push from a cache of your own, without WARP_TILES_CACHE_SHARED",
            )
        digests = {"compiler": context.store.compiler_digest(), "linker": context.store.linker_digest()}
        caches = {LTOIR: context.cache, MODULE: context.modules}
        found = {kind: transfer.push(cache, remote, kind, digests, done) for kind, cache in caches.items()}
        found[RECORDS] = open_store(context.settings).push(remote)
    _end(found, "pushed", as_json)


@click.command()
@json_option
def pull(as_json: bool) -> None:
    """Fetch and verify all entries of the remote store that are for this toolchain, and all tuning records."""
    from warp_tiles.store import LTOIR, MODULE, RECORDS, transfer
    from warp_tiles.tuning.store import open_store

    with _opened(writes=False) as (context, remote), _progress("pulled") as done:
        caches = {LTOIR: context.cache, MODULE: context.modules}
        found = {kind: transfer.pull(cache, remote, kind, done) for kind, cache in caches.items()}
        found[RECORDS] = open_store(context.settings).pull(remote)
    _end(found, "pulled", as_json)


@click.command()
@json_option
def status(as_json: bool) -> None:
    """Print the state of the remote store, and the trusted keys."""
    from warp_tiles.build.engine import Engine
    from warp_tiles.build.stores import trusted_by
    from warp_tiles.settings import current
    from warp_tiles.util.urls import without_password

    now = current()
    context = Engine().build_context(now)
    state = "there is none"
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
    if as_json:
        print_json(data)
        return
    rows = [
        ("remote store", data["remote"] or "none"),
        ("state", state),
        ("builds are pushed", "yes" if now.remote_push else "no"),
        ("trusted keys", " ".join(data["trusted"]) or "none"),
        ("functions in the cache", data["functions"]),
        ("modules in the cache", data["modules"]),
    ]
    print_table("", ("what", "value"), rows)
