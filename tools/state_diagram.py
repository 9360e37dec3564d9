"""Draw the state machines of a sequence and of a supervised engine as Mermaid diagrams, from the tables that define them.

python -m tools.state_diagram          # print them
python -m tools.state_diagram --write  # put them into docs/architecture.md
"""

from __future__ import annotations

import argparse
import enum
import pathlib
from collections.abc import Iterable

from nanoserve.adapters.engine_process.client import kept_engine
from nanoserve.domain import sequence
from nanoserve.ports.driving import EngineStatus

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "architecture.md"


def _diagram(arrows: Iterable[str], first: enum.Enum, last: enum.Enum) -> str:
    lines = [f"[*] --> {first.value}", *arrows, f"{last.value} --> [*]"]
    return "".join(["```mermaid\nstateDiagram-v2\n", *(f"    {line}\n" for line in lines), "```\n"])


def diagrams() -> dict[str, str]:
    """The Mermaid sources, fences included, by the name in their markers."""
    moves, followers = sequence.TRANSITIONS.items(), kept_engine.TRANSITIONS.items()
    phases = [f"{start.value} --> {end.value}: {move.value}" for (start, move), end in moves]
    statuses = [f"{start.value} --> {end.value}" for start, ends in followers for end in ends]
    return {
        "state": _diagram(phases, sequence.Phase.WAITING, sequence.Phase.FINISHED),
        "engine": _diagram(statuses, EngineStatus.STARTING, EngineStatus.STOPPED),
    }


def with_diagrams(page: str) -> str:
    """The page's text with each diagram between its two markers."""
    for name, diagram in diagrams().items():
        begin, end = (f"<!-- {name} diagram: {edge} -->\n" for edge in ("begin", "end"))
        head, rest = page.split(begin)
        _, tail = rest.split(end)
        page = head + begin + diagram + end + tail
    return page


def main() -> None:
    """Print or write."""
    parser = argparse.ArgumentParser(description="Draw the state machines.")
    parser.add_argument("--write", action="store_true", help="put them into docs/architecture.md")
    if parser.parse_args().write:
        PAGE.write_text(with_diagrams(PAGE.read_text()))
    else:
        print(*diagrams().values(), sep="\n", end="")


if __name__ == "__main__":
    main()
