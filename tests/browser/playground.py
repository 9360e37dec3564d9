"""The playground as its reader works it."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.browser.visits import Visits

QUESTION = "Tell me a story about a fox and a lamp."


def open_playground(visits: Visits, url: str, *, model: str = "built-in", **options: Any) -> Page:
    """Its page, once it knows what the server serves."""
    page = visits.open(f"{url.rstrip('/')}/#playground", **options)
    expect(page.locator("#served")).to_contain_text(model)
    return page


def set_parameters(page: Page, **values: Any) -> None:
    """Fill in parameters by their names in the interface; True and False are switches."""
    page.locator("#more-parameters").evaluate("each => { each.open = true }")
    for name, value in values.items():
        field = page.locator(f"#p-{name}")
        if isinstance(value, bool):
            field.set_checked(value)
        else:
            field.fill(str(value))


def ask(page: Page, text: str = QUESTION) -> Locator:
    """Send a text; the answer, which may still grow."""
    number = page.get_by_role("article", name="Answer").count()
    page.locator("#prompt").fill(text)
    page.locator("#send").click()
    return page.get_by_role("article", name="Answer").nth(number)


def finished(answer: Locator) -> Locator:
    """The answer, once it has ended."""
    expect(answer).to_have_attribute("aria-busy", "false")
    return answer


def text_of(answer: Locator) -> str:
    """What it says, to the last space."""
    return answer.locator(".answer-text").first.text_content() or ""


def ask_and_read_body(page: Page, text: str = QUESTION) -> dict[str, Any]:
    """Send a text; the request's body."""
    with page.expect_request("**/v1/**completions") as sent:
        ask(page, text)
    body: dict[str, Any] = json.loads(sent.value.post_data or "")
    return body
