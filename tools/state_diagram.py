"""Draw the sequence state machine as a Mermaid diagram, from the one table that defines it.

python -m tools.state_diagram          # print it
python -m tools.state_diagram --write  # put it into docs/architecture.md
"""

from __future__ import annotations

import argparse
import pathlib

from nanoserve.domain.sequence import TRANSITIONS, Phase

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "architecture.md"
BEGIN, END = "<!-- state diagram: begin -->\n", "<!-- state diagram: end -->\n"


def diagram() -> str:
    """The Mermaid source, fences included."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Phase.WAITING.value}"]
    lines += [
        f"    {start.value} --> {end.value}: {move.value}" for (start, move), end in TRANSITIONS.items()
    ]
    return "\n".join([*lines, f"    {Phase.FINISHED.value} --> [*]", "```", ""])


def with_diagram(page: str) -> str:
    """The page's text with the diagram between its two markers."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return head + BEGIN + diagram() + END + tail


def main() -> None:
    """Print or write."""
    parser = argparse.ArgumentParser(description="Draw the sequence state machine.")
    parser.add_argument("--write", action="store_true", help="put it into docs/architecture.md")
    if parser.parse_args().write:
        PAGE.write_text(with_diagram(PAGE.read_text()))
    else:
        print(diagram(), end="")


if __name__ == "__main__":
    main()
