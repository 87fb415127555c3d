"""First process of a sandbox's pod, in an image of the user's: runs the commands of one episode, and ends with it.

`python3 -I -S DIRECTORY`, with this file as `__main__.py` and `rlhf_api/contract/proof.py` beside it. Python 3.8 or
newer, and its standard library alone.

`GET /health` is a kubelet's probe. Any other connection proves itself in lines of JSON: `{"nonce"}`, answered as by
`Prover.answer`, then `{"key"}`, answered by `{"claimed"}`: true for the first one, whose sandbox it is from there on.
It sends `{"command", "seconds", "stdin"}`, where `stdin` is the number of bytes that follow the line, and is answered
with `{"code", "output"}` and so many bytes; `code` is null where the command took too long or too much. Its end is the
end of this process, and of all commands.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from rlhf_api.contract.proof import Prover

CLAIMED = "an episode has claimed it"
"""Termination message of a pod whose end is that of its episode, whatever its exit code."""
LONGEST_OUTPUT, LONGEST_STDIN = 64 << 10, 64 << 20
"""Bytes of a command, at most."""
PROCESSES = 256
"""Of a command and what it starts, at once."""
HEALTH_LINE = b"GET /health "
_LONGEST_LINE, _LONGEST_GREETING = 2 << 20, 4096
_GREETING_SECONDS, _LOOK_SECONDS = 10.0, 0.1
_KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4}
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
_EXIT_INVALID = 78
_DUMPABLE = 4  # PR_SET_DUMPABLE
_PRCTL = ctypes.CDLL(None, use_errno=True).prctl


class Server(socketserver.ThreadingTCPServer):
    """Of one pod, which has one episode."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, host: str, port: int, token: str, termination_log: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.prover, self._termination_log = Prover(token, host, port), Path(termination_log)
        self._places = [None]
        super().__init__(("", port), Connection)

    def claim(self) -> bool:
        """True for the first one to ask."""
        try:
            self._places.pop()  # a list's pop is atomic
        except IndexError:
            return False
        with suppress(OSError):
            self._termination_log.write_text(CLAIMED)
        return True


class Connection(socketserver.StreamRequestHandler):
    """A probe, or a claim."""

    server: Server

    def handle(self) -> None:
        self.request.settimeout(_GREETING_SECONDS)
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if self._is_claimed():
                self.request.settimeout(None)
                keep_alive(self.request)
                self._serve_episode()

    def _is_claimed(self) -> bool:
        line = self.rfile.readline(_LONGEST_GREETING)
        if line.startswith(HEALTH_LINE):
            self.wfile.write(_OK)
            return False
        answer = self.server.prover.answer(json.loads(line)["nonce"])
        if answer is None:
            return False
        self.wfile.write(answer.encode() + b"\n")
        key = json.loads(self.rfile.readline(_LONGEST_GREETING))["key"]
        if not self.server.prover.admits(f"Bearer {key}".encode()):
            return False
        is_first = self.server.claim()
        self._send({"claimed": is_first})
        return is_first

    def _serve_episode(self) -> None:
        """Runs what the claimant sends until it leaves, and ends the process then."""
        try:
            while line := self.rfile.readline(_LONGEST_LINE):
                request = json.loads(line)
                stdin = self.rfile.read(min(request["stdin"], LONGEST_STDIN))
                if len(stdin) < request["stdin"]:
                    break
                code, output = run(request["command"], request["seconds"], stdin, self.request)
                self._send({"code": code, "output": len(output)}, output)
        finally:
            os._exit(0)

    def _send(self, reply: dict[str, Any], more: bytes = b"") -> None:
        self.wfile.write(json.dumps(reply).encode() + b"\n" + more)


