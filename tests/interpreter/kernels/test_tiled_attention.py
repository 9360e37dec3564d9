"""Attention of chunks in tiles, of paged keys, of latents and of what these are expanded to: equal to its definition over NaN.

Whatever is not visible is NaN, and no cut into tiles, chunks and rounds changes a bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from nanoserve.kernels.device.launch import SplitScratch
from nanoserve.kernels.latent_attention import tuning as latent
from nanoserve.kernels.latent_attention.cases import CHUNKS, EXPANDED_CHUNKS, Case, ExpandedCase
from nanoserve.kernels.latent_attention.launch import latent_decode, latent_prefill
from nanoserve.kernels.paged_attention.cases import PrefillCase, check_bidirectional_attention
from nanoserve.kernels.paged_attention.launch import prefill_attention
from nanoserve.kernels.paged_attention.tuning import choose_block, packed_heads, queries_per_tile
from nanoserve.kernels.testing import Comparison, Inputs, compare_around_poison
from nanoserve.kernels.testing_attention import Heads, LatentHeads
from nanoserve.kernels.tiles import BlockSizes, make_tiles
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.kernels.latent_rows import decoded
from tests.interpreter.matrix import cases

ATOL = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
PAGED_ATOL = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SMALL = BlockSizes(16, 16, 4, 2)
"""Many tiles and visits of few keys, so that small cases have edges of every kind."""
WIDE = BlockSizes(16, latent.WIDE, 4, 2)
"""Visits of latents that decode in which tokens are the rows of scores."""
HEADS = Heads(2, 1, 16)
ODD = LatentHeads(num_heads=3, latent_dim=20, rope_dim=6, nope_dim=10, value_dim=14)
EVEN = ODD._replace(num_heads=4, latent_dim=32, rope_dim=16, nope_dim=16, value_dim=32)
DEEPSEEK = LatentHeads(16, 512, 64, 128, 128, block_size=32)
Tiled = PrefillCase | Case | ExpandedCase
KINDS: dict[str, tuple[Any, Any]] = {
    "paged": (PrefillCase, HEADS),
    "windowed": (PrefillCase, HEADS._replace(window=20)),
    "in-8-bits": (PrefillCase, HEADS._replace(narrow=True)),
    "absorbed": (Case, ODD),
    "expanded": (ExpandedCase, ODD),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
ROWS = {
    "one-token": [(0, 1)],
    "whole-visits": [(0, 32)],
    "one-more": [(0, 33)],
    "chunk-from-mid-block": [(21, 19)],
    "one-token-chunks": [(0, 1), (15, 1), (16, 1), (47, 1)],
    "unequal": [(0, 5), (40, 11), (0, 1), (70, 2)],
    "longer-than-a-tile": [(0, 5), (40, 18), (0, 1), (70, 2)],
}


def make(kind: str, inputs: Inputs, rows: Sequence[tuple[int, int]], **sizes: Any) -> Tiled:
    case, usual = KINDS[kind]
    made: Tiled = case.of(inputs, usual._replace(**sizes), rows)
    return made


def check(case: Tiled, blocks: BlockSizes | None = SMALL, splits: Sequence[int] = (1, 3)) -> None:
    """Tiles; of latents also rows that decode, in splits; of expanded ones also rounds in little memory."""
    wanted, dtype = case.exact(), case.queries.tokens.dtype
    atol = (PAGED_ATOL if isinstance(case, PrefillCase) else ATOL)[dtype]
    agree(compare_around_poison("tiles", case.tiled(blocks), wanted), atol)
    if isinstance(case, ExpandedCase):
        room = 2 * (blocks or case.blocks()).keys
        agree(compare_around_poison("rounds", case.tiled(blocks, room=room), wanted), atol)
    if isinstance(case, Case):
        for each in splits:
            newest = decoded(case, each, blocks), wanted[case.queries.last]
            agree([Comparison(f"{each} splits", *newest)], atol)


@cases("window", [None, 5], also=[1, 16, 23, 1000])
@cases("rows", ["unequal"], also=[each for each in ROWS if each != "unequal"])
def test_paged_keys_equal_the_definition(rows: str, window: int | None, inputs: Inputs) -> None:
    check(make("paged", inputs, ROWS[rows], window=window))


@cases("window", [None, 5], also=[1, 16, 23, 1000])
@cases("lengths", [(3, 40, 1, 33)], also=[(1,), (16,), (32,), (17, 1, 70)], ids=str)
def test_both_sides_equal_the_definition(
    lengths: tuple[int, ...], window: int | None, inputs: Inputs
) -> None:
    checked = check_bidirectional_attention(inputs, HEADS._replace(window=window), lengths, SMALL)
    agree(checked, PAGED_ATOL[inputs.dtype])


@cases("rows", ["unequal", "longer-than-a-tile"], also=list(ROWS)[:-2])
@pytest.mark.parametrize("sizes", [ODD, EVEN], ids=["odd", "even"])
@pytest.mark.parametrize("case", [Case, ExpandedCase])
def test_latents_equal_the_definition(case: Any, sizes: LatentHeads, rows: str, inputs: Inputs) -> None:
    made = case.of(inputs, sizes, ROWS[rows])
    check(made)
    if case is Case:
        check(made, WIDE)


@pytest.mark.parametrize(
    "scoring", [{"soft_cap": 1.5, "multiplier": 0.6}, {"sinks": True}], ids=["cap", "sinks"]
)
@cases("window", [5], also=[None])
def test_soft_caps_and_sinks(window: int | None, scoring: dict[str, Any], inputs: Inputs) -> None:
    case = PrefillCase.of(inputs, Heads(8, 2, 16, window=window, **scoring), ROWS["unequal"])
    check(case)
    assert torch.equal(case.newest(SMALL), case.tiled(SMALL)[case.queries.last])


def test_drafted_tokens_of_rows_are_as_in_tiles(inputs: Inputs) -> None:
    case = PrefillCase.of(inputs, Heads(8, 2, 16, window=6), [(7, 4), (0, 4), (30, 4)])
    chunks = case.queries.chunks
    index = [token + ahead for *_, token in chunks for ahead in range(4)]
    rows, lengths = inputs.these([row for row, *_ in chunks]), inputs.these([31, 1, 8, 1])
    out = inputs.poisoned(len(index), 8 * 16)
    how: dict[str, Any] = {
        "tiles": rows,
        "lengths": lengths,
        "width": 4,
        "blocks": SMALL,
        "scoring": case.scoring,
    }
    prefill_attention(case.queries.tokens[index], case.cache, out, **how)
    assert [lengths[row] - 1 for row, *_ in chunks] == [start for _, start, *_ in chunks]
    assert torch.equal(out, case.tiled(SMALL)[index])


@cases("heads", [(6, 2)], also=[(1, 1), (3, 1), (4, 1), (8, 1), (16, 2)], ids=str)
def test_heads_share_kv_heads(heads: tuple[int, int], inputs: Inputs) -> None:
    check(PrefillCase.of(inputs, Heads(*heads, 16), [(7, 13), (0, 3)]))


@cases("num_heads", [6, 18], also=[1, 2, 5, 16, 64])
def test_any_number_of_heads_shares_latents(num_heads: int, inputs: Inputs) -> None:
    check(make("absorbed", inputs, [(7, 13), (0, 3)], num_heads=num_heads))


@cases("head_dim", [80], also=[64, 96, 128, 256])
def test_head_sizes_with_their_own_blocks(head_dim: int, inputs: Inputs) -> None:
    case = PrefillCase.of(inputs, Heads(4, 2, head_dim), [(60, 9), (0, 70)])
    check(case, choose_block(head_dim, inputs.dtype))


@EVERY_KIND
@cases("block_size", [48], also=[16, 32, 64, 128])
def test_block_sizes(block_size: int, kind: str, inputs: Inputs) -> None:
    case = make(kind, inputs, [(50, 20), (0, 4)], block_size=block_size)
    check(case)
    check(case, BlockSizes(16, 32, 4, 3))


def skip_what_compiles_for_minutes(inputs: Inputs) -> None:
    if inputs.device.type == "cuda" and inputs.dtype == torch.float32:
        pytest.skip("sums over 512 elements in float32 compile for minutes")


@cases("splits", [2], also=[1, 4, 16])
def test_the_sizes_of_deepseek(splits: int, inputs: Inputs) -> None:
    skip_what_compiles_for_minutes(inputs)
    rows = CHUNKS if inputs.device.type == "cuda" else [(30, 5), (0, 1)]
    check(Case.of(inputs, DEEPSEEK, rows), None, (splits,))


@cases("block_size", [48], also=[16, 128])
def test_the_sizes_of_deepseek_expanded(block_size: int, inputs: Inputs) -> None:
    skip_what_compiles_for_minutes(inputs)
    rows = EXPANDED_CHUNKS if inputs.device.type == "cuda" else [(30, 5), (0, 1)]
    check(ExpandedCase.of(inputs, DEEPSEEK._replace(block_size=block_size), rows), None)


def test_every_split_of_a_long_row_counts(inputs: Inputs) -> None:
    check(make("absorbed", inputs, [(529, 1)], block_size=64), splits=(32,))


@EVERY_KIND
def test_stale_table_entries_are_not_followed(kind: str, inputs: Inputs) -> None:
    case = make(kind, inputs, [(50, 20), (0, 4)])
    stale = case.cache.tables == len(case.cache[0]) - 1
    assert stale.any()
    case.cache.tables[stale] = 2**30
    check(case)
    check(case, BlockSizes(16, 64, 4, 3))


def cut_into_rounds(case: Tiled, room: int, *how: Any, **named: Any) -> torch.Tensor:
    """In memory for so many keys, where there is memory for keys."""
    if isinstance(case, ExpandedCase):
        named["room"] = room
    return case.tiled(*how, **named)


@cases(("kind", "sizes"), [("windowed", {"window": 9}), ("absorbed", {}), ("expanded", {})], also=[("windowed", {"window": each}) for each in (None, 1, 40)])  # fmt: skip
def test_no_cut_changes_a_bit(kind: str, sizes: dict[str, Any], inputs: Inputs) -> None:
    case = make(kind, inputs, [(0, 21), (13, 18)], **sizes)
    blocks = BlockSizes(64 if inputs.device.type == "cuda" else 16, 16, 4, 2)
    expected = case.tiled(blocks).nan_to_num()
    for queries in (1, 5):
        assert torch.equal(case.tiled(blocks, queries=queries).nan_to_num(), expected)
    for row, start, length, token in case.queries.chunks:
        alone = case.tiled(blocks, [(row, start, length, token)])
        assert torch.equal(alone[token : token + length], expected[token : token + length])
        for begin, end in ((0, 9), (9, length)):
            part = row, start + begin, end - begin, token + begin
            cut = cut_into_rounds(case, 32, blocks, [part])
            assert torch.equal(cut[token + begin : token + end], expected[token + begin : token + end])
    for room, queries in ((16, 0), (32, 5), (80, 1)):
        assert torch.equal(cut_into_rounds(case, room, blocks, queries=queries).nan_to_num(), expected)


DECODING = [(0, 40), (30, 3), (0, 1), (47, 1), (63, 1), (64, 2)]


@cases("window", [20], also=[None, 1])
@cases("head_dim", [64], also=[128])
def test_a_decoding_row_gets_the_bits_of_a_tile(head_dim: int, window: int | None, inputs: Inputs) -> None:
    case, blocks = make("paged", inputs, DECODING, head_dim=head_dim, window=window), choose_block(head_dim, inputs.dtype)  # fmt: skip
    assert isinstance(case, PrefillCase)
    assert torch.equal(case.newest(blocks), case.tiled(blocks)[case.queries.last])


def test_a_decoding_row_of_latents_gets_the_bits_of_a_tile(inputs: Inputs) -> None:
    case = Case.of(inputs, ODD, DECODING)
    blocks = latent.prefill_block(latent.padded_width(ODD.latent_dim, ODD.rope_dim), inputs.dtype)
    assert torch.equal(case.newest(blocks), case.tiled(blocks)[case.queries.last])


def test_drafted_tokens_of_latents_see_those_before_them(inputs: Inputs) -> None:
    case = Case.of(inputs, ODD, [(7, 4), (0, 4), (30, 4)])
    index = [token + ahead for *_, token in case.queries.chunks for ahead in range(4)]
    rows = inputs.these([row for row, *_ in case.queries.chunks])
    query, out = case.queries.tokens[index], inputs.poisoned(len(index), ODD.num_heads, ODD.latent_dim)
    which: dict[str, Any] = {"lengths": inputs.these([31, 1, 8, 1]), "width": 4, "scale": ODD.scale}
    latent_prefill(query, case.cache, out, tiles=rows, blocks=SMALL, **which)
    assert torch.equal(out, case.tiled(SMALL)[index])
    scratch = SplitScratch.create(len(index), ODD.num_heads, ODD.latent_dim, 2, inputs.device)
    latent_decode(query, case.cache, out, batch_rows=rows, splits=2, scratch=scratch, **which)
    agree([Comparison("two splits", out, case.exact()[index])], ATOL[inputs.dtype])


@cases("splits", [3], also=[1])
@pytest.mark.parametrize("blocks", [SMALL, WIDE], ids=["small", "wide"])
def test_a_row_that_decodes_is_the_same_alone_and_in_a_crowd(
    blocks: BlockSizes, inputs: Inputs, splits: int
) -> None:
    case = Case.of(inputs, ODD, [(39, 1), (69, 1), (16, 1), (8, 1)])
    crowd = decoded(case, splits, blocks)
    for place in range(len(crowd)):
        alone = decoded(case, splits, blocks, places=slice(place, place + 1))
        assert torch.equal(alone[0], crowd[place])


def test_large_scores_do_not_overflow(inputs: Inputs) -> None:
    case = Case.of(inputs, ODD, [(49, 1), (19, 1)])
    large = case.queries._replace(tokens=case.queries.tokens * 100)
    for blocks in (SMALL, WIDE):
        assert decoded(case._replace(queries=large), 3, blocks).isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="fills gigabytes that only a GPU has to spare")
def test_pools_of_more_than_2_to_the_31_elements(device: torch.device) -> None:
    case = Case.of(Inputs(device, torch.float16), DEEPSEEK, [(45, 5), (0, 20)])
    offset = 2**31 // case.cache.block_stride + 1
    shape = offset + len(case.cache.entries), case.cache.block_stride
    pool = case.cache.entries.new_empty(shape)
    entries = pool[:, -case.cache.entries[0].numel() :].view(-1, *case.cache.entries.shape[1:])
    entries[offset:] = case.cache.entries
    far = case._replace(cache=case.cache._replace(entries=entries, tables=case.cache.tables + offset))
    assert torch.equal(decoded(case, 2), decoded(far, 2))
    assert torch.equal(case.tiled().nan_to_num(), far.tiled().nan_to_num())


def test_expanded_attention_equals_the_absorbed_form(inputs: Inputs) -> None:
    case = ExpandedCase.of(inputs, EVEN, ROWS["longer-than-a-tile"])
    up_keys, up_values = case.up[:, : EVEN.nope_dim], case.up[:, EVEN.nope_dim :]
    heads = case.queries.tokens.nan_to_num()
    nope, rotated = heads[..., : EVEN.nope_dim], heads[..., EVEN.nope_dim :]
    query = torch.cat((torch.einsum("thn,hnl->thl", nope, up_keys), rotated), dim=2).contiguous()
    latents = torch.zeros_like(query[..., : EVEN.latent_dim])
    latent_prefill(query, case.cache, latents, tiles=case.queries.tiles(4), scale=EVEN.scale)
    absorbed = torch.einsum("thl,hvl->thv", latents.float(), up_values.float())
    got = case.tiled(SMALL)
    written = got.isnan().logical_not()
    agree([Comparison("absorbed", got[written], absorbed[written])], 2 * ATOL[inputs.dtype])


def test_a_scratch_that_is_too_small_is_refused(inputs: Inputs) -> None:
    case = Case.of(inputs, ODD, [(9, 1)])
    query, rows, lengths = case.queries.newest()
    step: dict[str, Any] = {"batch_rows": rows, "lengths": lengths, "scale": 1.0, "splits": 3}
    scratch = SplitScratch.create(2, ODD.num_heads, ODD.latent_dim, 1, inputs.device)
    with pytest.raises(ValueError, match="3 splits exceed"):
        latent_decode(query, case.cache, query, **step, scratch=scratch)


def test_tiles_cover_every_query_once_and_start_with_the_heaviest() -> None:
    chunks = [(3, 0, 10, 0), (1, 100, 1, 10), (2, 7, 4, 11), (5, 0, 8, 15)]
    tiles = make_tiles(chunks, 4)
    covered = sorted(
        (row, position + i, token + i) for row, token, count, position in tiles for i in range(count)
    )
    assert covered == sorted(
        (row, start + i, token + i) for row, start, length, token in chunks for i in range(length)
    )
    assert all(1 <= count <= 4 for _, _, count, _ in tiles)
    assert tiles[0] == (1, 10, 1, 100)
    assert [tile for tile in tiles if tile[0] == 3] == [(3, 8, 2, 8), (3, 4, 4, 4), (3, 0, 4, 0)]
    assert make_tiles([], 4) == []
    assert len(make_tiles([(row, 5, 64, 64 * row) for row in range(256)], 8)) == 2048


def test_rounds_hold_every_key_once_and_begin_where_visits_do() -> None:
    for rows, room in itertools.product(
        ([(3, 100), (1, 1), (0, 333), (7, 64)], [(0, 16)], [(2, 5000)]), (16, 40, 128, 9999)
    ):
        rounds = latent.cut_rounds(rows, room, 16)
        reached = [0] * len(rows)
        for spans in rounds:
            place = 0
            for index, (row, begin, end, first) in enumerate(spans):
                assert (row, begin, first) == (rows[index][0], reached[index], place)
                assert begin % 16 == 0 or begin == end
                reached[index], place = end, place + end - begin
            assert 0 < place <= room
        assert reached == [end for _, end in rows]
        assert len(rounds) <= 1 + sum(end for _, end in rows) // (room - 15)


def test_the_form_with_less_arithmetic_is_chosen() -> None:
    sizes = {"latent_dim": 512, "rope_dim": 64, "nope_dim": 128, "value_dim": 128}
    assert latent.is_cheaper([(0, 2048)], **sizes)
    assert latent.is_cheaper([(0, 1)], **sizes)
    assert latent.is_cheaper([(100_000, 180)], **sizes)
    assert not latent.is_cheaper([(100_000, 160)], **sizes)
    assert not latent.is_cheaper([(0, 64), (100_000, 1)], **sizes)


@pytest.mark.parametrize(
    ("chunks", "rounds", "by_roles"),
    [
        pytest.param([(0, 8192)], 1, True, id="long"),
        pytest.param([(24_576, 2048)], 4, True, id="behind-a-long-prefix"),
        pytest.param([(24_576, 1024)], 4, False, id="too-little-work-in-a-round"),
        pytest.param([(24_576, 1024)], 1, True, id="in-one-round"),
        pytest.param([(0, 2048)] * 8, 1, True, id="visits-enough"),
        pytest.param([(0, 1024)] * 32, 1, False, id="short-tiles"),
        pytest.param([(32_768, 1)] * 64, 1, False, id="tiles-of-one-query"),
        pytest.param([(0, 2048)] * 4, 1, False, id="too-little-work"),
    ],
)
def test_warps_of_three_roles_serve_where_tiles_are_long_and_rounds_work_enough(
    chunks: list[tuple[int, int]], rounds: int, *, by_roles: bool
) -> None:
    assert latent.is_for_roles(chunks, rounds, num_heads=16, multiprocessors=132) == by_roles


def test_splits_fill_the_machine_and_bound_the_longest_walk() -> None:
    for batch in (1, 2, 7, 8, 33, 64, 256, 1024):
        for heads in (1, 16, 64, 128):
            for context in (1, 100, 1000, 4096, 4097, 32768, 131072):
                splits = latent.choose_splits(batch, heads, context, 132)
                assert splits.bit_count() == 1
                assert splits <= latent.MAX_SPLITS
                assert context / splits <= latent.MAX_TOKENS_PER_SPLIT
                assert splits == 1 or context / splits > 16, "splits without a tile"
    assert [latent.choose_splits(batch, 16, 1024, 132) for batch in (1, 8, 64, 256)] == [16, 16, 2, 1]
    assert [latent.choose_splits(batch, 16, 1024, 132, 32) for batch in (1, 8, 64, 256)] == [16, 16, 4, 1]
    assert latent.choose_splits(8, 128, 1024, 132) == 2


@pytest.mark.parametrize("capacity", [232_448, 166_912, 101_376])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_blocks_fit_into_the_shared_memory_of_every_gpu(dtype: torch.dtype, capacity: int) -> None:
    for head_dim in (64, 80, 128, 256):
        paged = choose_block(head_dim, dtype, capacity)
        entries = paged.rows + 2 * paged.stages * paged.keys
        assert paged.stages >= 1
        assert entries * (1 << (head_dim - 1).bit_length()) * dtype.itemsize <= capacity
    for width in (latent.padded_width(20, 6), latent.padded_width(256, 32), latent.padded_width(512, 64)):
        blocks = latent.prefill_block(width, dtype, capacity)
        assert (blocks.rows + blocks.stages * blocks.keys) * width * dtype.itemsize <= capacity, blocks
        for wgmma, programs in itertools.product((True, False), (1, 133)):
            blocks = latent.decode_block(width, dtype, capacity, wgmma=wgmma, programs=programs)
            held = (blocks.rows + max(1, blocks.stages - 1) * blocks.keys) * width * dtype.itemsize
            assert held <= capacity // (2 if blocks.keys == latent.WIDE and programs > 1 else 1), blocks
    blocks = latent.expanded_block(64, 128, 128, dtype, capacity)
    assert (blocks.rows * 192 + blocks.stages * blocks.keys * 320) * dtype.itemsize <= capacity


def test_the_sizes_of_blocks() -> None:
    assert latent.decode_block(576, torch.bfloat16) == BlockSizes(latent.HEADS, 64, 4, 3)
    assert latent.decode_block(576, torch.bfloat16, programs=133) == BlockSizes(latent.HEADS, 64, 4, 2)
    assert latent.decode_block(576, torch.bfloat16, wgmma=False) == BlockSizes(latent.HEADS, 32, 4, 3)
    assert latent.decode_block(576, torch.bfloat16, 166_912) == BlockSizes(latent.HEADS, 32, 4, 2)
    assert (
        latent.decode_block(2048, torch.bfloat16).keys == latent.decode_block(576, torch.float32).keys == 16
    )
    assert latent.prefill_block(576, torch.bfloat16) == BlockSizes(64, 32, 8, 2)
    assert latent.expanded_block(64, 128, 128, torch.bfloat16) == BlockSizes(128, 64, 8, 3)
    with pytest.raises(ValueError, match="heads of 257 elements"):
        choose_block(257, torch.bfloat16)


def test_the_heads_of_a_program_are_a_power_of_two_that_divides_their_number() -> None:
    assert [packed_heads(heads, 1) for heads in (1, 2, 3, 4, 6, 7, 8, 12, 32)] == [1, 2, 1, 4, 2, 1, 8, 4, 16]
    assert packed_heads(32, 8) == 4
    assert queries_per_tile(32, 8, BlockSizes(64, 64, 4, 3)) == 16
    assert [latent.packed_heads(heads, 64) for heads in (1, 3, 6, 16, 128)] == [1, 1, 2, 16, 64]
    assert [latent.queries_per_tile(heads, 64) for heads in (1, 16, 64, 128)] == [64, 4, 1, 1]
