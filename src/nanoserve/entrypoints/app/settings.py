"""How the service is built: names, defaults and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from nanoserve.ports.driven import TokenizerFacts
from nanoserve.ports.grammar import BOUNDED_WHITESPACE
from nanoserve.ports.pooling import PoolerSpec


@attrs.frozen(kw_only=True)
class ServiceSettings:
    """Fixed for the life of a server.

    Attributes:
        model_names: the names that requests may use; the first is the one that answers use.
        model_aliases: patterns of further names, which answers repeat.
        defaults: values of `SamplingParams` that stand in where a request gives none; `defaults_origin` is the file
            they come from.
        tokenizer_facts: what the model's files say of its tokenizer.
        template_variables: what the chat template reads besides the conversation, such as `enable_thinking`.
        max_waiting_requests: the most requests that may wait for the engine beside those it is serving.
        max_waiting_tokens: the most prompt tokens that may wait together; a request that would wait alone is let in.
        max_waiting_bytes: the most characters of constraints that may wait together, beside one that waits alone.
        queue_timeout: seconds a request may wait for its first step; None is unbounded.
        request_timeout: seconds a request may take altogether; None is unbounded.
        max_prompt_chars_factor: prompts with more characters than so many times the context are refused unread.
        max_messages: the most messages of one conversation.
        max_output_tokens: the most tokens that all sequences of one request may generate together.
        whitespace: what stands between the parts of JSON where a request does not say it, as in `Constraint`.
        ping_interval: seconds of silence after which a stream says that it is alive.
        pooler: what the model makes of texts; None where it writes text.
    """

    model_names: tuple[str, ...]
    model_aliases: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = attrs.field(factory=dict)
    defaults_origin: str = ""
    tokenizer_facts: TokenizerFacts = attrs.field(factory=TokenizerFacts)
    template_variables: frozenset[str] = frozenset()
    max_waiting_requests: int = 1024
    max_waiting_tokens: int = 2**20
    max_waiting_bytes: int = 2**22
    queue_timeout: float | None = None
    request_timeout: float | None = None
    max_prompt_chars_factor: int = 8
    max_messages: int = 4096
    max_output_tokens: int = 2**20
    whitespace: str = BOUNDED_WHITESPACE
    ping_interval: float = 10.0
    pooler: PoolerSpec | None = None
