"""Replies that somebody tampered with: none is loaded, none is stored, and each takes its time at most."""

import base64
import random
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.hardening.memory import less_than
from tests.store.cache_workers import get_or_build
from tests.store.server import Reply, drip, redirect, send, serving
from tests.store.subjects import connect, entry, ready, signed
from tests.store.test_envelope import ENTRY, OBJECT, REFUSED
from warp_tiles.errors import RemoteError
from warp_tiles.store import LTOIR, remote
from warp_tiles.store.cache import Cache
from warp_tiles.store.envelope import MAGIC
from warp_tiles.store.remote import RemoteStore

BUDGET_S = 0.3
LOCAL = b"built here"

Tamper = Callable[[random.Random], Reply]


def test_a_list_is_asked_for_with_the_password_of_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def listing(handler: BaseHTTPRequestHandler) -> None:
        asked.append((handler.path, handler.headers["Authorization"], handler.headers["Depth"]))
        send(f"<D:multistatus><D:href>/a/v1/ltoir/ab/{'ab' * 32}</D:href></D:multistatus>".encode(), 207)(handler)

    with serving(send(b"")) as server:
        monkeypatch.setattr(server.RequestHandlerClass, "do_PROPFIND", listing, raising=False)
        store = ready(connect(server.url.replace("//", "//us%2Fer:p%40ss@") + "/a/"))
        assert store.keys(LTOIR) == ["ab" * 32]
    assert asked == [("/a/v1/ltoir/", "Basic " + base64.b64encode(b"us/er:p@ss").decode(), "infinity")]


@pytest.mark.parametrize("pause_s", [0.0, 0.05], ids=["fast", "slow"])
def test_an_endless_list_ends(pause_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_LIST_BYTES", 4 << 20)

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(207)
        handler.end_headers()
        with suppress(OSError):  # the client has read enough
            while True:
                handler.wfile.write(b"<D:href>/v1/ltoir/aa/" + b"a" * (64 if pause_s else 60_000) + b"</D:href>")
                time.sleep(pause_s)

    with serving(send(b"")) as server:
        monkeypatch.setattr(server.RequestHandlerClass, "do_PROPFIND", endless, raising=False)
        store = ready(connect(server.url, wait_s=1.0))
        with less_than(16 << 20), pytest.raises(RemoteError, match="more than 4194304 bytes, or takes 1 s"):
            store.keys(LTOIR)


def flipped(chance: random.Random) -> Reply:
    """A bit of the envelope's statement, of the signature or of the payload."""
    changed = bytearray(OBJECT)
    at, signature = OBJECT.index(b'"payload":"') + 11, OBJECT.index(b'"sig":"') + 7
    places = [*range(at, at + 400), *range(signature, signature + 83), *range(len(OBJECT) - 600, len(OBJECT))]
    changed[chance.choice(places)] ^= 1 << chance.randrange(8)
    return send(bytes(changed))


def cut(chance: random.Random) -> Reply:
    size = chance.randrange(len(OBJECT))
    return send(OBJECT[:size], size=chance.choice([size, len(OBJECT)]))


def redirected(chance: random.Random) -> Reply:
    """To itself for ever, or to a sound entry of another key."""
    for_ever = chance.random() < 0.5

    def reply(handler: BaseHTTPRequestHandler) -> None:
        if not for_ever and handler.path.startswith("/other"):
            send(signed(entry("b")))(handler)
            return
        redirect(handler, "other")

    return reply


def ten_gigabytes(start: bytes, status: int = 200) -> Reply:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        send(start, status, 10 << 30)(handler)
        for _ in range(10 << 10):
            handler.wfile.write(bytes(1 << 20))

    return reply


def noise(chance: random.Random) -> Reply:
    return send(chance.randbytes(chance.randrange(3000)), chance.choice([200, 200, 500, 403, 204]))


# slow ones are few, because each takes its whole budget
TAMPERED: dict[str, tuple[Tamper, int]] = {
    **{name: (lambda _, make=make: send(make()), 1) for name, (make, _) in REFUSED.items()},  # type: ignore[misc]
    "flipped": (flipped, 50),
    "cut": (cut, 30),
    "redirect": (redirected, 6),
    "drip": (lambda _: drip(OBJECT, 0.01, len(OBJECT)), 2),
    "huge behind a sound entry": (lambda _: ten_gigabytes(OBJECT), 2),
    "huge": (lambda _: ten_gigabytes(MAGIC + (1 << 33).to_bytes(8, "big")), 2),
    # the client library reads the body of an error until the time of the request ends
    "huge error": (lambda chance: ten_gigabytes(OBJECT, chance.choice([400, 404, 500])), 2),
    "noise": (noise, 20),
}


def build(cache: Cache, store: RemoteStore) -> tuple[bytes, bool]:
    """Look the entry up, and build it if it is found nowhere. Returns its payload, and True if it was found."""
    wanted = ENTRY.manifest.key
    found, hit = get_or_build(cache, wanted, lambda: (LOCAL, {}), lambda: store.upstream(LTOIR, wanted.digest))
    return found.payload, hit


@pytest.mark.parametrize("kind", TAMPERED)
def test_no_reply_is_loaded_or_stored(kind: str, tmp_path: Path, waits: list[float]) -> None:
    tamper, count = TAMPERED[kind]
    chance = random.Random(kind)
    with serving(send(b"")) as server:
        store = ready(connect(server.url, wait_s=BUDGET_S))
        for number in range(count):
            server.reply = tamper(chance)
            if store.off:  # the next process
                store.close()
                store = ready(connect(server.url, wait_s=BUDGET_S))
            if number % 10:
                waits.clear()
                assert store.ask(LTOIR, ENTRY.key)[0] is None
                assert sum(waits) <= BUDGET_S
            else:
                cache = Cache(tmp_path / str(number))
                assert build(cache, store) == (LOCAL, False)
                stored = cache.get(ENTRY.key)
                assert stored.payload == LOCAL
                assert len(list((cache.root / "v2" / "objects").rglob("*.ltoir"))) == 1
        store.close()


def test_the_untouched_reply_is_loaded(tmp_path: Path) -> None:
    with serving(send(OBJECT)) as server:
        assert build(Cache(tmp_path), ready(connect(server.url))) == (ENTRY.payload, True)
