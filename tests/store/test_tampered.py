"""A thousand answers that somebody tampered with: none is loaded, none is stored, and each takes its time at most.

Each run has a fifth of them, and a nightly run all.
"""

from __future__ import annotations

import base64
import math
import random
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.hardening.memory import less_than
from tests.nightly import some
from tests.store.cache_workers import get_or_build
from tests.store.server import Answer, drip, redirect, send, serving
from tests.store.subjects import SIGNER, STRANGER, TOOLCHAIN, connect, entry, key, ready, signed
from warp_tiles.errors import RemoteError
from warp_tiles.store import LTOIR, remote
from warp_tiles.store.cache import Cache
from warp_tiles.store.envelope import MAGIC
from warp_tiles.store.key import CacheKey
from warp_tiles.store.remote import RemoteStore

ANSWERS = 1000
BUDGET_S = 0.3
ENTRIES = [entry(number, random.Random(number).randbytes(600)) for number in range(8)]
NAMES = {item.key: number for number, item in enumerate(ENTRIES)}
LOCAL = b"built here"

Tamper = Callable[[bytes, random.Random], Answer]


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


def flipped(data: bytes, chance: random.Random) -> Answer:
    """A bit of the envelope's statement, of the signature or of the payload."""
    changed = bytearray(data)
    at = data.index(b'"payload":"') + 11
    signature = data.index(b'"sig":"') + 7
    places = [*range(at, at + 400), *range(signature, signature + 83), *range(len(data) - 600, len(data))]
    changed[chance.choice(places)] ^= 1 << chance.randrange(8)
    return send(bytes(changed))


def cut(data: bytes, chance: random.Random) -> Answer:
    size = chance.randrange(len(data))
    return send(data[:size], size=chance.choice([size, len(data)]))


def swapped(data: bytes, chance: random.Random) -> Answer:
    """A sound entry of another key."""
    return send(signed(chance.choice([item for item in ENTRIES if signed(item) != data])))


def mixed(data: bytes, chance: random.Random) -> Answer:
    """The envelope of the entry, and the payload of another one."""
    return send(data[:-600] + chance.choice([item for item in ENTRIES if item.payload != data[-600:]]).payload)


def resigned(kind: str, toolchain: str, trusted: bool) -> Tamper:
    def tamper(data: bytes, chance: random.Random) -> Answer:
        found = next(item for item in ENTRIES if item.payload == data[-600:])
        return send(signed(found, kind, toolchain, SIGNER if trusted else STRANGER))

    return tamper


def unsigned(data: bytes, chance: random.Random) -> Answer:
    start = data.index(b'"signatures":')
    envelope = data[len(MAGIC) + 8 : start] + b'"signatures":[]}'
    return send(MAGIC + len(envelope).to_bytes(8, "big") + envelope + data[-600:])


def redirected(data: bytes, chance: random.Random) -> Answer:
    """To itself for ever, or to a sound entry of another key."""
    other = signed(chance.choice([item for item in ENTRIES if signed(item) != data]))
    for_ever = chance.random() < 0.5

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if not for_ever and handler.path.startswith("/other"):
            send(other)(handler)
            return
        redirect(handler, "other")

    return answer


def dripping(data: bytes, chance: random.Random) -> Answer:
    return drip(data, 0.01, len(data))


def huge(data: bytes, chance: random.Random) -> Answer:
    """Ten gigabytes behind a sound entry, or from the first byte on."""
    return ten_gigabytes(data if chance.random() < 0.5 else MAGIC + (1 << 33).to_bytes(8, "big"))


def huge_error(data: bytes, chance: random.Random) -> Answer:
    """The client library reads the body of an error until the time of the request ends."""
    return ten_gigabytes(data, chance.choice([400, 404, 500]))


def ten_gigabytes(start: bytes, status: int = 200) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        send(start, status, 10 << 30)(handler)
        for _ in range(10 << 10):
            handler.wfile.write(bytes(1 << 20))

    return answer


def noise(data: bytes, chance: random.Random) -> Answer:
    return send(chance.randbytes(chance.randrange(3000)), chance.choice([200, 200, 500, 403, 204]))


# slow ones are few, because each takes its whole budget
KINDS: dict[str, tuple[Tamper, int]] = {
    "flipped": (flipped, 300),
    "cut": (cut, 150),
    "swapped": (swapped, 100),
    "mixed": (mixed, 100),
    "older toolchain": (resigned(LTOIR, "NVRTC 12.8 0123456789ab", True), 60),
    "another kind": (resigned("module", TOOLCHAIN, True), 40),
    "wrong key": (resigned(LTOIR, TOOLCHAIN, False), 80),
    "no signature": (unsigned, 50),
    "redirect": (redirected, 30),
    "drip": (dripping, 10),
    "huge": (huge, 20),
    "huge error": (huge_error, 6),
    "noise": (noise, 54),
}


def test_the_number_of_answers() -> None:
    assert sum(count for _, count in KINDS.values()) == ANSWERS


def build(cache: Cache, store: RemoteStore, wanted: CacheKey) -> tuple[bytes, bool]:
    """Look an entry up, and build it if it is found nowhere. Returns its payload, and True if it was found."""
    found, hit = get_or_build(cache, wanted, lambda: (LOCAL, {}), lambda: store.upstream(LTOIR, wanted.digest))
    return found.payload, hit


@pytest.mark.parametrize(("kind", "share"), some([(kind, share) for share in (0.2, 1.0) for kind in KINDS], len(KINDS)))
def test_no_answer_is_loaded_or_stored(kind: str, share: float, tmp_path: Path, waits: list[float]) -> None:
    tamper, count = KINDS[kind]
    chance = random.Random(kind)
    with serving(send(b"")) as server:
        store = connect(server.url, wait_s=BUDGET_S)
        for number in range(math.ceil(share * count)):
            item = ENTRIES[number % len(ENTRIES)]
            server.answer = tamper(signed(item), chance)
            if store.off:  # the next process
                store.close()
                store = connect(server.url, wait_s=BUDGET_S)
            store.require()
            if number % 10:
                waits.clear()
                assert store.ask(LTOIR, item.key)[0] is None
                assert sum(waits) <= BUDGET_S
            else:
                cache = Cache(tmp_path / str(number))
                assert build(cache, store, key(NAMES[item.key])) == (LOCAL, False)
                stored = cache.get(item.key)
                assert stored is not None
                assert stored.payload == LOCAL
                assert len(list((cache.root / "v1" / "objects").rglob("*.ltoir"))) == 1
        store.close()


def test_the_untouched_answer_is_loaded(tmp_path: Path) -> None:
    with serving(send(signed(ENTRIES[0]))) as server:
        store = ready(connect(server.url))
        assert build(Cache(tmp_path), store, key(0)) == (ENTRIES[0].payload, True)
