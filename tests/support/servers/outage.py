"""A TCP proxy in front of a real server, with which tests cut it off."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

Mode = Literal["open", "refused", "silent", "slow"]
SLOW_BYTES_PER_SECOND = 200_000


class Proxy:
    """Passes bytes on while `open`; else refuses, swallows or delays them, and `met` is set. A change cuts the
    connections there are."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._mode: Mode = "open"
        self.met = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = self._listen(0)
        self.port: int = self._listener.getsockname()[1]

    def set(self, mode: Mode) -> None:
        self._mode = mode
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def close(self) -> None:
        self.set("refused")
        self._listener.close()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                if self._mode != "open":
                    self.met.set()
                if self._mode == "refused":
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # it may be started again
                    client.close()
                    continue
                with self._lock:
                    self._open |= {client, server}
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self._mode == "slow":
                    time.sleep(len(data) / SLOW_BYTES_PER_SECOND)
                if self._mode != "silent":
                    to.sendall(data)
        for end in (source, to):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    made = Proxy(port)
    try:
        yield made
    finally:
        made.close()
