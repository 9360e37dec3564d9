"""The part of a request body that all protocols share: sampling parameters, and how a request is queued and cached.

The fields are made from `PARAMETERS`; each protocol calls some of them by names of its own. `read_sampling` and
`make_order` read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec

from nanoserve.entrypoints.app.orders import Client, Conversation, Order
from nanoserve.entrypoints.server.http.field_support import BodyT, completed, only, renamed
from nanoserve.ports.checks import check_integer
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.parameter import Api, Kind, Parameter
from nanoserve.ports.sampling import MAX_LOGPROBS, PARAMETERS, SamplingParams

LONGEST_SALT: Final = 256
_TYPES: Final[Mapping[Kind, Any]] = {
    Kind.NUMBER: float,
    Kind.INTEGER: int,
    Kind.SWITCH: bool,
    Kind.TEXTS: str | list[str],
    Kind.TOKEN_IDS: list[int],
    Kind.BIASES: dict[str, float],
}
_MAX_TOKENS_NAMES: Final = sorted({name for api in Api for name in PARAMETERS["max_tokens"].names_in(api)})
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
        return completed(body, fields)

    return complete


def given_sampling(body: msgspec.Struct, api: Api) -> dict[str, tuple[str, Any]]:
    """The name that the client used and the value, of each parameter that a request sets.

    `body` is of a class that `sampling_body` has completed for this interface. Raises `BadValueError` where two names of
    one parameter have different values.
    """
    given: dict[str, tuple[str, Any]] = {}
    for parameter in PARAMETERS.values():
        for name in parameter.names_in(api):
            value = getattr(body, name)
            if value is None:
                continue
            first, before = given.setdefault(parameter.name, (name, value))
            if before != value:
                raise BadValueError(first, f"{before} contradicts {name}, which is {value}")
    return given


def read_sampling(body: msgspec.Struct, api: Api, defaults: Mapping[str, Any], **more: Any) -> SamplingParams:
    """What to sample, with the model's defaults where the request says nothing; without `max_tokens` up to the context's end.

    `more` are values that the protocol reads in its own way, by the names of `SamplingParams`; None is not given. Raises
    `BadValueError` under the name that the client used.
    """
    given = given_sampling(body, api)
    values = {name: value for name, (_, value) in given.items()}
    values |= {name: value for name, value in more.items() if value is not None}
    try:
        return SamplingParams(**{"max_tokens": None, **defaults, **values})
    except BadValueError as error:
        wire_name, _ = given.get(error.parameter, (error.parameter, None))
        raise renamed(error, wire_name) from None


def requested_logprobs(logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """How many likeliest tokens are reported beside each one; None where no log-probabilities are."""
    if top_logprobs is not None:
        check_integer("top_logprobs", top_logprobs, 0, MAX_LOGPROBS)
        if top_logprobs and not logprobs:
            raise BadValueError("top_logprobs", "needs `logprobs: true`")
    return (top_logprobs or 0) if logprobs else None


def make_order(
    body: msgspec.Struct,
    *,
    prompt: str | tuple[int, ...] | Conversation,
    prompt_name: str,
    sampling: SamplingParams,
    client: Client,
    stream: bool | None = None,
    **more: Any,
) -> Order:
    """What the service is to do; how is read from the body, `stream` too unless it is given. Raises `BadValueError`.

    `prompt_name` is the body's field for the prompt; `more` are other fields of the order.
    """

    def given(name: str, otherwise: Any) -> Any:
        value = getattr(body, name, None)
        return otherwise if value is None else value

    salt = given("cache_salt", "")
    if len(salt) > LONGEST_SALT:
        raise BadValueError("cache_salt", f"may have {LONGEST_SALT} characters, got {len(salt)}")
    return Order(
        prompt=prompt,
        sampling=sampling,
        client=client,
        stream=given("stream", otherwise=False) if stream is None else stream,
        add_special_tokens=given("add_special_tokens", otherwise=True),
        truncate_prompt_tokens=given("truncate_prompt_tokens", None),
        cache_salt=salt,
        priority=given("priority", 0),
        prompt_name=prompt_name,
        max_tokens_name=next((name for name in _MAX_TOKENS_NAMES if given(name, None) is not None), None),
        **{"is_turn": isinstance(prompt, Conversation), **more},
    )


def _described(parameter: Parameter) -> msgspec.Meta:
    """Its meaning and range for readers of the schema; `SamplingParams` is what checks them."""
    schema: dict[str, Any] | None = None
    if parameter.kind in (Kind.NUMBER, Kind.INTEGER):
        low = "exclusiveMinimum" if parameter.above else "minimum"
        schema = {low: parameter.low, "maximum": parameter.high}
    return msgspec.Meta(description=parameter.meaning, extra_json_schema=schema)
