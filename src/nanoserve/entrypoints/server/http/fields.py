"""The fields of requests that protocols share, each read only here.

What to sample is made from `PARAMETERS`, of which each protocol calls some by names of its own; reasoning, tools and formats
are checked here in the shapes that clients write them in; `make_order` puts it all together.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from nanoserve.entrypoints.app.orders import Client, Conversation, Format, Order, Prompt, ReasoningBudget
from nanoserve.entrypoints.app.structured_outputs import constraint_of
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.field_support import check_word, renamed
from nanoserve.ports.checks import check_integer, check_logprobs, check_number, shown
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, ConstraintKind
from nanoserve.ports.sampling import PARAMETERS, Api, SamplingParams
from nanoserve.ports.tool_calls import CallMode, Tool, ToolChoice

LONGEST_SALT: Final = 256
_STRONGEST_BIAS: Final = 100.0
_LONGEST_REQUEST_ID: Final = 256
T = TypeVar("T")
_NAMES: Final = {
    api: [(each.name, name) for each in PARAMETERS.values() for name in each.names_in(api)] for api in Api
}
"""Every parameter with each name that it has in an interface."""
_MAX_TOKENS_NAMES: Final = sorted({name for api in Api for each, name in _NAMES[api] if each == "max_tokens"})


def given_sampling(body: msgspec.Struct, api: Api) -> dict[str, tuple[str, Any]]:
    """The name that the client used and the value, of each parameter that a request sets.

    `body` is of a class that `sampling_body` has completed for this interface. Raises `BadValueError` if two names of
    one parameter have different values.
    """
    given: dict[str, tuple[str, Any]] = {}
    for parameter, name in _NAMES[api]:
        if (value := getattr(body, name)) is not None:
            first, before = given.setdefault(parameter, (name, value))
            if before != value:
                raise BadValueError(first, f"{before} contradicts {name}, which is {value}")
    return given


def read_sampling(body: msgspec.Struct, api: Api, defaults: Mapping[str, Any], **more: Any) -> SamplingParams:
    """The sampling parameters, with the model's defaults where the request says nothing; without `max_tokens` up to the context's end.

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


def check_openai(body: Any) -> dict[str, Any]:
    """Checks of OpenAI's older endpoints beside those of `SamplingParams`, of a `GenerationBody`; returns the sampling values that are given."""
    given = {name: value for name, (_, value) in given_sampling(body, Api.OPENAI).items()}
    n = given.get("n", 1)
    if body.best_of is not None and body.best_of != n:
        raise BadValueError("best_of", f"can only be equal to n ({n}), got {body.best_of}")
    for bias in given.get("logit_bias", {}).values():
        check_number("logit_bias", bias, -_STRONGEST_BIAS, _STRONGEST_BIAS)
    name = body.request_id or ""
    if len(name) > _LONGEST_REQUEST_ID:
        raise BadValueError("request_id", f"may have {_LONGEST_REQUEST_ID} characters, got {len(name)}")
    if not (name.isascii() and name.isprintable()):
        raise BadValueError("request_id", "takes printable ASCII characters only")
    if body.stream_options is not None and not body.stream:
        raise BadValueError("stream_options", "needs `stream: true`")
    return given


def requested_logprobs(logprobs: bool | None, top_logprobs: int | None, most: int) -> int | None:
    """The number of likeliest tokens that are reported beside each one; None if no log-probabilities are."""
    check_logprobs("top_logprobs", top_logprobs, most)
    if top_logprobs and not logprobs:
        raise BadValueError("top_logprobs", "needs `logprobs: true`")
    return (top_logprobs or 0) if logprobs else None


def make_order(
    body: msgspec.Struct,
    *,
    prompt: Prompt,
    prompt_name: str,
    sampling: SamplingParams,
    client: Client,
    stream: bool | None = None,
    **more: Any,
) -> Order:
    """The order for the service; its manner is read from the body, `stream` too unless it is given. Raises `BadValueError`.

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
        **{
            "is_turn": isinstance(prompt, Conversation),
            "model": given("model", ""),
            "max_tokens_name": next(
                (name for name in _MAX_TOKENS_NAMES if given(name, None) is not None), None
            ),
            **more,
        },
    )


_SWITCHES: Final = ("enable_thinking", "thinking")
_EFFORT: Final = "reasoning_effort"
_LARGEST_BUDGET: Final = 2**31 - 1
_NONE: Final = "none"
_EFFORTS: Final = (_NONE, "minimal", "low", "medium", "high", "xhigh", "max")


def effort_options(service: TextService, effort: str | None, name: str) -> Mapping[str, Any]:
    """The template's options for an effort, which the client calls `name`; None leaves it to the template.

    A template that knows no efforts but can switch reasoning on and off does that. Raises `BadValueError` if it can
    do neither.
    """
    if effort is None:
        return {}
    check_word(name, effort, _EFFORTS)
    if effort == _NONE:
        return switch_options(service, name, on=False)
    variables = service.settings.template_variables
    options: dict[str, Any] = dict.fromkeys(_switch(service), True)
    if _EFFORT in variables:
        options[_EFFORT] = effort
    if not options:
        raise BadValueError(name, "is not supported: this model's chat template has no effort to choose")
    return options


def switch_options(service: TextService, name: str, *, on: bool) -> Mapping[str, Any]:
    """The template's options to reason, or not to; raises `BadValueError` if it has no such choice."""
    reasons = service.dialect is not None and service.dialect.has_reasoning
    if switch := _switch(service):
        return dict.fromkeys(switch, on)
    if on != reasons:
        cannot = "this model does not reason" if on else "this model always reasons"
        raise BadValueError(name, f"is not supported: {cannot}, its chat template has no switch")
    return {}


