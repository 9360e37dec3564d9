"""Without a mouse: the keyboard reaches every control, in an order that makes sense, and one always sees where it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.engine_page import open_engine
from tests.browser.playground import open_playground, set_parameters
from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess

FOCUSED = "document.activeElement"


def tab_until(page: Page, condition: str, what: str) -> list[str]:
    """Press Tab until something has the focus; everybody on the way must be seen to have it."""
    passed: list[str] = []
    for _ in range(120):
        page.keyboard.press("Tab")
        passed.append(
            page.evaluate(
                f"{FOCUSED}.id || {FOCUSED}.getAttribute('aria-label') || {FOCUSED}.textContent.trim()"
            )
        )
        if page.evaluate(f"{FOCUSED} !== document.body"):
            assert page.evaluate(f"{FOCUSED}.matches(':focus-visible')"), passed[-1]
        if page.evaluate(f"Boolean({condition})"):
            return passed
    raise AssertionError(f"{what} is not reached: {passed}")


def on(selector: str) -> str:
    return f"{FOCUSED}.matches({selector!r})"


@pytest.fixture
def keyboard(visits: Visits, server: ServerProcess) -> Callable[[str], Page]:
    def open_at(view: str) -> Page:
        opening = open_engine if view == "engine" else open_playground
        return opening(visits, server.url)

    return open_at


def test_a_chat_without_a_mouse(keyboard: Callable[[str], Page]) -> None:
    page = keyboard("playground")
    set_parameters(page, max_tokens=900, ignore_eos=True)
    page.evaluate(f"{FOCUSED}.blur()")
    tab_until(page, on("#prompt"), "the message")
    page.keyboard.type("Tell me a story.")
    page.keyboard.press("Enter")
    answer = page.get_by_role("article", name="Answer")
    expect(answer.locator(".answer-text")).not_to_be_empty()
    tab_until(page, on("#stop"), "the stop button")
    page.keyboard.press("Enter")
    expect(answer.locator("[data-fact='ended by'] dd")).to_have_text("you")
    expect(page.locator("#prompt")).to_be_focused()


def test_every_control_of_the_playground_is_reached(keyboard: Callable[[str], Page]) -> None:
    page = keyboard("playground")
    page.evaluate("document.body.tabIndex = -1; document.body.focus()")
    passed = tab_until(page, on("#reset-parameters"), "the last button")
    wanted = {
        "tab-playground",
        "theme-button",
        "mode-chat",
        "new-conversation",
        "prompt",
        "send",
        "show-tokens",
        "alternatives",
    }
    assert wanted | {"p-temperature", "p-top_p", "p-max_tokens", "p-seed", "p-n", "p-top_k"} <= set(passed)
    assert passed[0] == "Skip to the content"


def test_every_control_of_the_engine_is_reached(keyboard: Callable[[str], Page]) -> None:
    page = keyboard("engine")
    passed = tab_until(page, f"{FOCUSED}.textContent === 'Block map as a table'", "the last table")
    for name in ("Pause", "Position in the log", "Show fewer steps", "Show more steps", "By time"):
        assert name in passed
    assert any(each.startswith("Timeline of steps") for each in passed)
    assert any(each.startswith("Block map of cache group 0") for each in passed)


def test_the_theme_is_chosen_and_kept(keyboard: Callable[[str], Page]) -> None:
    page = keyboard("engine")
    page.emulate_media(color_scheme="dark")
    theme = page.locator("html")
    expect(theme).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Theme: system").press("Enter")
    expect(theme).to_have_attribute("data-theme", "light")
    page.reload()
    expect(theme).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="Theme: light").press("Enter")
    expect(theme).to_have_attribute("data-theme", "dark")
    expect(page.get_by_role("button", name="Theme: dark")).to_be_focused()
