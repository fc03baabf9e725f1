"""Ed25519 keys: who signs the entries of a remote store, and whose signatures are trusted.

A public key is a text, ``ed25519:`` and the base64 form of its 32 bytes. A private key is a PEM file (PKCS #8) that
only its owner can read. Trusted keys come from the setting ``trusted_keys`` and from the file ``trusted_keys`` in the
user's configuration folder, one on each line, each with an optional comment after it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.errors import RemoteError, suppressed, unless_signalled
from warp_tiles.store import config_folder
from warp_tiles.util.files import read_whole, write_new
from warp_tiles.util.trusted_folder import TrustedFolder
from warp_tiles.util.warn import warn_once

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from warp_tiles.settings import Settings

ALGORITHM = "ed25519"
TRUSTED_FILE = "trusted_keys"
_KEY_BYTES = 32
_MAX_FILE_BYTES = 1 << 20
_LOCK_S = 10.0  # a change takes milliseconds
INSTALL = "pip install 'warp-tiles[remote]'"


@contextmanager
def _errors(what: str, remedy: str) -> Iterator[None]:
    """Convert errors of the file system."""
    try:
        yield
    except unless_signalled(OSError) as error:
        raise RemoteError(f"{what}: {error.strerror or error}", remedy=remedy) from error


@dataclass(frozen=True)
class PublicKey:
    """A public key, with the user's own words about it."""

    raw: bytes
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{ALGORITHM}:{base64.b64encode(self.raw).decode('ascii')}"

    @property
    def key_id(self) -> str:
        """The first 16 hex digits of its SHA-256."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Read a public key, and the comment after it. Raises RemoteError if the text is not a public key."""
        word, _, comment = text.strip().partition(" ")
        if not comment.isprintable():
            raise RemoteError(f"{comment!r:.100} is not a comment", remedy="give printable characters on one line")
        algorithm, _, encoded = word.partition(":")
        try:
            raw = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if algorithm != ALGORITHM or len(raw) != _KEY_BYTES:
            raise RemoteError(
                f"{word!r:.100} is not a public key",
                remedy=f"give {ALGORITHM}: and 44 characters, as `warp-tiles keys show` prints it",
            )
        return cls(raw, comment.strip())

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """True if the owner of this key signed the data. Raises what :func:`require_cryptography` raises."""
        require_cryptography()
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, data)
        except (InvalidSignature, ValueError):
            return False
        return True


class SigningKey:
    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> SigningKey:
        """A new key, from the system's random numbers. Raises what :func:`require_cryptography` raises."""
        return cls(require_cryptography().generate())

    @classmethod
    def read(cls, path: Path) -> SigningKey:
        """Read a private key's file.

        Raises a RemoteError if it is missing, is no Ed25519 key, or others can read it; or ``cryptography`` is missing.
        """
        kind = require_cryptography()
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        remedy = "`warp-tiles keys new -o FILE` makes one"
        try:
            data, status = read_whole(path, _MAX_FILE_BYTES)
            if hasattr(os, "getuid") and stat.S_IMODE(status.st_mode) & 0o077:
                raise RemoteError(f"others can read the private key {path}", remedy=f"chmod 600 {path}")
            key = load_pem_private_key(data, password=None)
        except unless_signalled(OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise RemoteError(f"the private key {path} cannot be read: {error}", remedy=remedy) from error
        if not isinstance(key, kind):
            raise RemoteError(f"the private key {path} is not an Ed25519 key", remedy=remedy)
        return cls(key)

    def write(self, path: Path) -> None:
        """Write it to a new file that only its owner can read. Raises RemoteError if that cannot be done."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        data = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        remedy = "name a new file in a folder of your own; an existing key is never replaced"
        with _errors(f"the private key {path} cannot be written", remedy):
            write_new(path, data)

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


def require_cryptography() -> type[Ed25519PrivateKey]:
    """The class of private keys. Raises RemoteError if the package ``cryptography`` is missing."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise RemoteError(f"signatures need the package cryptography: {error}", remedy=INSTALL) from error
    return Ed25519PrivateKey


class TrustedKeys:
    """The file of trusted keys in the user's configuration folder, by default the platform's."""

    def __init__(self, folder: Path | None = None) -> None:
        self._files = TrustedFolder(folder or config_folder(), private=True)

    @property
    def path(self) -> Path:
        return self._files.path(TRUSTED_FILE)

    def read(self) -> tuple[PublicKey, ...]:
        """The keys of the file; none if it is missing.

        Raises a RemoteError if a line is not a key, others can write the folder, or the file cannot be read.
        """
        remedy = f"make the folder {self.path.parent} yours alone (chmod 700), or remove the file"
        with _errors(f"the trusted keys {self.path} cannot be read", remedy):
            data = self._content()
        lines = (line.strip() for line in data.decode("utf-8", "replace").split("\n"))
        return tuple(PublicKey.parse(line) for line in lines if line and not line.startswith("#"))

    def add(self, key: PublicKey) -> bool:
        """Add a key in a line of its own. Returns False if it is there already. Raises RemoteError as :meth:`read`."""
        with (
            _errors(f"the trusted keys {self.path} cannot be written", "set WARP_TILES_TRUSTED_KEYS instead"),
            self._files.lock(f"{TRUSTED_FILE}.lock", _LOCK_S),
        ):
            if key in self.read():
                return False
            data = self._content()
            if data and not data.endswith(b"\n"):
                data += b"\n"
            self._files.write(TRUSTED_FILE, data + f"{key} {key.comment}".rstrip().encode() + b"\n")
        return True

    def _content(self) -> bytes:
        with suppressed(FileNotFoundError, NotADirectoryError):
            return self._files.read(TRUSTED_FILE, _MAX_FILE_BYTES)[0]
        return b""


def trusted_keys(given: Iterable[str], file: TrustedKeys | None = None) -> dict[str, PublicKey]:
    """The trusted keys of the settings and of the user's file, by key id. Raises what these raise."""
    keys = [*(PublicKey.parse(text) for text in given), *(file or TrustedKeys()).read()]
    return {key.key_id: key for key in keys}


def trusted_by(settings: Settings) -> dict[str, PublicKey]:
    """The trusted keys under some settings, by key id. Whoever signs trusts the own entries.

    A signing key that cannot be read is left out with a warning, because a process that only reads needs none. Raises
    what :func:`trusted_keys` raises.
    """
    trusted = trusted_keys(settings.trusted_keys)
    if settings.signing_key is not None:
        try:
            own = signer_of(settings).public
        except RemoteError as error:
            warn_once(f"the own signing key is not trusted: {error.message}")
        else:
            trusted.setdefault(own.key_id, own)
    return trusted


def signer_of(settings: Settings) -> SigningKey:
    """The signing key of some settings. Raises RemoteError if there is none, or it cannot be read."""
    if settings.signing_key is None:
        raise RemoteError(
            "nothing can be written without a signing key",
            remedy="`warp-tiles keys new -o FILE` makes one; set WARP_TILES_SIGNING_KEY=FILE",
        )
    return SigningKey.read(settings.signing_key)


def signer_if_any(settings: Settings) -> SigningKey | None:
    """The key that signs exports; None without one, and for a cache that other users can write."""
    return None if settings.signing_key is None or settings.cache_shared else signer_of(settings)
