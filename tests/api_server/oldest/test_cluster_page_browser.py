"""The page of a cluster in a browser: a token is asked for, and shows what it may read."""

import asyncio
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from playwright.sync_api import expect
from tests.api_server.oldest.test_cluster_page import JOBS, Team, stored, teams
from tests.page.browser import DEADLINE_MS, Tab, require_browser, running_browser
from tests.support.kubernetes.cluster import Cluster

from rlhf_operator.page.cluster.api_server import connect
from rlhf_operator.page.cluster.application import make_application
from rlhf_operator.page.cluster.settings import Settings

__all__ = ["stored", "teams"]  # fixtures
pytestmark = pytest.mark.usefixtures("crd")


@pytest.fixture
def tab(control_plane: Cluster, tmp_path: Path) -> Iterator[Tab]:
    """A browser's tab on a served page."""
    program = require_browser()
    authority = tmp_path / "ca.crt"
    authority.write_text(control_plane.ca)
    settings = Settings(control_plane.server, str(authority), (), (), 0, tmp_path / "copies")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def serve() -> web.AppRunner:
        runner = web.AppRunner(make_application(settings, partial(connect, settings)), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = asyncio.run_coroutine_threadsafe(serve(), loop).result(60)
    try:
        with running_browser(program) as browser:
            opened = Tab(browser, f"http://127.0.0.1:{runner.addresses[0][1]}/#/")
            yield opened
            opened.close()
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


def test_a_pasted_token_shows_its_jobs_and_is_stored_nowhere(tab: Tab, stored: tuple[Team, Team]) -> None:
    expect.set_options(timeout=DEADLINE_MS)
    first, second = stored
    alice, page = first.add_person("alice", JOBS, ("get", "secrets")), tab.page
    expect(page.get_by_role("heading", name="Your Kubernetes token")).to_be_visible()
    assert tab.find_violations() == []
    page.get_by_label("Token").fill("invented")
    page.get_by_role("button", name="Show my jobs").click()
    expect(page.get_by_role("status")).to_contain_text("does not know this token")
    page.get_by_label("Token").fill(alice)
    page.get_by_role("button", name="Show my jobs").click()
    page.get_by_label("Namespaces").fill(f"{first.namespace} {second.namespace}")
    page.get_by_label("Namespaces").press("Enter")
    expect(page.get_by_text(f"You may not list the jobs of {second.namespace}.")).to_be_visible()
    row = page.get_by_role("row", name="job-a")
    expect(row).to_contain_text("Running")
    expect(page.get_by_role("row", name="job-b")).to_have_count(0)
    assert tab.find_violations() == []
    page.get_by_role("link", name="job-a", exact=True).click()
    expect(page.locator("canvas").first).to_be_visible()
    page.get_by_role("navigation").get_by_role("link", name="Samples").click()
    page.get_by_role("button", name=re.compile("of step 3")).click()
    expect(page.locator(".token")).to_have_text(["of"], use_inner_text=True)
    stored_there = page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie])")
    assert alice not in stored_there
    assert [text for text in tab.complaints if "401" not in text] == []
