"""Makes the keys and the remote store of some settings."""

from __future__ import annotations

from collections.abc import Callable

from warp_tiles.errors import RemoteError
from warp_tiles.settings import Settings
from warp_tiles.store.keys import PublicKey, SigningKey, trusted_keys
from warp_tiles.store.remote import RemoteStore
from warp_tiles.util.warn import WarnedTexts, warn

_warned = WarnedTexts()


def trusted_by(settings: Settings) -> dict[str, PublicKey]:
    """The trusted keys under some settings, by key id. Whoever signs trusts the own entries.

    A signing key that cannot be read is left out with a warning, because a process that only reads needs none.

    Raises:
        RemoteError: A trusted key or the user's file of keys cannot be read.
    """
    found = trusted_keys(settings.trusted_keys)
    if settings.signing_key is not None:
        try:
            own = signer_of(settings).public
        except RemoteError as error:
            warn(f"the own signing key is not trusted: {error.message}", _warned)
        else:
            found.setdefault(own.key_id, own)
    return found


def signer_of(settings: Settings) -> SigningKey:
    """The signing key of some settings.

    Raises:
        RemoteError: There is none, or it cannot be read.
    """
    if settings.signing_key is None:
        raise RemoteError(
            "nothing can be written without a signing key",
            remedy="`warp-tiles keys new -o FILE` makes one; set WARP_TILES_SIGNING_KEY=FILE",
        )
    return SigningKey.read(settings.signing_key)


def signer_if_any(settings: Settings) -> SigningKey | None:
    """The key that signs exports; None without one, and for a cache that other users can write.

    Raises:
        RemoteError: It cannot be read.
    """
    return None if settings.signing_key is None or settings.cache_shared else signer_of(settings)


def open_store(settings: Settings, toolchain: Callable[[str], str], *, writes: bool | None = None) -> RemoteStore:
    """Connect to the store that the settings name.

    Args:
        toolchain: See :class:`RemoteStore`.
        writes: True to write entries; None for the setting ``remote_push``.

    Raises:
        RemoteError: There is none, a key cannot be read, or entries are to be written without a signing key.
    """
    if not settings.remote:
        raise RemoteError("there is no remote store", remedy="set WARP_TILES_REMOTE to its URL")
    signer = signer_of(settings) if (settings.remote_push if writes is None else writes) else None
    return RemoteStore(settings.remote, trusted_by(settings), settings.remote_wait_s, toolchain, signer)
