"""The page's colours can be read: WCAG's contrast in both schemes, for text and for what is drawn."""

from __future__ import annotations

import re
from typing import Final

import pytest

from nanoserve.entrypoints.page.files import read_page

STYLE: Final = read_page()["/ui/style.css"].body.decode()
SCHEMES: Final = {
    "light": dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", STYLE.split(":root {")[1].split("}")[0])),
    "dark": dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", STYLE.split('[data-theme="dark"] {')[1].split("}")[0])),
}  # fmt: skip
TEXTS: Final = [
    *((ink, paper) for ink in ("text", "muted", "accent", "good", "warn", "bad") for paper in ("surface", "raised", "sunken")),
    *(("text", f"{each}-soft") for each in ("accent", "good", "warn", "bad")),
    ("on-accent", "accent"),
]  # fmt: skip
DRAWN: Final = [
    *(("edge", paper) for paper in ("surface", "raised")),
    *((f"owner-{number}", "surface") for number in range(12)),
]


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("pairs", "least"), [(TEXTS, 4.5), (DRAWN, 3)], ids=["text", "drawn"])
def test_colours_can_be_told_apart(scheme: str, pairs: list[tuple[str, str]], least: float) -> None:
    colours = SCHEMES[scheme]
    found = {(one, other): round(contrast(colours[one], colours[other]), 2) for one, other in pairs}
    assert {pair: each for pair, each in found.items() if each < least} == {}
