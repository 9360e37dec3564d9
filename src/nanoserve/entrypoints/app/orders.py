"""Protocols' requests to the service: an `Order`, free of any wire format, its checks, the engine's `Request` that it becomes, and the facts of the HTTP request."""

from __future__ import annotations

import contextvars
import hashlib
import itertools
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from nanoserve.ports.checks import check_integer, check_vocabulary
from nanoserve.ports.driven import NO_OPTIONS, Message, TokenizerFacts
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.errors import BadValueError, PromptTooLongError
from nanoserve.ports.grammar import BOUNDED_WHITESPACE, Constraint
from nanoserve.ports.pooling import PoolerSpec, Pooling
from nanoserve.ports.request import DEFAULT_CLASS, DEFERRED_CLASS, Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.tool_calls import CallMode, Tool, ToolChoice


@attrs.frozen(kw_only=True)
class ServiceSettings:
    """Settings that are fixed for the life of a server.

    Attributes:
        model_names: the names that requests may use; the first is the one that answers use.
        model_aliases: patterns of further names, which answers repeat.
        defaults: values of `SamplingParams` that stand in where a request gives none; `defaults_origin` is the file
            they come from.
        template_variables: what the chat template reads besides the conversation, such as `enable_thinking`.
        max_waiting_requests: the most requests that may wait for the engine beside those it is serving.
        max_waiting_tokens: the most prompt tokens that may wait together; a request that would wait alone is let in.
        max_waiting_bytes: the most characters of constraints that may wait together, beside one that waits alone.
        queue_timeout: seconds a request may wait for its first step; None is unbounded.
        request_timeout: seconds a request may take altogether; None is unbounded.
        max_prompt_chars_factor: prompts with more characters than so many times the context are refused unread.
        max_output_tokens: the most tokens that all sequences of one request may generate together.
        whitespace: what stands between the parts of JSON where a request does not say it, as in `Constraint`.
        ping_interval: seconds of silence after which a stream says that it is alive.
        pooler: what the model makes of texts; None if it writes text.
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


FREE: Final = ToolChoice()
"""All tools may be called and none must be."""
_SEED_BITS: Final = 63
_CONTEXT: Final = "and this model's maximum context length is {} tokens"
"""Clients look for these words, to shorten a conversation or to ask for less."""
_DEEPEST_MESSAGE: Final = 64
_MOST_PRIORITY: Final = 2**31
_MOST_LISTED: Final = 2**18
_CHARACTERS_PER_TOKEN: Final = 4
"""An estimate for prompts that are not tokenized yet; `Reservation.count_tokens` replaces it by the truth."""


@attrs.frozen(kw_only=True)
class Client:
    """The client of an API key.

    Attributes:
        name: for logs; never the key.
        identity: tells clients apart: the key's digest, or the address of one without a key.
        cache_salt: prompts share cached prefixes only with clients of the same salt.
        owner: whose what is kept for later is, for as long as the key is the same; empty for all without a key.
        priority: added to each request's own.
    """

    name: str = "anonymous"
    identity: str = ""
    cache_salt: str = ""
    owner: str = ""
    request_class: str = DEFAULT_CLASS
    priority: int = 0

    @property
    def is_deferred(self) -> bool:
        """True if its requests can wait, for any time, and give way to all others."""
        return self.request_class == DEFERRED_CLASS


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
class TextPair:
    """Two texts that a classifier reads together, such as a query and a document."""

    first: str
    second: str


Prompt = str | tuple[int, ...] | Conversation | TextPair


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
    """One prompt and its parameters.

    Attributes:
        model: the name that the client gave the model; an adapter where it has that name.
        sampling: checked parameters; `max_tokens` None means up to the context's end.
        add_special_tokens: whether a text prompt gets the tokenizer's own (ids and conversations never do).
        truncate_prompt_tokens: keep at most this many tokens, the last ones, of what is pooled the first ones; None refuses over-long prompts.
        cache_salt: separates the prompt's cached prefixes further than the client's salt does.
        priority: lower runs first, where the engine's policy is priority.
        max_tokens_name: what the client calls `sampling.max_tokens`; None if it is not the client who set it.
        is_turn: whether the answer is the model's turn in a conversation, in which reasoning and calls are looked for.
        format: what its text must be; None for any.
        routed_experts: whether it is reported which experts tokens go through.
        pooling: what is made of the prompt instead of an answer; None for an answer.
        calls: whether the conversation's tools are called, and which of them may be.
    """

    prompt: Prompt
    sampling: SamplingParams
    model: str = ""
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
    routed_experts: bool = False
    pooling: Pooling | None = None

    @property
    def constraint_name(self) -> str:
        """The field for which there is a constraint, if there is one."""
        if self.format is not None:
            return self.format.name
        return "tools" if self.has_tools or self.budget is None else self.budget.name

    @property
    def has_tools(self) -> bool:
        """True if the model sees tools."""
        return isinstance(self.prompt, Conversation) and bool(self.prompt.tools)


@attrs.define(kw_only=True)
class RequestFacts:
    """Filled in while the request passes; never prompts, answers or keys.

    Attributes:
        engine_ids: the names of the result of it in the engine, as step logs give them.
        generated_tokens: those the server has seen; None if it sees none before the end, and has not seen that.
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


