"""Stores that cannot be used: one clear problem that names the field, within seconds."""

import errno
import itertools
import ssl
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cluster.credentials import KEY, openssl
from tests.support.servers.http_threads import serving

from rlhf_store import connecting, failures
from rlhf_store.archive import Archive
from rlhf_store.errors import StoreError, UnusableStore
from rlhf_store.store import StoreOptions

SECONDS = 15
CASES = {
    "a bucket that is not there": ("s3://nowhere/run", {}, "404 Not Found: .*bucket does not exist"),
    "a wrong secret": (
        "s3://checkpoints/run",
        {"AWS_SECRET_ACCESS_KEY": "wrong"},
        "403 Forbidden: .*signature",
    ),
    "nobody listens": (
        "s3://checkpoints/run",
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
        "127.0.0.1:1/.*: Connection refused; set AWS_",
    ),
    "a name that nobody has": (
        "s3://checkpoints/run",
        {"AWS_ENDPOINT_URL": "https://nowhere.invalid"},
        "failed to lookup address",
    ),
    "http without leave": ("s3://checkpoints/run", {"AWS_ALLOW_HTTP": "false"}, "HTTP error"),
}


@pytest.mark.parametrize(
    ("url", "changes", "expected"),
    [
        ("s3://checkpoints/run", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "403 Forbidden"),
        ("s3://nowhere/run", {}, "404 Not Found"),
        ("s3://checkpoints/run", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "no answer"),
    ],
)
def test_with_the_keys_of_others_an_error_has_nothing_of_what_a_server_said(
    seaweed, monkeypatch, url, changes, expected
):
    no_waiting(monkeypatch)
    with pytest.raises(StoreError) as caught:
        Archive(url, StoreOptions(timedelta(seconds=1), keys=seaweed.environment | changes))
    assert str(caught.value) == f"the store {url} fails: {expected}"


def test_keys_that_are_given_open_a_store_without_those_of_the_environment(seaweed, monkeypatch):
    for name in seaweed.environment:
        monkeypatch.delenv(name, raising=False)
    assert Archive(seaweed.url("given-keys"), StoreOptions(keys=seaweed.environment)).entries() == []


@pytest.mark.parametrize("case", CASES)
def test_s3(seaweed, monkeypatch, case):
    url, changes, expected = CASES[case]
    for name, value in (seaweed.environment | changes).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(connecting, "RETRY_TIMEOUT", timedelta(seconds=0.1))
    clock = no_waiting(monkeypatch)
    with pytest.raises(UnusableStore, match=expected) as caught:
        Archive(url)
    assert clock.monotonic() < SECONDS
    message = str(caught.value)
    assert message.startswith(f"cannot use {url}: ")
    assert "AWS_ENDPOINT_URL" in message
    assert "\n" not in message
    assert "secret-of-tests" not in message
    assert "Debug source" not in message
    assert "retries" not in message


