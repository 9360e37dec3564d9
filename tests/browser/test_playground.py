"""The playground against the server: what is asked arrives, what is answered is shown, as it comes."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.engine_page import script
from tests.browser.playground import (
    QUESTION,
    ask,
    ask_and_read_body,
    finished,
    open_playground,
    set_parameters,
    text_of,
)
from tests.browser.visits import Visits
from tests.patience import PATIENCE
from tests.process.server_process import ServerProcess

WATCH_GROWTH = script("watch_growth.js")
EVERYTHING: dict[str, Any] = json.loads(script("everything.json"))


@pytest.fixture
def page(visits: Visits, server: ServerProcess) -> Page:
    return open_playground(visits, server.url)


def typed(value: Any) -> Any:
    """A value as it is typed into its field."""
    if isinstance(value, dict):
        return "\n".join(f"{token}: {bias}" for token, bias in value.items())
    if isinstance(value, list) and isinstance(value[0], str):
        return "\n".join(each.replace("\n", "\\n") for each in value)
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def test_a_chat_grows_while_it_comes_and_ends_as_the_interface_answers(
    page: Page, server: ServerProcess
) -> None:
    page.evaluate(WATCH_GROWTH)
    set_parameters(page, seed=7, max_tokens=200, ignore_eos=True)
    answer = finished(ask(page))
    growth: list[str] = page.evaluate("window.growth")
    assert len(growth) > 3
    assert all(after.startswith(before) for before, after in itertools.pairwise(growth))
    body = {"model": "built-in", "seed": 7, "max_tokens": 200, "ignore_eos": True}
    with server.client() as client:
        message = {"role": "user", "content": QUESTION}
        reply = client.post("/v1/chat/completions", json=body | {"messages": [message]}).json()
    assert text_of(answer) == growth[-1] == reply["choices"][0]["message"]["content"]
    expect(page.locator("#prompt")).to_have_value("")
    timings = answer.locator(".timings")
    for fact in ("queue", "prefill", "decode", "TTFT"):
        expect(timings.locator(f"[data-fact='{fact}'] dd")).to_have_text(re.compile(r"^[\d.]+ m?s$"))
    expect(timings.locator("[data-fact=speed] dd")).to_have_text(re.compile(r"^[\d.]+ tok/s$"))
    expect(timings.locator("[data-fact=answer] dd")).to_have_text("200 tokens")
    expect(timings.locator("[data-fact='ended by'] dd")).to_have_text("length")


def test_a_conversation_goes_on_from_what_was_said_and_leaves_the_rest_to_the_server(page: Page) -> None:
    page.locator("#system-details summary").click()
    page.locator("#system").fill("Be brief.")
    set_parameters(page, seed=1, max_tokens=12)
    first = text_of(finished(ask(page)))
    set_parameters(page, seed="", max_tokens="")
    body = ask_and_read_body(page, "Go on.")
    assert [(each["role"], each["content"]) for each in body["messages"]] == [
        ("system", "Be brief."),
        ("user", QUESTION),
        ("assistant", first),
        ("user", "Go on."),
    ]
    page_asks = {"logprobs", "top_logprobs", "stream", "stream_options", "return_timings"}
    assert set(body) == {"model", "messages"} | page_asks
    page.locator("#stop").click()


def test_a_raw_completion_goes_on_from_the_prompt(page: Page, server: ServerProcess) -> None:
    page.get_by_role("radio", name="Completion").check()
    set_parameters(page, seed=3, max_tokens=20)
    answer = finished(ask(page, "Once upon a time"))
    body = {"model": "built-in", "prompt": "Once upon a time", "seed": 3, "max_tokens": 20}
    with server.client() as client:
        reply = client.post("/v1/completions", json=body).json()
    assert text_of(answer) == reply["choices"][0]["text"]


def test_every_parameter_arrives(page: Page) -> None:
    set_parameters(page, **{name: typed(value) for name, value in EVERYTHING.items()})
    body = ask_and_read_body(page)
    assert {name: body[name] for name in EVERYTHING} == EVERYTHING
    finished(page.get_by_role("article", name="Answer"))
    expect(page.locator(".choice")).to_have_count(2)
    shown = page.locator("[id^=p-]:is(input, textarea):visible").evaluate_all(
        "all => all.map((each) => each.name)"
    )
    assert set(EVERYTHING) == set(shown), "a parameter is not tried here"


def test_a_completion_has_128_tokens_where_nothing_else_is_asked_for(page: Page) -> None:
    page.get_by_role("radio", name="Completion").check()
    expect(page.locator("#p-max_tokens")).to_have_attribute("placeholder", "128")
    assert ask_and_read_body(page, "Once upon a time")["max_tokens"] == 128
    finished(page.get_by_role("article", name="Answer"))
    set_parameters(page, max_tokens=3)
    assert ask_and_read_body(page, "Once upon a time")["max_tokens"] == 3


@pytest.mark.parametrize(
    ("field", "wrong", "problem", "right"),
    [
        ("p-temperature", "-1", "must be from 0 to 100, got -1", "0"),
        ("p-top_p", "-1", "must be from 0 to 1, got -1", "1"),
        ("p-max_tokens", "2.5", "must be a whole number, got 2.5", "2"),
        ("alternatives", "21", "must be from 0 to 20, got 21", "20"),
    ],
)
def test_what_is_out_of_range_is_marked_as_it_is_typed(
    page: Page, field: str, wrong: str, problem: str, right: str
) -> None:
    box = page.locator(f"#{field}")
    box.fill(wrong)
    expect(page.locator(f"#{field}-problem")).to_have_text(problem)
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(box).to_be_focused()
    box.fill(right)
    expect(page.locator(f"#{field}-problem")).to_be_empty()
    expect(box).not_to_have_attribute("aria-invalid", "true")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("temperature", "-1", "temperature"),
        ("max_tokens", "0", "must be from 1 to"),
        ("logit_bias", "nonsense", "lines such as"),
    ],
)
def test_a_value_that_cannot_be_is_named_at_its_field(
    page: Page, visits: Visits, name: str, value: str, problem: str
) -> None:
    visits.expect_fault("status of 400")
    set_parameters(page, **{name: value})
    page.locator("#prompt").fill(QUESTION)
    page.locator("#send").click()
    expect(page.locator(f"#p-{name}-problem")).to_contain_text(problem)
    expect(page.locator(f"#p-{name}")).to_have_attribute("aria-invalid", "true")
    expect(page.locator(f"#p-{name}")).to_be_focused()
    expect(page.locator("#prompt")).to_have_value(QUESTION)
    set_parameters(page, **{name: "", "max_tokens": 3})
    finished(ask(page))
    expect(page.locator(f"#p-{name}-problem")).to_be_empty()


def test_the_request_as_code_does_what_the_page_did(visits: Visits, server: ServerProcess) -> None:
    page = open_playground(visits, server.url, permissions=["clipboard-read", "clipboard-write"])
    question = 'What\'s `this`? \n\\ "$HOME"'
    page.locator("#request-code summary").click()
    page.locator("#prompt").fill(question)
    set_parameters(page, seed=5, max_tokens=12, top_k=40, stop='it\'s "quoted" $HOME\n')
    expect(page.locator("#request-text")).to_contain_text('"top_k": 40')
    page.get_by_role("radio", name="Python").check()
    expect(page.locator("#request-text")).to_contain_text("from openai import OpenAI")
    answer = finished(ask(page, question))
    command = copied(answer, "Copy as curl")
    words = shlex.split(command)
    assert json.loads(words[words.index("-d") + 1])["messages"][0]["content"] == question
    frames = [
        json.loads(each[6:]) for each in output("bash", command).splitlines() if each.startswith("data: {")
    ]
    said = "".join(each["choices"][0]["delta"].get("content", "") for each in frames if each["choices"])
    assert said == text_of(answer)
    assert output(sys.executable, copied(answer, "Copy as Python")) == text_of(answer) + "\n"


def copied(answer: Locator, button: str) -> str:
    """What a button puts on the clipboard."""
    answer.get_by_role("button", name=button).click()
    expect(answer.get_by_role("button", name="Copied")).to_be_visible()
    expect(answer.get_by_role("button", name="Copied")).to_be_hidden()
    text: str = answer.page.evaluate("navigator.clipboard.readText()")
    return text


def output(interpreter: str, code: str) -> str:
    done = subprocess.run(
        [interpreter, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.stdout, done.stderr
    return done.stdout
