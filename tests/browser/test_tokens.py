"""The token view: every token with its probability as a colour, and the alternatives to it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.playground import QUESTION, ask, finished, open_playground, set_parameters, text_of
from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess


def test_an_answer_by_its_tokens(visits: Visits, server: ServerProcess) -> None:
    page = open_playground(visits, server.url)
    page.locator("#show-tokens").check()
    page.locator("#alternatives").fill("4")
    set_parameters(page, seed=7, max_tokens=16, temperature=1.0)
    answer = finished(ask(page))
    scores = scores_of_the_answer(server)
    tokens = answer.get_by_role("option")
    expect(tokens).to_have_count(len(scores))
    assert text_of(answer) == "".join(each["token"] for each in scores)
    for number, score in enumerate(scores):
        label = tokens.nth(number).get_attribute("aria-label") or ""
        shown = float(label.rpartition(", ")[2].removeprefix("under ").removesuffix(" %"))
        assert shown == pytest.approx(100 * math.exp(score["logprob"]), abs=0.1)
    order = sorted(range(len(scores)), key=lambda number: scores[number]["logprob"])
    unlikely, likely = (
        tokens.nth(each).evaluate("each => getComputedStyle(each).backgroundColor")
        for each in (order[0], order[-1])
    )
    assert math.exp(scores[order[0]]["logprob"]) < 0.6
    assert unlikely != likely
    tokens.nth(3).hover()
    expect_alternatives(tokens.nth(3), scores[3])
    tokens.first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(tokens.nth(3)).to_be_focused()
    expect_alternatives(tokens.nth(3), scores[3])


def expect_alternatives(token: Locator, score: dict[str, Any]) -> None:
    """They are shown beside the token until Escape is pressed."""
    card = token.page.get_by_role("tooltip")
    expect(card).to_be_visible()
    expect(token).to_have_attribute("aria-describedby", card.get_attribute("id") or "")
    alternatives = {each["token"] for each in score["top_logprobs"]} | {score["token"]}
    expect(card.locator("li")).to_have_count(len(alternatives))
    expect(card.locator("li.is-chosen")).to_contain_text("chosen")
    token.page.keyboard.press("Escape")
    expect(card).to_be_hidden()


def scores_of_the_answer(server: ServerProcess) -> list[dict[str, Any]]:
    """The same answer, as the interface scores it."""
    body = {"model": "built-in", "seed": 7, "max_tokens": 16, "temperature": 1.0, "logprobs": True}
    messages = [{"role": "user", "content": QUESTION}]
    with server.client() as client:
        reply = client.post(
            "/v1/chat/completions", json=body | {"messages": messages, "top_logprobs": 4}
        ).json()
    content: list[dict[str, Any]] = reply["choices"][0]["logprobs"]["content"]
    return content


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
