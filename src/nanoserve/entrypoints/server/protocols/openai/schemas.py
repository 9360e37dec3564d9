"""Request bodies of the OpenAI endpoints, field by field as clients send them.

None stands for "not given": clients send null for what they leave open. `only` marks what is known but not supported.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from nanoserve.entrypoints.server.http.field_support import only, refusing, sampling_body
from nanoserve.ports.sampling import Api


class StreamOptions(msgspec.Struct, kw_only=True):
    """How a streamed answer counts its tokens: in a last chunk of its own, or in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[bool | None, only(False)] = None


@sampling_body(Api.OPENAI)
class GenerationBody(msgspec.Struct, kw_only=True):
    """What the endpoints that generate have in common."""

    model: str | None = None
    best_of: int | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool | None = None
    return_timings: bool | None = None
    add_special_tokens: bool | None = None
    request_id: str | None = None
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
