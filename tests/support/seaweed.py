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
from tests.support.vllm_server import free_port

READY_S = 60
BUCKET = "checkpoints"


@dataclass(frozen=True)
class Seaweed:
    """Where it listens, and what its clients find in their environment."""

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


@contextmanager
def running(folder: Path) -> Iterator[Seaweed]:
    """The server, with its data and its log in `folder`; it is gone afterwards, whatever happened."""
    ports = {name: free_port() for name in ("s3", "master", "volume", "filer")}
    server = Seaweed(f"http://127.0.0.1:{ports['s3']}")
    (folder / "data").mkdir()
    command = [
        *(str(Path(sys.executable).with_name("weed")), "mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *(f"-dir={folder / 'data'}", f"-bucket={BUCKET}", *(f"-{name}.port={ports[name]}" for name in ports)),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false"),
        "-master.telemetry=false",
    ]
    log = folder / "weed.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | server.environment | {"GOMEMLIMIT": "768MiB"},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait(process, server, log)
        yield server
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait(10)


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
