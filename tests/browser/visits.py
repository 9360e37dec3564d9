"""Pages as a visitor sees them, and a list of everything that went wrong beside what the test looks at."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

from tests.patience import PATIENCE

_OWN: Final = re.compile(r"data:|blob:|about:|file:")
_VIOLATIONS: Final = """document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.effectiveDirective} refused ${event.blockedURI}`));"""


@attrs.define(slots=False)  # playwright writes into the objects of its listeners
class Visits:
    """Opens pages, each by default in a context of its own (a private window).

    Attributes:
        requested: every address that any page asked for.
        faults: console errors, uncaught errors, violations of the content security policy, failed requests.
    """

    browser: Browser
    requested: list[str] = attrs.field(factory=list)
    faults: list[str] = attrs.field(factory=list)
    _hosts: set[str] = attrs.field(factory=set)
    _expected: list[str] = attrs.field(factory=list)
    _contexts: list[BrowserContext] = attrs.field(factory=list)

    def open(self, url: str, **options: Any) -> Page:
        """A page at `url` in a new context; `options` are those of `Browser.new_context`."""
        context = self.browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        context.set_default_timeout(1000 * PATIENCE)
        context.add_init_script(_VIOLATIONS)
        context.on("request", self._note_request)
        context.on("requestfailed", self._note_failure)
        context.on("console", self._note_console)
        context.on("weberror", lambda each: self.faults.append(f"uncaught: {each.error}"))
        self._contexts.append(context)
        return self.again(context, url)

    def again(self, context: BrowserContext, url: str) -> Page:
        """Another tab of a context."""
        self._hosts.add(urlsplit(url).netloc)
        page = context.new_page()
        page.goto(url)
        return page

    def expect_fault(self, pattern: str) -> None:
        """What matches is no fault: the test provokes it."""
        self._expected.append(pattern)

    def close(self) -> None:
        """Leave all pages, and fail if something went wrong in one of them."""
        for each in self._contexts:
            each.close()
        unexpected = [
            each for each in self.faults if not any(re.search(known, each) for known in self._expected)
        ]
        assert not unexpected, "\n".join(unexpected)
        elsewhere = [
            each
            for each in self.requested
            if not _OWN.match(each) and urlsplit(each).netloc not in self._hosts
        ]
        assert not elsewhere, f"asked other hosts: {elsewhere}"

    def _note_request(self, request: Request) -> None:
        self.requested.append(request.url)

    def _note_failure(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # which is the page's own wish
            self.faults.append(f"{request.failure}: {request.method} {request.url}")

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.faults.append(f"console: {message.text} ({message.location['url']})")


def unfolded(page: Page) -> Page:
    """The page with everything open that can be folded."""
    page.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true })")
    return page
