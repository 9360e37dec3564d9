"""What becomes of each field of a request: it is served, refused by name, or accepted because it changes nothing here.

A body is the table of its protocol: a field that is declared without a mark is served, `only` marks what is refused, and
`harmless` what is accepted without effect, with the reason. `FIELDS` has the marks of all protocols, because clients send
the fields of one to another; a body that serves one of them declares it. No known field is ignored in silence.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec

from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.parameter import Api, Kind, Parameter
from nanoserve.ports.sampling import PARAMETERS

_VALUES: Final = "harmless values"
_REASON: Final = "harmless because"
BodyT = TypeVar("BodyT", bound=msgspec.Struct)


def only(*harmless: Any) -> msgspec.Meta:
    """The mark of a field that may hold nothing but null and these values, which change nothing."""
    allowed = " or ".join(shown(each) for each in harmless)
    description = f"Not supported; it can be {allowed}." if harmless else "Not supported; leave it out."
    return msgspec.Meta(description=description, extra={_VALUES: harmless})


def harmless(reason: str) -> msgspec.Meta:
    """The mark of a field that may hold any value, none of which changes anything."""
    return msgspec.Meta(description=f"Accepted without effect: {reason}.", extra={_REASON: reason})


FIELDS: Final[Mapping[str, msgspec.Meta]] = {
    # Tools
    "tools": only([]),
    "tool_choice": only("none", "auto", {"type": "none"}, {"type": "auto"}),
    "parallel_tool_calls": only(True, False),
    "functions": only([]),
    "function_call": only("none", "auto"),
    "mcp_servers": only([]),
    "web_search_options": only(),
    # Answers that follow a grammar
    "response_format": only({"type": "text"}),
    "format": only(""),
    "guided_json": only(),
    "guided_regex": only(),
    "guided_choice": only(),
    "guided_grammar": only(),
    "guided_whitespace_pattern": only(),
    "guided_decoding_backend": harmless("one library keeps every grammar"),
    "structured_outputs": only(),
    "regex": only(""),
    "json_schema": only({}, ""),
    "ebnf": only(""),
    "grammar": only(""),
    "grammar_lazy": only(False),
    "grammar_triggers": only([]),
    "output_config": only({}),
    "output_format": only(),
    # Prompts that are no text, or are made otherwise
    "images": only([]),
    **dict.fromkeys(("width", "height", "steps"), only()),
    "image": only({}),
    "audio": only(),
    "modalities": only(["text"]),
    "mm_processor_kwargs": only({}),
    "media_io_kwargs": only({}),
    "prompt_embeds": only(),
    "suffix": only(""),
    "documents": only([]),
    "system": only(""),
    "instructions": only(""),
    "template": only(""),
    "chat_template": only(),
    "chat_template_kwargs": only({}),
    "add_special_tokens": only(False),
    "add_generation_prompt": only(True),
    "continue_final_message": only(False),
    "truncate": only(False),
    "truncate_prompt_tokens": only(),
    "shift": only(False),
    "context_management": only([], {}),
    "compaction": only(),
    "session_params": only({}),
    # Reasoning
    "reasoning_effort": only("none"),
    "thinking_token_budget": only(),
    "include_reasoning": only(True, False),
    "think": only(False),
    "thinking": only({"type": "disabled"}),
    "reasoning": only({}),
    "separate_reasoning": only(True),
    "stream_reasoning": only(True),
    "verbosity": harmless("chat templates have no place for it"),
    # Sampling
    "best_of": only(1),
    "use_beam_search": only(False),
    "length_penalty": only(1.0),
    "early_stopping": only(False),
    "logits_processors": only([]),
    "mirostat": only(0),
    "typical_p": only(1.0),
    "tfs_z": only(1.0),
    "repeat_last_n": only(-1),
    "penalize_newline": only(True),
    "vocab_only": only(False),
    "embedding_only": only(False),
    "repeat_penalty": only(1.0),
    "n_predict": only(-1),
    "stop_regex": only(),
    "custom_logit_processor": only(),
    "samplers": only(),
    "dynatemp_range": only(0.0),
    "dry_multiplier": only(0.0),
    "xtc_probability": only(0.0),
    "top_n_sigma": only(-1.0),
    "t_max_predict_ms": only(0, -1),
    "vllm_xargs": only({}),
    "lora_path": only(),
    "lora": only([]),
    "prediction": harmless("it could make the same answer come sooner"),
    # What an answer holds
    "echo": only(False),
    "top_logprobs": only(0),
    "return_token_ids": only(False),
    "return_timings": only(False),
    "return_tokens_as_token_ids": only(False),
    "return_hidden_states": only(False),
    "timings_per_token": only(False),
    "n_probs": only(0),
    "spaces_between_special_tokens": only(True),
    # Services around the model
    "request_id": only(),
    "rid": harmless("requests are named by the header x-request-id"),
    "thread": only(),
    "conversation": only(),
    "container": only(),
    "background": only(False),
    "background_options": only({}),
    "moderation": only(),
    "access_programs": only({}),
    "fallbacks": only([], "default"),
    "fallback_credit_token": only(),
    "inference_geo": only(),
    "speed": only("standard"),
    "kv_transfer_params": only({}),
    "store": harmless("it is about the provider's own pages"),
    "metadata": harmless("it is for the provider's own pages"),
    "service_tier": harmless("all requests are of one tier"),
    "billing_policy": harmless("nobody is billed"),
    "user_profile_id": harmless("nobody is billed"),
    "workspace_id": harmless("there is one workspace"),
    "betas": harmless("each feature has a field of its own"),
    "anthropic_beta": harmless("each feature has a field of its own"),
    "anthropic_version": harmless("there is one version"),
    "diagnostics": harmless("the usage says how much of the prompt was cached"),
    "user": harmless("nothing depends on who is asking for whom"),
    "safety_identifier": harmless("nothing depends on who is asking for whom"),
    **dict.fromkeys(
        (
            "cache_control",
            "cache_prompt",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
        ),
        harmless("every prompt is cached, for as long as there is room"),
    ),
    "keep_alive": harmless("the model stays in memory"),
    "id_slot": harmless("the scheduler chooses"),
}
"""By the name of a field."""


def _completed(body: type[BodyT], fields: Mapping[str, Any]) -> type[BodyT]:
    """The body with those of the fields, types by name, that it does not declare, and with those of `FIELDS`."""
    wanted = {**{name: Annotated[Any, mark] for name, mark in FIELDS.items()}, **fields}
    missing = [(name, kind, None) for name, kind in wanted.items() if name not in body.__struct_fields__]
    whole: Any = msgspec.defstruct(
        body.__name__, missing, bases=(body,), module=body.__module__, kw_only=True
    )
    whole.__doc__ = body.__doc__
    return cast("type[BodyT]", whole)


_TYPES: Final[Mapping[Kind, Any]] = {
    Kind.NUMBER: float,
    Kind.INTEGER: int,
    Kind.SWITCH: bool,
    Kind.TEXTS: str | list[str],
    Kind.TOKEN_IDS: list[int],
    Kind.BIASES: dict[str, float],
}
_REQUEST_FIELDS: Final[Mapping[str, Any]] = {
    "priority": Annotated[
        int | None, msgspec.Meta(description="Lower runs first, under the priority policy.")
    ],
    "cache_salt": Annotated[
        str | None, msgspec.Meta(description="Cached prefixes are shared only where salts are equal.")
    ],
}


def sampling_body(api: Api) -> Callable[[type[BodyT]], type[BodyT]]:
    """Add to a body every field that it does not declare itself; what the protocol does not take is refused by name."""

    def complete(body: type[BodyT]) -> type[BodyT]:
        fields = dict(_REQUEST_FIELDS)
        for parameter in PARAMETERS.values():
            kind = _TYPES[parameter.kind] | None
            names = parameter.names_in(api)
            fields |= {name: Annotated[kind, _described(parameter)] for name in names}
            if not names:
                fields[parameter.name] = Annotated[kind, only(parameter.default)]
        return _completed(body, fields)

    return complete


def _described(parameter: Parameter) -> msgspec.Meta:
    """Its meaning and range for readers of the schema; `SamplingParams` is what checks them."""
    schema: dict[str, Any] | None = None
    if parameter.kind in (Kind.NUMBER, Kind.INTEGER):
        low = "exclusiveMinimum" if parameter.above else "minimum"
        schema = {low: parameter.low, "maximum": parameter.high}
    return msgspec.Meta(description=parameter.meaning, extra_json_schema=schema)


def refusing(body: type[BodyT]) -> type[BodyT]:
    """The decorator of a body without sampling parameters."""
    return _completed(body, {})


def renamed(error: BadValueError, parameter: str) -> BadValueError:
    """The same error about a parameter under the name that the client knows."""
    return BadValueError(parameter, str(error).removeprefix(f"{error.parameter}: "))


@functools.cache
def support(body: type[msgspec.Struct]) -> Mapping[str, tuple[Any, ...] | str | None]:
    """What becomes of each field of a body, as marked: the values that it may hold, why it is harmless, or None where it is served."""
    hints = typing.get_type_hints(body, include_extras=True)
    return {name: _mark_of(annotation) for name, annotation in hints.items()}


def _mark_of(annotation: Any) -> tuple[Any, ...] | str | None:
    extras = [each.extra for each in parts_of(annotation) if isinstance(each, msgspec.Meta) and each.extra]
    return next((each.get(_VALUES, each.get(_REASON)) for each in extras), None)


def parts_of(annotation: Any) -> Iterator[Any]:
    """What an annotation is made of, itself and its marks included."""
    yield from getattr(annotation, "__metadata__", ())
    yield annotation
    for each in typing.get_args(annotation):
        yield from parts_of(each)