def keep_alive(connection: socket.socket) -> None:
    """Ends a connection whose other end has been silent for a minute, as where its node is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def run(
    command: list[str], seconds: float, stdin: bytes, claimant: socket.socket
) -> tuple[int | None, bytes]:
    """A command's exit code, or 128 and the signal that ended it, and what it wrote to its standard output; None where
    it took longer, wrote more, or had more processes than it may. All that it has started ends with it. One that cannot
    be run has 127, as in a shell."""
    given = os.memfd_create("stdin")
    try:
        with open(given, "r+b", closefd=False) as file:
            file.write(stdin)
        os.lseek(given, 0, os.SEEK_SET)
        try:
            process = subprocess.Popen(
                command,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=variables(),
                start_new_session=True,
                preexec_fn=_limit,
            )
        except (OSError, ValueError) as error:  # the latter of words with a NUL, or that no bytes stand for
            return 127, f"{error}\n".encode()[:LONGEST_OUTPUT]
    finally:
        os.close(given)
    assert process.stdout is not None, "it has a pipe"
    output, is_whole = _read(process, process.stdout, time.monotonic() + seconds, claimant)
    code = process.poll()
    end_all()
    rest = b"" if not is_whole else process.stdout.read(LONGEST_OUTPUT + 1 - len(output))
    process.stdout.close()
    output += rest
    if not is_whole or code is None or len(output) > LONGEST_OUTPUT:
        return None, output[:LONGEST_OUTPUT]
    return (128 - code if code < 0 else code), output


def _read(
    process: subprocess.Popen[bytes], pipe: IO[bytes], deadline: float, claimant: socket.socket
) -> tuple[bytes, bool]:
    """The output of a command until its end, and True if it came to that; the claimant's end is this process's."""
    watched: list[IO[bytes] | socket.socket] = [pipe, claimant]
    output = b""
    while process.poll() is None:
        ready, _, _ = select.select(watched, [], [], _LOOK_SECONDS if pipe in watched else 0)
        if claimant in ready:  # it has left, or does not wait for the reply: it may leave behind what it sent
            os._exit(0)
        if pipe in ready:
            piece = os.read(pipe.fileno(), LONGEST_OUTPUT)
            output += piece
            if not piece:  # closed, while it goes on
                watched.remove(pipe)
        if pipe not in watched:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_SECONDS)
        too_many = sum(each.name.isdigit() for each in Path("/proc").iterdir()) > PROCESSES
        if too_many or len(output) > LONGEST_OUTPUT or time.monotonic() > deadline:
            return output, False
    return output, True


def end_all() -> None:
    """Ends all processes of this namespace, of which this one is the first and the only one left."""
    with suppress(ProcessLookupError):
        while True:
            os.kill(-1, signal.SIGKILL)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.001)


def variables() -> dict[str, str]:
    """The image's own, and a HOME that can be written."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RLHF_", "KUBERNETES_"))}
    return {"HOME": "/tmp", **own}


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    # The kernel ends a command for lack of memory, and not the server: one that may be dumped may say so.
    _PRCTL(_DUMPABLE, 1, 0, 0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _end_when_asked() -> None:
    """Ends this process at a SIGTERM of its kubelet, which is in no namespace of this pod, and at none of a command."""
    while signal.sigwaitinfo((signal.SIGTERM,)).si_pid:
        pass
    os._exit(0)


def main() -> None:
    given = os.environ
    if os.getpid() != 1:  # it ends all processes but the first one
        reason = "must be the first process of its container: leave shareProcessNamespace and the like out"
        Path(given["RLHF_TERMINATION_LOG"]).write_text(reason)
        sys.exit(_EXIT_INVALID)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    threading.Thread(target=_end_when_asked, daemon=True).start()
    signal.signal(signal.SIGINT, lambda *_: None)  # a command's, which would end the pod with an error
    # Commands have this user too: they read neither the token in its variables nor its memory.
    if _PRCTL(_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    server = Server(
        given["RLHF_HOST"], int(given["RLHF_PORT"]), given["RLHF_TOKEN"], given["RLHF_TERMINATION_LOG"]
    )
    server.serve_forever()


if __name__ == "__main__":
    main()
