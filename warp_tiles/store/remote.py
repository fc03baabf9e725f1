"""A remote store behind the cache: it answers in time with a signed entry, or it is a miss.

Stores are S3, Google Cloud Storage, Azure, HTTP with WebDAV, or a folder. The library obstore accesses them, except
for lists of WebDAV.
:class:`Client` translates its errors, hides passwords in URLs, and tries nothing twice: a request that fails is a miss.

No state of the store fails a build. A store that is down costs a process at most :data:`PATIENCE_S`; one that stops
answering costs it the setting ``remote_wait_s`` once.
"""

from __future__ import annotations

import base64
import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, url2pathname, urlopen

from warp_tiles.errors import RemoteError, unless_signalled
from warp_tiles.settings.table import secrets_of, without_password
from warp_tiles.store import FORM, is_digest, object_name
from warp_tiles.store.cache import Upstream
from warp_tiles.store.envelope import OtherToolchainError, RefusedError, Wanted, check_statement, pack, unpack
from warp_tiles.store.key import Entry
from warp_tiles.store.keys import INSTALL, PublicKey, SigningKey, require_cryptography, signer_of, trusted_by
from warp_tiles.util.threads import DaemonThreads, wait_all, wait_result
from warp_tiles.util.warn import WarnedTexts, log

if TYPE_CHECKING:
    from warp_tiles.settings import Settings

T = TypeVar("T")
#: Seconds that a process waits, once, to learn whether a store answers at all. It is asked much earlier.
PATIENCE_S = 0.02
#: A process asks no more after so many failures in a row.
MOST_FAILURES = 3
#: A reply that takes longer counts as lost time.
SLOW_S = 0.2
_THREADS = 32
_MOST_LISTED = 10_000
_CHUNK_BYTES = 1 << 16
#: The largest list of WebDAV that is read; an object takes 400 to 700 bytes of it.
MAX_LIST_BYTES = 64 << 20
_HREF = re.compile(rb"href>([^<>]+)<")
#: Name of an object that is asked for first.
PROBE = f"{FORM}/store.json"


class MissingObjectError(Exception):
    """The store has no such object, or refuses to say."""


class IncompleteReplyError(OSError):
    """A reply began and did not end."""


class NotSupportedError(Exception):
    """The store has no such operation: plain HTTP often has no lists."""


# the process that has used a network; its runtime of threads cannot be shared with a forked child
_network_process: int | None = None


