"""Asks the hub for an answer before a job that loads from it starts: its client waits for more than a minute."""

import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from rlhf_api.contract.teachers import named_models
from rlhf_api.errors.problem import InvalidJob, Problem, first_line
from rlhf_api.estimate.sizes import LOADED
from rlhf_api.host.hub_cache import snapshots
from rlhf_api.host.model_directory import HUB_SECONDS, WITHOUT_HUB
from rlhf_api.spec import Spec

_HUB = "https://huggingface.co"
_OF_GATEWAYS = (502, 503, 504)
"""Codes of a proxy that gets no answer."""


def check_hub(spec: Spec, environ: Mapping[str, str]) -> None:
    """Raises InvalidJob if models have to be downloaded and the hub gives no answer; `environ`: of the roles."""
    needed = [*_downloads(spec, environ)]
    endpoint = environ.get("HF_ENDPOINT") or _HUB
    if needed and (reason := silence(endpoint)):
        message = f"is not here, and the hub at {endpoint} gives no answer: {reason}; {WITHOUT_HUB}"
        raise InvalidJob([Problem(where, f"{message}; got {name!r}") for where, name in needed])


def silence(endpoint: str) -> str:
    """The reason for which a server gives no answer of any kind within `HUB_SECONDS`; '' if it gives one."""
    reasons = [f"it did not answer within {HUB_SECONDS:g} s"]

    def ask() -> None:
        try:
            urlopen(Request(endpoint, method="HEAD"), timeout=HUB_SECONDS).close()
            reasons.append("")
        except HTTPError as error:  # its client may have a token
            reasons.append(f"HTTP {error.code} {error.reason}" if error.code in _OF_GATEWAYS else "")
        except (OSError, ValueError) as error:
            cause = error.reason if isinstance(error, URLError) else error
            is_answer = isinstance(cause, ssl.SSLError)
            reasons.append(
                "" if is_answer else first_line(cause) if isinstance(cause, Exception) else str(cause)
            )

    asking = threading.Thread(target=ask, daemon=True)  # a resolver of names may take minutes
    asking.start()
    asking.join(HUB_SECONDS)
    return reasons[-1]


def _downloads(spec: Spec, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Fields of models with names of the hub of which no file has been downloaded yet."""
    for _, where, name in named_models(spec, (*LOADED, "tokenizer")):
        if not Path(name).is_dir() and not any(snapshots(name, environ).glob("*/*")):
            yield where, name
