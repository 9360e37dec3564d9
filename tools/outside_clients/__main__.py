"""Clients that other projects wrote, unchanged, against a server whose model says what a script has for it.

    python3 -m venv /tmp/clients
    /tmp/clients/bin/pip install instructor langchain langchain-openai pydantic-ai-slim[openai,anthropic] litellm
    python -m tools.outside_clients /tmp/clients/bin/python

Runs the talks of `talks.py` with that interpreter, from a checkout, and ends with the number of those that failed.
"""

from __future__ import annotations

import argparse
import logging
import pathlib
import subprocess
import sys
from typing import Final

import structlog

from tests.unit.entrypoints.server.protocols.talking_world import talking

TALKS: Final = pathlib.Path(__file__).parent / "talks.py"


def call(name: str, arguments: str) -> str:
    """A call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ADA: Final = '{"name": "Ada", "age": 36}'
WEATHER: Final = call("weather", '{"city": "Rome", "days": 3}')
CLOCK: Final = call("clock", '{"zone": "CET"}')
SCRIPT: Final = {
    "hello": "<think>\nI greet.\n</think>\n\nHi there",
    "Rain?": f"<think>look up</think>Let me see.\n{WEATHER}\n{CLOCK}",
    "no rain": "<think>dry</think>It stays dry at noon.",
    "Who wrote?": f"<think>her</think>{ADA}",
    "Who called?": f"<think>her</think>{call('Person', ADA)}",
    "Who came?": f"<think>her</think>{call('PartialPerson', ADA)}",
    "Who ended?": f"<think>her</think>{call('final_result', ADA)}",
}
"""What the model says behind those words, wherever they stand last in a prompt."""


def main() -> None:
    """Serve, talk, and pass on how it ended."""
    parser = argparse.ArgumentParser(description="Clients of other projects against a scripted server.")
    parser.add_argument("python", help="of an environment with the clients")
    parser.add_argument("only", nargs="?", default="", help="talks whose names begin so")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with talking(SCRIPT) as (world, _):
        done = subprocess.run([given.python, TALKS, world.url, given.only], check=False)  # noqa: S603
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
