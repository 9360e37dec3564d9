"""Fields that clients know and this server cannot honour: harmless where they ask for nothing, refused by name otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError

_TEXT_FORMAT: Final = {"type": "text"}

HARMLESS: Final[Mapping[str, tuple[Any, ...]]] = {
    "response_format": (_TEXT_FORMAT,),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "logits_processors": ([],),
    "kv_transfer_params": ({},),
    "spaces_between_special_tokens": (True,),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "metadata": ({},),
    "suffix": ("",),
    "prompt_embeds": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
    "include_reasoning": (True, False),
}
"""For each such field, the values beside null that change nothing."""


def refuse_unsupported(body: msgspec.Struct) -> None:
    """Raise `BadValueError` for the first field that asks for something this server cannot do."""
    for name in body.__struct_fields__:
        harmless = HARMLESS.get(name)
        if harmless is None:
            continue
        value = getattr(body, name)
        if value is not None and not any(_same(value, each) for each in harmless):
            raise BadValueError(name, f"is not supported by this server (got {shown(value)}); leave it out")


def _same(value: Any, harmless: Any) -> bool:
    """Equal, where JSON's 1 is not true."""
    return bool(isinstance(value, bool) == isinstance(harmless, bool) and value == harmless)
