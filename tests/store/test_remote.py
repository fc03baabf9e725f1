"""A remote store answers in time with a signed entry, or it is a miss, and each fault is said once."""

import itertools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.interpreter import python
from tests.store.server import drip, files, redirect, send, serving, silent
from tests.store.subjects import SIGNER, STRANGER, TOOLCHAIN, connect, entry, ready, signed, write_object
from warp_tiles.errors import RemoteError
from warp_tiles.store import LTOIR, MODULE, remote
from warp_tiles.store.remote import MOST_FAILURES, PATIENCE_S, Client, RemoteStore

ENTRY = entry()


def test_an_entry_goes_through_a_folder(tmp_path: Path) -> None:
    reader = ready(connect(tmp_path))
    with pytest.raises(RemoteError, match="without a signing key"):
        reader.push(LTOIR, ENTRY)
    found = reader.upstream(LTOIR, ENTRY.key)
    assert (found.found, found.push, list(tmp_path.iterdir())) == (None, None, [])
    writer = ready(connect(tmp_path, signer=SIGNER))
    assert writer.ask(LTOIR, ENTRY.key)[0] is None
    assert writer.push(LTOIR, ENTRY)
    assert writer.has(LTOIR, ENTRY.key)
    assert not writer.has(MODULE, ENTRY.key)
    entry = ready(connect(tmp_path)).ask(LTOIR, ENTRY.key)[0]
    assert (entry.payload, entry.key) == (ENTRY.payload, ENTRY.key)
    assert entry.manifest.info == {**ENTRY.manifest.info, "signed_by": SIGNER.public.key_id}
    assert writer.keys(LTOIR) == [ENTRY.key]


def test_a_short_list_of_a_trusted_store_is_known_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        write_object(tmp_path, entry(name), signed(entry(name)))
    monkeypatch.setattr(remote, "SLOW_S", 20.0)
    store = ready(connect(tmp_path))
    assert store.listed(LTOIR) == {entry("a").key, entry("b").key}
    assert store.listed(MODULE) == frozenset()
    untrusted = RemoteStore(tmp_path.as_uri(), {}, 5.0, lambda kind: TOOLCHAIN)
    assert ready(untrusted).listed(LTOIR) is None
    monkeypatch.setattr(remote, "_MOST_LISTED", 1)
    assert store.listed(LTOIR) is None


@pytest.mark.parametrize("head", [404, 403])
def test_an_entry_comes_over_http_also_if_the_first_question_is_refused(tmp_path: Path, head: int) -> None:
    write_object(tmp_path, ENTRY, signed(ENTRY))
    with serving(files(tmp_path), head=head) as server:
        store = ready(connect(server.url))
        found = store.ask(LTOIR, ENTRY.key)[0]
        assert found.payload == ENTRY.payload
        assert store.ask(LTOIR, entry("b").key)[0] is None
        assert len(server.requests) == 2, "one request for each entry"


def test_without_trusted_keys_nothing_is_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(send(signed(ENTRY))) as server:
        store = RemoteStore(server.url, {}, 5.0, lambda kind: TOOLCHAIN)
        assert [store.ask(LTOIR, ENTRY.key)[0] for _ in range(3)] == [None] * 3
        assert server.requests == []
    assert [record.message for record in caplog.records if "no key is trusted" in record.message] == [
        f"the remote store {server.url}: no key is trusted, so nothing is loaded from it; "
        "`warp-tiles keys trust PUBLIC` adds one"
    ]


CUT_WITHIN_ITS_SIZE = send(signed(ENTRY)[:-5], size=len(signed(ENTRY)))
OF_A_STRANGER = send(signed(ENTRY, signer=STRANGER))
AGAIN = partial(redirect, prefix="again")
WRONG = send(b"no", 500), AGAIN, CUT_WITHIN_ITS_SIZE, send(b"no", 403), OF_A_STRANGER, send(b"no", 404)


