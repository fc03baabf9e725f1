"""A store in S3, on a server that the test starts: entries, lists and refusals."""

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.store.subjects import SIGNER, connect, entry, ready
from warp_tiles.store import LTOIR
from warp_tiles.store.remote import Client

pytest.importorskip("moto", reason="moto, the server for S3, is not installed")
SERVER = """
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print("port", server.server_port, flush=True)
server.serve_forever()
"""
ACCESS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
ENTRY = entry()
_numbers = itertools.count()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    command, environment = [sys.executable, "-c", SERVER], {**os.environ, **ACCESS}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            found = re.match(r"port (\d+)", process.stdout.readline())
            assert found is not None, "the server did not start"
            yield f"http://127.0.0.1:{found.group(1)}"
        finally:
            process.kill()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    import boto3

    settings = {
        **ACCESS, "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    name = f"store-{next(_numbers)}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=name)
    return f"s3://{name}/team"


def test_entries_and_lists(bucket: str) -> None:
    writer = ready(connect(bucket, signer=SIGNER))
    assert writer.ask(LTOIR, ENTRY.key)[0] is None
    assert writer.push(LTOIR, ENTRY)
    reader = ready(connect(bucket))
    assert reader.ask(LTOIR, ENTRY.key)[0].payload == ENTRY.payload  # type: ignore[union-attr]
    assert reader.keys(LTOIR) == [ENTRY.key]
    client = Client(bucket, 5.0)
    assert client.exists(f"v1/ltoir/{ENTRY.key[:2]}/{ENTRY.key}")
    assert not client.exists("v1/ltoir/nothing")
