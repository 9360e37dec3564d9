"""Keys and values of decoding rows, gathered once and kept from step to step.

A decoding row reads all of its tokens at every step. Gathering them from blocks each time moves three times the bytes that attention
reads, but a row that goes on has only one token more. The blocks are written as ever, so what is kept may be dropped at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from nanoserve.kernels.heads import Scoring
from nanoserve.kernels.paged_attention import cpu

SPARE = 4
"""Rows get room for an eighth of their tokens more, and for this many blocks; then they are gathered anew."""
MAX_PADDING = 2
"""The most that rows may read as a multiple of their own tokens; more costs more than gathering them by length."""
PATIENCE = 4
"""Steps for which the same rows go on before they are gathered: those of a crowd, or beside chunks of prompts, cost less unkept."""
WIDTHS = 16
"""Attention is a multiple of so many positions wide: views of what is kept then serve as many steps."""


@attrs.define(eq=False)
class _Rows:
    """The rows of a step.

    Attributes:
        contexts: how many tokens each has.
        tables: [B, blocks] of them.
        room: positions that are kept of each.
        bias: [B * num_kv_heads, 1, room] to add to scores.
        places: the place of each row, and the position of its newest token.
        blocks: what a layer gathers that has not kept the rows in the step before; made when it is needed.
        width: the positions that are attended to, if there is room for so many, and `seen_bias`, their bias: those that some row has, up to
            a multiple of `WIDTHS`, and in bfloat16 all, because there torch copies what does not lie together.
    """

    contexts: tuple[int, ...]
    tables: Tensor
    room: int
    bias: Tensor
    places: tuple[Tensor, Tensor]
    blocks: cpu.CacheRead | None = None
    width: int = attrs.field(init=False)
    seen_bias: Tensor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        is_whole = self.bias.dtype == torch.bfloat16
        self.width = self.room if is_whole else -(-max(self.contexts) // WIDTHS) * WIDTHS
        self.seen_bias = self.bias[..., : self.width]


class KeptRows:
    """Keys and values of the newest step's rows in the layers of one cache group."""

    def __init__(self, layout: cpu.BlockLayout, dtype: torch.dtype) -> None:
        """`dtype`: of queries."""
        self._layout, self._dtype = layout, dtype
        self._zero = torch.zeros((), dtype=dtype)
        self.forget()

    def forget(self) -> None:
        """Drop everything: blocks may have got other contents."""
        self._layers: dict[int, tuple[int, Tensor, Tensor, tuple[Tensor, ...]]] = {}
        self._step = self._followed = 0
        self._rows: _Rows | None = None
        self._last: tuple[tuple[int, ...], Tensor] = (), torch.empty(0, 0)

    def lay_out(
        self, tables: Tensor, queries: Sequence[int], contexts: Sequence[int], *, most_tokens: int
    ) -> bool:
        """Lay out a step, with the arguments of `plan_attention`; True if its rows are kept.

        They are if each has one query, they are the same as for `PATIENCE` steps, their lengths are alike, and they take no more than the
        room of `most_tokens`.
        """
        longest, count = max(contexts), len(contexts)
        if max(queries) > 1 or longest * count > MAX_PADDING * sum(contexts) + count * SPARE:
            self.forget()
            return False
        last, (before, known) = self._rows, self._last
        is_next = [each + 1 for each in before] == [*contexts]
        is_next = is_next and torch.equal(tables[:, : known.shape[1]], known)
        followed = self._followed + 1 if is_next else 0
        if followed < PATIENCE:
            self.forget()
        self._followed, self._last = followed, (tuple(contexts), tables)
        if followed < PATIENCE:
            return False
        if last is not None and longest <= last.room:
            places = last.places[0], last.places[1] + 1
            last.bias.view(count, -1, last.room).mT.index_put_(places, self._zero)
            self._rows = _Rows(tuple(contexts), tables, last.room, last.bias, places)
            self._step += 1
            return True
        blocks = -(-longest // self._layout.block_size)
        room = (blocks + blocks // 8 + SPARE) * self._layout.block_size
        if room * count > most_tokens:
            self.forget()
            return False
        read = cpu.read_blocks(tables, list(cpu.rows_of(queries, contexts, None)), self._layout, room)
        bias = cpu.decode_bias(read, self._layout.num_kv_heads, self._dtype)
        places = torch.arange(count), torch.tensor(contexts) - 1
        self._rows = _Rows(tuple(contexts), tables, room, bias, places, read)
        self._step += 2
        return True

    def attend(self, layer: int, query: Tensor, cache: Tensor, new: Tensor, scoring: Scoring) -> Tensor:
        """Attention of the step's rows, as `paged_attention` computes it.

        Args:
            layer: of the group.
            query: [B, num_heads, head_dim].
            cache: [blocks, 2, num_kv_heads, block_size, head_dim]; the queries' own keys and values are already written.
            new: those, [B, 2, num_kv_heads, head_dim], in the cache's dtype.
            scoring: how products become weights.
        """
        rows = self._rows
        assert rows is not None
        step, kept, by_token, seen = self._layers.get(layer, (-1, new, new, ()))
        if step == self._step - 1:
            by_token.index_put_(rows.places, new if new.dtype == kept.dtype else new.to(kept.dtype))
        else:
            if rows.blocks is None:
                alone = list(cpu.rows_of([1] * len(query), rows.contexts, None))
                rows.blocks = cpu.read_blocks(rows.tables, alone, self._layout, rows.room)
            kept = torch.stack([cpu.gather(each, rows.blocks, query.dtype) for each in cache.unbind(1)])
            by_token = kept.view(2, len(query), new.shape[2], rows.room, -1).permute(1, 3, 0, 2, 4)
            seen = kept.unbind()
        if seen[0].shape[1] != rows.width:
            seen = kept[:, :, : rows.width].unbind()
        self._layers[layer] = self._step, kept, by_token, seen
        return cpu.attend_rows(query, seen[0], seen[1], rows.seen_bias, scoring)
