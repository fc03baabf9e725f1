"""A store over HTTP whose answers a test decides, and a plain one for a folder."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

#: Answers a GET of an object. HEAD requests find nothing.
Answer = Callable[[BaseHTTPRequestHandler], None]


class Server(ThreadingHTTPServer):
    """Counts requests.

    Args:
        answer: Answers GET requests.
        head: The status of HEAD requests.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Answer, head: int = 404) -> None:
        self.answer = answer
        self.requests: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.send_response(head)
                self.end_headers()

            def do_GET(self) -> None:
                server.requests.append(self.path)
                with suppress(BrokenPipeError, ConnectionResetError):  # the client has read enough
                    server.answer(self)

        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no error."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(answer: Answer, head: int = 404) -> Iterator[Server]:
    """A server as long as the block runs."""
    with Server(answer, head) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@contextmanager
def silent() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def send(data: bytes, status: int = 200, size: int | None = None) -> Answer:
    """Answers with some bytes, and claims a size."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data) if size is None else size))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def files(folder: Path) -> Answer:
    """Answers with the files of a folder."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        path = folder / handler.path.lstrip("/")
        send(path.read_bytes())(handler) if path.is_file() else send(b"", 404)(handler)

    return answer
