"""Draw the state machines of a sequence and of a supervised engine as Mermaid diagrams, from the tables that define them.

python -m tools.state_diagram          # print them
python -m tools.state_diagram --write  # put them into docs/architecture.md
"""

from __future__ import annotations

import argparse
import enum
import pathlib
from collections.abc import Mapping
from typing import TypeVar

from nanoserve.adapters.engine_process.client import supervision
from nanoserve.domain import sequence
from nanoserve.ports.driving import EngineStatus

StateT = TypeVar("StateT", bound=enum.Enum)
MoveT = TypeVar("MoveT", bound=enum.Enum)
PAGE = pathlib.Path(__file__).parent.parent / "docs" / "architecture.md"


def _diagram(table: Mapping[tuple[StateT, MoveT], StateT], first: StateT, last: StateT) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.value}"]
    lines += [f"    {start.value} --> {end.value}: {move.value}" for (start, move), end in table.items()]
    return "\n".join([*lines, f"    {last.value} --> [*]", "```", ""])


def diagrams() -> dict[str, str]:
    """The Mermaid sources, fences included, by the name in their markers."""
    phases, statuses = sequence.Phase, EngineStatus
    return {
        "state": _diagram(sequence.TRANSITIONS, phases.WAITING, phases.FINISHED),
        "engine": _diagram(supervision.TRANSITIONS, statuses.STARTING, statuses.STOPPED),
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
