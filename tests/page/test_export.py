"""The exported page in a browser, from its file."""

import re

import pytest
from playwright.sync_api import expect
from tests.page.browser import Tab

from rlhf_operator import cli


@pytest.fixture
def exported(browser, written, tmp_path):
    folder = tmp_path / "exported"
    assert cli.main(["ui", str(written.folder), "--export", str(folder)]) == 0
    tab = Tab(browser, (folder / "index.html").as_uri())
    yield tab
    tab.close()


def test_an_exported_page_shows_its_runs_without_a_request(exported):
    page, requests = exported.page, []
    page.on("request", lambda request: requests.append(request.url))
    expect(page.get_by_role("row", name=re.compile("kind"))).to_contain_text("Succeeded")
    page.get_by_role("link", name="kind", exact=True).click()
    expect(page.locator("canvas")).to_have_count(8)
    page.get_by_role("navigation").get_by_role("link", name="Samples").click()
    page.get_by_role("button", name=re.compile("story told twice")).click()
    expect(page.locator(".token")).not_to_have_count(0)
    assert (requests, exported.complaints) == ([], [])
