"""The forms a prompt may take, brought into one: text or None, and token ids.

A string, a list of token ids, `{"prompt": text}`, `{"prompt_token_ids": ids}`, or a list of any of these.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import attrs

from nanoserve.ports.driven import ChatTemplate, Message, Tokenizer
from nanoserve.ports.errors import BadValueError

PromptForm = str | Sequence[int] | Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Prompt:
    """A prompt that is ready to be asked; `text` is None where it came as ids."""

    text: str | None
    token_ids: tuple[int, ...]


def is_one_prompt(prompts: object) -> bool:
    """Whether this is a prompt itself and not a list of them."""
    if isinstance(prompts, (str, Mapping)):
        return True
    return isinstance(prompts, Sequence) and bool(prompts) and all(_is_id(each) for each in prompts)


def read_prompt(form: object, tokenizer: Tokenizer) -> Prompt:
    """Read one prompt in any form; raises `BadValueError`."""
    if isinstance(form, Mapping):
        form = _content_of(form)
    if isinstance(form, str):
        return _read_text(form, tokenizer)
    if isinstance(form, Sequence) and not isinstance(form, bytes):
        return Prompt(text=None, token_ids=_checked_ids(form))
    raise BadValueError("prompt", f"must be text, token ids or a mapping, got {type(form).__name__}")


def read_conversation(messages: Sequence[Message], template: ChatTemplate, tokenizer: Tokenizer) -> Prompt:
    """Render a conversation with the model's template; raises `BadValueError`."""
    if not messages:
        raise BadValueError("messages", "must hold at least one message")
    ids = tuple(template.render(messages))
    return Prompt(text=tokenizer.decode(ids, skip_special_tokens=False), token_ids=ids)


def _content_of(form: Mapping[str, Any]) -> object:
    if "prompt_token_ids" in form:
        return form["prompt_token_ids"]
    if "prompt" in form:
        return form["prompt"]
    raise BadValueError("prompt", f"a mapping needs `prompt` or `prompt_token_ids`, got {sorted(form)}")


def _read_text(text: str, tokenizer: Tokenizer) -> Prompt:
    ids = tuple(tokenizer.encode(text))
    if not ids:
        raise BadValueError("prompt", "is empty: there is nothing to continue")
    return Prompt(text=text, token_ids=ids)


def _checked_ids(form: Sequence[object]) -> tuple[int, ...]:
    """Ids of any integer type; the engine checks them against the vocabulary."""
    try:
        return tuple(operator.index(each) for each in form)  # type: ignore[arg-type]
    except TypeError:
        raise BadValueError("prompt", f"token ids must be integers, got {form!r:.80}") from None


def _is_id(value: object) -> bool:
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)
