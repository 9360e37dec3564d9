"""Write the table of model families from the registry.

python -m tools.model_table          # print it
python -m tools.model_table --write  # put it into docs/models.md
"""

from __future__ import annotations

import argparse
import pathlib

from nanoserve.entrypoints.compose.families import families

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- families: begin -->\n", "<!-- families: end -->\n"


def table() -> str:
    """The rows, as Markdown."""
    lines = [
        "| in `config.json` | feeds | cache | a prefix is reused | devices | quantized | shapes for `bench` |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in families():
        shapes = ", ".join(f"`{name}`" for name in each.shapes)
        name = f"`{each.name}` (`{each.model_type}`)"
        cells = (name, each.feed, each.cache, each.reuse, each.devices, each.quantized, shapes)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def with_table(page: str) -> str:
    """The page's text with the table between its two markers."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return head + BEGIN + table() + END + tail


def main() -> None:
    """Print or write."""
    parser = argparse.ArgumentParser(description="Write the table of model families.")
    parser.add_argument("--write", action="store_true", help="put it into docs/models.md")
    if parser.parse_args().write:
        PAGE.write_text(with_table(PAGE.read_text()))
    else:
        print(table(), end="")


if __name__ == "__main__":
    main()
