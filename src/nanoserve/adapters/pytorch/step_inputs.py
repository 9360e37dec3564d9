"""One step's inputs as tensors: the ragged tokens of all rows and the places of their keys and values.

Rows are persistent: each running sequence's tokens and block tables are kept on the device between steps. A plan brings only changes, and a sampled token goes
straight from the sampler into its row. The host knows every length without looking, because each step adds one token to the rows that sample.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.parallel.communicator import ALONE, Communicator
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.layer_spec import Rotation
from nanoserve.ports.step import SINK_BLOCK, AdmittedRow, Chunk, TableUpdate

Span = tuple[int, int, int]
"""A row, the position of a token, and how many tokens from there on."""
Pages = Sequence[tuple[Tensor, ...]]
"""The tensors that every layer keeps, [pages + 1, *shape] each."""


@attrs.frozen(kw_only=True, eq=False)
class GroupInputs:
    """Where the rows' keys and values live in the layers of one cache group.

    Attributes:
        block_tables: int64 [B, max_blocks]: the block of each `block_size` tokens of each row. Entries that are
            unused, or whose tokens left the group's window, are `SINK_BLOCK`.
        places: block, and offset in it, where each token's key and value are written: int64 [T] each.
    """

    block_tables: Tensor
    places: tuple[Tensor, Tensor]


@attrs.frozen(eq=False)
class Drafted:
    """Rows of a step that have drafts. Layers that overwrite states leave here what takes these back.

    Attributes:
        rows: the rows, and `places`, which of the step's B rows they are.
        layers: each is called with how many tokens of each of these rows count.
    """

    rows: tuple[int, ...]
    places: tuple[int, ...]
    layers: list[Callable[[Sequence[int]], None]] = attrs.field(factory=list)

    def settle(self, counts: Mapping[int, int]) -> None:
        """Once the step is drawn: so many tokens of each row count."""
        for layer in self.layers:
            layer([counts.get(row, 0) for row in self.rows])


@attrs.frozen(kw_only=True, eq=False)
class StepInputs:
    """One step's B rows with T tokens in all, one row's tokens after the other, without padding.

    Attributes:
        token_ids: int64 [T].
        positions: int64 [T]: each token's position in its own sequence.
        query_lengths: B numbers: how many of the T tokens belong to each row; they sum to T.
        context_lengths: B numbers: how many tokens the row's last token sees, itself included, window aside.
        logits_indices: int64 [S]: which of the T tokens need logits.
        groups: one entry per cache group, in the order of `ModelSpec.cache_groups`.
        token_types: int64 [T]: 1 in the second text of a pair; None if all are 0.
        drafted: rows with drafts; None if there are none.
    """

    token_ids: Tensor
    positions: Tensor
    query_lengths: tuple[int, ...]
    context_lengths: tuple[int, ...]
    logits_indices: Tensor
    groups: tuple[GroupInputs, ...]
    token_types: Tensor | None = None
    drafted: Drafted | None = None

    @classmethod
    def of_prompt(cls, token_ids: Sequence[int], *, block_size: int, num_groups: int) -> StepInputs:
        """A prompt computed whole, alone, in blocks 1, 2, ... of every cache group; every token gets logits."""
        length = len(token_ids)
        positions = torch.arange(length)
        blocks = torch.arange(1, -(-length // block_size) + 1)
        places = positions // block_size + 1, positions % block_size
        return cls(
            token_ids=torch.tensor(token_ids),
            positions=positions,
            query_lengths=(length,),
            context_lengths=(length,),
            logits_indices=positions,
            groups=(GroupInputs(block_tables=blocks[None], places=places),) * num_groups,
        )


@attrs.frozen(eq=False)
class CpuStep:
    """One step on a CPU. Fulfils `Step`.

    Attributes:
        pages: what layers keep.
        rotations: of the step's positions, cosines and sines, see `kernels.rope_and_cache.rotation`.
        invariant: whether each token gets the same bits in any company.
        dtype: of the numbers that are computed with.
        by_layer: how each layer mixes.
        kept: what mixers keep from step to step beside pages, by the memory of the pages of their first layer.
        ranks: which compute the step together.
    """

    inputs: StepInputs
    pages: Pages
    rotations: Mapping[Rotation, tuple[Tensor, Tensor]]
    invariant: bool
    dtype: torch.dtype
    kept: dict[int, Any]
    ranks: Communicator = ALONE
    by_layer: dict[int, Callable[..., Tensor]] = attrs.field(factory=dict)

    def mix(self, part: Any, /, *projected: Tensor) -> Tensor:
        return self.by_layer[part.layer](part, *projected)


class Rows:
    """Rows 0 to max_num_seqs - 1.

    Attributes:
        tokens: int64 [max_num_seqs, max_model_len + 1]; what lies beyond a row's length means nothing.
    """

    def __init__(self, sizes: EngineSizes, *, num_groups: int, device: torch.device) -> None:
        self._device = device
        self._block_size = sizes.block_size
        max_num_seqs = sizes.max_num_seqs
        self.tokens = torch.zeros(max_num_seqs, sizes.max_model_len + 1, dtype=torch.int64, device=device)
        self._lengths = [0] * max_num_seqs
        self._seconds = [0] * max_num_seqs
        self._drafted: Drafted | None = None
        self._tables = [
            torch.full((max_num_seqs, sizes.max_table), SINK_BLOCK, dtype=torch.int64, device=device)
            for _ in range(num_groups)
        ]

    def admit(self, admitted: AdmittedRow) -> None:
        """Give a row its tokens and tables; nothing of the last tenant stays."""
        row, length = admitted.row, len(admitted.token_ids)
        self.tokens[row, :length] = self._integers(admitted.token_ids)
        self._lengths[row] = length
        self._seconds[row] = 0 if admitted.pooling is None else admitted.pooling.second
        for table, block_ids in zip(self._tables, admitted.block_tables, strict=True):
            table[row] = SINK_BLOCK
            table[row, : len(block_ids)] = self._integers(block_ids)

    def update_tables(self, updates: Sequence[TableUpdate]) -> None:
        """Write all of a step's table updates, one write per cache group."""
        for group, table in enumerate(self._tables):
            cells = [
                (update.row, update.start + offset, block)
                for update in updates
                if update.group == group
                for offset, block in enumerate(update.block_ids)
            ]
            if cells:
                rows, columns, blocks = self._integers(cells).unbind(1)
                table[rows, columns] = blocks

    def step(self, chunks: Sequence[Chunk], drafts: Mapping[int, Sequence[int]]) -> StepInputs:
        """The inputs of chunks, then of the newest token of each row of `drafts` and its drafts.

        The last tokens of chunks that sample get logits, their unverified ones too, and so do all tokens of the rows with drafts.
        """
        for row, guesses in drafts.items():
            if guesses:
                self._write(row, guesses)
        spans = self.spans(chunks, drafts)
        ends = itertools.accumulate(chunk.length for chunk in chunks)
        drawing = [(end, chunk.unverified) for chunk, end in zip(chunks, ends, strict=True) if chunk.samples]
        lasts = [place for end, count in drawing for place in range(end - 1 - count, end)]
        first, count = sum(each.length for each in chunks), sum(length for _, _, length in spans)
        inputs = self.of_spans(spans, [*lasts, *range(first, count)])
        if chunks:
            inputs = attrs.evolve(inputs, token_types=self._token_types(chunks))
        if any(drafts.values()):
            drafted = {row: place for place, row in enumerate(drafts, len(chunks)) if drafts[row]}
            self._drafted = Drafted(tuple(drafted), tuple(drafted.values()))
            inputs = attrs.evolve(inputs, drafted=self._drafted)
        return inputs

    def spans(self, chunks: Sequence[Chunk], drafts: Mapping[int, Sequence[int]]) -> list[Span]:
        """The row, first position and number of the tokens that a step computes of each row."""
        spans = [(each.row, each.start, each.length) for each in chunks]
        return spans + [(row, self._lengths[row] - 1, 1 + len(guesses)) for row, guesses in drafts.items()]

    def of_spans(
        self, spans: Sequence[Span], logits_indices: Sequence[int] = (), *, ahead: int = 0
    ) -> StepInputs:
        """The inputs of tokens of rows at these positions, or of those so far `ahead` of them."""
        rows, starts, lengths = zip(*spans, strict=True)
        index, positions = self._integers(rows), self._integers(starts)
        owners = index
        if max(lengths) > 1:
            counts = self._integers(lengths)
            owners = index.repeat_interleave(counts)
            shifts = positions - counts.cumsum(0) + counts
            positions = torch.arange(len(owners), device=self._device) + shifts.repeat_interleave(counts)
        contexts = tuple(map(sum, zip(starts, lengths, strict=True)))
        return StepInputs(
            token_ids=self.tokens[owners, positions + ahead if ahead else positions],
            positions=positions,
            query_lengths=lengths,
            context_lengths=contexts,
            logits_indices=self._integers(logits_indices),
            groups=self._groups(index, owners, positions, max(contexts)),
        )

    def length(self, row: int) -> int:
        """The number of tokens of a row."""
        return self._lengths[row]

    def token_ids(self, row: int) -> list[int]:
        """All tokens of a row, on the host."""
        token_ids: list[int] = self.tokens[row, : self._lengths[row]].tolist()
        return token_ids

    def gain(self, gained: Mapping[int, Sequence[int]]) -> None:
        """Append what the rows of the newest step gained, once it is drawn; where drafts were wrong, states go back."""
        drafted, self._drafted = self._drafted, None
        if drafted is not None:
            drafted.settle({row: len(token_ids) for row, token_ids in gained.items()})
        for row, token_ids in gained.items():
            self._write(row, token_ids)
            self._lengths[row] += len(token_ids)

    def rewind(self, row: int, count: int) -> list[int]:
        """The last tokens of a row, which count no more, though they stay until others are written over them."""
        self._lengths[row] -= count
        behind: list[int] = self.tokens[row, self._lengths[row] : self._lengths[row] + count].tolist()
        return behind

    def guess(self, row: int, ahead: int, token_id: int) -> None:
        """Write a token after a row's end and `ahead` drafts."""
        self.tokens[row, self._lengths[row] + ahead] = token_id

    def _write(self, row: int, token_ids: Sequence[int]) -> None:
        length = self._lengths[row]
        self.tokens[row, length : length + len(token_ids)] = self._integers(token_ids)

    def append(self, rows: Sequence[int], tokens: Tensor) -> None:
        """Append one token [S] to each of the rows."""
        self.tokens[self._integers(rows), self._integers([self._lengths[row] for row in rows])] = tokens
        for row in rows:
            self._lengths[row] += 1

    def _token_types(self, chunks: Sequence[Chunk]) -> Tensor | None:
        """The types of chunks' tokens alone: where there are pairs nothing decodes."""
        seconds = [self._seconds[each.row] for each in chunks]
        if not any(seconds):
            return None
        types = [
            torch.arange(each.start, each.start + each.length, device=self._device) >= (second or math.inf)
            for each, second in zip(chunks, seconds, strict=True)
        ]
        return torch.cat(types).long()

    def _groups(
        self, index: Tensor, owners: Tensor, positions: Tensor, longest: int
    ) -> tuple[GroupInputs, ...]:
        """Tables of the rows `index` [B], and the places of tokens at `positions` [T] of the rows `owners` [T]."""
        size = self._block_size
        columns, offsets = positions.div(size, rounding_mode="floor"), positions % size
        max_blocks = -(-longest // size)
        return tuple(
            GroupInputs(
                block_tables=table[:, :max_blocks].index_select(0, index),
                places=(table[owners, columns], offsets),
            )
            for table in self._tables
        )

    def _integers(self, values: Sequence[object]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