def reasoning_budget(service: TextService, tokens: int | None, name: str) -> ReasoningBudget | None:
    """The most tokens that the model may think, which the client calls `name`.

    Raises `BadValueError` if no mark is known with which its reasoning could be ended.
    """
    if tokens is None:
        return None
    check_integer(name, tokens, 1, _LARGEST_BUDGET)
    if service.dialect is None or not service.dialect.has_reasoning:
        raise BadValueError(name, "is not supported: how this model ends its reasoning is not known")
    return ReasoningBudget(tokens, name)


def template_options(service: TextService, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The options that a client sets by the template's own names.

    Raises `BadValueError` for one that the template does not read, unless it asks a model not to reason that does not.
    """
    reasons = service.dialect is not None and service.dialect.has_reasoning
    options = {}
    for name, value in (given or {}).items():
        if name in service.settings.template_variables:
            options[name] = value
        elif reasons or name not in _SWITCHES or value:
            message = f"has {shown(name)}, which this model's chat template does not read"
            raise BadValueError("chat_template_kwargs", message)
    return options


def _switch(service: TextService) -> Sequence[str]:
    return [each for each in _SWITCHES if each in service.settings.template_variables][:1]


_LONGEST_NAME: Final = 128
_EXTRA: Final = frozenset("_-.:/")
_SYNTAXES: Final = {"lark": ConstraintKind.LARK, "regex": ConstraintKind.REGEX}
_KINDS: Final = ("function", "custom")


def member(value: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """A member of an object that must be of a kind, or null; None if it is missing. Raises `BadValueError`."""
    found = value.get(name)
    if found is not None and not isinstance(found, kind):
        kinds = {str: "a string", dict: "an object", list: "a list", bool: "true or false"}
        expected = " or ".join(kinds[each] for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise BadValueError(f"{where}.{name}", f"must be {expected}, got {shown(found)}")
    return found


def required(value: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """The same, where it must be there."""
    return needed(member(value, name, kind, where), f"{where}.{name}")


def needed(value: T | None, where: str) -> T:
    """A value that a client must give; raises `BadValueError` for None."""
    if value is None:
        raise BadValueError(where, "is required")
    return value


def openai_tool(given: Mapping[str, Any], where: str, *, nested: bool = False) -> Tool:
    """A function or a custom tool, as OpenAI's newer interface writes it, or `nested` in a member as the older one does."""
    kind = given.get("type")
    check_word(f"{where}.type", kind, _KINDS)
    if nested:
        given, where = required(given, str(kind), dict, where), f"{where}.{kind}"
    return custom_tool(given, where) if kind == "custom" else function_tool(given, where)


def function_tool(given: Mapping[str, Any], where: str, *, schema: str = "parameters") -> Tool:
    """One function, whose schema the protocol calls `schema`. Raises `BadValueError`."""
    name = _name(given, where)
    parameters = member(given, schema, dict, where)
    if parameters and parameters.get("type", "object") != "object":
        raise BadValueError(f"{where}.{schema}", "must be the schema of an object")
    return Tool(
        name=name,
        description=member(given, "description", str, where) or "",
        parameters={"type": "object", **parameters} if parameters else {"type": "object", "properties": {}},
        strict=bool(member(given, "strict", bool, where)),
    )


def custom_tool(given: Mapping[str, Any], where: str) -> Tool:
    """One that takes a text, of OpenAI's two interfaces, of which one has the grammar in an object of its own. Raises `BadValueError`."""
    name = _name(given, where)
    described = member(given, "format", dict, where) or {"type": "text"}
    kind = described.get("type")
    check_word(f"{where}.format.type", kind, ("text", "grammar"))
    form = None
    if kind == "grammar":
        inside = f"{where}.format.grammar" if "grammar" in described else f"{where}.format"
        grammar = member(described, "grammar", dict, f"{where}.format") or described
        syntax = required(grammar, "syntax", str, inside)
        check_word(f"{inside}.syntax", syntax, _SYNTAXES)
        form = Constraint(_SYNTAXES[syntax], required(grammar, "definition", str, inside))
    return Tool.custom(name, member(given, "description", str, where) or "", form)


def called(name: str, text: str) -> dict[str, str]:
    """An earlier call of a custom tool as the function that the model knows."""
    return {"name": name, "arguments": json.dumps({"input": text}, ensure_ascii=False)}


def _name(given: Mapping[str, Any], where: str) -> str:
    name: str = required(given, "name", str, where)
    if not 0 < len(name) <= _LONGEST_NAME or not all(each.isalnum() or each in _EXTRA for each in name):
        allowed = f"1 to {_LONGEST_NAME} letters, digits and {''.join(sorted(_EXTRA))}"
        raise BadValueError(f"{where}.name", f"must have {allowed}, got {shown(name)}")
    return name


def read_tools(
    given: list[dict[str, Any]] | None,
    service: TextService,
    read: Callable[[Mapping[str, Any], str], Tool],
) -> tuple[Tool, ...]:
    """The tools of a request, each read by `read`; raises `BadValueError` if the model's way of calling is not known."""
    if not given:
        return ()
    if service.dialect is None or not service.dialect.has_calls:
        message = "are not supported: how this model calls tools is not known"
        raise BadValueError("tools", f"{message}; if it calls as a known family does, start with --dialect")
    tools = tuple(read(each, f"tools[{place}]") for place, each in enumerate(given))
    names: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.name in names:
            raise BadValueError(f"tools[{place}].name", f"{shown(tool.name)} is the name of two tools")
        names.add(tool.name)
    return tools


def tool_choice(
    mode: CallMode, tools: tuple[Tool, ...], *, names: Iterable[str] = (), parallel: bool | None = None
) -> ToolChoice:
    """The choice among the tools that there are. Raises `BadValueError`."""
    known = {tool.name for tool in tools}
    names = tuple(dict.fromkeys(names))
    for name in names:
        if name not in known:
            raise BadValueError("tool_choice", f"names {shown(name)}, which is not among the tools")
    if mode is CallMode.REQUIRED and not tools:
        raise BadValueError("tool_choice", "asks for a call, and there are no tools")
    return ToolChoice(mode, names, parallel=parallel is not False)


def openai_choice(given: Any, tools: tuple[Tool, ...], parallel: bool | None) -> ToolChoice:
    """As OpenAI's two interfaces write it: a mode, a tool, or the tools that are allowed. Raises `BadValueError`."""
    choose = functools.partial(tool_choice, tools=tools, parallel=parallel)
    if given is None or isinstance(given, str):
        if given not in {None, *(mode.value for mode in CallMode)}:
            message = f"must be none, auto, required or an object, got {shown(given)}"
            raise BadValueError("tool_choice", message)
        return choose(CallMode(given or "auto"))
    if not isinstance(given, dict):
        raise BadValueError("tool_choice", f"must be a string or an object, got {shown(given)}")
    kind = given.get("type")
    if kind in _KINDS:
        return choose(CallMode.REQUIRED, names=[_named_tool(given, "tool_choice")])
    if kind == "allowed_tools":
        allowed = member(given, "allowed_tools", dict, "tool_choice") or given
        mode = allowed.get("mode", "auto")
        check_word("tool_choice.mode", mode, ("auto", "required"))
        listed = required(allowed, "tools", list, "tool_choice")
        names = [_named_tool(each, f"tool_choice.tools[{place}]") for place, each in enumerate(listed)]
        return choose(CallMode(mode), names=names)
    raise BadValueError("tool_choice.type", f"must be function, custom or allowed_tools, got {shown(kind)}")


def _named_tool(given: Any, where: str) -> str:
    """The tool of `{type: function, function: {name}}` and of `{type: function, name}`; of custom tools likewise."""
    kind = given.get("type") if isinstance(given, dict) else None
    if kind not in _KINDS:
        raise BadValueError(where, "must be an object of the type function or custom")
    name: str = required(member(given, kind, dict, where) or given, "name", str, where)
    return name


RESPONSE_FORMAT: Final = "response_format"
STRUCTURED: Final = "structured_outputs"
MEMBERS: Final = {
    **{f"guided_{name}": name for name in ("json", "regex", "choice", "grammar")},
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
}
"""The names that vLLM's older clients, SGLang's and llama.cpp's have for members of `structured_outputs`."""


def body_format(body: msgspec.Struct) -> Format | None:
    """The format that a body of OpenAI's older endpoints asks for; None for any text. Raises `BadValueError`."""
    asked = [
        name for name in (RESPONSE_FORMAT, STRUCTURED, *MEMBERS) if getattr(body, name) not in (None, {}, "")
    ]
    formats = [found for name in asked if (found := _format(name, getattr(body, name))) is not None]
    if len(formats) > 1:
        raise BadValueError(formats[1].name, f"cannot be combined with {formats[0].name}")
    return formats[0] if formats else None


def schema_format(name: str, given: Any) -> Format | None:
    """The format of one object `{"type": "json_schema", "schema": ...}`, which the client calls `name`."""
    return None if given is None else _format(name, given, as_format=True)


def _format(name: str, given: Any, *, as_format: bool = False) -> Format | None:
    as_format = as_format or name == RESPONSE_FORMAT
    inside = {MEMBERS[name]: given} if name in MEMBERS else given
    try:
        constraint = constraint_of(**{RESPONSE_FORMAT if as_format else STRUCTURED: inside})
    except BadValueError as error:
        _, _, path = error.parameter.partition(".")
        raise renamed(error, f"{name}.{path}" if path and name not in MEMBERS else name) from None
    return None if constraint is None else Format(constraint, name)
