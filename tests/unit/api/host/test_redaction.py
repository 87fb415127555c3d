"""Text like a secret is replaced where more people read it: termination messages, cards, trackers, snapshots."""

import pytest

from rlhf_api.host.redaction import end_of_log, is_secret, masked, redacted, secrets_of, without_secrets

S = "s3cr3t-v4lue"
HEX = "0123456789abcdef0123456789abcdef01234567"
LONG = "abcdefghijklmnopqrstuvwxyz0123456789"
FORMS = [
    (f"clone with github_pat_11A_{LONG} failed", "clone with *** failed"),
    (f"bad credentials ghs_{LONG}", "bad credentials ***"),
    ("key ASIAABCDEFGHIJKLMNOP is over", "key *** is over"),
    ("AKIAABCDEFGHIJKLMNOP", "***"),
    (
        f"https://b.example/x?X-Amz-Date=1&X-Amz-Signature={HEX} 403",
        "https://b.example/x?X-Amz-Date=1&X-Amz-Signature=*** 403",
    ),
    (
        f"https://b.example/c?sv=2024&sig={S}%3D&se=2026 403",
        "https://b.example/c?sv=2024&sig=***&se=2026 403",
    ),
    (f"AccountName=a;AccountKey={S}==;EndpointSuffix=x", "AccountName=a;AccountKey=***;EndpointSuffix=x"),
    (f"Authorization: Token {S}", "Authorization: ***"),
    (f"Authorization: ApiKey {S}", "Authorization: ***"),
    ("Authorization: Bearer abc.def-1", "Authorization: ***"),
    (f"AWS4-HMAC-SHA256 Credential={S}/x, Signature={S}", "AWS4-HMAC-SHA256 Credential=***, Signature=***"),
    (f'password: "{S} with spaces" rest', 'password: "***" rest'),
    (f"password: {S} with spaces", "password: ***"),
    (f'password: "{S} without an end', 'password: "***"'),
    (f"ran tool --token {S} -v", "ran tool --token *** -v"),
    (f"ran tool --password {S} -v", "ran tool --password *** -v"),
    (f"ran ['tool', '--api-key', '{S}', '-v']", "ran ['tool', '--api-key', '***', '-v']"),
    (rf'body "{{\"secret\": \"{S}\", \"n\": 1}}"', r'body "{\"secret\": \"***\", \"n\": 1}"'),
    (f"{{b'authorization': b'Token {S}'}}", "{b'authorization': '***'}"),
    (f"(b'authorization', b'Token {S}')", "(b'authorization', '***')"),
    (f"https://me:a/{S}@h.example/x", "https://me:***@h.example/x"),
    (f"https://me:a@{S}@h.example/x", "https://me:***@h.example/x"),
    (f"https://{S}@h.example/x", "https://***@h.example/x"),
    (f"redis://:{S}@h.example:6379/0", "redis://:***@h.example:6379/0"),
    (f"wandb: login {HEX} failed", "wandb: login *** failed"),
    (f"-----BEGIN RSA PRIVATE KEY-----\n{S}\n-----END RSA PRIVATE KEY-----\nend", "***\nend"),
    (f"-----BEGIN PRIVATE KEY-----\n{S}", "***"),
    (f"{S}\n-----END PRIVATE KEY-----\nend", "***\nend"),
    (
        rf'{{"private_key": "-----BEGIN PRIVATE KEY-----\n{S}\n-----END PRIVATE KEY-----\n", "a": 1}}',
        '{"private_key": "***", "a": 1}',
    ),
    (f"key AIzaSyA-{LONG} refused", "key *** refused"),
    (f"slack xoxb-123456789012-{LONG} refused", "slack *** refused"),
    (f"Cookie: session={S}; other={S}", "Cookie: ***"),
    (f"token hf_{LONG} is wrong", "token *** is wrong"),
    ("AWS_SECRET_ACCESS_KEY=a/b+c", "AWS_SECRET_ACCESS_KEY=***"),
    ("WANDB_API_KEY=abc HF_TOKEN=def rest", "WANDB_API_KEY=*** HF_TOKEN=*** rest"),
    ('{"api_key": "abc", "n": 1}', '{"api_key": "***", "n": 1}'),
    ("sent 'Bearer abcdefgh12'", "sent 'Bearer ***'"),
]


@pytest.mark.parametrize(("text", "left"), FORMS)
def test_what_looks_like_a_secret_is_left_out(text, left):
    assert redacted(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=512, tokens: 7, KeyError: 'x', s3://b/c",
        "KeyError: 'token' (/job/rewards.py:10)",
        f"/hub/models--a--b/snapshots/{HEX}/config.json of a/b@{HEX}",
        "see https://h.example:80/a and x@y.example",
        "expected token 'end of print statement', got 'x'",
    ],
)
def test_other_text_stays(text):
    assert redacted(text) == text


