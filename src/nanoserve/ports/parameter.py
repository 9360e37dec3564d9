"""The declaration of a sampling parameter, for every interface that offers it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs

from nanoserve.ports.checks import check_integer, check_number, check_switch, check_texts, check_token_ids


class Kind(enum.Enum):
    """The type of a parameter's value; all except numbers and switches are lists."""

    NUMBER = "number"
    INTEGER = "integer"
    SWITCH = "switch"
    TEXTS = "texts"
    TOKEN_IDS = "ids"  # noqa: S105 - a kind, no secret
    BIASES = "biases"


class Group(enum.Enum):
    """Where forms and documents show a parameter."""

    COMMON = "Common"
    SAMPLING = "Sampling"
    STOPPING = "Stopping"
    TOKENS = "Allowed tokens"
    OUTPUT = "Output"


class Api(enum.Enum):
    """An HTTP interface; each has a field for every parameter."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    RESPONSES = "responses"
    OLLAMA = "ollama"


class Door(enum.Enum):
    """Who sets a parameter, beside Python, the HTTP interfaces and `nanoserve generate`, which set all of them."""

    CHAT = "nanoserve chat"
    BENCH = "nanoserve bench"
    LOAD = "nanoserve bench serve"
    MODEL = "generation_config.json"
    PAGE = "the page"


@attrs.frozen(kw_only=True)
class Parameter:
    """The declaration of a sampling parameter.

    Attributes:
        name: the field of `SamplingParams`, the option and the field of HTTP bodies.
        kind, default: of the value; None is a value where `optional` is true.
        meaning: one sentence, for people.
        low, high: the range of a number, without `low` itself if `above` is true.
        most, characters: how many texts there may be, and their length together.
        label: how a form calls it; the name if empty.
        names: how HTTP interfaces call it, where not by its name; one without names refuses it, or reads it itself.
        doors: who else sets it.
    """

    name: str
    kind: Kind
    default: Any
    meaning: str
    group: Group
    optional: bool = False
    low: Any = None
    high: Any = None
    above: bool = False
    most: int = 0
    characters: int = 0
    label: str = ""
    names: Mapping[Api, tuple[str, ...]] = attrs.field(factory=dict)
    doors: tuple[Door, ...] = (Door.PAGE,)

    def names_in(self, api: Api) -> tuple[str, ...]:
        """How an HTTP interface calls it, the preferred name first."""
        return self.names.get(api, (self.name,))

    def check(self, value: Any) -> None:
        """Raise `BadValueError` for a value of another kind or out of range."""
        if value is None and self.optional:
            return
        match self.kind:
            case Kind.NUMBER:
                check_number(self.name, value, self.low, self.high, open_low=self.above)
            case Kind.INTEGER:
                check_integer(self.name, value, self.low, self.high)
            case Kind.SWITCH:
                check_switch(self.name, value)
            case Kind.TEXTS:
                check_texts(self.name, value, self.most, self.characters)
            case Kind.TOKEN_IDS:
                check_token_ids(self.name, value)
            case Kind.BIASES:
                check_token_ids(self.name, (token for token, _ in value))
                for _, bias in value:
                    check_number(self.name, bias, self.low, self.high)
