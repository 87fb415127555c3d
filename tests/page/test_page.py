"""The page of `rlhf ui` in a browser: what it shows, that it follows a run, and that a response stays text."""

import json
import math
import re

import pytest
from playwright.sync_api import expect
from tests.page.browser import BUILT, DEADLINE_MS
from tests.page.runs import ADVANTAGES, ENTROPIES, HOSTILE, OLD, SAMPLED, STEPS, STORED, WORDS, make_step
from tests.support.run_folders import append_lines

expect.set_options(timeout=DEADLINE_MS)


def open_run(tab, name="kind", view=None):
    """By its link; `view`: then by the entry above the page."""
    tab.page.get_by_role("link", name=name, exact=True).click()
    expect(tab.page.get_by_role("heading", level=1)).to_contain_text(name)
    if view is not None:
        tab.page.get_by_role("navigation").get_by_role("link", name=view).click()
        expect(tab.page.get_by_role("heading", level=1)).to_contain_text(view)


def test_every_view_opens_and_can_be_read_by_everyone(open_tab):
    tab = open_tab()
    page = tab.page
    expect(page.get_by_role("row", name=re.compile("kind"))).to_contain_text("Succeeded")
    assert tab.find_violations() == []
    for name in ("kind", "blunt"):
        page.get_by_role("checkbox", name=f"Select {name}").check()
    expect(page.get_by_role("heading", name="2 runs over each other")).to_be_visible()
    difference = page.get_by_role("row", name=re.compile("optimizer.learningRate"))
    expect(difference).to_contain_text("0.01")
    expect(page.locator("canvas")).not_to_have_count(0)
    assert tab.find_violations() == []
    page.get_by_role("radio", name="time").check()
    open_run(tab)
    expect(page.get_by_role("heading", name="Figures")).to_be_visible()
    expect(page.locator("canvas")).to_have_count(8)
    page.get_by_text("marks on the curves").click()
    expect(page.get_by_text("entropy below 2.2 for three steps")).to_be_visible()
    page.get_by_text("Logs", exact=True).click()
    expect(page.get_by_role("region", name="The end of trainer-0.log")).to_contain_text("resumed from")
    assert tab.find_violations() == []
    page.get_by_role("navigation").get_by_role("link", name="Samples").click()
    page.get_by_role("button", name=re.compile("story told twice")).click()
    expect(page.locator(".token")).to_have_count(len(WORDS))
    page.get_by_text("The group: all responses").click()
    expect(page.get_by_role("region", name="Responses of the group").get_by_role("listitem")).to_have_count(5)
    assert tab.find_violations() == []
    page.get_by_role("navigation").get_by_role("link", name="Timeline").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Timeline of kind")
    rank = page.get_by_role("row", name=re.compile("^trainer rank 1"))
    expect(rank).to_contain_text("wait for responses 1.2 s")
    expect(rank.get_by_role("cell").last).to_have_text("1.3 s")
    expect(page.locator(".bubbles li").first).to_contain_text(
        re.compile("generator-1, wait for work, from second 0.7")
    )
    assert tab.find_violations() == []


def test_a_step_is_saved_as_a_trace_for_perfetto(open_tab):
    tab = open_tab()
    open_run(tab, view="Timeline")
    with tab.page.expect_download() as saved:
        tab.page.get_by_role("button", name="Save for Perfetto").click()
    assert saved.value.suggested_filename == f"step-{STEPS}.trace.json"
    events = json.loads(saved.value.path().read_bytes())["traceEvents"]
    steps = sorted({event["args"]["step"] for event in events if event["ph"] == "X"})
    assert steps == list(range(STEPS - 19, STEPS + 1))


def test_a_step_of_an_older_run_has_its_parts(open_tab):
    tab = open_tab()
    open_run(tab, "blunt", "Timeline")
    expect(tab.page.get_by_text("This step has no record")).to_be_visible()
    expect(tab.page.get_by_role("row", name=re.compile("^trainer"))).to_contain_text("train 1.1 s")
    assert tab.page.get_by_role("button", name="Save for Perfetto").count() == 0


def test_a_run_begins_with_what_it_takes_and_its_conditions(open_tab):
    page = open_tab().page
    page.get_by_role("link", name="kind", exact=True).click()
    for name, text in (("Median step", "3.5 s"), ("GPU-hours", "1.500"), ("Cost", "4.500, 3 an hour")):
        fact = page.locator(".fact").filter(has=page.get_by_text(name, exact=True))
        expect(fact.get_by_role("definition")).to_have_text(text)
    page.get_by_text("Conditions: Stalled False, Complete True").click()
    expect(page.get_by_role("row", name=re.compile("^Complete True IsComplete"))).to_be_visible()


