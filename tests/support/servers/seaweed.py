"""A real S3 server on loopback for tests: SeaweedFS, with one bucket and one pair of keys."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from obstore.exceptions import BaseError
from obstore.store import S3Store
from tests.support.ports import free_port

READY_S = 240
BUCKET = "checkpoints"


@dataclass(frozen=True)
class Seaweed:
    """Address and credentials of an S3 server, as environment variables of its clients."""

    endpoint: str
    key: str = "key-of-tests"
    secret: str = "secret-of-tests"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    def url(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}"


class Server:
    """The server, with its data and its log in `folder`; may be started again after its process was killed."""

    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self._ports = {name: free_port() for name in ("s3", "master", "volume", "filer")}
        self.address = Seaweed(f"http://127.0.0.1:{self._ports['s3']}")

    def start(self) -> None:
        """Returns when it serves its bucket."""
        self.data.mkdir(exist_ok=True)
        ports = self._ports
        command = [
            *(str(Path(sys.executable).with_name("weed")), "mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-dir={self.data}", f"-bucket={BUCKET}", *(f"-{name}.port={ports[name]}" for name in ports)),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false"),
            "-master.telemetry=false",
        ]
        log = self.folder / "weed.log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | self.address.environment | {"GOMEMLIMIT": "768MiB"},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        _wait(self.process, self.address, log)

    def stop(self) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        self.process.kill()
        self.process.wait(60)


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """A server that is gone afterwards, whatever happened."""
    server = Server(folder)
    try:
        server.start()
        yield server
    finally:
        if hasattr(server, "process"):
            server.stop()


def _wait(process: subprocess.Popen, server: Seaweed, log: Path) -> None:
    """Until it lists its bucket, which it makes last."""
    store = S3Store(
        BUCKET,
        endpoint=server.endpoint,
        access_key_id=server.key,
        secret_access_key=server.secret,
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(BaseError):
            store.list().collect()
            return
        time.sleep(0.1)
    raise RuntimeError(f"SeaweedFS is not ready; its log ends:\n{log.read_text(errors='replace')[-3000:]}")
