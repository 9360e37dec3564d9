"""One token stream and where it stands: the state machine of a sequence, and the values it carries.

A request for n answers becomes n sequences. Each has its own tokens, block tables and phase; they share prompt blocks.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import attrs

from nanoserve.ports.kv_events import BlockHash
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import PARAMETERS
from nanoserve.ports.step import RowSampling, TokenLogprobs


class Phase(enum.Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Trigger(enum.Enum):
    """The causes that move a sequence from one phase to the next."""

    ADMIT = "admit"
    PREEMPT = "preempt"
    RESUME = "resume"
    FINISH = "finish"


TRANSITIONS: Final[dict[tuple[Phase, Trigger], Phase]] = {
    (Phase.WAITING, Trigger.ADMIT): Phase.RUNNING,
    (Phase.RUNNING, Trigger.PREEMPT): Phase.PREEMPTED,
    (Phase.PREEMPTED, Trigger.RESUME): Phase.RUNNING,
    (Phase.WAITING, Trigger.FINISH): Phase.FINISHED,
    (Phase.RUNNING, Trigger.FINISH): Phase.FINISHED,
    (Phase.PREEMPTED, Trigger.FINISH): Phase.FINISHED,
}
"""Every legal move; `docs/architecture.md` draws its diagram from this table."""


class IllegalTransitionError(AssertionError):
    """A sequence was moved in a way the table does not allow: a bug in the control plane."""


@attrs.define(eq=False, kw_only=True)
class Sequence:
    """One token stream.

    Attributes:
        index: which of the request's n answers this is.
        order: smaller is served first and preempted last: (priority, arrival number).
        token_ids: the prompt, then what was generated and committed.
        max_total_tokens: the length at which it ends.
        stop_ids: tokens that end it, from `min_total_tokens` tokens on.
        row: its device row while running.
        block_tables: per cache group, the blocks of its tokens, or its one live state; empty unless running.
        snapshots: by recurrent cache group, the newest kept copy of its state; empty unless running.
        junction: the length up to which all but its recurrent groups could have reused a prefix; 0 if no further.
        lost_tokens: what could have been reused beside, had its groups of one kind kept theirs, by the name of that kind.
        num_scheduled_tokens: tokens whose computation has been planned, before it joins the decode set.
        decode_offset: in the decode set, step number minus position; the position of step s is s - offset.
        last_step: the newest step that computes it, kept up to date outside the decode set.
        hash_root: where its chain of block hashes starts; None where its blocks are never shared.
        block_hashes: the chained hashes of its full blocks, as far as they were needed.
        num_shared_blocks: how many leading blocks are registered in (or came from) the prefix cache.
        fetches: how often it has waited for blocks of its prefix from other tiers since it ran last.
    """

    request: Request
    index: int
    order: tuple[int, int]
    arrived: float
    sampling: RowSampling
    max_total_tokens: int
    min_total_tokens: int
    stop_ids: frozenset[int]
    token_ids: list[int]
    hash_root: BlockHash | None = None
    phase: Phase = Phase.WAITING
    row: int | None = None
    block_tables: tuple[list[int], ...] = ()
    snapshots: dict[int, int] = attrs.field(factory=dict)
    junction: int = 0
    lost_tokens: dict[str, int] = attrs.field(factory=dict)
    num_scheduled_tokens: int = 0
    decode_offset: int | None = None
    last_step: int = 0
    block_hashes: list[BlockHash] = attrs.field(factory=list)
    num_shared_blocks: int = 0
    num_cached_tokens: int = 0
    fetches: int = 0
    finish_reason: FinishReason | None = None
    stop: str | int | None = None
    error: str | None = None
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None
    prompt_logprobs: dict[int, TokenLogprobs] = attrs.field(factory=dict)

    @property
    def key(self) -> int:
        """The number of its arrival, which no other sequence of the engine has."""
        return self.order[1]

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that the client gave."""
        return len(self.request.prompt_token_ids)

    @property
    def num_generated_tokens(self) -> int:
        """Tokens that were generated and committed."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    def stop_reason(self, token_id: int) -> FinishReason | None:
        """Why it ends with `token_id`, its newest token, or None if it goes on.

        A stop id on the last budgeted token is a stop, not a length. Stop strings are the text stream's to find.
        """
        length = len(self.token_ids)
        if token_id in self.stop_ids and length > self.min_total_tokens:
            return FinishReason.STOP
        if length >= self.max_total_tokens:
            return FinishReason.LENGTH
        return None

    def move(self, trigger: Trigger) -> None:
        """Take one transition of the table; any other is an `IllegalTransitionError`."""
        target = TRANSITIONS.get((self.phase, trigger))
        if target is None:
            name = f"{self.request.request_id}/{self.index}"
            raise IllegalTransitionError(f"sequence {name} cannot {trigger.value} while {self.phase.value}")
        self.phase = target


def expand(
    request: Request, *, arrival: int, priority: int, now: float, max_model_len: int
) -> list[Sequence]:
    """The `n` sequences of a request, in order of their index; the first takes arrival number `arrival`."""
    params = request.sampling
    stop_ids = frozenset(params.stop_token_ids) | (
        frozenset() if params.ignore_eos else request.eos_token_ids
    )
    num_prompt = len(request.prompt_token_ids)
    budget = max_model_len if params.max_tokens is None else params.max_tokens
    return [
        Sequence(
            request=request,
            index=index,
            order=(priority, arrival + index),
            arrived=now,
            sampling=_row_sampling(request, index, stop_ids),
            max_total_tokens=min(num_prompt + budget, max_model_len),
            min_total_tokens=num_prompt + params.min_tokens,
            stop_ids=stop_ids,
            token_ids=list(request.prompt_token_ids),
        )
        for index in range(params.n)
    ]


_SHARED: Final = [each.name for each in attrs.fields(RowSampling) if each.name in PARAMETERS]
"""What a row must know of its request's sampling parameters has the same name there."""


def _row_sampling(request: Request, index: int, stop_ids: frozenset[int]) -> RowSampling:
    params = request.sampling
    values: dict[str, Any] = {name: getattr(params, name) for name in _SHARED}
    values |= {
        "seed": derive_seed(request.seed, index),
        "top_k": max(params.top_k, 0),
        "held_back_ids": tuple(sorted(stop_ids)),
        "bad_token_sequences": request.bad_token_sequences,
        "prompt_logprobs": params.prompt_logprobs if index == 0 else None,
    }
    return RowSampling(**values)


def derive_seed(seed: int, index: int) -> int:
    """The 64-bit seed of a request's sequence `index`; index 0 keeps the seed (SplitMix64, Steele et al. 2014)."""
    mask = 2**64 - 1
    if index == 0:
        return seed & mask
    mixed = (seed + index * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return mixed ^ (mixed >> 31)
