"""The questions that the engine asks of the mixers of one kind on a GPU, and the facts about GPU and engine that they are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.step_inputs import Pages
from nanoserve.kernels.tiles import make_tiles
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.layer_spec import Rotation

if TYPE_CHECKING:
    from nanoserve.adapters.pytorch.kernel_checks import (
        Check,
    )  # loads Triton, and a CPU's mixers are asked, too

ChunkSpan = tuple[int, int, int, int]
"""A chunk: its row, its first position, its number of tokens, and the index of the first one in the step."""
Padded = tuple[int, int]
"""The tokens that the chunks of a step are filled up to so that it can be captured, and the most chunks that it can have."""


@attrs.frozen
class GpuFacts:
    """Facts that sizes on a GPU follow from.

    Attributes:
        invariant: whether all steps are.
        decoded: the most tokens that decoding rows compute in a step, drafts included.
    """

    sizes: EngineSizes
    dtype: torch.dtype
    device: torch.device
    multiprocessors: int
    invariant: bool = attrs.field(kw_only=True)
    decoded: int = attrs.field(kw_only=True)

    @property
    def max_tokens(self) -> int:
        """The most tokens of one step."""
        return max(self.sizes.max_num_batched_tokens, self.sizes.max_num_seqs)

    def most_tiles(self, tokens: int) -> int:
        """Into which the chunks of one step are cut, where one has so many tokens at most."""
        return self.sizes.max_num_batched_tokens // tokens + self.sizes.max_num_seqs + 1

    def empty(self, *shape: int, of: torch.dtype | None = None) -> Tensor:
        """Memory on the device, in the model's dtype or another one."""
        return torch.empty(shape, dtype=of or self.dtype, device=self.device)


class StepArena(Protocol):
    """The part of the `Arena` that mixers read, and in which they describe a step's chunks."""

    lengths: Tensor
    limits: Tensor
    token_rows: Tensor
    positions: Tensor
    spans: Tensor
    block_tables: Mapping[int, Tensor]
    sections: Mapping[str, Tensor]

    def write(self, section: str, values: Sequence[int], /) -> None:
        """Write integers from the start of a section on, before the step is launched."""


def write_tiles(arena: StepArena, spans: Sequence[ChunkSpan], tile: int, padded: Padded | None) -> Tensor:
    """The tiles of a step's chunks, int32 [tiles, 4] in the arena; with `padded`, empty ones behind them, which compute nothing."""
    tiles = make_tiles(spans, tile)
    room = len(tiles) if padded is None else padded[0] // tile + padded[1]
    numbers = [number for each in tiles for number in each]
    arena.write("tiles", numbers + [0] * (4 * room - len(numbers)))
    return arena.sections["tiles"][:room]


class GpuMixer(Protocol):
    """All layers of one kind on a GPU, by their dimensions.

    Attributes:
        checks: of its kernels.
        tile: tokens of a chunk that are computed together at most.
        ways: in how many ways chunks can be computed, all of which a rehearsal must meet; invariant steps go the first, 0.
        pads: whether what `prepare` returns can depend on `padded` alone.
        settle: behind the draw of a step with several tokens of each of `places` [B], rows, enters those that were drawn behind into its states; None without states.
        sections: int32 of the arena that `prepare` writes, name and shape.
    """

    checks: ClassVar[Sequence[Check]]
    pads: ClassVar[bool]
    tile: int
    ways: int
    sections: Mapping[str, tuple[int, ...]]

    def __init__(self, layers: Mapping[int, Any], facts: GpuFacts, /) -> None: ...

    def choose_splits(self, bucket: int, longest: int, /) -> int:
        """Parts that the cache of each of `bucket` rows, the longest of so many tokens, is cut into to decode."""

    def allocate(self, max_place_splits: int, /) -> None:
        """Take the memory that it computes in; no step has more places times splits."""

    def attach(self, arena: StepArena, pages: Pages, rotations: Mapping[Rotation, Tensor], /) -> None:
        """Compute from now on over what layers keep, with cosines and sines of every position."""

    def prepare(self, spans: Sequence[ChunkSpan], way: int | None, padded: Padded | None, /) -> Any:
        """Describe a step's chunks in the arena, to be computed in one of the ways or the best; returns what `mix` must know.

        With `padded`, the tokens that fill them up are in none of the spans.
        """

    @property
    def settle(self) -> Callable[[Tensor], None] | None: ...

    @property
    def mix(self) -> Callable[..., None]:
        """A function of a part, `out`, a `GpuStep` and projections: mixes these into `out`, see `layers.part.Step`."""
