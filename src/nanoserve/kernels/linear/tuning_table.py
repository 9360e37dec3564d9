"""Tiles that were measured to be faster on a device than those of the rules in `tuning.py`: products look here first, and the tuner tries a rule's neighbours.

A table is a function of shape, form and bucket of rows, as the rules are, so that a product has the same bits whenever it runs at the same M. Products of one order
of summation do not look here.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import triton

from nanoserve.kernels.forms import FP8, MXFP4, PLAIN, Form, Int4, Int4WithMinimum, Int8
from nanoserve.kernels.linear.tuning import (
    AHEAD,
    MOST_STRAIGHT_ROWS,
    WIDE,
    RowTile,
    SkinnyTile,
    row_tile,
    skinny_tile,
    split_count,
    straight_warps,
)
from nanoserve.kernels.linear.tuning_tiles import InvariantTile, fp8_tile, packed_tile

VERSION: Final = 1
"""To be raised when a kernel changes so that other tiles are fastest, or a tile means something else."""
BUCKETS: Final = (1, 8, 16, 32, 64, 128, 256)
"""The most rows of each bucket."""
MOST_SLICES: Final = 8
MOST_PARTIALS: Final = 1 << 25
"""Partial sums that a product in slices may leave."""


Tile = RowTile | SkinnyTile | InvariantTile
KINDS: Final = ("row", "row gated", "skinny", "skinny gated", "split", "fp8", "packed")
"""The function that multiplies: `row_linear`, `skinny_linear`, `split_linear`, `fp8_linear` or `packed_linear`."""


class Key(NamedTuple):
    """A product of x [rows, K], of half precision, with a weight [N, K] in a form; `rows` are a bucket's most."""

    kind: str
    form: str
    n: int
    k: int
    rows: int


_FORMS: Final = {each.__name__: each for each in (FP8, MXFP4, Int4, Int4WithMinimum, Int8)}
TABLE: Final[dict[Key, Tile]] = {}
"""This process's, filled before a step is captured."""


@cache
def form_name(form: Form) -> str:
    """The class of a form, and how many numbers share a scale."""
    return f"{type(form).__name__}/{form.group}"


def find_form(name: str) -> Form:
    """The form that has this name. Raises `ValueError`."""
    kind, _, group = name.partition("/")
    made = PLAIN if name == form_name(PLAIN) else _FORMS[kind](int(group)) if kind in _FORMS else None
    if made is None or form_name(made) != name:
        raise ValueError(name)
    return made


def bucket(rows: int) -> int:
    """The most rows of the bucket of so many."""
    return 1 if rows == 1 else max(8, triton.next_power_of_2(rows))


def measured(kind: str, form: Form, shape: Sequence[int], rows: int) -> Any:
    """The tile of a product that was measured, or None."""
    return TABLE.get(Key(kind, form_name(form), shape[0], shape[1], bucket(rows))) if TABLE else None


def packed_way(form: Form, rows: int, n: int, k: int) -> InvariantTile:
    """The tile of a product of packed numbers."""
    return measured("packed", form, (n, k), rows) or packed_tile(rows, n, k)


def fp8_way(form: Form, rows: int, n: int, k: int) -> InvariantTile:
    """The tile of a product of 8-bit floats."""
    return measured("fp8", form, (n, k), rows) or fp8_tile(rows, n, blocks=form.group < k)


@contextlib.contextmanager
def holding(key: Key, tile: Tile | None) -> Iterator[None]:
    """Let a product have this tile meanwhile, or with None its rule's."""
    before = {**TABLE}
    TABLE.pop(key, None)
    try:
        TABLE.update({} if tile is None else {key: tile})
        yield
    finally:
        TABLE.clear()
        TABLE.update(before)


def rule_tile(key: Key, room: int) -> Tile:
    """The tile that its rule gives a product, with so many bytes of shared memory."""
    kind, _, n, k, rows = key
    form, gate = find_form(key.form), kind.endswith("gated")
    if rows == 1:
        bits = 16 if form is PLAIN else 8 * form.dtype.itemsize * form.stored_width(k) // k
        return row_tile(n, k, bits, gate=gate, form=form)
    if kind == "fp8":
        return fp8_tile(rows, n, blocks=form.group < k)
    if kind == "packed":
        return packed_tile(rows, n, k)
    splits = split_count(rows, n, k, form=form) if kind == "split" else None
    return skinny_tile(rows, n, k, 2, gate=gate, splits=splits, room=room, form=form)


def neighbours(key: Key, room: int) -> list[Tile]:
    """The tiles to try for a product beside its rule's, all of which can be launched, with so many bytes of shared memory. Raises `ValueError` for a product that there is not."""
    kind, _, n, k, rows = key
    form = find_form(key.form)
    fits = {
        "row": rows == 1,
        "fp8": rows > 1 and isinstance(form, FP8),
        "packed": rows > 1 and form.per_word > 1,
    }
    if kind not in KINDS or rows not in BUCKETS or not fits.get(kind.split()[0], 1 < rows <= 64):
        raise ValueError(kind)
    if not (
        16 <= n < 1 << 24 and 64 <= k < 1 << 24 and k % 16 == 0 and k % form.multiple == 0 and n % 2 == 0
    ):
        raise ValueError(f"{n} x {k}")
    rule = rule_tile(key, room)
    found: Iterable[Tile]
    if isinstance(rule, RowTile):
        found = _near_row(rule, k, form)
    elif isinstance(rule, SkinnyTile):
        found = _near_skinny(rule, key, form, room)
    else:
        found = (each for each in _CUT_TILES[kind] if _cut_fits(each, key, form, room))
    return [each for each in dict.fromkeys(found) if each != rule]


