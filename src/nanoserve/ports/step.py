"""One step of the engine as values: the scheduler's `StepPlan` and the runner's `StepResult`.

A plan carries deltas only. The runner keeps one persistent *row* per running sequence (its tokens, length, block
tables, sampling state), so a steady decode step costs as much as what changed, not as much as the batch.

Wide steps. In a step of width w every decoding row computes its newest token and up to w - 1 *drafts* behind it, guesses of how the row
goes on. They are made on the device from what the row holds when the step begins, so they need no host and any number of steps may be
in flight. For a row of n tokens, with drafts d(1) to d(k), k < w, the step

1. writes keys and values of tokens n - 1 (the newest) to n - 1 + k and attends as a chunk does: each sees itself and what is before it;
2. draws the token s(i) that follows each of them, i = 0 to k, by the noise of its own output position, as a narrow step at that position
   would draw it;
3. keeps s(0), and s(i) while all drafts before it were right: d(1) = s(0), ..., d(i) = s(i - 1) (`accepted_length`).

So the row gains 1 to k + 1 tokens, which are those that narrow steps would have given it, whoever guessed, and its length grows by as
many. What was written behind them is garbage that the next step writes again. The host learns the counts at `collect`.

A row never comes to be longer than its `max_length`: what is drawn beyond is not kept, so a row at its end gains nothing (count 0), and
a wide step writes nothing at position `max_length` - 1 or behind it (such writes go to the sink). Up to there its blocks are reserved,
for as far as all steps in flight can bring it. A narrow step never has a row at its end, and has no counts.

A draw that depends on the tokens before it, by penalties, bad words or `min_tokens`, is made as if these were the drafts: where they are not,
it is not kept. A row that wants no drafts (`RowSampling.drafts`) has none, nor has one for which nothing was guessed: it computes and
gains one token.

Invariant steps. A deterministic row is computed by kernels whose results for a token depend on the tokens before it alone. Between two such
steps it may decode in others, by kernels that are faster: what it gains by that are drafts, which a chunk of an invariant step computes anew,
keys and values included, and keeps as far as they agree, as above. So a chunk [n - 1, n + k) of a row of n tokens and k such drafts yields
1 to k + 1 tokens, and the row goes on behind them. Rows may decode in invariant steps, too; one that has such drafts only gains another.

Drafts of masked rows come with the plan, since each position needs its own mask and only the host can make those. It must know the
row's tokens for that, so a wide step with masked rows is planned when no step is in flight.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.pooling import Pooling

if TYPE_CHECKING:
    from attrs import frozen as made_per_step
else:
    # A frozen class writes each field through a guard: 0.4 us more for every step. Here the type checker guards.
    made_per_step = functools.partial(attrs.define, unsafe_hash=True)

SINK_BLOCK = 0
"""Block 0 of every pool is never allocated: padded rows write there. In the scheduler's tables it stands for blocks
freed behind a sliding window; plans do not mention those, because a runner must not read behind the window anyway."""


@attrs.frozen(kw_only=True)
class RowSampling:
    """The sampling settings of one row, constant while the row lives.

    `seed` and the output position alone determine each draw. `held_back_ids` (end-of-sequence and stop ids) are
    excluded until `min_tokens` tokens are generated. `logprobs`/`prompt_logprobs` count the likeliest tokens to
    report; None reports nothing. `drafts`: whether they are wanted.
    """

    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    held_back_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_token_sequences: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    drafts: bool = True


@attrs.frozen(kw_only=True)
class AdmittedRow:
    """A sequence takes a row, for the first time or again after preemption.

    Attributes:
        row: the row's index, 0 <= row < max_num_seqs; free until this plan.
        token_ids: all its tokens so far: the prompt, then what it generated before a preemption.
        num_prompt_tokens: how many of them are the prompt.
        num_computed_tokens: how many already have their KV in the row's blocks (a prefix hit).
        block_tables: per cache group, the block of each `block_size` tokens, in order; of a recurrent group, its one
            live state.
        max_length: its tokens at the end of its answer at the most; see wide steps above.
        lora_slot: the slot of its adapter; 0 if it has none.
        routed_experts: whether results say which experts its tokens go through.
        pooling: what the row's tokens are made into; such a row never yields a token.
    """

    row: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_tables: tuple[tuple[int, ...], ...]
    sampling: RowSampling
    max_length: int
    lora_slot: int = 0
    routed_experts: bool = False
    pooling: Pooling | None = None


@attrs.frozen
class LoraLoad:
    """Bring the adapter of this digest into slot `slot`, 1 <= slot <= max_loras."""

    digest: bytes
    slot: int


@attrs.frozen
class TableUpdate:
    """Write `block_ids` into a row's block table of cache group `group`, from logical block `start` on."""

    row: int
    group: int
    start: int
    block_ids: tuple[int, ...]


