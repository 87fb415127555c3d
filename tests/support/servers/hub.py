"""A hub on this machine: as much of its API as downloads need, over a directory for each repository of models or of
datasets."""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.servers.http_threads import serving

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Hub:
    """`repositories`: directories by name. `held`: files whose bytes are not sent before `release` is set."""

    repositories: Mapping[str, Path]
    held: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes that are claimed, where they are not the files' own."""
    release: threading.Event = field(default_factory=threading.Event)
    callers: set[str | None] = field(default_factory=set)
    """Who asked for a repository, by their tokens."""
    awaited: int = 1
    """So many callers release what is held."""
    sent: Counter[str] = field(default_factory=Counter)
    """Downloads by file."""
    url: str = ""


@contextmanager
def hub(served: Hub, address: str = "127.0.0.1") -> Iterator[Hub]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            parts = unquote(urlsplit(self.path).path).strip("/").removeprefix("datasets/").split("/")
            name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
            of_model = parts[:2] != ["api", "datasets"]
            if (folder := served.repositories.get(name)) is None:
                self._send(
                    b"", 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
                )
            elif parts[0] != "api":
                self._file(folder.joinpath(*parts[4:]))
            elif parts[4] == "tree":
                self._json([_entry(file, served.sizes) for file in sorted(folder.iterdir())])
            else:
                with lock:
                    served.callers.add(self.headers.get("Authorization"))
                    if len(served.callers) >= served.awaited:
                        served.release.set()
                files = [] if of_model else [file for file in folder.rglob("*") if file.is_file()]
                siblings = [{"rfilename": str(file.relative_to(folder))} for file in sorted(files)]
                self._json({"id": name, "sha": COMMIT, "siblings": siblings})

        def _file(self, file: Path) -> None:
            content, head = file.read_bytes(), {"ETag": f'"{_digest(file)}"', "X-Repo-Commit": COMMIT}
            if self.command == "GET":
                with lock:
                    served.sent[file.name] += 1
                if file.name in served.held:
                    served.release.wait(300)
            if self.command == "HEAD" and file.name in served.sizes:
                head["X-Linked-Size"] = str(served.sizes[file.name])
            self._send(content, 200, head)

        def _json(self, body: Any) -> None:
            self._send(json.dumps(body).encode(), 200, {"Content-Type": "application/json"})

        def _send(self, content: bytes, code: int, headers: Mapping[str, str]) -> None:
            self.send_response(code)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with serving(ThreadingHTTPServer((address, 0), Handler)) as server:
        served.url = f"http://{address}:{server.server_port}"
        try:
            yield served
        finally:
            served.release.set()


def _digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


def _entry(file: Path, sizes: Mapping[str, int]) -> dict[str, Any]:
    return {
        "type": "file",
        "path": file.name,
        "size": sizes.get(file.name, file.stat().st_size),
        "oid": _digest(file),
    }
