"""Access to a store of objects: S3, Google Cloud Storage, Azure, HTTP with WebDAV, or a folder.

All of it is the library obstore. This module translates its errors, hides passwords in URLs, and tries nothing twice: a
request that fails is a miss.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from warp_tiles.errors import RemoteError
from warp_tiles.store.keys import INSTALL
from warp_tiles.util.threads import raise_if_signalled
from warp_tiles.util.urls import secrets_of, without_password

_CHUNK_BYTES = 1 << 16


class MissingObjectError(Exception):
    """The store has no such object, or refuses to say."""


class HalfAnswerError(OSError):
    """An answer began and did not end."""


class NotSupportedError(Exception):
    """The store has no such operation: plain HTTP often has no lists."""


# the process that has used a network; its runtime of threads cannot be shared with a forked child
_network_process: int | None = None


class Client:
    """A connection to a store. It is safe for threads.

    Args:
        url: See :func:`checked_url`.
        timeout_s: Seconds for one request, with its answer.

    Raises:
        RemoteError: The package ``obstore`` is missing, the store cannot be opened, or this is a forked process whose
            parent has used one.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        global _network_process
        if _network_process not in (None, os.getpid()):
            raise RemoteError(
                "a process that was forked from one with a remote store cannot use any",
                remedy="start processes with the method spawn or forkserver",
            )
        try:
            import obstore
            from obstore.store import LocalStore, from_url
        except ImportError as error:
            raise RemoteError(f"a remote store needs the package obstore: {error}", remedy=INSTALL) from error
        if not url.startswith("file:"):
            _network_process = os.getpid()
        self.url = without_password(url)
        self._secrets = secrets_of(url)
        self._library = obstore
        try:
            if url.startswith("file:"):
                folder = Path(url2pathname(urlsplit(url).path))
                self._store: Any = LocalStore(folder, mkdir=False)
            else:
                limit = timedelta(seconds=timeout_s)
                options: dict[str, Any] = {"timeout": limit, "connect_timeout": limit}
                # given options replace those of the environment
                options["allow_http"] = url.startswith("http:") or os.environ.get("AWS_ALLOW_HTTP") == "true"
                self._store = from_url(
                    url,
                    client_options=options,
                    retry_config={"max_retries": 0, "retry_timeout": limit},
                )
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise_if_signalled(error)
            raise RemoteError(
                f"it cannot be opened: {self._text(error)}",
                remedy="check the setting remote, and the credentials in the environment",
            ) from error

    def read(self, name: str) -> Iterator[bytes]:
        """The content of an object, in pieces.

        Raises:
            MissingObjectError: There is none.
            HalfAnswerError: It did not arrive in full.
            OSError: The request failed.
        """
        with self._errors():
            answer = self._library.get(self._store, name)
        try:
            yield from answer.stream(min_chunk_size=_CHUNK_BYTES)
        except Exception as error:
            raise HalfAnswerError(f"an answer is incomplete: {self._text(error)}") from error

    def exists(self, name: str) -> bool:
        """Returns True if there is such an object.

        Raises:
            OSError: The request failed.
        """
        with suppress(MissingObjectError), self._errors():
            self._library.head(self._store, name)
            return True
        return False

    def write(self, name: str, data: bytes) -> bool:
        """Write an object. Returns True.

        Raises:
            OSError: The request failed.
        """
        with self._errors():
            self._library.put(self._store, name, data)
        return True

    def remove(self, name: str) -> None:
        """Remove an object, if the store does that."""
        with suppress(Exception):  # a plain web server has no such request
            self._library.delete(self._store, name)

    def names(self, prefix: str) -> Iterator[str]:
        """The names of the objects below a prefix.

        Raises:
            NotSupportedError: The store cannot be listed.
            OSError: The request failed.
        """
        with self._errors():
            for page in self._library.list(self._store, prefix=prefix):
                yield from (item["path"] for item in page)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate the errors of the library. Requests run on threads, so no error of a signal is among them."""
        try:
            yield
        except Exception as error:
            known = self._library.exceptions
            unsupported = (known.NotSupportedError, NotImplementedError)  # obstore raises the built-in one too
            kind: type[Exception] = OSError
            if isinstance(error, (known.NotFoundError, FileNotFoundError)):
                kind = MissingObjectError
            elif isinstance(error, unsupported):
                kind = NotSupportedError
            elif isinstance(error, (known.PermissionDeniedError, known.UnauthenticatedError)):
                kind = PermissionError
            raise kind(self._text(error)) from error

    def _text(self, error: Exception) -> str:
        """The first line of an error, without the secrets of the URL."""
        text = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        for secret in self._secrets:
            text = text.replace(secret, "...")
        return text
