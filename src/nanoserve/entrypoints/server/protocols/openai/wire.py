"""Bodies and answers of the OpenAI endpoints, field by field.

None in a body means "not given": clients send null for open fields. `only` marks known but unsupported values. A field of an
answer that is unset is left out of the JSON.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from nanoserve.entrypoints.server.http.field_support import only, refusing, sampling_body
from nanoserve.entrypoints.server.http.logprobs import ChosenToken
from nanoserve.ports.sampling import Api


class StreamOptions(msgspec.Struct, kw_only=True):
    """How a streamed answer counts its tokens: in a last chunk of its own, or in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[bool | None, only(False)] = None


class AnswerBody(msgspec.Struct, kw_only=True):
    """The model of an answer, and its description."""

    model: str | None = None
    request_id: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_timings: bool | None = None


@sampling_body(Api.OPENAI)
class GenerationBody(AnswerBody, kw_only=True):
    """The fields that the endpoints that generate share."""

    best_of: int | None = None
    echo: bool | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """The body of `POST /v1/completions`; `prompt` is a text, token ids, or a list of either."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None

    top_logprobs: Any = None


class ChatBody(GenerationBody, kw_only=True):
    """The body of `POST /v1/chat/completions`; the model's chat template reads the messages, the tools and its options.

    `include_reasoning` false leaves reasoning out of the answer.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    thinking_token_budget: int | None = None
    include_reasoning: bool | None = None


@refusing
class EmbeddingBody(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/embeddings`; `input` is a text, token ids, or a list of either.

    `prompt_name` says what the texts are, such as query, to a model that has something to put before those.
    """

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    prompt_name: str | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    cache_salt: str | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """The body of `POST /tokenize`: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of `POST /detokenize`."""

    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool = False


FinishName = Literal["stop", "length", "tool_calls", "abort"]


class ScoredToken(msgspec.Struct):
    """One token at one position of the prompt, with its natural logarithm of probability and its rank."""

    logprob: float
    rank: int
    decoded_token: str


PromptPosition = dict[str, ScoredToken] | None
"""By token id, the actual token first; None if nothing precedes it."""


class PromptTokensDetails(msgspec.Struct):
    """The number of prompt tokens that did not have to be computed."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """The number of generated tokens that were reasoning."""

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
    """One answer to one prompt, or a chunk's addition to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishName | None = None
    stop_reason: str | int | UnsetType = UNSET
    prompt_logprobs: list[PromptPosition] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    weight_version: str | UnsetType = UNSET
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
    """A function that is called; `arguments` are the text of a JSON object."""

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
    weight_version: str | UnsetType = UNSET
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
    """The facts about the tokenizer that a client needs to count, cut and render prompts as the server does.

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
