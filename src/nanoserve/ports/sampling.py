"""How a client asks for tokens: `SamplingParams`, named and shaped as in vLLM's offline interface.

Each parameter is declared once, as a field of that class. What every door needs to know of it stands beside it, as a
`Parameter`: HTTP bodies, command line options, the page's form and the documents are made from `PARAMETERS`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from nanoserve.ports import checks
from nanoserve.ports.errors import BadValueError

MAX_SEQUENCES_PER_REQUEST: Final = 128
MOST_LOGPROBS: Final = 1024
"""The most that an engine can be told to report; `EngineSizes.max_logprobs` says how many it does."""
_MOST: Final = 2**31 - 1


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
        low, high: the range of a number.
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
                checks.check_number(self.name, value, self.low, self.high)
            case Kind.INTEGER:
                checks.check_integer(self.name, value, self.low, self.high)
            case Kind.SWITCH:
                checks.check_switch(self.name, value)
            case Kind.TEXTS:
                checks.check_texts(self.name, value, self.most, self.characters)
            case Kind.TOKEN_IDS:
                checks.check_token_ids(self.name, value)
            case Kind.BIASES:
                checks.check_token_ids(self.name, (token for token, _ in value))
                for _, bias in value:
                    checks.check_number(self.name, bias, self.low, self.high)


def _declared(kind: Kind, group: Group, meaning: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "group": group, "meaning": meaning, **more}


def _number(default: float, group: Group, meaning: str, **more: Any) -> Any:
    return attrs.field(default=default, metadata=_declared(Kind.NUMBER, group, meaning, **more))


def _integer(default: int | None, group: Group, meaning: str, **more: Any) -> Any:
    declared = _declared(Kind.INTEGER, group, meaning, **{"optional": default is None, **more})
    return attrs.field(default=default, metadata=declared)


def _switch(default: bool, group: Group, meaning: str, **more: Any) -> Any:
    return attrs.field(default=default, metadata=_declared(Kind.SWITCH, group, meaning, **more))


def _stop(value: str | Iterable[str] | None) -> tuple[str, ...]:
    return _strings("stop", value)


def _bad_words(value: str | Iterable[str] | None) -> tuple[str, ...]:
    return _strings("bad_words", value)


def _stop_token_ids(value: Iterable[int] | None) -> tuple[int, ...]:
    return _items("stop_token_ids", value, "a list of token ids")


def _allowed_token_ids(value: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if value is None else _items("allowed_token_ids", value, "a list of token ids")


def _strings(name: str, value: str | Iterable[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else _items(name, value, "a string or a list of strings")


def _items(name: str, value: Iterable[Any] | None, wanted: str) -> tuple[Any, ...]:
    try:
        return () if value is None else tuple(value)
    except TypeError:
        raise BadValueError(name, f"takes {wanted}, got {checks.shown(value)}") from None


def _bias(value: Mapping[int, float] | Iterable[tuple[int, float]] | None) -> tuple[tuple[int, float], ...]:
    """Pairs sorted by token; JSON's keys are strings, so strings of digits are ids too."""
    try:
        pairs = value.items() if isinstance(value, Mapping) else value or ()
        read = [(int(token) if isinstance(token, str) else token, bias) for token, bias in pairs]
        return tuple(sorted((token, bias) for token, bias in read))
    except (TypeError, ValueError):
        raise BadValueError(
            "logit_bias", f"must map token ids to numbers, got {checks.shown(value)}"
        ) from None


_ALL_DOORS: Final = tuple(Door)
_OPENAI_ONLY: Final[Mapping[Api, tuple[str, ...]]] = {api: () for api in Api if api is not Api.OPENAI}
_NO_API: Final[Mapping[Api, tuple[str, ...]]] = dict.fromkeys(Api, ())


