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
    """True if this is a prompt itself and not a list of them."""
    if isinstance(prompts, (str, Mapping)):
        return True
    return isinstance(prompts, Sequence) and bool(prompts) and all(_is_id(each) for each in prompts)


def read_prompt(form: object, tokenizer: Tokenizer) -> Prompt:
    """Read one prompt in any form; raises `BadValueError`."""
    if isinstance(form, Mapping):
        names = [name for name in ("prompt_token_ids", "prompt") if name in form]
        if not names:
            message = f"a mapping needs `prompt` or `prompt_token_ids`, got {sorted(form)}"
            raise BadValueError("prompt", message)
        form = form[names[0]]
    if isinstance(form, str):
        ids = tuple(tokenizer.encode(form))
        if not ids:
            raise BadValueError("prompt", "is empty: there is nothing to continue")
        return Prompt(text=form, token_ids=ids)
    if not isinstance(form, Sequence) or isinstance(form, bytes):
        raise BadValueError("prompt", f"must be text, token ids or a mapping, got {type(form).__name__}")
    try:  # any integer type will do; the engine checks the ids against the vocabulary
        return Prompt(text=None, token_ids=tuple(map(operator.index, form)))
    except TypeError:
        raise BadValueError("prompt", f"token ids must be integers, got {form!r:.80}") from None


def read_conversation(messages: Sequence[Message], template: ChatTemplate, tokenizer: Tokenizer) -> Prompt:
    """Render a conversation with the model's template; raises `BadValueError`."""
    if not messages:
        raise BadValueError("messages", "must hold at least one message")
    ids = tuple(template.render(messages))
    return Prompt(text=tokenizer.decode(ids, skip_special_tokens=False), token_ids=ids)


def _is_id(value: object) -> bool:
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)
