"""Replaces secrets in text, and in documents, that more people read than what they come from."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from ..errors.problem import path

MASK = "***"
SHORTEST = 6
"""Values of fewer characters are not looked for in text: too much else has them."""
_WORDS = re.compile(
    "apikey|cookie|credentials?|(?<=_)key|passphrase|passwd|password|secrets?|signature|token".join(
        ("(?:^|_)(?:", ")(?:_|$)")
    )
)
_PLAIN = frozenset(["", "0", "1", "false", "no", "none", "null", "off", "on", "true", "yes"])
"""Values that are switches, as of HF_HUB_DISABLE_IMPLICIT_TOKEN."""
_PLACE = re.compile(r"(?:~|\.{1,2})?(?:/[\w.-]+)+")
"""A path, as in GOOGLE_APPLICATION_CREDENTIALS."""
_CUT = (2048, 4096)
"""Bytes that a kubelet keeps of a log's end, and of a termination message."""

# The user part may hold / and @; a host's name ends at neither quotes nor spaces.
_USERINFO = re.compile(
    r"""(?i)(\b[a-z][a-z0-9+.-]{0,20}://)(?:([^\s"'<>/:@]*):[^\s"'<>]*|[^\s"'<>/:@]+)@(?=[^\s"'<>@]+)"""
)
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)"
    r"|\A(?:(?!-----BEGIN ).)*-----END [A-Z0-9 ]*PRIVATE KEY-----",
    re.DOTALL,
)
# Hugging Face, OpenAI and Anthropic, GitHub, GitLab, Slack, Weights & Biases, PyPI, Google, AWS, JSON Web Tokens.
_KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:hf|sk|gh[pousr]|github_pat|glpat|xox[a-z]|xapp|wandb|pypi)[_-][\w-]{16,}"
    r"|AIza[\w-]{30,}|(?:AKIA|ASIA)[0-9A-Z]{16}|eyJ[\w-]+\.[\w-]+\.[\w-]*)"
)
# The older keys of Weights & Biases; a commit in a path or after @ stays.
_HEX = re.compile(r"(?<![\w/.@-])[0-9a-f]{40}(?![\w/])")

_KEY = (
    r"(?:token|secret|passw(?:or)?d|passphrase|pwd|credential|signature"
    r"|(?:api|access|account|private|secret)[_-]?key(?:[_-]?id)?)"
)
_SEPARATOR = r"""(?P<key>%s(?:\\{0,8}["'])?\s{0,8}%s\s{0,8})"""
_QUOTED = r"""[bBrRuUfF]?(?P<quote>\\{0,8}["'])(?:.*?(?<!\\)(?P=quote)|.*)"""
"""A quoted value, also in escaped JSON and as bytes; the rest of the line where the closing quote is missing."""
_HEADERS = re.compile(
    rf"""(?i){_SEPARATOR % (r"(?:authorization|cookie)", r"[:=,]")}(?:{_QUOTED}|.*)""",
)
_COLON = re.compile(rf"(?i){_SEPARATOR % (_KEY, r':(?!//)')}(?:{_QUOTED}|.+)")
_EQUALS = re.compile(rf"""(?i){_SEPARATOR % (_KEY, r"=")}(?:{_QUOTED}|[^\s"',;&)]+)""")
_QUERY = re.compile(r"""(?i)(?P<key>[?&;](?:sig|key|code|x-amz-(?:credential|security-token))=)[^\s"'&]+""")
_OPTION = re.compile(rf"""(?i)(?P<key>(?<!\S)["']?--?[\w-]{{0,40}}{_KEY}["']?,?\s{{1,8}})(?:{_QUOTED}|\S+)""")
_SCHEME = re.compile(r"(?i)(?P<key>\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}")


def redacted(text: str, secrets: Collection[str] = ()) -> str:
    """The text with what looks like a password, a key or a token replaced by `***`, and the `secrets` wherever they
    stand."""
    text = _PEM.sub(MASK, _without(text, secrets))
    text = _userinfo(text)
    for pattern in (_HEADERS, _COLON, _EQUALS, _QUERY, _OPTION, _SCHEME):
        text = pattern.sub(_kept_key, text)
    return _HEX.sub(MASK, _KNOWN.sub(MASK, text))


