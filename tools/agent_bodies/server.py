"""The server that agents talk to while they are recorded: nanoserve, over a model that says what a script has for the task."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from nanoserve.ports.driven import Message
from tests.unit.entrypoints.server.protocols import talking_world
from tests.unit.entrypoints.server.protocols.talking_world import TalkTemplate, talking

WEATHER: Final = "Will it rain in Rome?"
SHELL: Final = "Say what echo says."
EDIT: Final = "Write a greeting."
SAID: Final = "echoed-by-the-shell"
DRY: Final = "it stays dry in Rome"
_EDITED: Final = "hello.txt\n```\nHello\n```\n"


_OTHER: Final = "[]"


def _call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


_SHELLS: Final = {
    "Bash": _call("Bash", command=f"echo {SAID}", description="Echo a word"),
    "exec_command": _call("exec_command", cmd=f"echo {SAID}"),
    "shell_command": _call("shell_command", command=f"echo {SAID}"),
    "shell": _call("shell", command=["echo", SAID]),
}
_SCRIPT: Final = {
    WEATHER: f"<think>look it up</think>I look it up.\n{_call('weather', city='Rome', days=2)}",
    DRY: "<think>dry</think>It stays dry.",
    EDIT: _EDITED,
    SAID: "<think>seen</think>It said so.",
    **{f"{SHELL} {name}": f"<think>run it</think>I run it.\n{call}" for name, call in _SHELLS.items()},
    _OTHER: "A title.",
}


class _OneTask(TalkTemplate):
    """Renders of a conversation the words of the script that stand last, whatever else an agent sends."""

    def render(self, messages: Sequence[Message], /, **given: Any) -> list[int]:
        """As `ChatTemplate` has it."""
        text = json.dumps([dict(each) for each in messages])
        words = max((WEATHER, DRY, EDIT, SHELL, SAID), key=text.rfind)
        if words not in text:
            words = _OTHER
        elif words == SHELL:
            tools = {tool.name for tool in given["tools"]}
            words = next((f"{SHELL} {name}" for name in _SHELLS if name in tools), _OTHER)
        return super().render([{"role": "user", "content": words}], options=given["options"])


@contextlib.contextmanager
def scripted_server() -> Iterator[str]:
    """Its URL."""
    talking_world.CONTEXT = 65_536  # type: ignore[misc]
    talking_world.TalkTemplate = _OneTask  # type: ignore[misc]
    with talking(_SCRIPT, variables=("enable_thinking", "reasoning_effort")) as (world, _):
        yield world.url
