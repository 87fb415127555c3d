"""Runs in every state, in a browser: failed, without anything, predicted, judged on held-out prompts."""

import re

import pytest
from playwright.sync_api import expect
from tests.page.runs import STEPS
from tests.page.test_page import open_run


@pytest.mark.parametrize("name", ["blunt", "empty", "followed"])
def test_every_view_of_a_run_without_much_can_be_read_by_everyone(open_tab, name):
    tab = open_tab()
    open_run(tab, name)
    snapshots = tab.page.get_by_role("region", name="Snapshots", exact=True)
    expect(snapshots).to_contain_text("The store cannot be read" if name == "empty" else "No snapshot yet")
    assert tab.find_violations() == []
    for view, text in (
        ("Samples", "No sample."),
        ("Timeline", "no times" if name == "empty" else "no record"),
    ):
        tab.page.get_by_role("navigation").get_by_role("link", name=view).click()
        expect(tab.page.get_by_text(text)).to_be_visible()
        assert tab.find_violations() == []


def test_a_held_out_prompt_is_followed_over_time(open_tab):
    tab = open_tab()
    open_run(tab, view="Samples")
    tab.page.get_by_text("Held-out prompts over time (1)").click()
    responses = tab.page.get_by_role("list", name="Responses, the newest first").get_by_role("listitem")
    expect(responses).to_have_count(STEPS // 10 + 1)
    expect(responses.first).to_contain_text(f"as of step {STEPS}")
    assert tab.find_violations() == []


def test_predicted_seconds_and_memory_stand_beside_measured_ones(open_tab):
    tab = open_tab()
    open_run(tab)
    table = tab.page.get_by_role("region", name="Predicted and measured seconds").get_by_role("row")
    rows = [
        re.compile("Predicted"),
        "generate1.1 s1.2 s−8%",
        "train1.3 s1.1 s+18%",
        "score–200 ms–",
        "broadcast–100 ms–",
        re.compile("^whole step3.2 s"),
    ]
    expect(table).to_have_text(rows)
    memory = tab.page.get_by_role("region", name="Predicted and measured memory").get_by_role("row")
    expect(memory).to_have_text([re.compile("Predicted"), "trainer2 GB: weights–"])


def test_a_run_that_goes_on_has_its_generators_and_says_why_nothing_was_predicted(open_tab, written):
    (written.followed / "status.json").touch()  # as a run that goes on does each second
    tab = open_tab()
    open_run(tab, "followed")
    expect(
        tab.page.get_by_text("No seconds were predicted: no run beside it had trained the same spec.model")
    ).to_be_visible()
    expect(
        tab.page.get_by_text("No memory was predicted: the sizes of the models were not known")
    ).to_be_visible()
    table = tab.page.get_by_role("region", name="Predicted and measured seconds").get_by_role("row")
    expect(table.filter(has_text="generate")).to_have_text("generate–1.2 s–")
    table = tab.page.get_by_role("region", name="Table of generators").get_by_role("row")
    expect(table).to_have_text([re.compile("weight version"), "generator-0true25–"])
    expect(tab.page.get_by_text("Queue: prompts without responses").locator("xpath=..")).to_contain_text("11")


def test_the_reason_for_which_a_prompt_was_dropped_is_by_the_ledger(open_tab):
    tab = open_tab()
    open_run(tab, "blunt")
    tab.page.get_by_text("Why prompts were dropped (1)").click()
    expect(
        tab.page.get_by_role("listitem").filter(has_text="three generators failed on it")
    ).not_to_have_count(0)


def test_the_list_of_runs_has_what_they_cost(open_tab):
    page = open_tab().page
    expect(page.get_by_role("row", name=re.compile("kind"))).to_contain_text("4.500")
    page.get_by_role("button", name="Cost").click()
    expect(page.get_by_role("columnheader", name="Cost")).to_have_attribute("aria-sort", "descending")
