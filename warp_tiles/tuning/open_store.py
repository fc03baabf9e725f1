"""Opens the tuning records that the settings name: folders, or a deployment bundle."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

from warp_tiles.cache.paths import cache_root
from warp_tiles.settings import Settings, current
from warp_tiles.tuning.folder import warn_once
from warp_tiles.tuning.store import RecordStore


def open_store(now: Settings | None = None) -> RecordStore:
    """Returns the store that the settings name: the folders of ``record_paths``, then ``tuning`` in the cache folder.

    Args:
        now: The settings; None for the current ones.

    Raises:
        SettingError: An environment variable is unknown or has an unknown value.
        BundleError: The bundle of the settings cannot be used.
    """
    now = current() if now is None else now
    if now.bundle is not None:
        return _bundled_records(now.bundle, now.trusted_keys)
    for path in now.record_paths:
        if not os.path.isdir(path):
            warn_once(f"there is no folder {path} of tuning records, although the setting record_paths names it")
    return RecordStore(cache_root(now), now.record_paths, folder="tuning", shared=now.cache_shared)


@functools.cache
def _bundled_records(bundle: Path, given: tuple[str, ...]) -> RecordStore:
    """The records of a deployment bundle, which alone count then. They last as long as the process."""
    from warp_tiles.remote import ANY_TOOLCHAIN, RECORDS
    from warp_tiles.remote.bundle import Bundle
    from warp_tiles.remote.keys import trusted_keys

    folder = tempfile.mkdtemp(prefix="warp_tiles_records_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    store = RecordStore(Path(folder))
    with Bundle(bundle, trusted_keys(given)) as opened:
        for key in opened.names(RECORDS):
            if (entry := opened.fetch(RECORDS, key, ANY_TOOLCHAIN)) is not None:
                store.import_bytes(entry.payload, bundle)
    return store
