"""Redacts secrets in text that is kept where more people read it than the log it is from."""

import re

_SECRETS = (
    # https://user:password@host
    re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)"),
    # TOKEN=..., "api_key": "...", Authorization: Bearer ...
    re.compile(
        r"""(?i)((?:authorization|token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key(?:[_-]?id)?)["']?\s*[:=]\s*["']?)"""
        r"""(?:(?:bearer|basic)\s+)?[^\s"',;&]+"""
    ),
    re.compile(r"(?i)(bearer\s+)[\w.~+/=-]{8,}"),
    # Of Hugging Face, OpenAI, Weights & Biases' and GitHub's kind, of AWS, and JSON Web Tokens.
    re.compile(r"()\b(?:(?:hf|sk|ghp|gho|glpat)[_-][\w-]{16,}|AKIA[0-9A-Z]{16}|eyJ[\w-]+\.[\w-]+\.[\w-]+)"),
)


def redacted(text: str) -> str:
    """The text with what looks like a password, a key or a token replaced by `***`."""
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text
