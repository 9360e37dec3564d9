"""The numbers a scheduler works within, fixed when the engine is built."""

from __future__ import annotations

import enum

import attrs

from nanoserve.ports.checks import check_integer, check_number
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.request import DEFAULT_CLASS


class Policy(enum.Enum):
    """Which waiting sequence comes first: the oldest, or the lowest priority number and then the oldest."""

    FCFS = "fcfs"
    PRIORITY = "priority"


@attrs.frozen(kw_only=True)
class RequestClass:
    """Requests that are queued and bounded together, such as interactive and batch traffic.

    Attributes:
        priority: added to each request's own priority under the priority policy.
        max_running: the most sequences of this class on device rows at once; None is unbounded.
        max_waiting: the most sequences of this class in the queue; None is unbounded.
    """

    name: str = DEFAULT_CLASS
    priority: int = 0
    max_running: int | None = None
    max_waiting: int | None = None

    def __attrs_post_init__(self) -> None:
        check_integer("priority", self.priority)
        if self.max_running is not None:
            check_integer("max_running", self.max_running, low=1)
        if self.max_waiting is not None:
            check_integer("max_waiting", self.max_waiting, low=1)


@attrs.frozen(kw_only=True)
class Limits(EngineSizes):
    """The bounds of a scheduler, and its policy. `max_num_batched_tokens` is the token budget of one step.

    Attributes:
        isolated: hash blocks with BLAKE2b, so that no request can be made to collide with another's.
        watermark: the fraction of blocks that admission leaves free for running sequences to grow into.
        min_offload_tokens: a shorter stretch of a prefix is computed again rather than brought in from host memory.
        max_itl: seconds between two tokens of a decoding sequence that prefill chunks are sized to keep; None
            lets every step use its whole token budget.
        deferred_rows: the most deferred sequences on rows while others are being answered; None is unbounded.
        hands_over: report the end of an answer when the blocks of its prompt are in the directory, where another engine reads them.
        deterministic: whether all steps compute the same bits in any company, whoever asks for it.
        most_unverified: the most tokens that a deterministic sequence decodes by ordinary steps before an invariant one verifies them.
        invariant_decoding: whether invariant steps decode nearly as fast as others, so that these wait for none and may all be invariant.
        not_deterministic: why no request may ask for it by itself; empty where it may.
        step_seconds: what steps of some numbers of tokens take, by which the width of steps is chosen; none takes the widest.
        guess_seconds: what one guess for each of some numbers of rows takes; none costs nothing.
    """

    isolated: bool = False
    policy: Policy = Policy.FCFS
    watermark: float = 0.01
    max_itl: float | None = None
    min_offload_tokens: int = 256
    classes: tuple[RequestClass, ...] = (RequestClass(),)
    deferred_rows: int | None = None
    hands_over: bool = False
    deterministic: bool = False
    most_unverified: int = 31
    invariant_decoding: bool = False
    not_deterministic: str = ""
    step_seconds: tuple[tuple[int, float], ...] = ()
    guess_seconds: tuple[tuple[int, float], ...] = ()

    def __attrs_post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "vocab_size", "block_size", "max_width"):
            check_integer(name, getattr(self, name), low=1)
        for count in self.num_blocks or (0,):
            check_integer("num_blocks", count, low=1)
        check_integer("max_model_len", self.max_model_len, low=2)
        if self.max_num_batched_tokens < self.max_num_seqs:
            message = f"must be at least max_num_seqs ({self.max_num_seqs}), got {self.max_num_batched_tokens}; raise it or lower max_num_seqs"
            raise BadValueError("max_num_batched_tokens", message)
        check_integer("host_slots", self.host_slots, low=0)
        check_integer("most_unverified", self.most_unverified, low=0)
        check_integer("min_offload_tokens", self.min_offload_tokens, low=1)
        if self.host_slots and not self.prefix_caching:
            raise BadValueError("host_slots", "needs prefix caching, which is off")
        check_number("watermark", self.watermark, 0.0, 0.99)
        if self.max_itl is not None:
            check_number("max_itl", self.max_itl, 0.0, 1e9, open_low=True)
        if self.deferred_rows is not None:
            check_integer("deferred_rows", self.deferred_rows, low=1)
        if not self.classes:
            raise BadValueError("classes", "must name at least one class")
        if len({each.name for each in self.classes}) != len(self.classes):
            raise BadValueError("classes", "must have distinct names")
