"""The port that turns a conversation into a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Message = Mapping[str, Any]
"""One turn: `{"role": "user", "content": "..."}`; content is text, None, or a list of text parts."""


class ChatTemplate(Protocol):
    """Renders messages with the template that came with the model."""

    def render(self, messages: Sequence[Message], /, *, add_generation_prompt: bool = True) -> list[int]:
        """Messages to prompt token ids, with no second beginning-of-sequence token. Raises `BadValueError`."""
        ...
