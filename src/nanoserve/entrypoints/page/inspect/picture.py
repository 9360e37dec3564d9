"""Draws a report as a PNG: a headless Chromium on this machine opens it as one picture of the whole run."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from nanoserve.ports.errors import BadValueError

BROWSERS: Final = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
WIDTH, HEIGHT, SCALE = 1280, 960, 1.25
"""CSS pixels, and pixels of the picture for each."""
TIMEOUT_SECONDS: Final = 300.0
"""A trace of 100 MB takes a quarter of a minute."""
_SETTLING_MS: Final = 5000  # on the page's own clock, which runs ahead while nothing happens
_OPTIONS: Final = (
    *(
        "--headless",
        "--disable-gpu",
        "--hide-scrollbars",
        "--no-first-run",
        "--disable-background-networking",
    ),
    f"--window-size={WIDTH},{HEIGHT}",
    f"--force-device-scale-factor={SCALE}",
    f"--virtual-time-budget={_SETTLING_MS}",
)


def find_browser() -> str:
    """The program that draws; raises `BadValueError` if there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        message = (
            "needs Chromium or Chrome to draw the page: install one (Debian: apt install chromium), "
            "or write --report and open it in any browser"
        )
        raise BadValueError("png", message)
    return found


def draw(document: bytes, path: str) -> None:
    """Write a PNG of a report. Raises `BadValueError` if the browser cannot draw it, and `OSError`."""
    browser = find_browser()
    # Beside the picture, because a packaged browser may see no /tmp but its own.
    with tempfile.TemporaryDirectory(prefix="nanoserve-", dir=Path(path).resolve().parent) as folder:
        page, picture = Path(folder, "report.html"), Path(folder, "report.png")
        page.write_bytes(document)
        options = [*_OPTIONS, f"--user-data-dir={folder}/profile", f"--screenshot={picture}"]
        if os.geteuid() == 0:
            options.append("--no-sandbox")
        said = _run([browser, *options, f"{page.as_uri()}#print"])
        if not picture.exists():
            raise BadValueError("png", f"{browser} has drawn nothing: {said}")
        shutil.copyfile(picture, path)


def _run(command: list[str]) -> str:
    """The last line that the program printed."""
    try:
        done = subprocess.run(  # noqa: S603 - the browser that was found, with our options
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=TIMEOUT_SECONDS, check=False, text=True, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it was stopped after {TIMEOUT_SECONDS:.0f} s"
    return (done.stdout.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
