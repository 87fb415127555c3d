"""Tells whether Weights & Biases has a key, or needs none, by what its client reads; without the client, whose
questions to a terminal nobody would answer."""

import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_SERVER = "https://api.wandb.ai"
_GIVEN = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


def has_key(settings: Mapping[str, Any]) -> bool:
    """False only where the client is certain to find no key; `settings`: of the tracker."""
    mode = settings.get("mode") or os.environ.get("WANDB_MODE") or "online"
    if mode != "online" or any(map(os.environ.get, _GIVEN)):
        return True
    configured = Path(os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb"), "settings").expanduser()
    if configured.exists() or Path("wandb", "settings").exists():
        return True  # by `wandb offline`, or for another server
    server = str(os.environ.get("WANDB_BASE_URL") or _SERVER)
    return "settings" in settings or _is_in_netrc(urlsplit(server).netloc)


def _is_in_netrc(host: str) -> bool:
    files = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    for file in files:
        try:
            if netrc.netrc(Path(file).expanduser()).authenticators(host):
                return True
        except OSError:
            continue
        except netrc.NetrcParseError:
            return True  # the client says what is wrong with it
    return False
