"""The ports that the engine drives: time, steps, drafts, text, step logs, a reference model; grammars have their own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import attrs

from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.errors import NanoserveError
from nanoserve.ports.step import StepPlan, StepResult
from nanoserve.ports.tool_calls import Tool
from nanoserve.ports.trace import TraceHeader, TraceRecord


class Clock(Protocol):
    """A monotonic clock."""

    def now(self) -> float:
        """Seconds since some fixed moment; never goes back."""


TicketT = TypeVar("TicketT")


class ModelRunner(Protocol[TicketT]):
    """Computes steps in the order they are submitted.

    A runner keeps one row of state per admitted sequence and applies each plan's deltas to it. `submit` may return
    before the step is computed; tickets are collected once each, in order. Either call may raise `StepFailedError`
    (or anything else): the engine then collects nothing more of the steps in flight, releases every row and
    continues with a fresh plan, so a runner must accept a plan that releases rows it does not hold.
    """

    def submit(self, plan: StepPlan, /) -> TicketT:
        """Queue one step and return its ticket."""

    def collect(self, ticket: TicketT, /) -> StepResult:
        """Wait for a step and return what it yielded."""

    def counts(self) -> RunnerCounts:
        """Counters since the runner was built; cheap to read, since a benchmark reads them after every turn."""


class Drafter(Protocol):
    """Guesses a sequence's next tokens from its own; a runner with rows in the host's memory calls it at the start of a wide step.

    Guesses never change an answer: a good one saves a step, a bad one costs a little. A drafter on a device is a kernel of its
    runner, not a port: it reads the same tokens, and writes its guesses after them.
    """

    def propose(self, token_ids: Sequence[int], count: int, /) -> Sequence[int]:
        """Up to `count` tokens that may follow; none if it has no guess. Ids are of the vocabulary."""


@attrs.frozen(kw_only=True)
class TokenizerFacts:
    """A tokenizer's settings as a model's files state them; None if they are silent.

    It is for clients that render conversations themselves; this engine has a `ChatTemplate` for that.

    Attributes:
        tokenizer_class: the class that transformers loads it as.
        chat_template: the default template.
    """

    tokenizer_class: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    chat_template: str | None = None


class Tokenizer(Protocol):
    """Encodes and decodes; stateless, and safe to call from one thread at a time."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id it can encode to or decode."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that the tokenizer itself declares to end a sequence."""

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True, check: Check = None
    ) -> list[int]:
        """Text to ids. `parse_special=False` treats special tokens inside the text as plain text."""

    def encode_pooled(
        self,
        text: str,
        other: str | None = None,
        *,
        add_special_tokens: bool = True,
        at_most: int | None = None,
        check: Check = None,
    ) -> tuple[list[int], int]:
        """Convert a text for pooling, or a pair of texts, to ids; also returns where the second text begins by its token type, or 0.

        Cut to `at_most` tokens, special ones included. Raises `BadValueError` if these alone are as many.
        """

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        """Ids to text; bytes that are not (or not yet) UTF-8 become U+FFFD."""

    def bytes_of(self, token_id: int, /) -> bytes:
        """The bytes of the token, which may be a part of a character; of special tokens those of their names."""

    def text_of(self, token_id: int, /) -> str | None:
        """The text that the token adds, whatever its neighbours; None if that depends on something."""


@attrs.frozen(kw_only=True)
class DialectFacts:
    """A model's way to write reasoning and calls, as its files state it.

    Attributes:
        model_type: of its config.
        response_template: its own description, where it has one, in the form of transformers.
        added_tokens: the tokens that are one token wherever they stand, special or not, by id.
        special: the ids among them that are no part of a text.
    """

    model_type: str | None = None
    chat_template: str | None = None
    response_template: Mapping[str, Any] | None = None
    added_tokens: Mapping[int, str] = attrs.field(factory=dict)
    special: frozenset[int] = frozenset()


Message = Mapping[str, Any]
"""One turn: `{"role": "user", "content": "..."}`; content is text, None, or a list of text parts."""
NO_OPTIONS: Final[Mapping[str, Any]] = {}
Check = Callable[[int], object] | None
"""Called with the number of ids before they are listed, which takes long; may raise. A very long text's first quarter comes first."""


class ChatTemplate(Protocol):
    """Renders messages with the template that came with the model."""

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Tool] = (),
        options: Mapping[str, Any] = NO_OPTIONS,
        check: Check = None,
    ) -> list[int]:
        """Messages to prompt token ids, with no second beginning-of-sequence token. Raises `BadValueError`.

        `continue_final_message` ends the prompt after the last message's content, without a generation prompt.
        `options` are further variables of the template, such as `enable_thinking`.
        """


class TraceError(NanoserveError):
    """These bytes are not a line of a step log, or its version is unknown."""


class TraceFormat(Protocol):
    """Records to lines and back; stateless. Lines hold no line break."""

    def encode_header(self, header: TraceHeader, /) -> bytes:
        """The first line."""

    def decode_header(self, line: bytes, /) -> TraceHeader:
        """Raises `TraceError`."""

    def encode(self, record: TraceRecord, /) -> bytes:
        """Any other line."""

    def decode(self, line: bytes, /) -> TraceRecord:
        """Raises `TraceError`."""


@attrs.frozen(kw_only=True)
class Activations:
    """One prompt's forward pass as plain nested lists, float32.

    `layers[i]` is the residual stream after layer i, [num_tokens][hidden]; `embeddings` likewise before layer 0;
    `logits` [num_tokens][vocab].
    """

    embeddings: Sequence[Sequence[float]]
    layers: Sequence[Sequence[Sequence[float]]]
    logits: Sequence[Sequence[float]]


class ReferenceModel(Protocol):
    """Computes one prompt at a time, slowly and correctly."""

    def activations(self, token_ids: Sequence[int], /) -> Activations:
        """Forward one prompt and return what every layer made of it."""

    def greedy(self, token_ids: Sequence[int], /, *, max_tokens: int) -> list[int]:
        """The next `max_tokens` ids by argmax, end-of-sequence ignored."""
