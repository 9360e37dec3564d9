"""Draws the README's chart of speed, for light and dark pages, from the table "Beside other engines" of docs/performance.md.

python -m tools.speed_chart
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Final

DOCS: Final = pathlib.Path(__file__).parents[1] / "docs"
PAPER: Final = {
    "light": {
        "text": "#1f2328",
        "faint": "#8c959f",
        "ours": "#0969da",
        "others": ("#b0b8c1", "#8c959f", "#6e7781"),
    },
    "dark": {
        "text": "#e6edf3",
        "faint": "#6e7681",
        "ours": "#4493f8",
        "others": ("#565e67", "#768390", "#9ea7b3"),
    },
}
WIDTH, LABELS, UNIT, BAR, GAP = 800, 300, 130, 11, 9
"""Pixels: the picture, its left column, the speed of vLLM, a bar's height, and between two workloads."""
Speeds = Mapping[str, float]


def read_table(page: str) -> dict[str, Speeds]:
    """By workload: tokens per second of every engine that was measured, in the order of the columns."""
    section = page.partition("## Beside other engines")[2].partition("\n## ")[0]
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*\|$", section, re.MULTILINE)
    )
    return {
        workload: {
            name: float(cell.replace(",", "")) for name, cell in zip(head[1:], cells, strict=True) if cell
        }
        for workload, *cells in rows
    }


def draw(table: Mapping[str, Speeds], colours: Mapping[str, str | tuple[str, ...]]) -> str:
    """An SVG: a bar for each engine and workload, as long as its speed is in units of vLLM's."""
    engines = list(dict.fromkeys(name for speeds in table.values() for name in speeds))
    fill = dict(zip(engines, (colours["ours"], *colours["others"]), strict=True))
    body, top = list(_legend(engines, fill, str(colours["text"]))), 40
    first = top
    for workload, speeds in table.items():
        middle = top + BAR * len(speeds) / 2 + 4
        body.append(_text(LABELS - 10, middle, workload, str(colours["text"]), 'text-anchor="end"'))
        for name, speed in speeds.items():
            length = UNIT * speed / speeds["vLLM"]
            body.append(
                f'<rect x="{LABELS}" y="{top}" width="{length:.1f}" height="{BAR - 1}" fill="{fill[name]}"/>'
            )
            weight = ' font-weight="bold"' if name == "nanoserve" else ""
            body.append(
                _text(
                    LABELS + length + 5,
                    top + BAR - 2,
                    f"{speed:,.0f}",
                    str(colours["text"]),
                    f'font-size="10"{weight}',
                )
            )
            top += BAR
        top += GAP
    line = f'<path d="M{LABELS + UNIT} {first - 4}V{top - GAP + 4}" stroke="{colours["faint"]}" stroke-dasharray="3 3"/>'
    note = "Prompts x tokens in -> out. Output tokens per second on one H200; lengths are relative to vLLM."
    body += [line, _text(LABELS, top + 12, note, str(colours["text"]), 'font-size="10"')]
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 24}" font-family="system-ui, sans-serif" font-size="12">'
    return "\n".join([opening, *body, "</svg>", ""])


def _legend(engines: list[str], fill: Mapping[str, object], colour: str) -> Iterator[str]:
    for place, name in enumerate(engines):
        left = LABELS + 110 * place
        yield f'<rect x="{left}" y="12" width="10" height="10" fill="{fill[name]}"/>'
        yield _text(left + 15, 21, name, colour)


def _text(x: float, y: float, words: str, colour: str, more: str = "") -> str:
    shown = words.replace("->", "\u2192").replace(" x ", " \u00d7 ")
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" {more}>{shown}</text>'


def pictures() -> dict[pathlib.Path, str]:
    """Both pictures by their files."""
    table = read_table((DOCS / "performance.md").read_text(encoding="utf-8"))
    return {DOCS / "images" / f"speed-{name}.svg": draw(table, colours) for name, colours in PAPER.items()}


def main() -> None:
    """Write them."""
    for path, picture in pictures().items():
        path.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
