"""What axe-core finds wrong with a page: its rules are run inside of it, with the page's security policy on."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any, Final

from playwright.sync_api import Page

_GRAVE: Final = {"serious", "critical"}


def grave_faults(page: Page) -> list[str]:
    """Serious and critical violations of WCAG 2.2 AA and of axe's best practices, one line for each element."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(_rules())
    result: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert result["passes"], "axe has looked at nothing"
    return [
        f"{each['id']} ({each['impact']}): {', '.join(map(str, node['target']))}: {node['failureSummary']}"
        for each in result["violations"]
        if each["impact"] in _GRAVE
        for node in each["nodes"]
    ]


@functools.cache
def _rules() -> str:
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text()
