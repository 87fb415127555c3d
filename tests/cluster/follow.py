"""Objects of the API server as they are now, by list and watch, for the servers of the test cluster."""

import base64
import json
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path

Key = tuple[str, str]
Objects = dict[Key, dict]
"""By namespace, which is empty where there is none, and name."""
_LIST_S, _WATCH_S = 10, 240


class Api:
    """Lists and watches, with a kubeconfig of ours."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._server, self._token = cluster["server"], config["users"][0]["user"]["token"]
        self._context = ssl.create_default_context(cadata=authority)

    def follow(self, path: str, into: Objects, changed: Callable[[str], None]) -> None:
        """Keeps `into` as the server has it, for ever; `changed(path)` after the list and after each change."""
        while True:
            try:
                listed = json.load(self._get(path, _LIST_S))
                fresh = {_key(each): each for each in listed["items"]}
                for deleted in into.keys() - fresh.keys():
                    del into[deleted]
                into.update(fresh)
                changed(path)
                version = listed["metadata"]["resourceVersion"]
                query = f"watch=1&timeoutSeconds={_WATCH_S}&resourceVersion={version}"
                for line in self._get(f"{path}?{query}", _WATCH_S + _LIST_S):
                    if not _take(json.loads(line), into):
                        break
                    changed(path)
            except (OSError, ValueError) as error:
                print(f"{path}: {error!r}", file=sys.stderr, flush=True)
                time.sleep(0.5)

    def follow_beside(self, path: str, into: Objects, changed: Callable[[str], None]) -> None:
        """The same in a thread."""
        threading.Thread(target=self.follow, args=(path, into, changed), daemon=True).start()

    def _get(self, path: str, timeout: float) -> HTTPResponse:
        request = urllib.request.Request(
            self._server + path, headers={"Authorization": f"Bearer {self._token}"}
        )
        return urllib.request.urlopen(request, context=self._context, timeout=timeout)


def _take(event: dict, into: Objects) -> bool:
    """False if the watch has to begin again."""
    if event["type"] in ("ADDED", "MODIFIED"):
        into[_key(event["object"])] = event["object"]
    elif event["type"] == "DELETED":
        into.pop(_key(event["object"]), None)
    else:
        return False
    return True


def _key(item: dict) -> Key:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]
