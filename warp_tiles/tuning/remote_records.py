"""Tuning records in a remote store: for each signer one object, an export of all of its records."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from warp_tiles.cache import CacheKey, Entry, Manifest
from warp_tiles.remote import ANY_TOOLCHAIN, RECORDS
from warp_tiles.remote.store import RemoteSettings, RemoteStore
from warp_tiles.tuning.store import RecordStore


def settings_for_records(given: RemoteSettings) -> RemoteSettings:
    """The settings of a connection for tuning records, which hold no code and name their own driver and versions."""
    return replace(given, toolchain=lambda kind: ANY_TOOLCHAIN)


def _key(signer: str) -> CacheKey:
    return CacheKey.of({"kind": "tuning records", "signer": signer})


def push_records(store: RecordStore, remote: RemoteStore) -> int:
    """Write all records, together with those that this signer has written before.

    Args:
        store: The records. Those of the remote store are added to it.
        remote: A connection with :func:`settings_for_records` and a signing key.

    Returns:
        The number of records that were written; 0 if there are none, or if the store does not answer.

    Raises:
        RemoteError: There is no signing key.
        RecordError: The records cannot be read or stored.
    """
    assert remote.given.signer is not None
    key = _key(remote.given.signer.public.key_id)
    _import(store, remote.fetch(RECORDS, key.digest, signer=remote.given.signer.public.key_id))
    entry = records_entry(store, remote.given.signer.public.key_id)
    if entry is None or not remote.push(RECORDS, entry):
        return 0
    return int(str(entry.manifest.info["records"]))


def records_entry(store: RecordStore, signer: str) -> Entry | None:
    """The entry with all records of a store; None if there are none.

    Args:
        store: The records.
        signer: Key id of the signer.

    Raises:
        RecordError: The records cannot be read.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "records.json"
        count = store.export(path)
        data = path.read_bytes()
    if not count:
        return None
    key = _key(signer)
    return Entry(key.digest, data, Manifest.describe(key, data, {"records": count}))


def pull_records(store: RecordStore, remote: RemoteStore) -> int:
    """Add the records of all trusted signers to the user's own. Known timings stay.

    Args:
        store: Receives the records.
        remote: A connection with :func:`settings_for_records`.

    Returns:
        The number of records that were found.

    Raises:
        RecordError: The records cannot be stored.
    """
    signers = sorted(remote.given.trusted)
    return sum(_import(store, remote.fetch(RECORDS, _key(signer).digest, signer=signer)) for signer in signers)


def _import(store: RecordStore, entry: Entry | None) -> int:
    if entry is None:
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "records.json"
        path.write_bytes(entry.payload)
        return store.import_(path)
