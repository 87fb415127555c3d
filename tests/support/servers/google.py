"""Google Cloud Storage in memory, as a store uses it: objects, listings, writes conditional on a generation."""

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.servers.http_threads import serving

BUCKET = "checkpoints"
MODIFIED = "Thu, 26 Nov 2026 12:00:00 GMT"


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Google"

    def do_GET(self) -> None:
        if urlsplit(self.path).query:
            return self.answer(200, self.server.listing(parse_qs(urlsplit(self.path).query)["prefix"][0]))
        data, generation = self.server.objects.get(self.key, (None, 0))
        return self.answer(404) if data is None else self.answer(200, data, generation)

    def do_PUT(self) -> None:
        data, required = self.body(), self.headers.get("x-goog-if-generation-match")
        with self.server.lock:
            _, present = self.server.objects.get(self.key, (None, 0))
            if required is not None and int(required) != present:
                return self.answer(412)
            generation = next(self.server.generations)
            self.server.objects[self.key] = data, generation
        return self.answer(200, b"", generation)

    def do_DELETE(self) -> None:
        self.answer(404 if self.server.objects.pop(self.key, None) is None else 204)

    do_HEAD = do_GET

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/")

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, body: bytes = b"", generation: int = 0) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", MODIFIED)
        if generation:
            # Of another form than the generation, which alone is compared.
            self.send_header("ETag", f'"etag-{generation}"')
            self.send_header("x-goog-generation", str(generation))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


class Google(ThreadingHTTPServer):
    """`objects`: content and generation of each."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.generations, self.lock = itertools.count(1764158400000000), threading.Lock()

    @property
    def environment(self) -> dict[str, str]:
        """For a client. The address is part of its account's key."""
        key = {
            "private_key": "",
            "private_key_id": "",
            "client_email": "",
            "disable_oauth": True,
            "gcs_base_url": f"http://127.0.0.1:{self.server_port}",
        }
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key), "AWS_ALLOW_HTTP": "true"}

    def listing(self, prefix: str) -> bytes:
        objects = [(key, len(data)) for key, (data, _) in self.objects.items() if key.startswith(prefix)]
        rows = (
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><LastModified>2026-11-26T12:00:00.000Z"
            "</LastModified></Contents>"
            for key, size in objects
        )
        return f"<ListBucketResult>{''.join(rows)}</ListBucketResult>".encode()


@contextmanager
def google() -> Iterator[Google]:
    with serving(Google()) as server:
        yield server
