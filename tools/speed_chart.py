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
    "light": ("#1f2328", "#8c959f", "#0969da", "#b0b8c1", "#8c959f", "#6e7781"),
    "dark": ("#e6edf3", "#6e7681", "#4493f8", "#565e67", "#768390", "#9ea7b3"),
}
"""Colours of words, of the line at vLLM's speed, and of the engines in their order."""
WIDTH, TOP, LABELS, UNIT, BAR, GAP = 800, 40, 300, 130, 11, 9
"""Pixels: the picture, its legend, its left column, the speed of vLLM, a bar's height, and between two workloads."""
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


def draw(table: Mapping[str, Speeds], words: str, faint: str, *fills: str) -> str:
    """An SVG in these colours: a bar for each engine and workload, as long as its speed is in units of vLLM's."""
    engines = list(dict.fromkeys(name for speeds in table.values() for name in speeds))
    fill = dict(zip(engines, fills, strict=True))
    body, top = [*_legend(fill)], TOP
    for workload, speeds in table.items():
        body.append(_text(LABELS - 10, top + BAR * len(speeds) / 2 + 4, workload, 'text-anchor="end"'))
        for name, speed in speeds.items():
            length = UNIT * speed / speeds["vLLM"]
            weight = "bold" if name == "nanoserve" else "normal"
            body += [
                f'<rect x="{LABELS}" y="{top}" width="{length:.1f}" height="{BAR - 1}" fill="{fill[name]}"/>',
                _text(
                    LABELS + length + 5,
                    top + BAR - 2,
                    f"{speed:,.0f}",
                    f'font-size="10" font-weight="{weight}"',
                ),
            ]
            top += BAR
        top += GAP
    note = "Prompts x tokens in -> out. Output tokens per second on one H200; lengths are relative to vLLM."
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 24}" fill="{words}" font-family="system-ui, sans-serif" font-size="12">',
            *body,
            f'<path d="M{LABELS + UNIT} {TOP - 4}V{top - GAP + 4}" stroke="{faint}" stroke-dasharray="3 3"/>',
            _text(LABELS, top + 12, note, 'font-size="10"'),
            "</svg>\n",
        ]
    )


def _legend(fill: Mapping[str, str]) -> Iterator[str]:
    for place, (name, colour) in enumerate(fill.items()):
        left = LABELS + 110 * place
        yield f'<rect x="{left}" y="12" width="10" height="10" fill="{colour}"/>'
        yield _text(left + 15, 21, name)


def _text(x: float, y: float, words: str, style: str = "") -> str:
    shown = words.replace("->", "\u2192").replace(" x ", " \u00d7 ")
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{shown}</text>'


def pictures() -> dict[pathlib.Path, str]:
    """Both pictures by their files."""
    table = read_table((DOCS / "performance.md").read_text(encoding="utf-8"))
    return {DOCS / "images" / f"speed-{name}.svg": draw(table, *colours) for name, colours in PAPER.items()}


def main() -> None:
    """Write them."""
    for path, picture in pictures().items():
        path.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
