"""A browser for the tests of the page, and a page in it that records what it complains of."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests.cluster.packages import BROWSER, Unavailable, require
from tests.support.sources.packaging import ROOT

AXE = ROOT / "page" / "node_modules" / "axe-core" / "axe.min.js"
BUILT = ROOT / "operator" / "rlhf_operator" / "page" / "static" / "index.html"
DEADLINE_MS = 60_000
"""Of each wait in a page: other tests may have the cores."""
_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_CHECK = "axe.run(document, {resultTypes: ['violations']}).then(result => result.violations)"


def find_chromium() -> str:
    """The program; on Debian it is installed if it is missing. Raises Unavailable."""
    if not any(map(shutil.which, _PROGRAMS)):
        require(BROWSER, "the browser of the page's tests", "put a `chromium` on the PATH")
    return next(filter(None, map(shutil.which, _PROGRAMS)))


def require_browser() -> str:
    """The program; skips the test where there is none, or no page to show."""
    if not BUILT.exists():
        pytest.skip("`make page` builds the page")
    try:
        return find_chromium()
    except Unavailable as error:
        pytest.skip(str(error))


@contextmanager
def running_browser(program: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=flags, timeout=DEADLINE_MS)
        yield browser
        browser.close()


class Tab:
    """A page of `rlhf ui`, opened by the address that it printed."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        self.complaints: list[str] = []
        """Errors and warnings of the console, which has violations of the policy too, and exceptions. A browser also
        logs each 404, by which the API says that a run has left no such thing."""
        self._origin, _, self._token = address.partition("#")
        self._context = browser.new_context(**options)
        self._context.set_default_timeout(DEADLINE_MS)
        self.page: Page = self._context.new_page()
        self.page.on("console", self._record)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address)

    def open(self, route: str) -> None:
        self.page.goto(f"{self._origin}#{route}")

    def find_violations(self) -> list[str]:
        """Serious and critical findings of axe-core in both colour schemes, with the first place of each."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        violations = []
        for scheme in ("dark", "light"):
            self.page.emulate_media(color_scheme=scheme)
            violations += [
                f"{each['id']} where it is {scheme}: {each['nodes'][0]['html']}"
                for each in self.page.evaluate(_CHECK)
                if each["impact"] in ("serious", "critical")
            ]
        return violations

    def close(self) -> None:
        self._context.close()

    def _record(self, message: Any) -> None:
        is_answer = "/api/v1/" in message.location.get("url", "") and "404" in message.text
        if message.type in ("error", "warning") and not is_answer:
            self.complaints.append(message.text)
