"""Protocols' requests to the service: an `Order`, free of any wire format, and the facts of the HTTP request it came with."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from nanoserve.ports.driven import NO_OPTIONS, Message
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.request import DEFAULT_CLASS
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.tool_calls import Tool, ToolChoice

FREE: Final = ToolChoice()
"""All tools may be called and none must be."""


@attrs.frozen(kw_only=True)
class Client:
    """The client that an API key stands for.

    Attributes:
        name: for logs; never the key.
        identity: tells clients apart: the key's digest, or the address of one without a key.
        cache_salt: prompts share cached prefixes only with clients of the same salt.
        request_class: how the client's requests are queued.
        priority: added to each request's own.
    """

    name: str = "anonymous"
    identity: str = ""
    cache_salt: str = ""
    request_class: str = DEFAULT_CLASS
    priority: int = 0


@attrs.frozen
class Conversation:
    """Chat messages, to be rendered with the model's template.

    Attributes:
        add_generation_prompt: whether the answer is a turn of its own.
        continue_final_message: whether the answer continues the last message, which is the assistant's; then it is none.
        options: further variables that the template knows.
    """

    messages: Sequence[Message]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: tuple[Tool, ...] = ()
    options: Mapping[str, Any] = NO_OPTIONS


@attrs.frozen
class Format:
    """The form that the text of an answer must have; `name` is the field in which the client says so."""

    constraint: Constraint
    name: str


@attrs.frozen
class ReasoningBudget:
    """The most tokens that the model may think; `name` is the field in which the client says so."""

    tokens: int
    name: str


@attrs.frozen(kw_only=True)
class Order:
    """One prompt and what to generate from it.

    Attributes:
        prompt: text, token ids, or a conversation.
        sampling: checked parameters; `max_tokens` None means up to the context's end.
        client: whose order it is.
        stream: whether the answer is wanted piece by piece, as it is generated.
        add_special_tokens: whether a text prompt gets the tokenizer's own (ids and conversations never do).
        truncate_prompt_tokens: keep at most so many tokens, the last ones; None refuses over-long prompts.
        cache_salt: separates the prompt's cached prefixes further than the client's salt does.
        priority: lower runs first, where the engine's policy is priority.
        prompt_name: what the client calls the prompt.
        max_tokens_name: what the client calls `sampling.max_tokens`; None where it is not the client who set it.
        is_turn: whether the answer is the model's turn in a conversation, in which reasoning and calls are looked for.
        format: what its text must be; None for any.
        budget: of its reasoning; None for any.
        calls: whether the conversation's tools are called, and which of them may be.
    """

    prompt: str | tuple[int, ...] | Conversation
    sampling: SamplingParams
    client: Client = Client()
    stream: bool = False
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    cache_salt: str = ""
    priority: int = 0
    prompt_name: str = "prompt"
    max_tokens_name: str | None = "max_tokens"
    is_turn: bool = False
    format: Format | None = None
    budget: ReasoningBudget | None = None
    calls: ToolChoice = FREE

    @property
    def constraint_name(self) -> str:
        """The field for which there is a constraint, if there is one."""
        if self.format is not None:
            return self.format.name
        has_tools = isinstance(self.prompt, Conversation) and self.prompt.tools
        return "tools" if has_tools or self.budget is None else self.budget.name


@attrs.define(kw_only=True)
class RequestFacts:
    """Filled in while the request passes; never prompts, answers or keys.

    Attributes:
        engine_ids: the names of what became of it in the engine, as step logs give them.
        generated_tokens: those the server has seen; None where it sees none before the end, and has not seen that.
        finish: reasons for which its sequences ended.
        is_endless: nothing but the client's leaving ends it, which is then nothing to count.
        queue, first_token: seconds from its acceptance to its first step, and to its first token.
    """

    request_id: str
    client: str | None = None
    is_endless: bool = False
    engine_ids: list[str] = attrs.field(factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int | None = None
    finish: list[str] = attrs.field(factory=list)
    queue: float | None = None
    first_token: float | None = None


CURRENT: Final[contextvars.ContextVar[RequestFacts | None]] = contextvars.ContextVar(
    "request_facts", default=None
)
"""The facts of the request that the running task serves; None outside one."""
