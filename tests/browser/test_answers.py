"""The playground with a model that thinks, calls tools and keeps to a schema: what a script has for it to say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.playground import ask, ask_and_read_body, finished, open_playground, set_parameters
from tests.browser.test_accessibility import PHONE, grave_faults, too_wide
from tests.browser.visits import Visits, unfolded
from tests.unit.entrypoints.server.http.app_world import AppWorld
from tests.unit.entrypoints.server.protocols.talking_world import talking

THOUGHT = "I look it up for both."
ROME = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'
SCRIPT = {
    "Rain?": f"<think>{THOUGHT}</think>Let me see.\n{ROME}\n{ROME.replace('3', '0')}",
    "it is dry": "<think>So</think>No <b>rain</b> <img src=x>",
    "poem?": "<think>\nI rhyme.\n\nWell.\n</think>\n\nOne.\n\nTwo\n  three\n\nfour ",
    "long?": "".join(f"line {number}\n" for number in range(80)),
    "book?": '{"title": "A fox", "mood": "glad"}',
}


@pytest.fixture(scope="module")
def world(chromium: str) -> Iterator[AppWorld]:
    with talking(SCRIPT, variables=()) as (started, _):
        yield started


@pytest.fixture
def playground(world: AppWorld, visits: Visits) -> Page:
    page = open_playground(visits, world.url, model="talker")
    page.locator("#show-tokens").uncheck()
    return page


def give_example(page: Page, box: str) -> None:
    """Open a box and take its example."""
    page.locator(f"#{box}-details summary").click()
    page.locator(f"#{box}-example").click()


def test_thoughts_fold_and_calls_are_answered(world: AppWorld, playground: Page) -> None:
    page = playground
    give_example(page, "tools")
    world.call(lambda: world.engine.allow(20))
    answer = ask(page, "Rain?")
    reasoning = answer.locator("details.reasoning")
    expect(reasoning).to_contain_text(THOUGHT[:10])
    expect(reasoning).to_have_attribute("open", "")
    world.call(lambda: world.engine.allow(75))
    expect(answer.locator(".call-arguments")).to_contain_text('{\n  "city": "')
    expect(reasoning).not_to_have_attribute("open", "")
    world.call(lambda: world.engine.allow(None))
    finished(answer)
    expect(reasoning.locator("summary")).to_have_text(f"Thought for {len(THOUGHT)} tokens")
    expect(answer.locator(".call-arguments").first).to_have_text('{\n  "city": "Rome",\n  "days": 3\n}')
    expect(answer.locator(".call-state")).to_have_text(["waits for its result"] * 2)
    expect(answer.locator(".call > .problem").first).to_be_empty()
    expect(answer.locator(".call > .problem").nth(1)).to_contain_text("days must be at least 1")
    results = answer.get_by_label("Result of weather")
    results.nth(0).fill("it is dry")
    results.nth(0).press("Enter")
    expect(results.nth(1)).to_be_focused()
    results.nth(1).fill("it is dry")
    with page.expect_request("**/v1/chat/completions") as sent:
        answer.get_by_role("button", name="Send the 2 results").click()
    expect(page.locator("#prompt")).to_be_focused()
    said: list[dict[str, Any]] = json.loads(sent.value.post_data or "")["messages"]
    second = finished(page.get_by_role("article", name="Answer").nth(1))
    assert [each["role"] for each in said] == ["user", "assistant", "tool", "tool"]
    called = said[1]
    assert (called["reasoning_content"], called["content"]) == (THOUGHT, "Let me see.")
    assert [each["tool_call_id"] for each in said[2:]] == [each["id"] for each in called["tool_calls"]]
    assert [each["content"] for each in said[2:]] == ["it is dry"] * 2
    expect(second.locator(".answer-text")).to_have_text("No <b>rain</b> <img src=x>")
    assert second.locator(".answer-text > *").count() == 0, "what a model says is text"
    expect(answer.locator(".call-state")).to_have_text(["answered"] * 2)


def test_boxes_name_their_faults_as_they_are_typed(playground: Page, visits: Visits) -> None:
    page = playground
    page.locator("#schema-details summary").click()
    box, problem = page.locator("#schema"), page.locator("#schema-problem")
    for text, fault in [
        ('{"type": "object",}', "line 1, column 19: expected a name in quotes, found }"),
        ('{"properties": {"a": {"type": "objekt"}}}', "$.properties.a.type must be of object, array"),
    ]:
        box.fill(text)
        expect(problem).to_contain_text(fault)
        expect(box).to_have_attribute("aria-invalid", "true")
        expect(page.locator("#schema-state")).to_have_text("has a fault")
    ask(page, "book?")
    expect(page.locator("#prompt")).to_have_value("book?")
    expect(box).to_be_focused()
    visits.expect_fault("status of 400")
    box.fill('{"type": "object", "minProperties": 1, "maxProperties": 0}')
    expect(problem).to_be_empty()
    ask(page, "book?")
    expect(problem).to_contain_text("response_format")
    give_example(page, "tools")
    expect(problem).to_contain_text("cannot be combined with tools")
    page.locator("#tool-choice").select_option("none")
    expect(problem).to_be_empty()


def test_the_tokens_of_an_answer_are_its_text_line_breaks_and_all(world: AppWorld, visits: Visits) -> None:
    page = open_playground(visits, world.url, model="talker")
    answer = finished(ask(page, "poem?"))
    for shown in (".thought", ".answer-text"):
        part = answer.locator(".part", has=page.locator(shown))
        tokens = part.get_by_role("option", include_hidden=True).all_text_contents()
        said = part.locator(shown).text_content() or ""
        assert "\n\n" in said
        assert "".join(tokens).replace("\u21b5", "") == said


def test_what_is_sent_is_scrolled_to_and_an_answer_followed_until_the_reader_scrolls_up(
    world: AppWorld, playground: Page
) -> None:
    page = playground
    page.set_viewport_size({"width": 1280, "height": 640})
    for box in ("#tools-details", "#schema-details", "#thinking-details", "#request-code"):
        page.locator(f"{box} summary").click()
    page.evaluate("scrollTo(0, 0)")
    world.call(lambda: world.engine.allow(20))
    answer = ask(page, "long?")
    expect(page.get_by_role("article", name="You")).to_be_in_viewport(ratio=1)
    world.call(lambda: world.engine.allow(160))
    expect(answer).to_contain_text("line 15")
    wait_until_end_is_shown(page)
    page.evaluate("scrollTo(0, 0)")
    world.call(lambda: world.engine.allow(None))
    finished(answer)
    assert page.evaluate("scrollY") == 0
    page.locator("#tools-example").click()
    page.evaluate("scrollTo(0, 0)")
    finished(ask(page, "Rain?"))
    expect(page.get_by_label("Result of weather").last).to_be_in_viewport(ratio=1)
    wait_until_end_is_shown(page)


def wait_until_end_is_shown(page: Page) -> None:
    """Until the last turn ends above the composer."""
    page.wait_for_function("""() => {
      const end = document.querySelector("#chat-turns").getBoundingClientRect().bottom;
      return end <= Math.min(document.querySelector("#composer").getBoundingClientRect().top, innerHeight);
    }""")


def test_an_answer_is_checked_against_its_schema(playground: Page) -> None:
    page = playground
    give_example(page, "schema")
    body = ask_and_read_body(page, "book?")
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["title", "mood"]
    answers = page.get_by_role("article", name="Answer")
    expect(finished(answers.first).locator(".verdict.good")).to_have_text("The answer fits the schema.")
    set_parameters(page, max_tokens=9)
    expect(finished(ask(page, "book?")).locator(".verdict.bad")).to_contain_text("is not whole")


def test_thoughts_cards_and_boxes_can_be_used_by_all(world: AppWorld, visits: Visits) -> None:
    page = open_playground(visits, world.url, model="talker", **PHONE)
    give_example(page, "tools")
    answer = finished(ask(page, "Rain?"))
    answer.get_by_label("Result of weather").first.press("Enter")
    page.locator("#schema").evaluate("each => { each.value = '{'; each.dispatchEvent(new Event('input')) }")
    assert grave_faults(unfolded(page)) == []
    assert too_wide(page) == []


def test_thinking_is_bounded_and_switched_in_its_box(playground: Page, visits: Visits) -> None:
    visits.expect_fault("status of 400")
    page = playground
    page.locator("#thinking-details summary").click()
    page.locator("#thinking-budget").fill("3")
    expect(page.locator("#thinking-state")).to_have_text("set")
    with page.expect_request("**/v1/chat/completions") as sent:
        answer = ask(page, "Rain?")
    body = json.loads(sent.value.post_data or "")
    finished(answer)
    assert body["thinking_token_budget"] == 3
    assert "reasoning_effort" not in body
    expect(answer.locator("details.reasoning")).to_contain_text(THOUGHT[:3])
    expect(answer.locator("details.reasoning")).not_to_contain_text(THOUGHT[:6])
    page.locator("#thinking-budget").fill("")
    page.locator("#thinking-effort").select_option("none")
    ask(page, "Rain?")
    expect(page.locator("#thinking-problem")).to_contain_text("this model always reasons")
    page.locator("#thinking-effort").select_option("")
    expect(page.locator("#thinking-problem")).to_be_empty()