class Client:
    """A connection to a store, whose requests take ``timeout_s`` at most. It is safe for threads.

    A request that fails raises ``OSError``. Raises a RemoteError if the package ``obstore`` is missing, if the store
    cannot be opened, or in a forked process whose parent has used one.
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
        self._url, self._timeout_s = url, timeout_s
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
                    url, client_options=options, retry_config={"max_retries": 0, "retry_timeout": limit}
                )
        except unless_signalled(obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise RemoteError(
                f"it cannot be opened: {self._text(error)}",
                remedy="check the setting remote, and the credentials in the environment",
            ) from error

    def read(self, name: str) -> Iterator[bytes]:
        """The content of an object, in pieces. Raises a MissingObjectError, or an IncompleteReplyError."""
        with self._errors():
            reply = self._library.get(self._store, name)
        try:
            yield from reply.stream(min_chunk_size=_CHUNK_BYTES)
        except Exception as error:
            raise IncompleteReplyError(f"a reply is incomplete: {self._text(error)}") from error

    def exists(self, name: str) -> bool:
        """Returns True if there is such an object."""
        with suppress(MissingObjectError), self._errors():
            self._library.head(self._store, name)
            return True
        return False

    def write(self, name: str, data: bytes) -> bool:
        """Write an object. Returns True."""
        with self._errors():
            self._library.put(self._store, name, data)
        return True

    def remove(self, name: str) -> None:
        with suppress(Exception):  # a plain web server has no such request
            self._library.delete(self._store, name)

    def names(self, prefix: str) -> Iterator[str]:
        """The names of the objects below a prefix. Raises NotSupportedError if the store cannot be listed."""
        with self._errors():
            if isinstance(self._store, self._library.store.HTTPStore):
                yield from self._webdav_names(prefix)
                return
            for page in self._library.list(self._store, prefix=prefix):
                yield from (item["path"] for item in page)

    def _webdav_names(self, prefix: str) -> Iterator[str]:
        """The names in a list of WebDAV. It is asked for here, because obstore reads a reply of any size."""
        parts = urlsplit(self._url)
        user, _, host = parts.netloc.rpartition("@")
        url = parts._replace(netloc=host, path=f"{parts.path.rstrip('/')}/{prefix}").geturl()
        request = Request(url, method="PROPFIND", headers={"Depth": "infinity"})
        if user:
            encoded = base64.b64encode(unquote(user).encode("utf-8")).decode("ascii")
            request.add_header("Authorization", f"Basic {encoded}")
        data, ends_at = bytearray(), time.monotonic() + self._timeout_s
        try:
            with urlopen(request, timeout=self._timeout_s) as reply:
                while part := reply.read1(_CHUNK_BYTES):
                    data += part
                    if len(data) > MAX_LIST_BYTES or time.monotonic() > ends_at:
                        raise OSError(f"its list has more than {MAX_LIST_BYTES} bytes, or takes {self._timeout_s:g} s")
        except HTTPError as error:
            error.close()  # its body is not read
            if error.code == 404:  # nothing was written yet
                return
            raise
        if b"multistatus>" not in data[-200:]:
            raise OSError("its list is cut short, or is none of WebDAV")
        yield from (unquote(href[1].decode("utf-8", "replace")) for href in _HREF.finditer(data))

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


class RemoteStore:
    """A store of signed entries. It connects in the background as soon as it is made.

    Args:
        wait_s: The longest time to wait for a reply.
        toolchain: Returns the compiler of a kind of entries, and for modules the linker, as text.
        signer: Signs entries that are written; None to write none.
        clock: Returns seconds. The differences are the waits for entries.
    """

    def __init__(
        self,
        url: str,
        trusted: Mapping[str, PublicKey],
        wait_s: float,
        toolchain: Callable[[str], str],
        signer: SigningKey | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.url = without_password(url)  # for messages
        self._given_url, self.wait_s = url, wait_s
        self.trusted, self.signer = trusted, signer
        self._toolchain, self._clock = toolchain, clock
        self._threads = DaemonThreads(_THREADS, "warp_tiles_remote")
        self._lock = threading.Lock()
        self._patience_s = PATIENCE_S
        self._failures = 0
        self._overspent_s = 0.0  # waits for replies, less the builds that they replace
        self.off = ""  # the reason why this process asks no more
        self._said = WarnedTexts()
        self._opened: Future[Client] = self._threads.submit(self._open)

    @property
    def is_up(self) -> bool:
        """True if the store has answered, and is asked."""
        opened = self._opened
        return not self.off and opened.done() and not opened.cancelled() and opened.exception() is None

    def client(self, timeout_s: float | None = None) -> Client:
        """The client, as soon as it is connected. Raises the error of the connection."""
        return self._opened.result(timeout_s)

    def close(self) -> None:
        self._threads.close()

    def reply(self, request: Callable[[], T]) -> T | None:
        """The result of a request; None if it fails or takes too long. The first failure of each kind is logged."""
        if not self._becomes_up():
            return None
        start = time.perf_counter()
        try:
            future = self._threads.submit(request)
        except unless_signalled(RuntimeError):  # it was closed meanwhile
            return None
        wait_all([future], self.wait_s)
        if not future.done() or future.cancelled():
            future.cancel()
            self._turn_off(f"it did not answer within {self.wait_s:g} s")
            return None
        error = future.exception()
        if error is None:
            self._failures = 0
            return future.result()
        if isinstance(error, PermissionError):  # of an object; S3 also says so of a missing one
            self.say(f"it refuses a request: {error}", about="permission")
        elif time.perf_counter() - start >= self.wait_s:  # the client's own timer ended first
            self._turn_off(f"it did not answer within {self.wait_s:g} s")
        else:
            with self._lock:
                self._failures += 1
            if self._failures >= MOST_FAILURES:
                self._turn_off(f"{MOST_FAILURES} requests in a row failed: {error}")
            else:
                self.say(f"a request failed: {error}", about=f"failure: {type(error).__name__}")
        return None

    def count_wait(self, waited_s: float, saved_s: float = 0.0) -> None:
        """Count a slow reply and the build that it replaces. If replies cost more than they save, ask no more.

        Seconds until replies to requests side by side are added. ``saved_s`` is 0 without an entry.
        """
        if waited_s < SLOW_S:
            return
        with self._lock:
            self._overspent_s += waited_s - saved_s
        if self._overspent_s >= self.wait_s:
            self._turn_off(f"it is slow, and has cost {self._overspent_s:.1f} s more than it saved")

    def require(self) -> None:
        """Wait until the store answers. Raises RemoteError if it does not answer in time."""
        with self._lock:
            self._patience_s = self.wait_s
        if not self._becomes_up():
            raise RemoteError(
                f"the remote store {self.url} is not usable: {self.off or 'no reply in time'}",
                remedy="check the setting remote, the network, and the credentials in the environment",
            )

    def _open(self) -> Client:
        require_cryptography()
        client = Client(self._given_url, self.wait_s)
        with suppress(PermissionError):  # it answers, and an object may be readable all the same
            client.exists(PROBE)
        return client

    def _becomes_up(self) -> bool:
        """True if the store has answered. The first call waits for a moment."""
        if self.off:
            return False
        with self._lock:
            patience_s, self._patience_s = self._patience_s, 0.0
        if not wait_all([self._opened], patience_s):
            if patience_s:
                self.say("it has not answered yet, so that builds go on without it", about="slow")
            return False
        error = RemoteError("it was closed") if self._opened.cancelled() else self._opened.exception()
        if error is not None:
            self._turn_off(error.message if isinstance(error, RemoteError) else f"it does not answer: {error}")
        return error is None

    def _turn_off(self, reason: str) -> None:
        with self._lock:
            first, self.off = not self.off, self.off or reason
        if first:
            self.say(f"{reason}. It is not used again in this process")

    def say(self, text: str, about: str = "", level: int = logging.WARNING) -> None:
        """Log a message, once for each subject that it is about; by default its text."""
        if self._said.add(about or text):
            log.log(level, "the remote store %s: %s", self.url, text)

    # ---- reading

    def ask(self, kind: str, key: str) -> tuple[Entry | None, bool]:
        """Fetch and verify an entry. Its info names the key that signed it, as ``signed_by``.

        Returns the entry, or None if the store does not answer with it in time; and False if the request failed, so
        that it is not known whether there is an entry.
        """
        if not self.trusted:
            self.say("no key is trusted, so nothing is loaded from it; `warp-tiles keys trust PUBLIC` adds one")
            return None, True
        start = self._clock()
        reply = self.reply(lambda: (self._fetch(kind, key),))
        entry = None if reply is None else reply[0]
        saved_s = 0.0 if entry is None else entry.manifest.info.get("build_seconds")
        self.count_wait(self._clock() - start, saved_s if isinstance(saved_s, (int, float)) else 0.0)
        return entry, reply is not None

    def _fetch(self, kind: str, key: str) -> Entry | None:
        wanted = Wanted(kind, key, self._toolchain(kind))
        client = self.client()
        try:
            return unpack(client.read(object_name(kind, key)), wanted, self.trusted)
        except (MissingObjectError, OtherToolchainError) as error:
            what = "no entry" if isinstance(error, MissingObjectError) else "an entry of another toolchain"
            self.say(f"it has {what} for {kind} {key[:12]}", about=what, level=logging.INFO)
            return None
        except RefusedError as error:
            self.say(f"its reply for {kind} {key[:12]} is refused: {error}", about="refused")
            return None

    # ---- writing

    def push(self, kind: str, entry: Entry) -> bool:
        """Sign an entry with the signing key, and write it. False if that failed, which is said once."""
        signer = self.signer
        if signer is None:
            raise RemoteError("nothing can be written without a signing key", remedy="set WARP_TILES_SIGNING_KEY")
        data = pack(kind, entry, self._toolchain(kind), signer)
        name = object_name(kind, entry.key)
        return bool(self.reply(lambda: self.client().write(name, data)))

    def remove(self, kind: str, key: str) -> None:
        self.reply(lambda: self.client().remove(object_name(kind, key)))

    def has(self, kind: str, key: str) -> bool | None:
        """True if the store has an entry with a sound, trusted statement; None without a reply. Reads no payload."""
        wanted = Wanted(kind, key, self._toolchain(kind))

        def has() -> bool:
            with suppress(MissingObjectError, RefusedError):
                check_statement(self.client().read(object_name(kind, key)), wanted, self.trusted)
                return True
            return False

        return self.reply(has)

    def keys(self, kind: str) -> list[str]:
        """The keys of the entries of a kind, in order. Raises RemoteError if the store does not list them."""
        try:
            keys = wait_result(self._threads.submit(self._listing, kind, self.wait_s))
        except unless_signalled(FutureTimeoutError, NotSupportedError, OSError) as error:
            raise RemoteError(
                f"the remote store {self.url} cannot be listed: {error or 'no reply'}",
                remedy="plain HTTP servers have no lists; use WebDAV, an object store or a folder",
            ) from error
        return sorted(filter(is_digest, keys))

    def listed(self, kind: str) -> frozenset[str] | None:
        """The keys of all entries of a kind, from one request; None if it does not answer soon, or has too many.

        Without a trusted key it is None, too, because none of them would be loaded. The connection may still be made,
        and a store that is down costs :data:`SLOW_S`.
        """
        if self.off or not self.trusted:
            return None
        try:
            listing = self._threads.submit(self._listing, kind, SLOW_S, _MOST_LISTED + 1)
        except unless_signalled(RuntimeError):
            return None
        wait_all([listing], SLOW_S)
        known = listing.done() and not listing.cancelled() and listing.exception() is None
        return frozenset(listing.result()) if known and len(listing.result()) <= _MOST_LISTED else None

    def _listing(self, kind: str, timeout_s: float, most: int | None = None) -> list[str]:
        """The last parts of the names of a kind's objects."""
        names = self.client(timeout_s).names(f"{FORM}/{kind}/")
        return [name.rpartition("/")[2] for name in islice(names, most)]

    def upstream(self, kind: str, key: str) -> Upstream:
        """The part of the store in a lookup: the entry if it has one, else the function that receives a new one."""
        entry, _ = self.ask(kind, key)
        pushes = entry is None and self.signer is not None
        return Upstream(entry, functools.partial(self.push, kind) if pushes else None)


def open_store(settings: Settings, toolchain: Callable[[str], str], *, writes: bool | None = None) -> RemoteStore:
    """Connect to the store that the settings name. ``writes`` stands for the setting ``remote_push``.

    Raises a RemoteError if there is none, a key cannot be read, or entries are to be written without a signing key.
    """
    if not settings.remote:
        raise RemoteError("there is no remote store", remedy="set WARP_TILES_REMOTE to its URL")
    signer = signer_of(settings) if (settings.remote_push if writes is None else writes) else None
    return RemoteStore(settings.remote, trusted_by(settings), settings.remote_wait_s, toolchain, signer)