def test_a_tree_of_snapshots_leads_to_clones_and_back(open_tab):
    tab = open_tab()
    open_run(tab)
    tree = tab.page.get_by_role("region", name="Tree of snapshots").get_by_role("row")
    expect(tree.nth(1)).to_contain_text(re.compile(f"{STORED}.*resume.*clone.*export"))
    expect(tree.nth(2)).to_contain_text(f"the trainer was started again, and went on from step {STORED - 1}")
    expect(tree.nth(4)).to_contain_text("clone of step 20: blunt")
    verify = tree.nth(1).get_by_role(
        "button", name=f"Copy the command to verify step {STORED} by repeating it"
    )
    expect(verify).to_have_attribute("title", re.compile(f"^rlhf replay verify .* --step {STORED}$"))
    tree.nth(4).get_by_role("link", name="blunt").click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("blunt")
    expect(tree.last).to_contain_text("begun from step 20 of kind")
    assert tab.find_violations() == []


def test_a_step_appears_while_the_page_is_open(open_tab, written):
    tab = open_tab()
    open_run(tab, "followed")
    figure = tab.page.get_by_role("figure", name="Reward", exact=True)
    expect(figure).to_contain_text("at step 3,")
    figure.evaluate("element => { element.dataset.same = 'yes' }")
    append_lines(written.followed / "metrics.jsonl", [make_step(4) | {"reward_mean": 2.5}])
    expect(figure).to_contain_text("reward mean: 2.500 at step 4,")
    assert figure.get_attribute("data-same") == "yes"  # not drawn anew


def test_a_response_is_text_whatever_it_says(open_tab):
    tab = open_tab()
    open_run(tab, view="Samples")
    tab.page.get_by_role("searchbox", name="Text").fill("onerror")
    expect(tab.page.locator(".sample")).to_have_count(1)
    expect(tab.page.get_by_text("Searched 123 of 123 samples: 1 found.")).to_be_visible()
    expect(tab.page.get_by_role("heading", name="Scores of step 60: 1 sample with “onerror”")).to_be_visible()
    tab.page.locator(".sample .head").click()
    assert tab.page.locator(".whole .text").nth(1).text_content() == HOSTILE
    assert tab.page.locator("main img, main script").count() == 0
    assert tab.page.evaluate("window.hacked") is None


def shade(value: float) -> tuple[float, ...]:
    """Red, green, blue and opacity of a token's ground."""
    colour = (230, 140, 0) if value < 0 else (40, 140, 220)
    return pytest.approx((*colour, min(1, abs(value)) / 2) if value else (0, 0, 0, 0), abs=0.003)


def read_grounds(tokens) -> list[tuple[float, ...]]:
    """As the browser draws them: it keeps an opacity in a byte."""
    texts = tokens.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    return [tuple(map(float, re.findall(r"[\d.]+", text))) for text in texts]


def test_tokens_have_the_colours_of_the_stores_values(open_tab):
    tab = open_tab()
    open_run(tab, view="Samples")
    tab.page.get_by_role("button", name=re.compile("story told twice")).click()
    tokens = tab.page.locator(".token")
    expect(tokens).to_have_text(list(WORDS), use_inner_text=True)
    ratios = [shade((old - sampled) / math.log(2)) for old, sampled in zip(OLD, SAMPLED, strict=True)]
    assert read_grounds(tokens) == ratios
    tab.page.get_by_role("radio", name="Advantage").check()
    assert read_grounds(tokens) == [shade(advantage / max(ADVANTAGES)) for advantage in ADVANTAGES]
    tab.page.get_by_role("radio", name="Entropy").check()
    assert read_grounds(tokens) == [shade(entropy / 3) for entropy in ENTROPIES]


def test_a_bin_of_the_histogram_shows_its_samples(open_tab):
    tab = open_tab()
    open_run(tab, view="Samples")
    bins = tab.page.get_by_role("group", name=re.compile("^Scores")).get_by_role("button")
    first = bins.first
    expect(first).to_have_accessible_name(re.compile("^1 sample from"))
    first.click()
    expect(tab.page.locator(".sample")).to_have_count(1)
    expect(tab.page.locator(".sample")).to_contain_text("onerror")
    first.click()
    expect(tab.page.locator(".sample")).not_to_have_count(1)


