"""Keys that open a job's store: those that its pods have, and nothing that the page's own machine would add."""

import pytest

from rlhf_operator.page.cluster.hidden import Hidden
from rlhf_operator.page.cluster.keys import Access, choose_access

S3 = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


def test_only_known_names_of_the_environment_open_a_store():
    hostile = {
        "LD_PRELOAD": "/evil.so",
        "AWS_SHARED_CREDENTIALS_FILE": "/etc/passwd",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/secrets/token",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.2/",
        "GOOGLE_APPLICATION_CREDENTIALS": "/etc/passwd",
    }
    known = {**S3, "AWS_REGION": "eu", "AWS_ENDPOINT_URL": "https://minio.example"}
    assert choose_access("s3://bucket/run", {**known, **hostile}) == Access("s3://bucket/run", known)


@pytest.mark.parametrize(
    ("url", "environment", "missing"),
    [
        ("s3://bucket/run", {}, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket/run", {"AWS_ACCESS_KEY_ID": "key"}, "AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket/run", {**S3, "AWS_SECRET_ACCESS_KEY": ""}, "AWS_SECRET_ACCESS_KEY"),
        ("gs://bucket/run", {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json"}, "GOOGLE_SERVICE_ACCOUNT_KEY"),
        ("az://account/run", {"AZURE_STORAGE_ACCOUNT_NAME": "account"}, "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_without_keys_the_page_asks_no_store(url, environment, missing):
    with pytest.raises(Hidden, match=rf"has {missing}; with keys of your own, `rlhf ui {url}`"):
        choose_access(url, environment)


@pytest.mark.parametrize(
    "url", [None, "file:///etc", "http://10.0.0.1/run", "https://x/run", "memory:///", "/run"]
)
def test_what_is_no_object_store_is_not_opened(url):
    with pytest.raises(Hidden, match="on a volume of its pods"):
        choose_access(url, S3)


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]:80", "169.254.170.2:8080"])
@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_metadata_of_a_machine_is_not_asked(host, name):
    with pytest.raises(Hidden, match="link-local"):
        choose_access("s3://bucket/run", {**S3, name: f"http://{host}/latest"})
