"""Credentials of a pod's service account on EKS, which a store finds by the variables that EKS sets."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.support.servers.http_threads import serving

from rlhf_store.store import Store

KEYS = {
    "AccessKeyId": "AKEY",
    "SecretAccessKey": "s",
    "Token": "of-the-session",
    "Expiration": "2099-01-01T00:00:00Z",
}
LISTING = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"


class Agent(ThreadingHTTPServer):
    """EKS's agent on a node, and S3, both as far as reading one object goes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.accounts: set[str | None] = set()
        """Tokens of accounts for which keys were asked."""
        self.signed: set[str] = set()
        """Of requests to S3, the key and the session's token."""


class Request(BaseHTTPRequestHandler):
    server: Agent

    def do_GET(self) -> None:
        if self.path == "/v1/credentials":
            self.server.accounts.add(self.headers["Authorization"])
            body = json.dumps(KEYS).encode()
        else:
            key = self.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
            self.server.signed.add(f"{key} {self.headers['x-amz-security-token']}")
            body = LISTING if "list-type" in self.path else b"step 7"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Thu, 26 Nov 2026 12:00:00 GMT")
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def test_a_store_reads_with_the_rights_of_the_pod_s_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("of-the-account")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    with serving(Agent()) as agent:
        url = f"http://127.0.0.1:{agent.server_port}"
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/v1/credentials")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_REGION", "eu-central-1")
        assert Store("s3://bucket/job").get("LATEST") == b"step 7"
    assert agent.accounts == {"of-the-account"}
    assert agent.signed == {"AKEY of-the-session"}
