"""Tuning records in a remote store: for each signer one object with all of its records."""

from __future__ import annotations

from warp_tiles.remote import RECORDS
from warp_tiles.remote.store import RemoteStore
from warp_tiles.tuning.store import RecordStore, count_of, records_key


def push_records(store: RecordStore, remote: RemoteStore) -> int:
    """Write all records, together with those that this signer has written before.

    Args:
        store: The records. Those of the remote store are added to it.
        remote: The store, with a signing key.

    Returns:
        The number of records that were written; 0 if there are none, or if the store does not answer.

    Raises:
        RemoteError: There is no signing key.
        RecordError: The records cannot be read or stored.
    """
    signer = remote.given.signer
    assert signer is not None
    _fetch(store, remote, signer.public.key_id)
    entry = store.entry(signer=signer)
    return count_of(entry) if count_of(entry) and remote.push(RECORDS, entry) else 0


def pull_records(store: RecordStore, remote: RemoteStore) -> int:
    """Add the records of all trusted signers to the user's own. Known timings stay.

    Args:
        store: Receives the records.
        remote: The store.

    Returns:
        The number of records that were found.

    Raises:
        RecordError: The records cannot be stored.
    """
    return sum(_fetch(store, remote, signer) for signer in sorted(remote.given.trusted))


def _fetch(store: RecordStore, remote: RemoteStore, signer: str) -> int:
    entry = remote.fetch(RECORDS, records_key(signer).digest, signer=signer, again=True)  # not every signer has any
    return 0 if entry is None else store.import_bytes(entry.payload, remote.url)
