"""How the service is built: names, defaults and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from nanoserve.entrypoints.compose.config.serve_settings import BoundSettings
from nanoserve.ports.driven import TokenizerFacts


@attrs.frozen(kw_only=True)
class ServiceSettings:
    """Fixed for the life of a server.

    Attributes:
        model_names: the names that requests may use; the first is the one that answers use.
        defaults: values of `SamplingParams` that stand in where a request gives none; `defaults_origin` is the file
            they come from.
        tokenizer_facts: what the model's files say of its tokenizer.
        bounds: what may wait, and for how long.
        max_prompt_chars_factor: prompts with more characters than so many times the context are refused unread.
        max_messages: the most messages of one conversation.
        max_output_tokens: the most tokens that all sequences of one request may generate together.
    """

    model_names: tuple[str, ...]
    defaults: Mapping[str, Any] = attrs.field(factory=dict)
    defaults_origin: str = ""
    tokenizer_facts: TokenizerFacts = attrs.field(factory=TokenizerFacts)
    bounds: BoundSettings = attrs.field(factory=BoundSettings)
    max_prompt_chars_factor: int = 8
    max_messages: int = 4096
    max_output_tokens: int = 2**20
