"""Latent attention of a step on a GPU: which rows, which cache, which kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.mixers.gpu_mixer import ChunkSpan, GpuFacts, Padded, StepArena
from nanoserve.adapters.pytorch.mixers.gpu_step import GpuStep
from nanoserve.adapters.pytorch.mixers.latent.checks import CHECKS
from nanoserve.adapters.pytorch.mixers.latent.part import LatentAttention
from nanoserve.adapters.pytorch.step_inputs import Pages
from nanoserve.kernels.device.launch import SplitScratch, has_wgmma, shared_memory
from nanoserve.kernels.latent import LatentCache
from nanoserve.kernels.latent_attention import launch, tuning
from nanoserve.kernels.rope_and_cache.launch import write_latents
from nanoserve.kernels.tiles import ROLES, BlockSizes, make_tiles
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import LatentSpec, Rotation

MOST_FEW_TOKENS = 64
"""Tokens up to which the product of each head has a kernel of its own; for more the vendor's library is faster."""
LEAST_ROOM = 256
"""Keys that the memory holds at least in which they are expanded."""
MOST_ROUNDS: Final = 64
"""Times that this memory is filled in a step at most; longer rows are absorbed."""
ABSORB, EXPAND, BY_ROLES = range(3)
"""Ways to compute chunks: every model has the first one, and some the last one, to expand for warps of three roles."""


class Round(NamedTuple):
    """Spans of chunks' keys that are expanded together: see `kernels.latent_attention`.

    Attributes:
        tokens: of all spans; `longest`, of the longest one.
    """

    tokens: int
    longest: int
    spans: Tensor


class LatentPlan(NamedTuple):
    """Tiles of a step's chunks, and the rounds in which their latents are expanded, for programs of these sizes; none if they are not."""

    tiles: Tensor
    rounds: Sequence[Round]
    blocks: BlockSizes


