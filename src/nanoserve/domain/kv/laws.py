"""The laws of cache groups: the pages that a kind of group reads and reuses, and their number.

A *page* is what a pool hands out: a block of `block_size` tokens, or the state of a recurrent group. `KVCache` asks
these questions and knows no kind; a new kind is a value in `ports/model_spec.py` and a law here, or in `kinds.py`. Lengths that can be
reused are counted in blocks, because a prefix goes by the hashes of its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import attrs

from nanoserve.domain.kv.states import Snapshots
from nanoserve.ports.kv import BlockHash
from nanoserve.ports.model_spec import PoolNeed

Find = Callable[[BlockHash], int | None]
"""The page that holds a content; None where none does."""
USUAL_LENGTH = 4096
"""Tokens of the sequences for which pools are balanced against each other; longer ones find room, for fewer at a time."""


@attrs.frozen
class Law:
    """The control plane's questions to one cache group; as it stands, the law of groups whose tokens read all earlier ones.

    Attributes:
        snapshots: where to keep copies of a page that every step overwrites; None where blocks are written once and shared.
        forgets: True if blocks fall behind what is read while a sequence runs.
        keeps_nothing: True if a sequence has no pages, and is computed whole: what one step does not read no later one can.
    """

    block_size: int
    snapshots: Snapshots | None = None
    forgets: ClassVar[bool] = False
    keeps_nothing: ClassVar[bool] = False

    def first_read(self, start: int) -> int:  # noqa: ARG002 - the same for every start
        """The first block that computing tokens from `start` on reads; what is before it may go."""
        return 0

    def reusable(self, hashes: Sequence[BlockHash], find: Find) -> set[int]:
        """The lengths, in blocks, at which the pages that a continuation reads are all there."""
        found = next((place for place, content in enumerate(hashes) if find(content) is None), len(hashes))
        return set(range(found + 1))

    def fresh_pages(self, shared: int, num_tokens: int, chunk_end: int) -> int:  # noqa: ARG002 - never in parts
        """Pages to take at admission beside `shared` reused blocks, for `num_tokens` and a first chunk to `chunk_end`.

        Here for all tokens known so far, so that a prefill is never cut short by its neighbours.
        """
        return -(-num_tokens // self.block_size) - shared

    def peak_pages(self, num_tokens: int, max_chunk: int) -> int:  # noqa: ARG002 - chunks stay
        """The most pages that a sequence of `num_tokens` computed tokens holds at once."""
        return -(-num_tokens // self.block_size)

    def pool_need(self, max_model_len: int, max_chunk: int, *, alone: bool) -> PoolNeed:  # noqa: ARG002 - always
        """The size of a pool; `alone`: no other group could use the memory better.

        Here as large as there is memory for: every block more holds more text.
        """
        every = -(-max_model_len // self.block_size)
        usual = -(-min(max_model_len, USUAL_LENGTH) // self.block_size)
        return PoolNeed(least=every, per_row=every, usual=usual)
