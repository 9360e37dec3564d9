"""The numbers a scheduler works within, fixed when the engine is built."""

from __future__ import annotations

import enum

import attrs

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
        if self.max_running is not None and self.max_running < 1:
            raise BadValueError(
                "max_running", f"must be at least 1, got {self.max_running} for class {self.name!r}"
            )
        if self.max_waiting is not None and self.max_waiting < 1:
            raise BadValueError(
                "max_waiting", f"must be at least 1, got {self.max_waiting} for class {self.name!r}"
            )


@attrs.frozen(kw_only=True)
class Limits:
    """What a scheduler may use.

    Attributes:
        max_num_seqs: device rows, so the most sequences in one step.
        max_num_batched_tokens: the token budget of one step.
        max_model_len: the longest sequence, prompt and output together.
        vocab_size: token ids must lie below it.
        block_size: tokens per KV block.
        num_blocks: KV blocks of each cache group, the sink block not counted.
        prefix_caching: keep computed blocks by content and reuse them for equal prefixes.
        isolated: hash blocks with SHA-256, so that no request can be made to collide with another's.
        watermark: the fraction of blocks that admission leaves free for running sequences to grow into.
        max_itl: seconds between two tokens of a decoding sequence that prefill chunks are sized to keep; None
            lets every step use its whole token budget.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int
    vocab_size: int
    block_size: int = 16
    num_blocks: int
    prefix_caching: bool = True
    isolated: bool = False
    policy: Policy = Policy.FCFS
    watermark: float = 0.01
    max_itl: float | None = None
    classes: tuple[RequestClass, ...] = (RequestClass(),)

    def __attrs_post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "vocab_size", "block_size", "num_blocks"):
            if getattr(self, name) < 1:
                raise BadValueError(name, f"must be at least 1, got {getattr(self, name)}")
        if self.max_model_len < 2:
            raise BadValueError("max_model_len", f"must be at least 2, got {self.max_model_len}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            message = (
                f"must be at least max_num_seqs ({self.max_num_seqs}), got {self.max_num_batched_tokens}"
            )
            raise BadValueError("max_num_batched_tokens", message)
        if not 0 <= self.watermark < 1:
            raise BadValueError("watermark", f"must be in [0, 1), got {self.watermark}")
        if len({each.name for each in self.classes}) != len(self.classes):
            raise BadValueError("classes", "must have distinct names")
