"""Which blocks of a sequence a cache group still needs: the one law in which attention kinds differ for the control plane."""

from __future__ import annotations

import attrs

from nanoserve.ports.model_spec import CacheGroup


@attrs.frozen
class Visibility:
    """Full attention sees every earlier token; a sliding window sees the last `window` of them, its own included."""

    window: int | None
    block_size: int

    @classmethod
    def of(cls, group: CacheGroup, block_size: int) -> Visibility:
        """The law of a cache group."""
        return cls(group.window, block_size)

    def first_block(self, start: int) -> int:
        """The first logical block that computing tokens from `start` on still reads."""
        if self.window is None:
            return 0
        return max(0, start - self.window + 1) // self.block_size

    def peak_blocks(self, num_tokens: int, max_chunk: int) -> int:
        """The most blocks that a sequence of `num_tokens` computed tokens holds at once."""
        everything = -(-num_tokens // self.block_size)
        if self.window is None:
            return everything
        return min(everything, -(-(self.window - 1 + max_chunk) // self.block_size) + 1)