def no_waiting(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A second goes by whenever somebody looks at the clock, and never else."""
    now = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(now), sleep=lambda _seconds: None)
    monkeypatch.setattr(failures, "time", clock)
    return clock


def test_a_failure_that_lasts_is_told_at_each_retry_with_its_reason(monkeypatch):
    no_waiting(monkeypatch)
    reasons: list[str] = []

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StoreError, match=r"the store s3://bucket fails: .*No space left on device"):
        failures.patiently(full, "s3://bucket", timedelta(seconds=9), reasons.append)
    assert reasons[0] == "", "not of a failure that has only begun"
    assert reasons[-1] == "[Errno 28] No space left on device"


@pytest.fixture
def private(tmp_path, monkeypatch) -> Iterator[Path]:
    """An HTTPS server, of an authority that nobody knows, is the endpoint; it refuses everything."""
    openssl(
        tmp_path,
        *("req", "-x509", *KEY, "-subj", "/CN=ours", "-keyout", "ca.key", "-out", "ca.crt"),
        *("-addext", "keyUsage=critical,keyCertSign"),
    )
    openssl(
        tmp_path,
        *("req", "-x509", *KEY, "-CA", "ca.crt", "-CAkey", "ca.key", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"),
        *("-keyout", "server.key", "-out", "server.crt"),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403)

        do_PUT = do_GET

    server = ThreadingHTTPServer(("localhost", 0), Refusing)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://localhost:{server.server_port}")
        yield tmp_path / "ca.crt"


def test_an_authority_of_one_s_own_is_named_by_the_environment(private, monkeypatch):
    with pytest.raises(
        UnusableStore, match=r"its certificate is not trusted \(UnknownIssuer\); SSL_CERT_FILE names"
    ):
        Archive("s3://checkpoints/run")
    monkeypatch.setenv("SSL_CERT_FILE", str(private))
    with pytest.raises(UnusableStore, match="403 Forbidden"):
        Archive("s3://checkpoints/run")


def test_a_file_where_the_directory_should_be(tmp_path):
    (tmp_path / "checkpoints").write_text("not a directory")
    with pytest.raises(UnusableStore, match=r"cannot use file://.*File exists"):
        Archive(f"file://{tmp_path / 'checkpoints'}")


def test_a_store_without_an_account():
    with pytest.raises(UnusableStore, match=r"Account must be specified; set AZURE_STORAGE_ACCOUNT_NAME"):
        Archive("az://container/run")


@pytest.fixture
def keys_file(seaweed, tmp_path, monkeypatch):
    """Nothing in the environment but where the server is, and a file with credentials."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    keys = f"aws_access_key_id = {seaweed.key}\naws_secret_access_key = {seaweed.secret}\n"
    file.write_text(f"[default]\naws_access_key_id = x\n[team]\n{keys}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    return file


@pytest.mark.usefixtures("keys_file")
def test_credentials_come_from_a_file_too(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "team")
    assert Archive("s3://checkpoints/by-file").entries() == []


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("default", "has no 'aws_secret_access_key' (profile 'default')"),
        ("nobody", "has no 'nobody' (profile 'nobody')"),
    ],
)
def test_a_file_without_what_it_should_have(keys_file, monkeypatch, profile, message):
    monkeypatch.setenv("AWS_PROFILE", profile)
    with pytest.raises(UnusableStore) as caught:
        Archive("s3://checkpoints/by-file")
    assert f"AWS_SHARED_CREDENTIALS_FILE {keys_file} {message}" in str(caught.value)
    keys_file.unlink()
    with pytest.raises(UnusableStore, match="cannot be read"):
        Archive("s3://checkpoints/by-file")


def test_keys_that_are_rotated_in_the_file_are_used_from_then_on(keys_file, monkeypatch, caplog):
    """Temporary ones end within hours; an open store goes on with what has taken their place."""
    monkeypatch.setenv("AWS_PROFILE", "team")
    written = keys_file.read_text()
    store = Archive("s3://checkpoints/rotated").store
    keys_file.write_text(written.replace("secret-of-tests", "revoked"))
    with pytest.raises(StoreError, match="403 Forbidden"):
        store.put("a", b"1")
    keys_file.write_text(written)
    store.put("a", b"1")
    keys_file.write_text("[team]\naws_access_key_id = half of the fi")
    store.put("b", b"2")
    assert "the previous ones stay in use" in caplog.text
    assert "secret-of-tests" not in caplog.text


@pytest.mark.usefixtures("seaweed")
def test_a_store_that_has_been_written_is_waited_for_while_its_keys_are_rotated(keys_file, monkeypatch):
    """Old keys may end before the file has the new ones: training goes on meanwhile."""
    monkeypatch.setenv("AWS_PROFILE", "team")
    written, reasons = keys_file.read_text(), list[str]()

    def retrying(reason: str) -> None:
        reasons.append(reason)
        if "403 Forbidden" in reason:
            keys_file.write_text(written)

    store = Archive("s3://checkpoints/revoked", StoreOptions(retrying=retrying)).store
    store.check_writable()
    no_waiting(monkeypatch)
    keys_file.write_text(written.replace("secret-of-tests", "revoked"))
    store.put("a", b"1")
    assert "403 Forbidden" in reasons[-1]
    assert store.get("a") == b"1"


def test_a_known_store_that_is_waited_for_is_a_sign_of_progress(seaweed, monkeypatch):
    """A run that goes on while its store is down would be ended as one that hangs."""
    for name, value in (seaweed.environment | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(connecting, "RETRY_TIMEOUT", timedelta(seconds=0.1))
    no_waiting(monkeypatch)
    signs = list[str]()
    with pytest.raises(StoreError):
        Archive(
            "s3://checkpoints/run",
            StoreOptions(timedelta(seconds=5), known=True, retrying=signs.append),
        )
    assert signs
