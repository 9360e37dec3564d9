"""Debian's Chromium, found and started; playwright's own builds are not used."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Final

import pytest
from playwright.sync_api import Browser, sync_playwright

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS: Final = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # whatever the page asks for stays here
)


def chromium_path(*, required: bool = True) -> str:
    """Where it is; without one the test fails, or is skipped where no browser is required."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        reason = f"no Chromium on PATH ({', '.join(_NAMES)}): `make browser` installs Debian's"
        (pytest.fail if required else pytest.skip)(reason)
    return found


@contextlib.contextmanager
def started_chromium(path: str) -> Iterator[Browser]:
    """One browser with a profile of its own, headless, without a sandbox because CI is root."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=list(_ARGUMENTS), chromium_sandbox=False
        )
        try:
            yield browser
        finally:
            browser.close()
