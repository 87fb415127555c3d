"""A proxy in front of a real S3 server that lets single requests go wrong."""

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.support.servers.http_threads import serving
from tests.support.servers.seaweed import Seaweed


class Request(BaseHTTPRequestHandler):
    """One connection of a client. Requests go through as they are, signed for the address that the client knows."""

    protocol_version = "HTTP/1.1"
    server: "FaultyS3"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status = self.server.fault(self)
        if status is None:
            connection = http.client.HTTPConnection(self.server.target, timeout=30)
            connection.request(self.command, self.path, body, dict(self.headers))
            reply = connection.getresponse()
            self.answer(
                reply.status, reply.read(), {name.title(): value for name, value in reply.headers.items()}
            )
            connection.close()
        else:
            self.answer(
                status, b"<?xml version='1.0'?><Error><Message>the test says no.</Message></Error>", {}
            )

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """A body longer than the server's `longest` breaks off there."""
        self.send_response_only(status)
        for name in ("Etag", "Last-Modified", "Content-Type", "Content-Range"):
            if name in headers and (name, self.command) not in self.server.hidden:
                self.send_header(name, headers[name])
        length = len(body) if self.command != "HEAD" else int(headers.get("Content-Length", 0))
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body[: self.server.longest])
        self.close_connection = self.close_connection or len(body) > self.server.longest

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


class FaultyS3(ThreadingHTTPServer):
    """`fault`: the status with which a request is refused, or None; `longest`: bytes of a response; `hidden`: headers
    that it leaves out of the replies to a method."""

    daemon_threads = True

    def __init__(self, behind: Seaweed) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.target = urlsplit(behind.endpoint).netloc
        self.fault: Callable[[Request], int | None] = lambda _: None
        self.longest = 1 << 40
        self.hidden: set[tuple[str, str]] = set()


@contextmanager
def faulty(behind: Seaweed) -> Iterator[FaultyS3]:
    with serving(FaultyS3(behind)) as server:
        yield server