def _near_row(rule: RowTile, k: int, form: Form) -> Iterator[Tile]:
    """Half and twice the rows and warps, other chunks, and words straight into registers."""
    if form.straight:
        yield from (RowTile(16, warps, form.chunk, straight=True) for warps in straight_warps(k, form))
    if rule.straight:
        rule = RowTile(8, 4, k if k & (k - 1) == 0 else 1024, 1 if form.per_word > 1 else 64)
    for rows, warps in ((1, 1), (1, 2), (1, 0.5), (2, 1), (0.5, 1), (2, 2), (0.5, 0.5)):
        tile = rule._replace(rows=int(rule.rows * rows), warps=int(rule.warps * warps))
        if 2 <= tile.rows <= 16 and 1 <= tile.warps <= 8:
            yield tile
    yield from (rule._replace(chunk=chunk) for chunk in (1024, 2048) if chunk <= k)


def _near_skinny(rule: SkinnyTile, key: Key, form: Form, room: int) -> Iterator[Tile]:
    """Other slices in the shape of the rule, and other shapes in its slices, with as many steps in flight as fit, and half as many."""
    n, k, rows = key[2:]
    near = (rule.splits, rule.splits - 1, rule.splits + 1, rule.splits // 2, 2 * rule.splits)
    slices = [
        each for each in near[: 1 if n >= WIDE else None] if 1 <= each <= min(MOST_SLICES, max(1, k // 256))
    ]
    if form.straight and rows <= MOST_STRAIGHT_ROWS:
        shapes = ((8, 64, 256, 4), (16, 64, 256, 4), (8, 32, 512, 2), (16, 64, 512, 4))
        for (bm, bn, bk, warps), splits in itertools.product(shapes, slices):
            if rows <= bm and k % (bk * splits) == 0:
                yield SkinnyTile(bm, bn, bk, splits, 1, 0, "evict_first", warps, straight=True)
    bm, size = max(16, rows), 2 if form is PLAIN else 1
    cut = itertools.product([(64, 128)] if rule.straight else [(64, 128), (rule.bn, rule.bk)], slices)
    others = ((64, 64), (64, 256), (128, 64), (128, 128))
    for (bn, bk), splits in [*cut, *((shape, rule.splits) for shape in others)]:
        most = min(8, room // ((bn * size + 2 * bm) * bk)) if k > bk * splits else 1
        steps = k // (bk * splits) if k % (bk * splits) == 0 else 0
        ahead = min(AHEAD if form is PLAIN else int(form.per_word > 1 and bm == 64), steps)
        eviction = "" if rule.straight else rule.eviction
        lies_within = not isinstance(form, FP8) or form.group % bk == 0
        if lies_within and bn >= 64 and triton.cdiv(n, bn) * splits * bn * bm <= MOST_PARTIALS:
            yield from (
                SkinnyTile(bm, bn, bk, splits, stages, ahead, eviction)
                for stages in (most, most // 2)
                if stages
            )


_FP8 = (
    *((64, 64, 128, 8, 4, 8), (64, 64, 128, 8, 4, 5), (64, 64, 128, 8, 4, 3), (64, 128, 128, 8, 4, 4)),
    *((64, 128, 128, 8, 4, 6), (128, 64, 128, 8, 4, 4), (128, 128, 128, 8, 8, 3), (128, 128, 128, 8, 8, 5)),
    *((128, 128, 128, 8, 4, 3), (128, 256, 128, 8, 8, 4), (64, 256, 128, 8, 4, 4)),
    *((256, 64, 128, 8, 4, 4), (256, 128, 128, 8, 8, 4)),
)
_PACKED = (
    *((64, 64, 128, 8, 4, 4), (64, 64, 128, 8, 4, 3), (128, 64, 128, 8, 4, 3)),
    *((128, 64, 64, 8, 4, 4), (256, 64, 64, 8, 4, 3)),
)
_CUT_TILES: Final = {
    "fp8": [InvariantTile(*each) for each in _FP8],
    "packed": [InvariantTile(*each, splits) for each in _PACKED for splits in (1, 2, 4)],
}


def _cut_fits(tile: InvariantTile, key: Key, form: Form, room: int) -> bool:
    """True if its steps fit, each of which is a group or lies in one, and its slices are neither too short nor too many."""
    splits = tile.splits
    size = (tile.bt * (1 if key.kind == "fp8" else 2) + tile.bn) * tile.bk * tile.stages
    partials = triton.cdiv(BUCKETS[-1], tile.bt) * tile.bt * splits * triton.cdiv(key.n, tile.bn) * tile.bn
    grouped = key.kind == "packed" or form.group % tile.bk == 0
    return size <= room and grouped and (splits == 1 or (key.k >= 256 * splits and partials <= MOST_PARTIALS))
