"""One token stream: the state machine of a sequence, and its values.

A request for n answers becomes n sequences. Each has its own tokens, block tables and phase; they share prompt blocks.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs

from nanoserve.ports.kv import BlockHash
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.step import RowSampling


class Phase(enum.Enum):
    """The phases of a sequence."""

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
        order: smaller is served first and preempted last: (whether it is deferred, priority, arrival number).
        token_ids: the prompt, then what was generated and committed.
        max_total_tokens: the length at which it ends; of one that is pooled a length that it never reaches.
        stop_ids: tokens that end it, from `min_total_tokens` tokens on.
        row: its device row while running.
        awaits_grammar: whether its newest token is not computed yet, as nobody knows what may come behind it.
        block_tables: per cache group, the blocks of its tokens, or its one live state; empty unless running.
        snapshots: by recurrent cache group, the newest kept copy of its state; empty unless running.
        junction, lost_tokens: what its groups of one kind did not keep of a prefix that all others have (`States.note_lost`).
        num_scheduled_tokens: tokens whose computation has been planned, before it joins the decode set.
        decode_end, decode_offset: the length at which it leaves the decode set, and where it stands there meanwhile.
        is_deterministic: whether it is computed by invariant steps (`verification.py`); `is_tentative`: at least in the end, by one that verifies what it decodes.
        most_unverified, num_unverified: tokens that it may decode by other steps meanwhile, and that it has, once it decodes no more.
        last_step: the newest step that computes it, kept up to date outside the decode set.
        hash_root: where its chain of block hashes starts; None where its blocks are never shared.
        block_hashes: those of its full blocks, as far as they were needed; `num_shared_blocks` leading ones are in the prefix cache, or came from it.
        lora, lora_slot: the digest of its adapter, empty for none, and where that is while it has a row.
        guessing, acceptance: in what share of its latest `wide_steps` it had drafts, and what share of these was right; guesses at first.
        fetches: how often it has waited for blocks of its prefix from other tiers since it ran last.
    """

    request: Request
    index: int
    order: tuple[bool, int, int]
    arrived: float
    sampling: RowSampling
    max_total_tokens: int
    min_total_tokens: int
    stop_ids: frozenset[int]
    token_ids: list[int]
    hash_root: BlockHash | None = None
    phase: Phase = Phase.WAITING
    row: int | None = None
    awaits_grammar: bool = False
    block_tables: tuple[list[int], ...] = ()
    snapshots: dict[int, int] = attrs.field(factory=dict)
    junction: int = 0
    lost_tokens: dict[str, int] = attrs.field(factory=dict)
    num_scheduled_tokens: int = 0
    decode_end: int = 0
    decode_offset: int = 0
    is_deterministic: bool = False
    is_tentative: bool = False
    most_unverified: int = 0
    num_unverified: int = 0
    last_step: int = 0
    block_hashes: list[BlockHash] = attrs.field(factory=list)
    num_shared_blocks: int = 0
    num_cached_tokens: int = 0
    lora: bytes = b""
    lora_slot: int = 0
    guessing: float = 1.0
    acceptance: float = 0.6
    wide_steps: int = 0
    fetches: int = 0
    finish_reason: FinishReason | None = None
    stop: str | int | None = None
    error: str | None = None
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None

    @property
    def key(self) -> int:
        """The number of its arrival, which no other sequence of the engine has."""
        return self.order[-1]

    @property
    def is_deferred(self) -> bool:
        """True if it can wait: it comes after all others, and gives way to them."""
        return self.order[0]

    @property
    def computes_all(self) -> bool:
        """True if each of its prompt's positions must be computed, cached or not."""
        pooling = self.request.pooling
        return self.sampling.prompt_logprobs is not None or (pooling is not None and pooling.reads_all)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that the client gave."""
        return len(self.request.prompt_token_ids)

    @property
    def num_generated_tokens(self) -> int:
        """Tokens that were generated and committed."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    def stop_reason(self, token_id: int) -> FinishReason | None:
        """Why it ends with `token_id`, its newest token, or None if it continues.

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
