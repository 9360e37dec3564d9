"""Whether and how hard the model is to reason, as far as its chat template lets a client choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nanoserve.entrypoints.app.orders import ReasoningBudget
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.ports.checks import check_integer, shown
from nanoserve.ports.errors import BadValueError

_SWITCHES: Final = ("enable_thinking", "thinking")
_EFFORT: Final = "reasoning_effort"
_LARGEST_BUDGET: Final = 2**31 - 1
_NONE: Final = "none"
_EFFORTS: Final = (_NONE, "minimal", "low", "medium", "high", "xhigh", "max")


def effort_options(service: TextService, effort: str | None, name: str) -> Mapping[str, Any]:
    """The template's options for an effort, which the client calls `name`; None leaves it to the template.

    A template that knows no efforts but can switch reasoning on and off does that. Raises `BadValueError` where it can
    do neither.
    """
    if effort is None:
        return {}
    if effort not in _EFFORTS:
        raise BadValueError(name, f"must be one of {', '.join(_EFFORTS)}, got {shown(effort)}")
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
    """The template's options to reason, or not to; raises `BadValueError` where it has no such choice."""
    reasons = service.dialect is not None and service.dialect.has_reasoning
    if switch := _switch(service):
        return dict.fromkeys(switch, on)
    if on != reasons:
        cannot = "this model does not reason" if on else "this model always reasons"
        raise BadValueError(name, f"is not supported: {cannot}, its chat template has no switch")
    return {}


def reasoning_budget(service: TextService, tokens: int | None, name: str) -> ReasoningBudget | None:
    """The most tokens that the model may think, which the client calls `name`.

    Raises `BadValueError` where no mark is known with which its reasoning could be ended.
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
