"""What the OpenAI endpoints answer, field by field; a field that is unset is left out of the JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from nanoserve.entrypoints.server.http.logprobs import ChosenToken

FinishName = Literal["stop", "length", "tool_calls"]


class ScoredToken(msgspec.Struct):
    """One token at one position of the prompt, with its natural logarithm of probability and its rank."""

    logprob: float
    rank: int
    decoded_token: str


PromptPosition = dict[str, ScoredToken] | None
"""By token id, the actual token first; None where nothing precedes it."""


class PromptTokensDetails(msgspec.Struct):
    """How many of the prompt's tokens did not have to be computed."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """How many of the generated tokens were reasoning."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class Timings(msgspec.Struct):
    """Seconds that an answer waited, computed its prompt up to the first token, and computed the rest.

    Null where it did not get that far.
    """

    queue: float | None
    prefill: float | None
    decode: float | None


class CompletionLogprobs(msgspec.Struct):
    """The older form: four lists of one length; `text_offset` counts characters of the choice's text."""

    text_offset: list[int] = msgspec.field(default_factory=list)
    token_logprobs: list[float | None] = msgspec.field(default_factory=list)
    tokens: list[str] = msgspec.field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = msgspec.field(default_factory=list)


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One answer to one prompt, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishName | None = None
    stop_reason: str | int | UnsetType = UNSET
    prompt_logprobs: list[PromptPosition] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The answer of `/v1/completions`, and each of its chunks."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET


class ChatLogprobs(msgspec.Struct):
    """The log-probabilities of an answer."""

    content: list[ChosenToken] = msgspec.field(default_factory=list)


class CalledFunction(msgspec.Struct):
    """What is called; `arguments` are the text of a JSON object."""

    name: str
    arguments: str


class CalledCustom(msgspec.Struct):
    """The custom tool that is called, and the text for it."""

    name: str
    input: str


class ToolCall(msgspec.Struct, kw_only=True):
    """One call of a tool: either of the last two."""

    id: str
    type: Literal["function", "custom"] = "function"
    function: CalledFunction | UnsetType = UNSET
    custom: CalledCustom | UnsetType = UNSET


class ChatMessage(msgspec.Struct):
    """The model's turn; reasoning goes by both names that clients read."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer to a conversation."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishName | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[PromptPosition] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ModelCard(msgspec.Struct, kw_only=True):
    """One name under which the model is served; OpenAI's clients read `object` and `created`, Anthropic's the next three."""

    id: str
    object: Literal["model"] = "model"
    created: int
    type: Literal["model"] = "model"
    display_name: str
    created_at: datetime
    owned_by: str = "nanoserve"
    root: str
    parent: str | None = None
    max_model_len: int
    permission: list[str] = msgspec.field(default_factory=list)
    default_sampling: dict[str, Any] = msgspec.field(default_factory=dict)


class ModelList(msgspec.Struct, kw_only=True):
    """The names that requests may use, as the only page of them."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
    first_id: str
    last_id: str
    has_more: Literal[False] = False


class TokenizedText(msgspec.Struct, kw_only=True):
    """A text as token ids; `token_strs` holds the text of each where asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Text(msgspec.Struct):
    """Token ids as text."""

    prompt: str


class TokenizerInfo(msgspec.Struct, kw_only=True):
    """What a client has to know of the tokenizer to count, cut and render prompts as the server does.

    From `tokenizer_class` on it is what the model's files say.
    """

    model: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: list[int]
    tokenizer_class: str | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None


class Embedding(msgspec.Struct, kw_only=True):
    """The vector of one text: numbers, or their float32 bytes, least significant first, in base64."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, kw_only=True):
    """The vectors of all texts, in their order."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