class GpuLatents:
    """See `GpuMixer`.

    A prompt's latents are read as they are, with products absorbed into queries and values, or expanded to keys and values
    first, whichever takes less arithmetic. Invariant steps have one arithmetic for prompts and decoding: they absorb.
    """

    checks: ClassVar = CHECKS
    pads: ClassVar = False
    settle: ClassVar = None

    def __init__(self, layers: Mapping[int, LatentSpec], facts: GpuFacts) -> None:
        """Raise `ModelLoadError` if layers differ."""
        if len(set(layers.values())) > 1:
            raise ModelLoadError("on a GPU all layers with latent attention must be alike")
        self._layers, self._facts, self._room = tuple(layers), facts, max(facts.max_tokens, LEAST_ROOM)
        self._spec = spec = next(iter(layers.values()))
        memory = shared_memory(facts.device)
        entry = tuning.padded_width(spec.latent_dim, spec.rope_dim), facts.dtype, memory
        self._keys = tuning.decode_block(*entry, wgmma=has_wgmma(facts.device)).keys
        self.tile = tuning.queries_per_tile(spec.num_heads, tuning.prefill_block(*entry).rows)
        heads = spec.rope_dim, spec.nope_dim, spec.value_dim
        self._expanded = tuning.expanded_block(*heads, facts.dtype, memory)
        self._programs = {"num_heads": spec.num_heads, "multiprocessors": facts.multiprocessors}
        suits = launch.suits_roles(heads, facts.dtype, facts.device)
        self.ways = 1 if facts.invariant else 1 + (BY_ROLES if suits else EXPAND)
        rounds = 0 if facts.invariant else MOST_ROUNDS * facts.sizes.max_num_seqs
        tiles = facts.most_tiles(self.tile)
        self.sections: Mapping[str, tuple[int, ...]] = {
            "latent_tiles": (tiles, 4),
            "expansions": (rounds, 4),
            "taken": (1,),
        }

    def choose_splits(self, bucket: int, longest: int, /) -> int:
        heads, multiprocessors = self._spec.num_heads, self._facts.multiprocessors
        return tuning.choose_splits(bucket, heads, longest, multiprocessors, self._keys)

    def allocate(self, max_place_splits: int, /) -> None:
        """See `GpuMixer`; all flat. Expanded and absorbed values share memory."""
        facts, spec, tokens, room = self._facts, self._spec, self._facts.max_tokens, self._room
        heads, width, expanded = spec.num_heads, spec.cache_elements, spec.nope_dim + spec.value_dim
        sums = spec.value_dim * torch.float32.itemsize // facts.dtype.itemsize
        # Absorbed queries, or the keys and values of `room` tokens; what those attend to, or the sums of these.
        self._query = facts.empty(heads * max(tokens * width, room * expanded))
        self._attended = facts.empty(tokens * heads * max(spec.latent_dim, sums))
        self._gathered = facts.empty(room * width)
        self._tops, self._weights = (facts.empty(tokens * heads, of=torch.float32) for _ in range(2))
        self._splits = SplitScratch.create(max_place_splits, heads, spec.latent_dim, 1, facts.device)

    def attach(self, arena: StepArena, pages: Pages, rotations: Mapping[Rotation, Tensor], /) -> None:
        self._arena, self._rotations = arena, rotations
        self._caches = {
            layer: LatentCache(pages[layer][0], arena.block_tables[layer], self._spec.latent_dim)
            for layer in self._layers
        }

    def prepare(self, spans: Sequence[ChunkSpan], way: int | None, _padded: Padded | None, /) -> LatentPlan:
        """See `GpuMixer`."""
        chunks = [(start, length) for _, start, length, _ in spans]
        rounds = self._rounds(spans, chunks, way) if self.ways > 1 and way != ABSORB else []
        by_roles = way == BY_ROLES or (
            way is None and tuning.is_for_roles(chunks, len(rounds), **self._programs)
        )
        blocks = ROLES if by_roles and self.ways > BY_ROLES else self._expanded
        numbered = [(number, *span[1:]) for number, span in enumerate(spans)]
        tiles = make_tiles(numbered, blocks.rows) if rounds else make_tiles(spans, self.tile)
        self._arena.write("expansions", [number for cut in rounds for span in cut for number in span])
        self._arena.write("taken", [0])
        self._arena.write("latent_tiles", [number for tile in tiles for number in tile])
        sections, count = self._arena.sections, len(spans)
        written = sections["expansions"][: len(rounds) * count].view(-1, count, 4)
        lengths = [[span.end - span.begin for span in cut] for cut in rounds]
        made = [Round(sum(each), max(each), cut) for each, cut in zip(lengths, written, strict=True)]
        return LatentPlan(sections["latent_tiles"][: len(tiles)], made, blocks)

    def _rounds(
        self, spans: Sequence[ChunkSpan], chunks: Sequence[tuple[int, int]], way: int | None
    ) -> list[list[tuning.Span]]:
        """Keys that are expanded together; none if to absorb is cheaper and nothing else is asked for."""
        names = ("latent_dim", "rope_dim", "nope_dim", "value_dim")
        sizes = {name: getattr(self._spec, name) for name in names}
        if way is None and not tuning.is_cheaper(chunks, **sizes):
            return []
        rows = [(row, start + length) for row, start, length, _ in spans]
        keys = ROLES.keys if self.ways > BY_ROLES else self._expanded.keys
        rounds = tuning.cut_rounds(rows, self._room, keys)
        return rounds if len(rounds) <= MOST_ROUNDS else []

    def mix(
        self, part: LatentAttention, out: Tensor, step: GpuStep, /, queries: Tensor, projected: Tensor
    ) -> None:
        arena, tokens, plan = self._arena, step.num_tokens, self._plan(step)
        tiles, rounds = plan.tiles, plan.rounds
        heads, out_heads = _by_head(part, queries), _by_head(part, out)
        query, attended = self._views(part, len(queries))
        if tokens:
            rotated = heads[:, :, part.nope_dim :] if rounds else query[:, :, part.latent_dim :]
            which = {"token_rows": arena.token_rows[:tokens], "positions": arena.positions[:tokens]}
            self._write(part, projected[:tokens], heads[:tokens], rotated[:tokens], **which)
        newest: dict[str, Any] = {
            "token_rows": step.places,
            "positions": arena.lengths,
            "newest": True,
            "pdl": step.pdl,
        }
        if step.width:
            newest |= {"limits": arena.limits, "width": step.width}
        rotated = query[tokens:, :, part.latent_dim :]
        self._write(part, projected[tokens:], heads[tokens:], rotated, **newest)
        absorbed = slice(tokens if rounds else 0, None)
        key = heads[absorbed, :, : part.nope_dim], part.up_keys, query[absorbed, :, : part.latent_dim]
        self._multiply(*key, step)
        if len(tiles) and not rounds:
            cache = self._caches[part.layer]
            launch.latent_prefill(query[:tokens], cache, attended[:tokens], tiles=tiles, scale=part.scale)
        if len(step.places):
            self._attend_newest(part, query[tokens:], attended[tokens:], step)
        self._multiply(attended[absorbed], part.up_values, out_heads[absorbed], step)
        self._expand(part, heads[:tokens], out_heads[:tokens], plan)

    def _plan(self, step: GpuStep) -> LatentPlan:
        """The plan for its chunks; tokens that are chosen of them are absorbed."""
        if step.chosen is None and step.num_tokens:
            plan: LatentPlan = step.plans[self]
            return plan
        return LatentPlan(step.places[:0] if step.chosen is None else step.chosen, [], self._expanded)

    def _expand(self, part: LatentAttention, heads: Tensor, out: Tensor, plan: LatentPlan) -> None:
        """Chunks' tokens over the keys of their rows, in memory that absorbed queries have left."""
        tokens, num_heads, _ = heads.shape
        width, expanded_dim = part.latent_dim + part.rope_dim, part.nope_dim + part.value_dim
        sums = tokens * num_heads * part.value_dim * torch.float32.itemsize // self._attended.itemsize
        accs, results = self._attended[:sums].view(torch.float32), tokens * num_heads
        kept = SplitScratch(accs.view(results, part.value_dim), self._tops[:results], self._weights[:results])
        for each in plan.rounds:
            gathered = self._gathered[: each.tokens * width].view(each.tokens, width)
            launch.gather_entries_into(self._caches[part.layer], each.spans, gathered, longest=each.longest)
            expanded = self._query[: each.tokens * num_heads * expanded_dim].view(each.tokens, -1)
            torch.mm(gathered[:, : part.latent_dim], part.up.T, out=expanded)
            expanded = expanded.view(each.tokens, num_heads, expanded_dim)
            how: dict[str, Any] = {"tiles": plan.tiles, "spans": each.spans, "sums": kept}
            how |= {"scale": part.scale, "blocks": plan.blocks, "taken": self._arena.sections["taken"]}
            launch.expanded_attention(heads, expanded, gathered, out, **how)

    def _views(self, part: LatentAttention, tokens: int) -> tuple[Tensor, Tensor]:
        """Absorbed queries [tokens, num_heads, latent_dim + rope_dim], and their results."""
        heads, latent_dim, width = part.num_heads, part.latent_dim, part.latent_dim + part.rope_dim
        query = self._query[: tokens * heads * width].view(tokens, heads, width)
        return query, self._attended[: tokens * heads * latent_dim].view(tokens, heads, latent_dim)

    def _write(
        self, part: LatentAttention, projected: Tensor, heads: Tensor, rotated: Tensor, **which: Any
    ) -> None:
        norm, rotations = part.latent_norm, self._rotations[part.rotation]
        how = {"norm_weight": norm.weight, "eps": norm.eps, "rotations": rotations, **which}
        write_latents(projected, heads, rotated, self._caches[part.layer], **how)

    def _attend_newest(self, part: LatentAttention, query: Tensor, attended: Tensor, step: GpuStep) -> None:
        cache, places = self._caches[part.layer], step.places
        which: dict[str, Any] = {
            "lengths": self._arena.lengths,
            "width": max(step.width, 1),
            "scale": part.scale,
        }
        if step.invariant:
            launch.latent_prefill(query, cache, attended, tiles=places, **which)
            return
        which |= {"splits": step.splits, "scratch": self._splits, "pdl": step.pdl}
        launch.latent_decode(query, cache, attended, batch_rows=places, **which)

    def _multiply(self, x: Tensor, weight: Tensor, out: Tensor, step: GpuStep) -> None:
        if step.invariant or len(x) <= MOST_FEW_TOKENS:
            launch.head_linear(x, weight, out, invariant=step.invariant, pdl=step.pdl)
        else:
            torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))


def _by_head(part: LatentAttention, rows: Tensor) -> Tensor:
    """Rows of all heads' elements, which may be columns of wider ones, as [tokens, num_heads, elements]."""
    return rows.view(len(rows), part.num_heads, rows.shape[1] // part.num_heads)
