"""Request bodies of the OpenAI endpoints, field by field as clients send them.

None stands for "not given": clients send null for what they leave open. Fields typed `Any` are known but not supported;
`unsupported.py` says which of their values are harmless.
"""

from __future__ import annotations

from typing import Any

import msgspec


class StreamOptions(msgspec.Struct, kw_only=True):
    """How a streamed answer counts its tokens: in a last chunk of its own, or in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """What the endpoints that generate have in common."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    n: int | None = None
    best_of: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool | None = None
    return_timings: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    request_id: str | None = None

    response_format: Any = None
    use_beam_search: Any = None
    length_penalty: Any = None
    early_stopping: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    logits_processors: Any = None
    kv_transfer_params: Any = None
    spaces_between_special_tokens: Any = None
    return_tokens_as_token_ids: Any = None
    service_tier: Any = None
    store: Any = None
    metadata: Any = None


class CompletionBody(GenerationBody, kw_only=True):
    """The body of `POST /v1/completions`; `prompt` is a text, token ids, or a list of either."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None

    suffix: Any = None
    top_logprobs: Any = None
    prompt_embeds: Any = None


class ChatBody(GenerationBody, kw_only=True):
    """The body of `POST /v1/chat/completions`; the model's chat template reads the messages."""

    messages: list[dict[str, Any]]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None

    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    continue_final_message: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    documents: Any = None
    mm_processor_kwargs: Any = None
    include_reasoning: Any = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """The body of `POST /tokenize`: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of `POST /detokenize`."""

    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool = False