@attrs.frozen
class BlockCopy:
    """Copy block or state `source` of cache group `group` to `target`, in all its layers."""

    group: int
    source: int
    target: int


@attrs.frozen
class SlotCopy:
    """Copy KV block `block` of the only cache group, in all its layers, to slot `slot` of host memory or from it."""

    block: int
    slot: int


@attrs.frozen
class RowDrafts:
    """Drafts of a masked row that decodes, fewer than the step is wide; `LateDrawing.draw` gets one mask more than there are."""

    row: int
    token_ids: tuple[int, ...]


@attrs.frozen
class Chunk:
    """Compute tokens [start, start + length) of a row, which then yields one token (`samples`) or its vector (`pools`).

    The last `unverified` of them the row has decoded itself since it was last computed by an invariant step, as this one is.
    """

    row: int
    start: int
    length: int
    samples: bool
    pools: bool = False
    unverified: int = 0

    @property
    def is_last(self) -> bool:
        """True if all of the row's known tokens are computed behind it."""
        return self.samples or self.pools


@made_per_step(kw_only=True)
class StepPlan:
    """The work of one step, in the order in which the runner applies it: release, admit, update tables, copy, compute.

    Steps are computed in order, and in each layer the keys of all chunks are written before any row attends: a chunk may read
    blocks that another chunk of its step writes.

    Attributes:
        step: counts up from 1.
        released: rows that are free from this step on.
        admitted: rows taken in this step (a row may be released and admitted in one plan).
        table_updates: blocks appended to tables, or duplicates remapped.
        chunks: rows whose tokens are computed from the row's own list.
        copies: contents to carry over before anything is computed: a kept state into a row's live one, or a live state
            into a snapshot of it. No target is another copy's source or target, so they may be done at once. A row
            whose first chunk starts at 0 begins with an empty state, whatever is in its slot.
        decoding: rows that compute their newest token, which may be in flight, and yield the next; the same tuple object while these rows decode.
        width: the most tokens that each of them computes, up to `EngineSizes.max_width`; all of them fit into a step. 1 is an ordinary step.
        invariant: whether what it computes of each row has the same bits in any company.
        masked: rows among those that yield a token which may not be drawn without a mask. Where there are any, `submit`
            queues the forward pass alone, and all rows of the step are drawn by `LateDrawing.draw`.
        drafts: of a wide step, those of masked rows; the others of these have none.
        stores: blocks to carry out to host memory. What is in them was written by steps that have been collected, and no step
            writes to them before the copy is reported; so it may be done at any time from now on.
        loads: blocks to bring in from host memory. Steps before this one may still use the blocks, so it is done after them; this
            step and those that follow neither read nor write the blocks before the copy is reported, so it may be done beside them.
        lora_loads: slots to fill. No step in flight has a row that uses them, nor has this one, so it may be done beside this step.
        starts_anew: no step before this one counts any more, collected or not. Copies that they asked for are done or dropped
            before anything of this plan is applied, and are never reported.
    """

    step: int
    released: tuple[int, ...] = ()
    admitted: tuple[AdmittedRow, ...] = ()
    table_updates: tuple[TableUpdate, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    decoding: tuple[int, ...] = ()
    width: int = 1
    invariant: bool = False
    copies: tuple[BlockCopy, ...] = ()
    masked: tuple[int, ...] = ()
    drafts: tuple[RowDrafts, ...] = ()
    stores: tuple[SlotCopy, ...] = ()
    loads: tuple[SlotCopy, ...] = ()
    lora_loads: tuple[LoraLoad, ...] = ()
    starts_anew: bool = False

    @property
    def sampling_rows(self) -> tuple[int, ...]:
        """The rows that yield a token, in the order of `StepResult.token_ids`: finished chunks, then decodes."""
        if not self.chunks:
            return self.decoding
        return tuple(chunk.row for chunk in self.chunks if chunk.samples) + self.decoding

    @property
    def pooling_rows(self) -> tuple[int, ...]:
        """The rows that yield a vector."""
        return tuple([chunk.row for chunk in self.chunks if chunk.pools]) if self.chunks else ()

    @property
    def num_tokens(self) -> int:
        """The most tokens that this step computes, drafts included."""
        in_chunks = sum([each.length for each in self.chunks]) if self.chunks else 0
        return in_chunks + len(self.decoding) * self.width

    def check(self, result: StepResult) -> None:
        """Raise `StepFailedError` unless each row has yielded what the plan says."""
        asked, yielded, counts = len(self.sampling_rows), len(result.token_ids), result.counts
        most = max([self.width, *(1 + each.unverified for each in self.chunks)]) if counts else 0
        if counts and (len(counts) != asked or sum(counts) != yielded or max(counts) > most):
            raise StepFailedError(f"{asked} rows were to yield up to {most} tokens and {counts} came")
        if not counts and asked != yielded:
            raise StepFailedError(f"{asked} rows were to yield a token and {yielded} did")
        if {*self.pooling_rows} != {*result.pooled}:
            raise StepFailedError(
                f"rows {self.pooling_rows} were to yield vectors and {[*result.pooled]} did"
            )


@attrs.frozen
class TokenLogprobs:
    """Log-probabilities (natural logarithm) at one position, of the logits that `EngineSizes.processed_logprobs` says.

    `rank` is the token's own rank, 1 for the likeliest; `top` holds (token id, logprob), likeliest first.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@attrs.frozen
class RoutedExperts:
    """The experts that tokens of a row go through, from position `first` on.

    `data` has of each token, layer by layer, the numbers of its experts, the most important first, and zeros of a layer without
    experts; `EngineSizes.routed_experts` says how many, in how many bytes.
    """

    first: int
    data: bytes


@attrs.frozen(kw_only=True)
class StepResult:
    """The result of a step.

    Attributes:
        token_ids: one id per row of `StepPlan.sampling_rows`, in that order; of a step with drafts all that a row has gained, row after row.
        counts: of a step with drafts, how many tokens each of these rows has gained; empty if each has one. A masked row without its
            mask has none, or, where it has no drafts, one that is dropped.
        drafts: of a step with drafts, how many each of these rows had; may be empty if none had any.
        logprobs: by row, for the rows that asked, of each token that it gained.
        prompt_logprobs: by row, by prompt position (>= 1) that its chunk computed, the log-probabilities of the prompt token there.
        pooled: by row, the vectors of the rows whose chunks pool.
        routed_experts: by row that asked, of the tokens that the step has computed, and with its first ones those of the prefix found.
        broken: rows whose logits or vectors are not finite; what stands for them in `token_ids` means nothing.
        copied: steps, this one or earlier ones, whose `stores` and `loads` are all done; each is reported once, at the latest with
            the first step collected after they are done that computes nothing, which may wait for them.
    """

    token_ids: list[int]
    counts: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = attrs.field(factory=dict)
    prompt_logprobs: dict[int, dict[int, TokenLogprobs]] = attrs.field(factory=dict)
    pooled: dict[int, tuple[float, ...]] = attrs.field(factory=dict)
    routed_experts: dict[int, RoutedExperts] = attrs.field(factory=dict)
    broken: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()


def accepted_length(drafts: Sequence[int], drawn: Sequence[int]) -> int:
    """How many of a row's draws count in a wide step: the first, and each that comes behind drafts that were all drawn.

    `drawn[i]` follows `drafts[i - 1]`, so there is one more of them.
    """
    right = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(drafts, drawn, strict=False))
    return 1 + sum(1 for _ in right)