def test_samples_come_in_the_order_asked_for_and_turns_in_theirs(open_tab):
    tab = open_tab()
    open_run(tab, view="Samples")
    tab.page.get_by_role("radio", name="worst").check()
    expect(tab.page.locator(".sample").first).to_contain_text("onerror")
    tab.page.get_by_role("radio", name="best").check()
    expect(tab.page.locator(".sample").first).to_contain_text("You are at a door.")
    tab.page.locator(".sample .head").first.click()
    expect(tab.page.locator(".whole .text").first).to_have_text("You are at a door.")
    expect(tab.page.get_by_role("list", name="Turns").get_by_role("listitem")).to_contain_text(
        ["open the door", "It is locked."]
    )


def test_all_responses_of_a_step_come_from_its_episode(open_tab):
    tab = open_tab()
    open_run(tab, view="Samples")
    expect(
        tab.page.get_by_text(f"Checkpoints have all responses of step {STORED}: choose it to see them.")
    ).to_be_visible()
    tab.page.get_by_label("Step", exact=True).select_option(str(STORED))
    expect(tab.page.get_by_text("15 of 15 samples.")).to_be_visible()
    tab.page.get_by_label("all responses of the step").check()
    expect(tab.page.get_by_text("1 of 1 sample.")).to_be_visible()
    expect(tab.page.get_by_role("heading", name=f"Scores of step {STORED}: 1 sample")).to_be_visible()
    tab.page.locator(".sample .head").click()
    expect(tab.page.locator(".token")).to_have_text(list(WORDS), use_inner_text=True)
    assert tab.find_violations() == []
    tab.page.get_by_label("all responses of the step").uncheck()
    expect(tab.page.get_by_text("15 of 15 samples.")).to_be_visible()


def test_the_keyboard_reaches_everything(open_tab):
    """Each control is found by Tab, in the order of the page, and does what it does by Enter, Space or arrows."""
    tab = open_tab()
    page = tab.page
    page.get_by_role("link", name="kind", exact=True).wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reach(page, "a", "kind")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("kind")
    expect(page.locator("canvas")).to_have_count(8)
    expect(page.get_by_role("region", name="Tree of snapshots")).to_contain_text("clone of step 20")
    controls = page.evaluate(CONTROLS)
    page.locator(".skip").focus()
    assert tab_through(page, len(controls)) == controls
    tab.open(re.sub(r".*#", "", page.url) + "/samples")
    page.get_by_role("button", name=re.compile("story told twice")).focus()
    page.keyboard.press("Enter")
    page.locator(".tokens .text").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".token.current")).to_have_text(WORDS[1])
    expect(page.locator(".readout")).to_contain_text("ratio 1.649")


NAME = "one => (one.getAttribute('aria-label') || one.textContent || one.placeholder || one.tagName).trim()"
CONTROLS = f"""() => [...document.querySelectorAll('a[href], button, input, summary, select, [tabindex="0"]')]
    .filter(one => !one.disabled && one.checkVisibility()).map({NAME})"""


def tab_through(page, count: int) -> list[str]:
    """The name of what has the focus, and of what Tab reaches after it."""
    names = []
    for _ in range(count):
        names.append(page.evaluate(f"({NAME})(document.activeElement)"))
        page.keyboard.press("Tab")
    return names


def reach(page, tag: str, text: str) -> None:
    for _ in range(100):
        page.keyboard.press("Tab")
        if page.evaluate("[document.activeElement.localName, document.activeElement.textContent]") == [
            tag,
            text,
        ]:
            return
    raise AssertionError(f"Tab does not reach {tag} {text!r}")


def test_a_phone_shows_it_without_scrolling_sideways(open_tab):
    tab = open_tab(viewport={"width": 360, "height": 740}, color_scheme="dark")
    tab.page.get_by_role("link", name="kind", exact=True).wait_for()
    widths = ["document.documentElement.scrollWidth"]
    for view in (None, "Samples", "Timeline"):
        assert tab.page.evaluate(widths[0]) == 360, view
        if view is None:
            open_run(tab)
        else:
            tab.page.get_by_role("navigation").get_by_role("link", name=view).click()
            expect(tab.page.get_by_role("heading", level=1)).to_contain_text(view)
    assert tab.page.evaluate(widths[0]) == 360


def test_without_the_token_the_page_says_where_it_is(browser, address):
    page = browser.new_page()
    page.goto(address.partition("#")[0])
    expect(page.get_by_role("status")).to_contain_text("Open the address that rlhf printed")
    page.close()


@pytest.mark.skipif(not BUILT.exists(), reason="`make page` builds the page")
def test_the_bundle_can_be_inlined_and_is_small():
    script = (BUILT.parent / "page.js").read_text()
    assert "</script" not in script.lower()
    assert "<!--" not in script
    assert sum(file.stat().st_size for file in BUILT.parent.iterdir()) < 200_000
