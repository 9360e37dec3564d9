"""The four forms of a completion's prompt, brought into one: a list of texts and of id lists."""

from __future__ import annotations

from collections.abc import Sequence

from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError

PromptInput = str | tuple[int, ...]


def count_prompts(prompt: str | Sequence[str | int | Sequence[int]]) -> int:
    """How many there are, as the first element says; to be asked before all of them are read."""
    return 1 if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int) else len(prompt)


def read_prompts(prompt: str | Sequence[str | int | Sequence[int]]) -> list[PromptInput]:
    """A text, token ids, a list of texts or a list of token-id lists; raises `BadValueError`."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadValueError("prompt", "is empty: there is nothing to continue")
    if all(isinstance(each, int) for each in prompt):
        return [tuple(each for each in prompt if isinstance(each, int))]
    return [_read_one(each, place) for place, each in enumerate(prompt)]


def _read_one(form: str | int | Sequence[int], place: int) -> PromptInput:
    if isinstance(form, int):
        raise BadValueError("prompt", f"mixes token ids and prompts: element {place} is {shown(form)}")
    return form if isinstance(form, str) else tuple(form)
