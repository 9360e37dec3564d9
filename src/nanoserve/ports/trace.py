"""The step log of an engine as values: one `Snapshot`, then one `Turn` for every turn of the engine with a change.

A trace is complete: the turns applied to the snapshot, in order, give the state of the scheduler and of the KV cache after each
of them. Sequences are named by their *key*, the number of their arrival. Only `Words` hold what was asked and answered, and they
are written only where they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

TRACE_VERSION = 1
LEFT_OUT_IF_USUAL: Mapping[str, bool] = {"left out if usual": True}
"""Marks a last field that lines do not have where it has its default."""


@attrs.frozen(kw_only=True)
class TraceHeader:
    """The first line of a log, which a reader needs before all others.

    Attributes:
        version: of the format; a reader refuses another one.
        release: of nanoserve.
        started: the wall clock when the trace began, ISO 8601 in UTC.
        num_blocks: of the largest cache group.
        windows: of each cache group, its sliding window in tokens (None: it has none).
        kinds: of each cache group: `full`, `window`, `latent` or `recurrent`. Empty in logs that are older than
            the kinds: those are full and windowed.
        pools: blocks, or states, of each cache group; empty if each has `num_blocks`.
        has_words: whether the tokens' ids and texts are written too.
    """

    version: int = TRACE_VERSION
    release: str
    started: str
    model: str
    device: str
    dtype: str
    block_size: int
    num_blocks: int
    windows: tuple[int | None, ...] = (None,)
    kinds: tuple[str, ...] = ()
    pools: tuple[int, ...] = ()
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_caching: bool = True
    has_words: bool = False

    def pool(self, group: int) -> int:
        """Blocks or states of one cache group."""
        return self.pools[group] if self.pools else self.num_blocks


@attrs.frozen
class Arrival:
    """A sequence was accepted and waits; `index` says which of the request's answers it is."""

    key: int
    request_id: str
    index: int
    num_prompt_tokens: int
    max_total_tokens: int


@attrs.frozen
class Admission:
    """A waiting sequence took a row; it is `resumed` where it ran before."""

    key: int
    row: int
    num_cached_tokens: int
    resumed: bool


@attrs.frozen
class Preemption:
    """A running sequence lost its row and blocks, and waits again."""

    key: int


@attrs.frozen
class Repetition:
    """A step yields a sequence so many tokens less than it was planned for: the next one computes at positions that were planned before.

    A narrow step does where the sequence's mask is late, a wide one where drafts were wrong.
    """

    key: int
    num_tokens: int = attrs.field(default=1, metadata=LEFT_OUT_IF_USUAL)


@attrs.frozen
class Ending:
    """A sequence ended, for a reason that is a value of `FinishReason`."""

    key: int
    reason: str
    num_generated: int


@attrs.frozen
class TracedChunk:
    """Tokens [start, start + length) of a sequence are computed; `samples`: it then yields a token."""

    key: int
    start: int
    length: int
    samples: bool


@attrs.frozen
class PlannedStep:
    """A step was handed to the runner; `decoding` is None if the same sequences decode as in the step before.

    The first one after a `Snapshot` always says which sequences decode. Each of them computes `width` tokens at the most.
    """

    step: int
    chunks: tuple[TracedChunk, ...]
    decoding: tuple[int, ...] | None
    width: int = attrs.field(default=1, metadata=LEFT_OUT_IF_USUAL)


Happening = Admission | Preemption | Repetition | PlannedStep
"""An event of a turn, in its order."""


@attrs.frozen
class TablesGiven:
    """A sequence was given its block tables, one per cache group; the first `num_shared` blocks of each are reused.

    The table of a recurrent group is empty; `StateHeld` says where its state is.
    """

    key: int
    num_shared: int
    tables: tuple[tuple[int, ...], ...]


@attrs.frozen
class TableGrown:
    """Fresh blocks were appended to a table."""

    key: int
    group: int
    blocks: tuple[int, ...]


@attrs.frozen
class BlockDropped:
    """The entry at `index` fell behind the sliding window; the sink block takes its place."""

    key: int
    group: int
    index: int


@attrs.frozen
class BlocksShared:
    """A table's blocks up to `num_shared` can be found by content; `swapped`, each (group, index, block), were replaced by equal ones."""

    key: int
    num_shared: int
    swapped: tuple[tuple[int, int, int], ...]


