"""Support of each field of a request: it is served, refused by name, or accepted because it changes nothing here.

A body is the table of its protocol: a field that is declared without a mark is served, `only` marks refused values, and
`harmless` accepted fields without effect, with the reason. `FIELDS` has the marks of all protocols, because clients send the
fields of one to another; a body that serves one of them declares it. No known field is ignored in silence.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec

from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import PARAMETERS, Api, Kind, Parameter

_VALUES: Final = "harmless values"
_REASON: Final = "harmless because"
BodyT = TypeVar("BodyT", bound=msgspec.Struct)


def only(*harmless: Any) -> msgspec.Meta:
    """The mark of a field that may hold nothing but null and these values, which change nothing."""
    allowed = " or ".join(shown(each) for each in harmless)
    description = f"Not supported; it can be {allowed}." if harmless else "Not supported; leave it out."
    return msgspec.Meta(description=description, extra={_VALUES: harmless})


def harmless(reason: str) -> msgspec.Meta:
    """The mark of a field whose value changes nothing."""
    return msgspec.Meta(description=f"Accepted without effect: {reason}.", extra={_REASON: reason})


EARLIER: Final = harmless("of an earlier answer, and says nothing that the model could be told")


def taking(names: str, mark: msgspec.Meta) -> Callable[[type[BodyT]], type[BodyT]]:
    """The decorator of a struct that has these fields, too, all of them with one mark."""
    return lambda body: _with_fields(body, dict.fromkeys(names.split(), Annotated[Any, mark]))


def _with_fields(body: type[BodyT], fields: Mapping[str, Any]) -> type[BodyT]:
    """The body with those of the fields, types by name, that it does not declare."""
    missing = [(name, kind, None) for name, kind in fields.items() if name not in body.__struct_fields__]
    whole: Any = msgspec.defstruct(
        body.__name__, missing, bases=(body,), module=body.__module__, kw_only=True
    )
    whole.__doc__ = body.__doc__
    return cast("type[BodyT]", whole)


def _each(names: str, mark: msgspec.Meta) -> dict[str, msgspec.Meta]:
    return dict.fromkeys(names.split(), mark)


FIELDS: Final[Mapping[str, msgspec.Meta]] = {
    **_each(
        "web_search_options guided_json guided_regex guided_choice guided_grammar "
        "guided_whitespace_pattern structured_outputs output_format width height steps audio "
        "prompt_embeds chat_template truncate_prompt_tokens compaction thinking_token_budget "
        "stop_regex custom_logit_processor samplers lora_path request_id thread conversation "
        "container moderation fallback_credit_token inference_geo",
        only(),
    ),
    **_each(
        "grammar_lazy add_special_tokens continue_final_message truncate shift think use_beam_search "
        "early_stopping vocab_only embedding_only echo return_token_ids return_timings "
        "return_tokens_as_token_ids return_hidden_states return_routed_experts timings_per_token background",
        only(False),
    ),
    **_each(
        "output_config image mm_processor_kwargs media_io_kwargs chat_template_kwargs session_params "
        "reasoning vllm_xargs background_options access_programs kv_transfer_params",
        only({}),
    ),
    **_each("format regex ebnf grammar suffix system instructions template", only("")),
    **_each("tools functions mcp_servers grammar_triggers images documents logits_processors lora", only([])),
    **_each(
        "add_generation_prompt separate_reasoning stream_reasoning penalize_newline "
        "spaces_between_special_tokens",
        only(True),
    ),
    **_each("length_penalty typical_p tfs_z repeat_penalty", only(1.0)),
    **_each("mirostat top_logprobs n_probs", only(0)),
    **_each("dynatemp_range dry_multiplier xtc_probability", only(0.0)),
    **_each("repeat_last_n n_predict", only(-1)),
    **_each("parallel_tool_calls include_reasoning", only(True, False)),
    "reasoning_effort": only("none"),
    "function_call": only("none", "auto"),
    "tool_choice": only("none", "auto", {"type": "none"}, {"type": "auto"}),
    "speed": only("standard"),
    "top_n_sigma": only(-1.0),
    "t_max_predict_ms": only(0, -1),
    "best_of": only(1),
    "modalities": only(["text"]),
    "fallbacks": only([], "default"),
    "context_management": only([], {}),
    "thinking": only({"type": "disabled"}),
    "response_format": only({"type": "text"}),
    "json_schema": only({}, ""),
    **_each(
        "cache_control cache_prompt prompt_cache_key prompt_cache_options prompt_cache_retention",
        harmless("every prompt is cached, for as long as there is room"),
    ),
    **_each("betas anthropic_beta", harmless("each feature has a field of its own")),
    **_each("billing_policy user_profile_id", harmless("nobody is billed")),
    **_each("user safety_identifier", harmless("nothing depends on who is asking for whom")),
    "service_tier": harmless("all requests are of one tier"),
    "verbosity": harmless("chat templates have no place for it"),
    "prediction": harmless("it could make the same answer come sooner"),
    "store": harmless("it is about the provider's own pages"),
    "metadata": harmless("it is for the provider's own pages"),
    "guided_decoding_backend": harmless("one library keeps every grammar"),
    "rid": harmless("requests are named by the header x-request-id"),
    "keep_alive": harmless("the model stays in memory"),
    "id_slot": harmless("the scheduler chooses"),
    "diagnostics": harmless("the usage says how much of the prompt was cached"),
    "anthropic_version": harmless("there is one version"),
    "workspace_id": harmless("there is one workspace"),
}
"""By the name of a field."""


def _completed(body: type[BodyT], fields: Mapping[str, Any]) -> type[BodyT]:
    """The body with those of the fields that it does not declare, and with those of `FIELDS`."""
    return _with_fields(body, {**{name: Annotated[Any, mark] for name, mark in FIELDS.items()}, **fields})


_TYPES: Final[Mapping[Kind, Any]] = {
    Kind.NUMBER: float,
    Kind.INTEGER: int,
    Kind.SWITCH: bool,
    Kind.TEXTS: str | list[str],
    Kind.TOKEN_IDS: list[int],
    Kind.BIASES: dict[str, float],
}
_REQUEST_FIELDS: Final[Mapping[str, Any]] = {
    "priority": Annotated[int | None, msgspec.Meta(description="Lower runs first (priority policy).")],
    "cache_salt": Annotated[
        str | None, msgspec.Meta(description="Cached prefixes are shared only where salts are equal.")
    ],
}


def sampling_body(api: Api) -> Callable[[type[BodyT]], type[BodyT]]:
    """Add to a body every parameter that it does not declare; those that the protocol does not accept are refused by name."""

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
    """Its meaning and range for readers of the schema; `SamplingParams` checks them."""
    schema: dict[str, Any] | None = None
    if parameter.kind in (Kind.NUMBER, Kind.INTEGER):
        schema = {"minimum": parameter.low, "maximum": parameter.high}
    return msgspec.Meta(description=parameter.meaning, extra_json_schema=schema)


def refusing(body: type[BodyT]) -> type[BodyT]:
    """The decorator of a body without sampling parameters."""
    return _completed(body, {})


def renamed(error: BadValueError, parameter: str) -> BadValueError:
    """An error about a parameter under the name that the client knows."""
    return BadValueError(parameter, str(error).removeprefix(f"{error.parameter}: "))


def check_word(name: str, value: object, words: Collection[str]) -> None:
    """Raise `BadValueError` for a value that is none of a few words."""
    if value not in words:
        wanted = " or ".join(words) if len(words) == 2 else f"one of {', '.join(words)}"
        raise BadValueError(name, f"must be {wanted}, got {shown(value)}")


@functools.cache
def support(body: type[msgspec.Struct]) -> Mapping[str, tuple[Any, ...] | str | None]:
    """The support of each field of a body, as marked: the values that it may hold, why it is harmless, or None if it is served."""
    hints = typing.get_type_hints(body, include_extras=True)
    return {name: _mark_of(annotation) for name, annotation in hints.items()}


def _mark_of(annotation: Any) -> tuple[Any, ...] | str | None:
    extras = [each.extra for each in parts_of(annotation) if isinstance(each, msgspec.Meta) and each.extra]
    return next((each.get(_VALUES, each.get(_REASON)) for each in extras), None)


def parts_of(annotation: Any) -> Iterator[Any]:
    """The parts of an annotation, itself and its marks included."""
    yield from getattr(annotation, "__metadata__", ())
    yield annotation
    for each in typing.get_args(annotation):
        yield from parts_of(each)
