"""A store over HTTP whose replies a test decides, a plain one for a folder, and one with WebDAV."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

#: Answers a GET of an object. HEAD requests find nothing.
Reply = Callable[[BaseHTTPRequestHandler], None]


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Counts requests.

    Args:
        reply: Answers GET requests.
        head: The status of HEAD requests.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, reply: Reply, head: int = 404) -> None:
        self.reply = reply
        self.requests: list[str] = []
        server = self

        class Handler(Quiet):
            def do_HEAD(self) -> None:
                self.send_response(head)
                self.end_headers()

            def do_GET(self) -> None:
                server.requests.append(self.path)
                with suppress(BrokenPipeError, ConnectionResetError):  # the client has read enough
                    server.reply(self)

        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no error."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(reply: Reply, head: int = 404) -> Iterator[Server]:
    """A server as long as the block runs."""
    with Server(reply, head) as server, _running(server):
        yield server


@contextmanager
def _running(server: ThreadingHTTPServer) -> Iterator[None]:
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()


@contextmanager
def silent() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def send(data: bytes, status: int = 200, size: int | None = None) -> Reply:
    """Answers with some bytes, and claims a size."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data) if size is None else size))
        handler.end_headers()
        handler.wfile.write(data)

    return reply


def drip(data: bytes, pause_s: float, size: int) -> Reply:
    """Answers with one byte at a time, and claims a size."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        send(b"", size=size)(handler)
        for byte in data:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(pause_s)

    return reply


def redirect(handler: BaseHTTPRequestHandler, prefix: str) -> None:
    """Answers with another URL: a prefix before the same path."""
    handler.send_response(302)
    handler.send_header("Location", f"/{prefix}{handler.path}")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def files(folder: Path) -> Reply:
    """Answers with the files of a folder."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        path = folder / handler.path.lstrip("/")
        send(path.read_bytes())(handler) if path.is_file() else send(b"", 404)(handler)

    return reply


_LISTED = (
    "<D:response><D:href>/{name}</D:href><D:propstat><D:prop><D:getlastmodified>{modified}</D:getlastmodified>"
    "<D:getcontentlength>{size}</D:getcontentlength><D:resourcetype/></D:prop>"
    "<D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
)


@contextmanager
def dav(folder: Path, *, infinite: bool = True) -> Iterator[str]:
    """The URL of a WebDAV server that keeps objects in a folder.

    Args:
        folder: The folder.
        infinite: Whether lists of all levels (``Depth: infinity``) are answered. Apache refuses them by default.
    """

    class Handler(Quiet):
        def _reply(self, status: int, data: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _path(self) -> Path:
            return folder / self.path.strip("/")

        def do_GET(self) -> None:
            path = self._path()
            self._reply(200, path.read_bytes()) if path.is_file() else self._reply(404)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            has_folder = self._path().parent.is_dir()
            if has_folder:
                self._path().write_bytes(data)
            self._reply(201 if has_folder else 409)  # then the client makes the folders

        def do_MKCOL(self) -> None:
            has_parent = self._path().parent.is_dir()
            if has_parent:
                self._path().mkdir(exist_ok=True)
            self._reply(201 if has_parent else 409)

        def do_PROPFIND(self) -> None:
            if not (infinite and self.headers["Depth"] == "infinity"):
                self._reply(403)
                return
            if not self._path().is_dir():
                self._reply(404)
                return
            items = ""
            for path in (path for path in sorted(self._path().rglob("*")) if path.is_file()):
                modified = formatdate(path.stat().st_mtime, usegmt=True)
                items += _LISTED.format(name=path.relative_to(folder), size=path.stat().st_size, modified=modified)
            self._reply(207, f'<D:multistatus xmlns:D="DAV:">{items}</D:multistatus>'.encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, _running(server):
        yield f"http://127.0.0.1:{server.server_port}"