@attrs.frozen
class BlocksNamed:
    """Blocks of a group, written for a sequence that no longer holds them, can be found by their content."""

    group: int
    blocks: tuple[int, ...]


@attrs.frozen
class TablesReturned:
    """A sequence released all its blocks."""

    key: int


@attrs.frozen
class StateHeld:
    """In recurrent group `group`, a sequence's state is in `live`, and its newest snapshot, findable, in `snapshot` (0: none)."""

    key: int
    group: int
    live: int
    snapshot: int


@attrs.frozen
class StateCopied:
    """The next step begins with a copy of state `source` to `target`, whose old content cannot be found any more."""

    key: int
    group: int
    source: int
    target: int


@attrs.frozen
class PrefixesForgotten:
    """The prefix cache was emptied; no block can be found by its content any more."""


@attrs.frozen
class BlocksFetched:
    """Blocks of group 0 are filled from another tier; what was in them cannot be found any more."""

    blocks: tuple[int, ...]


@attrs.frozen
class BlocksLanded:
    """Blocks of group 0 have been filled, and what is in them can be found."""

    blocks: tuple[int, ...]


KVChange = (
    TablesGiven
    | TableGrown
    | BlockDropped
    | BlocksShared
    | BlocksNamed
    | StateHeld
    | StateCopied
    | TablesReturned
    | PrefixesForgotten
    | BlocksFetched
    | BlocksLanded
)


@attrs.frozen
class Words:
    """Tokens that a sequence has got: its prompt's when it arrived, then what it generated.

    `texts` has the text of those ids that had none since the last `Snapshot`.
    """

    key: int
    token_ids: tuple[int, ...]
    texts: Mapping[int, str]


@attrs.frozen(kw_only=True)
class Turn:
    """The changes of one turn of the engine, and of the calls since the turn before.

    Attributes:
        at: seconds since the trace began.
        happened: in order, with the steps handed to the runner (usually one, several while the pipeline fills).
        committed: the step that was collected.
        num_generated: tokens that it brought.
        kv: what changed in the KV cache, in order.
        prefix_queries, prefix_hits: prompt tokens looked up in the prefix cache so far, and found.
    """

    at: float
    arrived: tuple[Arrival, ...] = ()
    happened: tuple[Happening, ...] = ()
    ended: tuple[Ending, ...] = ()
    committed: int | None = None
    num_generated: int = 0
    kv: tuple[KVChange, ...] = ()
    prefix_queries: int = 0
    prefix_hits: int = 0
    words: tuple[Words, ...] = ()


@attrs.frozen(kw_only=True)
class TracedSequence:
    """A living sequence.

    Attributes:
        phase: a value of `Phase`: waiting, running or preempted.
        row: its device row; None unless running.
        num_cached_tokens: prompt tokens found in the prefix cache when it was first admitted.
        num_scheduled_tokens: tokens that every planned step together computes; 0 unless running.
        tables: per cache group, the blocks of its tokens (0: fell behind the window); empty unless running, and of
            recurrent groups.
        num_shared_blocks: how many leading blocks can be found by their content.
        states: of each recurrent group, as (group, live, snapshot), see `StateHeld`; empty unless running.
    """

    key: int
    request_id: str
    index: int
    num_prompt_tokens: int
    max_total_tokens: int
    phase: str = "waiting"
    row: int | None = None
    num_cached_tokens: int = 0
    num_scheduled_tokens: int = 0
    num_shared_blocks: int = 0
    tables: tuple[tuple[int, ...], ...] = ()
    states: tuple[tuple[int, int, int], ...] = attrs.field(default=(), metadata=LEFT_OUT_IF_USUAL)


@attrs.frozen(kw_only=True)
class Snapshot:
    """The state between two turns.

    Attributes:
        at: seconds since the trace began.
        step: the newest that was planned.
        sequences: the living ones, in the order of their keys.
        findable: per cache group, the blocks whose content can be found, referenced or not, in order.
        finished: ended sequences so far, by reason.
    """

    at: float
    step: int = 0
    sequences: tuple[TracedSequence, ...] = ()
    findable: tuple[tuple[int, ...], ...] = ()
    preemptions: int = 0
    finished: Mapping[str, int] = attrs.field(factory=dict)
    generated_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


@attrs.frozen
class StatusChange:
    """A change of the engine's status, such as `restarting`; a `Snapshot` follows when it is back."""

    at: float
    status: str


TraceRecord = Snapshot | Turn | StatusChange