class EdgeChecks:
    """Raises `BadValueError` or `PromptTooLongError`, in time linear in the order and without the tokenizer."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings

    def check_order(self, order: Order, facts: EngineFacts) -> int:
        """Check everything that does not need the prompt's ids; returns the approximate number of the prompt's tokens."""
        check_integer("priority", order.priority, -_MOST_PRIORITY, _MOST_PRIORITY)
        if order.truncate_prompt_tokens is not None:
            check_integer("truncate_prompt_tokens", order.truncate_prompt_tokens, 1)
        self._check_output(order, facts)
        if isinstance(order.prompt, Conversation) and order.prompt.continue_final_message:
            _check_free_end(order)
        return self._check_prompt(order, facts)

    def check_samplings(self, orders: Sequence[Order], facts: EngineFacts) -> None:
        """The lists that orders carry: each is read once where they share it, but sent with every order."""
        for sampling in {id(order.sampling): order.sampling for order in orders}.values():
            lists: Mapping[str, Sequence[int]] = {
                "stop_token_ids": sampling.stop_token_ids,
                "allowed_token_ids": sampling.allowed_token_ids or (),
                "logit_bias": [token for token, _ in sampling.logit_bias],
            }
            for name, ids in lists.items():
                if len(ids) > facts.vocab_size:
                    message = f"holds {len(ids)} token ids, the vocabulary {facts.vocab_size}"
                    raise BadValueError(name, message)
                check_vocabulary(name, ids, facts.vocab_size)
            listed = len(sampling.bad_words) + sum(map(len, lists.values()))
            if len(orders) * listed > _MOST_LISTED:
                message = f"{len(orders)} prompts with {listed} listed tokens and words each are too many"
                raise BadValueError("prompt", f"{message}; send fewer prompts at a time")

    def check_characters(self, count: int, facts: EngineFacts, name: str = "prompt") -> None:
        """A text so long cannot fit, however it is tokenized."""
        most = self._settings.max_prompt_chars_factor * facts.max_model_len
        if count > most:
            message = f"the prompt has {count} characters, {_CONTEXT.format(facts.max_model_len)}"
            raise PromptTooLongError(f"{message}; at most {most} characters are read", name)

    def check_conversation(
        self, conversation: Conversation, facts: EngineFacts, name: str = "messages"
    ) -> int:
        """Check the number of messages and their length; returns the number of their characters."""
        count, most = len(conversation.messages), self._settings.max_messages
        if count > most:
            raise BadValueError("messages", f"holds {count} messages and this server takes at most {most}")
        if conversation.continue_final_message:
            _check_continued(conversation, name)
        characters = _characters(conversation.messages, _DEEPEST_MESSAGE)
        for tool in conversation.tools:
            characters += _characters(tool.as_message(), _DEEPEST_MESSAGE, "tools")
        characters += _characters(conversation.options, _DEEPEST_MESSAGE, "chat_template_kwargs")
        self.check_characters(characters, facts, name)
        return characters

    def fitted(self, ids: tuple[int, ...], order: Order, facts: EngineFacts) -> tuple[int, ...]:
        """The prompt as it will be computed: with room for the answer, cut only where the order says so."""
        if order.truncate_prompt_tokens is not None:
            most = order.truncate_prompt_tokens
            ids = ids[-most:] if order.pooling is None else ids[:most]
        if not ids:
            raise BadValueError(order.prompt_name, "is empty; give a text or token ids")
        self.check_length(len(ids), order, facts)
        return ids

    def check_length(self, length: int, order: Order, facts: EngineFacts) -> None:
        """A prompt of this many tokens, cut where the order says so, fits with its answer."""
        length = min(length, order.truncate_prompt_tokens or length)
        context = facts.max_model_len
        if order.pooling is not None and length <= context:
            return
        budget = order.sampling.max_tokens or 1
        if length + budget > context:
            message = (
                f"the prompt has {length} tokens, the answer may have {budget}, {_CONTEXT.format(context)}"
            )
            if order.pooling is not None:
                message = f"a text of {length} tokens is too long, {_CONTEXT.format(context)}"
            sizes = length, budget, context
            if length >= context or (name := order.max_tokens_name) is None:
                raise PromptTooLongError(f"{message}; shorten the prompt", order.prompt_name, sizes)
            raise PromptTooLongError(f"{message}; shorten the prompt or lower {name}", name, sizes)

    def _check_prompt(self, order: Order, facts: EngineFacts) -> int:
        prompt, name = order.prompt, order.prompt_name
        if isinstance(prompt, str):
            self.check_characters(len(prompt), facts, name)
            return len(prompt) // _CHARACTERS_PER_TOKEN + 1
        if isinstance(prompt, Conversation):
            return self.check_conversation(prompt, facts, name) // _CHARACTERS_PER_TOKEN + 1
        if isinstance(prompt, TextPair):
            self.check_characters(characters := len(prompt.first) + len(prompt.second), facts, name)
            return characters // _CHARACTERS_PER_TOKEN + 1
        check_vocabulary(name, prompt, facts.vocab_size)
        return len(prompt)

    def _check_output(self, order: Order, facts: EngineFacts) -> None:
        sampling, most = order.sampling, self._settings.max_output_tokens
        each = facts.max_model_len if sampling.max_tokens is None else sampling.max_tokens
        if sampling.n > 1 and sampling.n * each > most:
            message = f"{sampling.n} sequences of up to {each} tokens are more than {most} tokens together"
            raise BadValueError("n", f"{message}; lower n or {order.max_tokens_name or 'max_tokens'}")


def _check_continued(conversation: Conversation, name: str) -> None:
    last = conversation.messages[-1] if conversation.messages else {}
    if last.get("role") != "assistant" or not last.get("content") or last.get("tool_calls"):
        raise BadValueError(name, "can be continued only if they end with text of the assistant and no calls")


def _check_free_end(order: Order) -> None:
    """Nothing that would have to come before the text that is continued."""
    if order.calls.mode is CallMode.REQUIRED:
        message = "cannot force a call where the assistant's last message is continued; use auto or none"
        raise BadValueError("tool_choice", message)
    if order.budget is not None:
        message = "cannot be combined with an assistant's last message that is continued: the model does not reason again"
        raise BadValueError(order.budget.name, message)


def _characters(value: Any, depth: int, name: str = "messages") -> int:
    """The characters of all texts inside a JSON value."""
    if isinstance(value, str):
        return len(value)
    if depth == 0:
        raise BadValueError(name, "are nested too deeply")
    inside: Sequence[Any] = ()
    if isinstance(value, Mapping):
        inside = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple)):
        inside = value
    return sum(_characters(each, depth - 1, name) for each in inside)


class RequestBuilder:
    """Numbers requests, and gives them seeds and end tokens; with a seed of its own, always the same seeds in the same order."""

    def __init__(self, *, eos_token_ids: Iterable[int], seed: int | None = None, prefix: str = "") -> None:
        self._eos_token_ids = frozenset(eos_token_ids)
        self._seed = seed
        self._prefix = prefix
        self._ids, self._drawn = itertools.count(), itertools.count()

    def build(
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        bad_token_sequences: tuple[tuple[int, ...], ...],
        **more: Any,
    ) -> Request:
        """A request for the engine, which checks its ids against the vocabulary; `more` are other fields of `Request`."""
        return Request(
            request_id=f"{self._prefix}{next(self._ids)}",
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            seed=self._draw() if sampling.seed is None else sampling.seed,
            eos_token_ids=frozenset() if sampling.ignore_eos else self._eos_token_ids,
            bad_token_sequences=bad_token_sequences,
            **more,
        )

    def _draw(self) -> int:
        """The next seed, 0 <= seed < 2**63."""
        if self._seed is None:
            return secrets.randbits(_SEED_BITS)
        digest = hashlib.blake2b(f"{self._seed}:{next(self._drawn)}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) >> 1