@attrs.frozen(kw_only=True)
class SamplingParams:
    """Settings of generation and of its end. Checked on creation: a bad value raises `BadValueError`.

    The penalties of presence and frequency are OpenAI's, that of repetition is CTRL's (Keskar et al. 2019).
    """

    temperature: float = _number(
        1.0,
        Group.COMMON,
        "0 takes the likeliest token; higher is more random.",
        low=0.0,
        high=100.0,
        doors=_ALL_DOORS,
    )
    top_p: float = _number(
        1.0,
        Group.COMMON,
        "Sample from the most likely tokens that together have this probability; 0 takes the likeliest.",
        low=0.0,
        high=1.0,
        doors=_ALL_DOORS,
    )
    max_tokens: int | None = _integer(
        16,
        Group.COMMON,
        "The most tokens to generate; none goes on up to the context length.",
        optional=True,
        low=1,
        high=_MOST,
        names={
            Api.OPENAI: ("max_completion_tokens", "max_tokens"),
            Api.RESPONSES: ("max_output_tokens",),
            Api.OLLAMA: ("num_predict",),
        },
        doors=(Door.CHAT, Door.PAGE),
    )
    seed: int | None = _integer(
        None,
        Group.COMMON,
        "Makes the answer reproducible; drawn if not given.",
        low=-(2**63),
        high=2**64 - 1,
        doors=(Door.CHAT, Door.LOAD, Door.PAGE),
    )
    n: int = _integer(
        1,
        Group.COMMON,
        "Answers per prompt.",
        low=1,
        high=MAX_SEQUENCES_PER_REQUEST,
        label="Answers",
        names=_OPENAI_ONLY,
    )
    top_k: int = _integer(
        0,
        Group.COMMON,
        "Sample from this many of the likeliest tokens; 0 or -1 takes all.",
        low=-1,
        high=_MOST,
        doors=_ALL_DOORS,
    )
    min_p: float = _number(
        0.0,
        Group.SAMPLING,
        "Sample from tokens at least this fraction as likely as the likeliest.",
        low=0.0,
        high=1.0,
        doors=_ALL_DOORS,
    )
    presence_penalty: float = _number(
        0.0,
        Group.SAMPLING,
        "Subtracted from the logits of tokens that the answer already has.",
        low=-2.0,
        high=2.0,
        doors=(Door.CHAT, Door.PAGE),
    )
    frequency_penalty: float = _number(
        0.0,
        Group.SAMPLING,
        "Subtracted once per occurrence in the answer.",
        low=-2.0,
        high=2.0,
        doors=(Door.CHAT, Door.PAGE),
    )
    repetition_penalty: float = _number(
        1.0,
        Group.SAMPLING,
        "Divides positive and multiplies negative logits of tokens seen in prompt or answer.",
        low=0.001,
        high=100.0,
        names={Api.OLLAMA: ("repeat_penalty",)},
        doors=(Door.CHAT, Door.MODEL, Door.PAGE),
    )
    stop: tuple[str, ...] = attrs.field(
        default=(),
        converter=_stop,
        metadata=_declared(
            Kind.TEXTS,
            Group.STOPPING,
            "Texts that end the answer.",
            most=64,
            characters=4096,
            label="Stop strings",
            names={Api.ANTHROPIC: ("stop_sequences",)},
            doors=(Door.CHAT, Door.PAGE),
        ),
    )
    stop_token_ids: tuple[int, ...] = attrs.field(
        default=(),
        converter=_stop_token_ids,
        metadata=_declared(
            Kind.TOKEN_IDS,
            Group.STOPPING,
            "Token ids that end the answer, beside the model's end-of-sequence ids.",
        ),
    )
    min_tokens: int = _integer(
        0, Group.STOPPING, "The fewest tokens to generate before one that ends the answer.", low=0, high=_MOST
    )
    ignore_eos: bool = _switch(
        False,
        Group.STOPPING,
        "Go on after the model's end-of-sequence token.",
        label="Ignore end of sequence",
        doors=(Door.LOAD, Door.PAGE),
    )
    include_stop_str_in_output: bool = _switch(
        False, Group.STOPPING, "Keep the stop text in the answer.", label="Keep the stop string"
    )
    logit_bias: tuple[tuple[int, float], ...] = attrs.field(
        default=(),
        converter=_bias,
        metadata=_declared(
            Kind.BIASES, Group.TOKENS, "Added to the logits of some tokens, by their ids.", low=-1e9, high=1e9
        ),
    )
    allowed_token_ids: tuple[int, ...] | None = attrs.field(
        default=None,
        converter=_allowed_token_ids,
        metadata=_declared(Kind.TOKEN_IDS, Group.TOKENS, "Generate only these tokens.", optional=True),
    )
    bad_words: tuple[str, ...] = attrs.field(
        default=(),
        converter=_bad_words,
        metadata=_declared(
            Kind.TEXTS,
            Group.TOKENS,
            "Texts that are never completed.",
            most=1024,
            characters=2**14,
        ),
    )
    logprobs: int | None = _integer(
        None,
        Group.OUTPUT,
        "Report log-probabilities, with this many of the likeliest tokens, at most `--max-logprobs`.",
        low=0,
        high=MOST_LOGPROBS,
        names=_NO_API,
        doors=(),
    )
    prompt_logprobs: int | None = _integer(
        None,
        Group.OUTPUT,
        "The same for the prompt's tokens.",
        low=0,
        high=MOST_LOGPROBS,
        names=_OPENAI_ONLY,
        doors=(),
    )
    drafts: bool = _switch(
        True,
        Group.OUTPUT,
        "Have drafts, where the engine makes some (`--speculate`); the answer is the same.",
        names=dict.fromkeys(Api, ("drafts", "speculate")),
    )
    deterministic: bool = _switch(
        False,
        Group.OUTPUT,
        "Compute the same answer, bit for bit, whatever else is in the batch; in several processes only with `--deterministic`.",
    )
    skip_special_tokens: bool = _switch(True, Group.OUTPUT, "Leave special tokens out of the text.")
    detokenize: bool = _switch(True, Group.OUTPUT, "Turn tokens into text at all.", names=_NO_API, doors=())

    def __attrs_post_init__(self) -> None:
        for name, parameter in PARAMETERS.items():
            parameter.check(getattr(self, name))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            message = f"must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}"
            raise BadValueError("min_tokens", message)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise BadValueError("allowed_token_ids", "must not be empty: nothing could be sampled")
        if self.stop and not self.detokenize:
            raise BadValueError("stop", "stop strings need detokenize=True")


PARAMETERS: Final[Mapping[str, Parameter]] = {
    field.name: Parameter(name=field.name, default=field.default, **field.metadata)
    for field in attrs.fields(SamplingParams)
}


@attrs.frozen(kw_only=True)
class SamplingDefaults:
    """Values of `SamplingParams` by field that a model's authors recommend, unchecked, and the file they come from."""

    values: Mapping[str, Any] = attrs.field(factory=dict)
    origin: str = "the model"


def set_by(door: Door) -> tuple[str, ...]:
    """The names of the parameters that it sets."""
    return tuple(name for name, parameter in PARAMETERS.items() if door in parameter.doors)
