"""What a screen reader meets: pictures told in words, in a sensible order, and no more news than one can hear."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.engine_page import VIEW, open_engine, script
from tests.browser.playground import ask, finished, open_playground, set_parameters
from tests.browser.sending import sender
from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess

LISTEN = script("listen.js")
"""Keeps what every live region says from now on in `window.heard`."""
ENGINE = script("engine.aria.yaml")
ANSWER = script("answer.aria.yaml")


def heard(page: Page) -> list[str]:
    texts: list[str] = page.evaluate("window.heard")
    return texts


def test_the_engine_is_silent_at_work_and_told_in_words_when_it_is_held(
    visits: Visits, server: ServerProcess
) -> None:
    page = open_engine(visits, server.url)
    page.evaluate(LISTEN)
    with sender(server.url) as sending:
        sending.send([5, 6, 7], max_tokens=80)
    page.wait_for_function(f"() => {VIEW}.replay.step > 60 && {VIEW}.replay.sequences.size === 0")
    assert heard(page) == []
    with sender(server.url) as sending:
        sending.send([5, 6, 7], max_tokens=40)
        page.wait_for_function(f"() => {VIEW}.replay.sequences.size === 1")
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("tabpanel")).to_match_aria_snapshot(ENGINE)


def test_a_picture_is_read_with_the_arrow_keys_and_speaks_while_they_move(
    visits: Visits, server: ServerProcess
) -> None:
    page = open_engine(visits, server.url)
    with sender(server.url) as sending:
        sending.send([5, 6, 7], max_tokens=20)
    page.wait_for_function(f"() => {VIEW}.replay.step > 10 && {VIEW}.replay.sequences.size === 0")
    for picture, key, panel, expected in (
        ("timeline", "ArrowLeft", "#engine-step-facts", "Step"),
        ("block map", "ArrowRight", "#engine-block-facts", "Block 2:"),
    ):
        canvas, facts = page.locator(f"[aria-roledescription='{picture}']"), page.locator(panel)
        canvas.focus()
        expect(facts).not_to_have_attribute("aria-live", "polite")
        before = facts.inner_text()
        page.keyboard.press(key)
        page.keyboard.press(key)
        expect(facts).not_to_have_text(before)
        expect(facts).to_contain_text(expected)
        expect(facts).to_have_attribute("aria-live", "polite")
        canvas.blur()
        expect(facts).not_to_have_attribute("aria-live", "polite")


def test_an_answer_is_told_in_sentences_and_not_in_tokens(visits: Visits, server: ServerProcess) -> None:
    page = open_playground(visits, server.url)
    set_parameters(page, max_tokens=60, seed=3, ignore_eos=True)
    page.evaluate(LISTEN)
    answer = finished(ask(page))
    assert 2 <= len(heard(page)) <= 20
    assert heard(page)[0] == "Answering"
    said = "".join(heard(page)[1:])
    assert "".join(said.split()) == "".join((answer.locator(".answer-text").text_content() or "").split())
    expect(answer).to_match_aria_snapshot(ANSWER)


def test_the_tabs_are_a_tab_list(visits: Visits, server: ServerProcess) -> None:
    """As the WAI-ARIA practices have it: one tab stop, arrows that go round, a panel that is named by its tab."""
    page = open_playground(visits, server.url)
    tabs = page.get_by_role("tablist", name="Views").get_by_role("tab")
    tabs.first.focus()
    for key, chosen in [("ArrowLeft", 1), ("ArrowRight", 0), ("End", 1), ("ArrowRight", 0), ("ArrowLeft", 1)]:
        page.keyboard.press(key)
        expect(tabs.nth(chosen)).to_be_focused()
        for number in (0, 1):
            is_chosen = number == chosen
            expect(tabs.nth(number)).to_have_attribute("aria-selected", str(is_chosen).lower())
            assert tabs.nth(number).evaluate("each => each.tabIndex") == (0 if is_chosen else -1)
        expect(page.get_by_role("tabpanel")).to_have_count(1)
        expect(page.get_by_role("tabpanel", name=tabs.nth(chosen).inner_text())).to_be_visible()
        assert tabs.nth(chosen).get_attribute("aria-controls") == page.get_by_role("tabpanel").get_attribute(
            "id"
        )
