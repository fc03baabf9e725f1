"""One build per key across threads. tests/hardening/test_soak.py has processes, and killed writers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.store.cache_workers import get_or_build, key, payload
from tests.store.subjects import entry
from tests.waiting import in_threads
from warp_tiles.store.cache import Cache, Upstream


def test_threads_build_a_key_once(cache: Cache) -> None:
    built = []

    def build() -> tuple[bytes, dict[str, object]]:
        built.append(threading.get_ident())
        time.sleep(0.2)
        return payload("a"), {}

    results = in_threads(8, lambda: get_or_build(cache, key("a"), build))
    assert len(built) == 1
    assert [entry for entry, _ in results] == [cache.get(key("a"))] * 8
    assert results[0][0].payload == payload("a")
    assert Counter(hit for _, hit in results) == {False: 1, True: 7}


def test_threads_ask_a_store_once(root: Path) -> None:
    fetched, asked = entry("fetched"), []

    def upstream() -> Upstream:
        asked.append(threading.get_ident())
        time.sleep(0.2)
        return Upstream(fetched)

    def ask() -> bytes:
        wanted = fetched.manifest.key
        return get_or_build(Cache(root), wanted, lambda: pytest.fail("nothing is built"), upstream)[0].payload

    assert in_threads(8, ask) == [fetched.payload] * 8
    assert len(asked) == 1


def test_a_build_may_request_another_key(cache: Cache) -> None:
    def build() -> tuple[bytes, dict[str, object]]:
        return get_or_build(cache, key("b"), lambda: (payload("b"), {}))[0].payload, {}

    assert get_or_build(cache, key("a"), build)[0].payload == payload("b")
    assert len(cache.entries()) == 2


def test_a_lock_held_too_long_does_not_stop_the_build(root: Path) -> None:
    cache = Cache(root, build_wait_s=0.1)
    with Cache(root)._folder.lock(key("a").digest, 1.0):
        entry, hit = get_or_build(cache, key("a"), lambda: (payload("a"), {}))
    assert (hit, entry.payload) == (False, payload("a"))
    assert [problem.kind for problem in cache.problems] == ["lock"]
    assert cache.get(key("a")) is not None
