"""The token view: every token with its probability as a colour, and the alternatives for whoever asks."""

from __future__ import annotations

import math
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.playground import QUESTION, ask, finished, open_playground, set_parameters, text_of
from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess

BODY = {"model": "built-in", "seed": 7, "max_tokens": 16, "temperature": 1.0}


@pytest.fixture
def answer(visits: Visits, server: ServerProcess) -> Locator:
    page = open_playground(visits, server.url)
    page.locator("#show-tokens").check()
    page.locator("#alternatives").fill("4")
    set_parameters(page, seed=7, max_tokens=16, temperature=1.0)
    return finished(ask(page))


@pytest.fixture(scope="module")
def scores(server: ServerProcess) -> list[dict[str, Any]]:
    """The same answer, as the interface scores it."""
    body = BODY | {"messages": [{"role": "user", "content": QUESTION}], "logprobs": True, "top_logprobs": 4}
    with server.client() as client:
        reply = client.post("/v1/chat/completions", json=body).json()
    content: list[dict[str, Any]] = reply["choices"][0]["logprobs"]["content"]
    return content


def test_every_token_is_there_and_says_how_likely_it_was(
    answer: Locator, scores: list[dict[str, Any]]
) -> None:
    tokens = answer.get_by_role("option")
    expect(tokens).to_have_count(len(scores))
    assert text_of(answer) == "".join(each["token"] for each in scores)
    for number, score in enumerate(scores):
        label = tokens.nth(number).get_attribute("aria-label") or ""
        shown = float(label.rpartition(", ")[2].removeprefix("under ").removesuffix(" %"))
        assert shown == pytest.approx(100 * math.exp(score["logprob"]), abs=0.1)


def test_an_unlikely_token_is_coloured_and_a_certain_one_is_not(
    answer: Locator, scores: list[dict[str, Any]]
) -> None:
    order = sorted(range(len(scores)), key=lambda number: scores[number]["logprob"])
    unlikely, likely = (
        answer.get_by_role("option").nth(each).evaluate("each => getComputedStyle(each).backgroundColor")
        for each in (order[0], order[-1])
    )
    assert math.exp(scores[order[0]]["logprob"]) < 0.6
    assert unlikely != likely


@pytest.mark.parametrize("by", ["hover", "focus"])
def test_the_alternatives_are_shown(
    answer: Locator, scores: list[dict[str, Any]], page_of: Page, by: str
) -> None:
    token = answer.get_by_role("option").nth(3)
    if by == "hover":
        token.hover()
    else:
        answer.get_by_role("option").first.focus()
        for _ in range(3):
            page_of.keyboard.press("ArrowRight")
        expect(token).to_be_focused()
    card = page_of.get_by_role("tooltip")
    expect(card).to_be_visible()
    expect(token).to_have_attribute("aria-describedby", card.get_attribute("id") or "")
    alternatives = {each["token"] for each in scores[3]["top_logprobs"]} | {scores[3]["token"]}
    expect(card.locator("li")).to_have_count(len(alternatives))
    expect(card.locator("li.is-chosen")).to_contain_text("chosen")
    page_of.keyboard.press("Escape")
    expect(card).to_be_hidden()


@pytest.fixture
def page_of(answer: Locator) -> Page:
    return answer.page


def test_the_prompt_is_scored_where_that_is_asked(visits: Visits, server: ServerProcess) -> None:
    page = open_playground(visits, server.url)
    page.get_by_role("radio", name="Completion").check()
    page.locator("#show-tokens").check()
    page.locator("#score-prompt").check()
    set_parameters(page, max_tokens=2)
    answer = finished(ask(page, "Once upon a time"))
    prompt = answer.get_by_role("listbox", name="Tokens of the prompt").get_by_role("option")
    said = "".join(each.text_content() or "" for each in prompt.all()[1:])
    assert said.strip() == "Once upon a time"