@pytest.mark.parametrize("size", [2048, 4096])
def test_what_a_kubelet_may_have_cut_at_its_front_is_left_out(size):
    """Of a secret's second half nothing tells what it is."""
    assert end_of_log(f"alue-of-a-{S}\n" + "x" * size) == "x" * size
    assert end_of_log(f"{S} " + "x" * (size - len(S) - 1)) == "x" * (size - len(S) - 1)
    assert end_of_log("first\nlast") == "first\nlast"


@pytest.mark.parametrize(
    "piece", ["-secret", "token", "a", "-", "_", "://", "a://b:", '"', "\\", "eyJ", 'x="']
)
def test_no_text_takes_long(piece):
    """By the size alone: one of these took two minutes by a pattern of nested repetitions. The suite's limit on a test
    would end it."""
    redacted(piece * (16_384 // len(piece)))


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "x", True),
        ("AWS_ACCESS_KEY_ID", "x", True),
        ("DB_PASSWORD", "x", True),
        ("apiKey", "x", True),
        ("api-key", "x", True),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("MAX_TOKENS", "8", False),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/secrets/gcp.json", False),
        ("HF_TOKEN_PATH", "/secrets/hf", False),
        ("MONKEY", "x", False),
    ],
)
def test_names_of_secrets(name, value, secret):
    assert is_secret(name, value) is secret


def test_the_values_of_secret_variables_are_left_out_wherever_they_stand():
    secrets = secrets_of(
        {"RLHF_TOKEN": "a/b c12", "MLFLOW_TRACKING_URI": "https://me:pa55word@h", "HOME": "/root/home"}
    )
    text = redacted('sent "a/b c12", a%2Fb%20c12, https://me:pa55word@h from /root/home', secrets)
    assert text == 'sent "***", ***, *** from /root/home'


def test_a_process_that_needs_no_key_gets_none():
    keys = {"HF_TOKEN": "short", "OPENAI_API_KEY": "k" * 20, "DATABASE": "https://me:pa55word@h"}
    others = {"HOME": "/root/home", "HF_TOKEN_PATH": "/secrets/hf", "TOKENIZERS_PARALLELISM": "false"}
    assert without_secrets(keys | others) == others


def test_a_manifest_is_masked_where_names_are_the_users_and_where_values_tell():
    env = [{"name": "HF_TOKEN", "value": S}, {"name": "A", "value": "b"}]
    reference = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    manifest = {
        "env": {"HF_TOKEN": S, "MLFLOW_TRACKING_URI": f"https://me:{S}@h", "NCCL_DEBUG": "INFO"},
        "pods": {
            "template": {
                "spec": {
                    "containers": [
                        {"args": ["--api-key", S, f"--url=http://{S}@h"], "env": [*env, reference]}
                    ]
                }
            }
        },
        "trackers": [{"kind": "wandb", "settings": {"entity": "x", "settings": {"api_key": S}}}],
        "generator": {"engineArguments": {"api-key": S, "revision": HEX}},
        "reward": {
            "functions": [{"url": f"http://{S}@h/score", "secretHeaders": {"Authorization": "GRADER_TOKEN"}}]
        },
        "data": {
            "systemPrompt": f"hf_{LONG} here",
            "chatTemplateKwargs": {"token": "x"},
            "chatTemplate": "{{ token: 1 }}",
        },
        "steps": 3,
    }
    assert masked(manifest) == {
        "env": {"HF_TOKEN": "***", "MLFLOW_TRACKING_URI": "https://me:***@h", "NCCL_DEBUG": "INFO"},
        "pods": {
            "template": {
                "spec": {
                    "containers": [
                        {
                            "args": ["--api-key", "***", "--url=http://***@h"],
                            "env": [
                                {"name": "HF_TOKEN", "value": "***"},
                                {"name": "A", "value": "b"},
                                reference,
                            ],
                        }
                    ]
                }
            }
        },
        "trackers": [{"kind": "wandb", "settings": {"entity": "x", "settings": {"api_key": "***"}}}],
        "generator": {"engineArguments": {"api-key": "***", "revision": HEX}},
        "reward": {
            "functions": [{"url": "http://***@h/score", "secretHeaders": {"Authorization": "GRADER_TOKEN"}}]
        },
        "data": {
            "systemPrompt": "*** here",
            "chatTemplateKwargs": {"token": "x"},
            "chatTemplate": "{{ token: 1 }}",
        },
        "steps": 3,
    }
    assert masked({"env": {"A": f"x{S}"}}, [S]) == {"env": {"A": "x***"}}