def end_of_log(message: str) -> str:
    """A termination message `redacted`. Without its first line, or word, where a kubelet may have cut it at its front:
    half a secret has no mark."""
    size = len(message.encode(errors="replace"))
    first, line_end, rest = message.partition("\n")
    if size >= _CUT[0] and rest.strip():
        message = rest
    elif size in _CUT and not line_end:
        message = first.partition(" ")[2] or message
    return redacted(message)


def is_secret(name: str, value: str) -> bool:
    """True for the name of a setting or an environment variable that says secret, unless its value is a switch or
    it names a file."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().replace("-", "_").lstrip("_")
    if not _WORDS.search(words) or words.endswith(("_file", "_path", "_dir", "_name")):
        return False
    place = "credentials" in words and _PLACE.fullmatch(value)
    return not place and value.strip().lower() not in _PLAIN


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """The values of the environment variables that are secrets, by their name or by their look; the longest first."""
    secrets = {value.strip() for name, value in environment.items() if _is_secret_variable(name, value)}
    return sorted((each for each in secrets if len(each) >= SHORTEST), key=len, reverse=True)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that are none, for a process that needs no key."""
    return {name: value for name, value in environment.items() if not _is_secret_variable(name, value)}


def _is_secret_variable(name: str, value: str) -> bool:
    return is_secret(name, value) or _has_secret_form(value)


def masked(manifest: Mapping[str, Any], secrets: Collection[str] = ()) -> dict[str, Any]:
    """A manifest for more readers than the job's: without the values of settings whose names say secret, in those parts
    where names are the user's; without users and passwords in URLs, tokens of a known form, and the `secrets`."""
    return {key: _masked(value, secrets, key in _FREE) for key, value in manifest.items()}


def secret_fields(manifest: Mapping[str, Any], where: str) -> list[str]:
    """Places of the values that `masked` replaces, whole or in part."""
    return [path((where, *place)) for place in _differing(manifest, masked(manifest))]


def _differing(left: Any, right: Any) -> Iterator[tuple[str | int, ...]]:
    if isinstance(left, str):
        if left != right:
            yield ()
    elif isinstance(left, Mapping):
        yield from ((key, *rest) for key in left for rest in _differing(left[key], right[key]))
    elif isinstance(left, list):
        yield from ((i, *rest) for i, each in enumerate(left) for rest in _differing(each, right[i]))


_FREE = frozenset(("env", "environment", "template", "settings", "engineArguments"))
"""Fields of a manifest whose keys are not ours."""


def _masked(node: Any, secrets: Collection[str], free: bool) -> Any:
    if isinstance(node, str):
        return _KNOWN.sub(MASK, _userinfo(_PEM.sub(MASK, _without(node, secrets))))
    if isinstance(node, list):
        before = ["", *node]
        return [
            MASK if free and _is_option(last, each) else _masked(each, secrets, free)
            for last, each in zip(before, node, strict=False)
        ]
    if not isinstance(node, Mapping):
        return node
    named = {"value": node.get("name")} if free else {}  # a container's `env`
    return {
        key: MASK
        if free and isinstance(value, str) and is_secret(str(named.get(key) or key), value)
        else _masked(value, secrets, free or key in _FREE)
        for key, value in node.items()
    }


def _is_option(last: Any, value: Any) -> bool:
    """True for the value that follows `--api-key` in a command."""
    texts = isinstance(last, str) and isinstance(value, str)
    return texts and last.startswith("-") and "=" not in last and is_secret(last, value)


def _without(text: str, secrets: Collection[str]) -> str:
    """The text without the secrets, as they are, in JSON, and in URLs."""
    for secret in secrets:
        for written in {secret, json.dumps(secret)[1:-1], quote(secret), quote(secret, safe="")}:
            text = text.replace(written, MASK)
    return text


def _userinfo(text: str) -> str:
    def mask_password(match: re.Match[str]) -> str:
        user = match[2]
        return f"{match[1]}{MASK}@" if user is None else f"{match[1]}{user}:{MASK}@"

    return _USERINFO.sub(mask_password, text)


def _has_secret_form(value: str) -> bool:
    return any(pattern.search(value) for pattern in (_PEM, _KNOWN, _USERINFO)) or bool(_HEX.fullmatch(value))


def _kept_key(match: re.Match[str]) -> str:
    quoted = match.groupdict().get("quote") or ""
    return f"{match['key']}{quoted}{MASK}{quoted}"
