"""Bodies of server-side apply, which an API server reads as YAML."""

import json
import re
from typing import Any

APPLY = "application/apply-patch+yaml; charset=utf-8"
"""With its parameter, since the client's library would write a body of the bare type by `json.dumps`."""
_ESCAPED = re.compile("[\x7f-\uffff]")


def as_yaml(body: dict[str, Any]) -> str:
    """JSON that a YAML reader takes for the same. Characters beyond U+FFFF are written as they are, since YAML refuses
    the two escapes of a surrogate pair. Others are escaped: YAML refuses some, and folds lines at U+0085 and U+2028.
    A surrogate without its pair becomes U+FFFD.
    """
    return _ESCAPED.sub(_escape, json.dumps(body, ensure_ascii=False))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return rf"\u{0xFFFD if 0xD800 <= code <= 0xDFFF else code:04x}"