def test_the_first_failure_of_each_kind_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each of them once, although the entries between them mean that the store is not given up."""
    write_object(tmp_path, ENTRY, signed(ENTRY))
    with serving(files(tmp_path)) as server, caplog.at_level(logging.INFO, "warp_tiles"):
        store = ready(connect(server.url))
        for reply in WRONG * 2:
            server.reply = reply
            assert store.ask(LTOIR, ENTRY.key)[0] is None
            server.reply = files(tmp_path)
            assert store.ask(LTOIR, ENTRY.key)[0] is not None
    expected = [
        (logging.WARNING, "a request failed: Generic HTTP error: Error performing GET"),
        (logging.WARNING, "a request failed: a reply is incomplete"),
        (logging.WARNING, "it refuses a request"),
        (logging.WARNING, f"its reply for ltoir {ENTRY.key[:12]} is refused"),
        (logging.INFO, f"it has no entry for ltoir {ENTRY.key[:12]}"),
    ]
    assert [record.levelno for record in caplog.records] == [level for level, _ in expected]
    for record, (_, start) in zip(caplog.records, expected, strict=True):
        assert record.getMessage().startswith(f"the remote store {server.url}: {start}")


@pytest.mark.parametrize("kind", ["failures", "a slow drip"])
def test_a_store_that_fails_is_not_asked_again(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    drips = kind == "a slow drip"
    with serving(drip(signed(ENTRY), 0.02, 100_000) if drips else send(b"", 500)) as server:
        store = ready(connect(server.url, wait_s=0.5))
        assert [store.ask(LTOIR, ENTRY.key)[0] for _ in range(3 * MOST_FAILURES)] == [None] * 3 * MOST_FAILURES
        assert len(server.requests) == (1 if drips else MOST_FAILURES)
    assert not drips or store.off == "it did not answer within 0.5 s"
    assert sum("not used again in this process" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("kind", ["silent", "closed port", "no folder"])
def test_an_unreachable_store_costs_little_and_once(
    kind: str, tmp_path: Path, waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    with silent() as url:
        addresses = {"closed port": "http://127.0.0.1:1", "no folder": (tmp_path / "missing").as_uri()}
        store = connect(addresses.get(kind, url))
        assert [store.ask(LTOIR, entry(number).key)[0] for number in range(20)] == [None] * 20
    assert sum(waits) == PATIENCE_S
    assert 1 <= len(caplog.records) <= 2


def test_a_store_that_answers_late_is_used_from_then_on(tmp_path: Path) -> None:
    write_object(tmp_path, ENTRY, signed(ENTRY))
    gate = threading.Event()
    with serving(files(tmp_path)) as server:
        handler = server.RequestHandlerClass
        head = handler.do_HEAD
        handler.do_HEAD = lambda self: gate.wait(10) and head(self)  # type: ignore[attr-defined]
        store = connect(server.url)
        assert store.ask(LTOIR, ENTRY.key)[0] is None
        gate.set()
        store.require()
        assert store.ask(LTOIR, ENTRY.key)[0] is not None


def test_a_password_is_in_no_message_and_without_cryptography_the_store_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = connect("http://user:secret-word@127.0.0.1:1/path")
    with pytest.raises(RemoteError) as caught:
        store.require()
    assert "secret-word" not in str(caught.value) + caplog.text
    assert store.url == "http://127.0.0.1:1/path"
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(RemoteError, match="signatures need the package cryptography"):
        connect(store.url).require()


def test_a_store_that_was_closed_is_a_miss(tmp_path: Path) -> None:
    write_object(tmp_path, ENTRY, signed(ENTRY))
    store = ready(connect(tmp_path, signer=SIGNER))
    push = store.upstream(LTOIR, entry("b").key).push
    store.close()
    assert push is not None
    assert not push(entry("b"))
    assert store.ask(LTOIR, ENTRY.key)[0] is None


# ---- slow stores, forked processes


@pytest.mark.parametrize("status", [404, 403])
def test_a_slow_store_costs_its_budget_and_no_more(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """Each reply takes 0.3 s by the clock."""
    with serving(send(b"", status)) as server:
        store = ready(connect(server.url, wait_s=0.8, clock=itertools.count(step=0.3).__next__))
        for number in range(10):
            assert store.ask(LTOIR, entry(number).key)[0] is None
        assert len(server.requests) == 3
    assert "it is slow" in store.off
    assert "more than it saved" in caplog.text


@pytest.mark.parametrize(("build_s", "hits"), [(0.05, 2), (0.3, 4), (2.5, 10)])
def test_slow_entries_are_worth_the_time_of_their_builds(
    build_s: float, hits: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each entry takes 0.45 s by the clock, and builds may lose 0.5 s to the store."""
    entries = [entry(number, build_s=build_s) for number in range(10)]
    for item in entries:
        write_object(tmp_path, item, signed(item))
    store = ready(connect(tmp_path, wait_s=0.5, clock=itertools.count(step=0.45).__next__))
    assert sum(store.ask(LTOIR, item.key)[0] is not None for item in entries) == hits
    assert ("it is slow" in store.off) == (hits < 10)
    assert len(caplog.records) == (hits < 10)


FORKED = """
import os, sys
from pathlib import Path
from tests.store.server import files, serving
from tests.store.subjects import connect, entry, signed, write_object

folder = Path(sys.argv[1])
write_object(folder, entry(), signed(entry()))
with serving(files(folder)) as server:
    store = connect(server.url)
    store.require()
    for _ in range(5):
        assert store.ask("ltoir", entry().key)[0] is not None
        pid = os.fork()
        if not pid:
            child = connect(server.url)
            assert child.ask("ltoir", entry().key)[0] is None
            assert "forked" in child.off, child.off
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    assert store.ask("ltoir", entry().key)[0] is not None
print("sound")
"""


def test_a_forked_process_leaves_the_store_alone(tmp_path: Path) -> None:
    assert python("-W", "ignore", "-c", FORKED, tmp_path).stdout == "sound\n"


# ---- S3, on a server that the test starts

S3_SERVER = """
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""
ACCESS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("moto", reason="moto, the server for S3, is not installed")
    import boto3

    environment, pipes = {**os.environ, **ACCESS}, {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", S3_SERVER], **pipes, text=True, env=environment) as server:
        try:
            endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
            region = {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
            for name, value in {**ACCESS, **region, "AWS_ENDPOINT": endpoint}.items():
                monkeypatch.setenv(name, value)
            boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="store")
            yield "s3://store/team"
        finally:
            server.kill()


def test_entries_and_lists_in_s3(bucket: str) -> None:
    writer = ready(connect(bucket, signer=SIGNER))
    assert writer.ask(LTOIR, ENTRY.key)[0] is None
    assert writer.push(LTOIR, ENTRY)
    reader = ready(connect(bucket))
    assert reader.ask(LTOIR, ENTRY.key)[0].payload == ENTRY.payload  # type: ignore[union-attr]
    assert reader.keys(LTOIR) == [ENTRY.key]
    client = Client(bucket, 5.0)
    assert client.exists(f"v1/ltoir/{ENTRY.key[:2]}/{ENTRY.key}")
    assert not client.exists("v1/ltoir/nothing")
