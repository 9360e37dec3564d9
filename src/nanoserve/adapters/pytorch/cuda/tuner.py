"""Measures the tiles of a model's products on this device, beside those of the rules (`kernels/linear/tuning_table.py`)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.compiles import compiling_ahead
from nanoserve.adapters.pytorch.cuda.workspace import most_skinny_rows
from nanoserve.adapters.pytorch.layers.product import Product
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.kernels.device.launch import supports_pdl, tile_room
from nanoserve.kernels.forms import FP8, StoredWeight, form_of
from nanoserve.kernels.forms.launch import quantize_rows_into
from nanoserve.kernels.linear import launch
from nanoserve.kernels.linear.launch import LinearWorkspace
from nanoserve.kernels.linear.tuning_table import (
    MOST_PARTIALS,
    Key,
    Tile,
    bucket,
    form_name,
    holding,
    neighbours,
    rule_tile,
)
from nanoserve.kernels.linear.tuning_tiles import packed_pays

COLD_BYTES: Final = 200 << 20
"""All copies of a weight have so many, several times the L2 cache."""
MOST_COPIES: Final = 64
MARGIN: Final = 0.03
"""The share of a rule's time by which another tile has to be faster, every time."""
ROUNDS: Final = 3
TOLERANCE: Final = 0.02
"""The share of a product's largest result by which results may differ: sums are rounded to half precision, or were made of 8-bit floats."""
REPLAYS: Final = 5

Weight = Tensor | StoredWeight
Launches = Sequence[Callable[[], object]]
Timed = Callable[[Launches], float]
"""Microseconds of one of these launches, which run one after the other."""


@attrs.frozen
class Finding:
    """The times of a product, and its best tile.

    Attributes:
        us, rule_us: microseconds with the best tile, and with the rule's.
        tile: None if the rule's is as good; `rule`, that one.
        nbytes: of the weight.
        tried: the number of other tiles.
    """

    key: Key
    rule: Tile
    tile: Tile | None
    rule_us: float
    us: float
    nbytes: int
    tried: int

    @property
    def name(self) -> str:
        """The product in words."""
        kind, form, n, k, rows = self.key
        return f"{kind} {form} {n} x {k}, {rows} rows"

    @property
    def tflops(self) -> float:
        """Operations in a millionth of a microsecond, with the best tile."""
        return 2 * self.key.rows * self.key.n * self.key.k / self.us / 1e6


@attrs.frozen
class Subject:
    """One product of a model at a number of rows, and its weight in so many copies that none is in the cache."""

    key: Key
    product: Product
    weights: Sequence[Weight]


def subjects(model: DecoderModel, rows: Sequence[int]) -> Iterator[Subject]:
    """Every product of a model, each shape and form once, with each bucket of rows that has tiles of its own."""
    found, seen = dict[Any, list[Product]](), set[Key]()
    layers = (product for parts in model.layers for part in parts for product in part.products())
    most = most_skinny_rows(model, model.embedding.weight.dtype)
    for each in (*layers, Product("head", model.head, model.norm)):
        matrix = each.linear.matrix
        found.setdefault((form_name(form_of(matrix)), *matrix.shape, each.gate, each.added), []).append(each)
    for alike in found.values():
        weights = _copies([each.linear.matrix for each in alike])
        for count in dict.fromkeys(map(bucket, rows)):
            if kind := _kind(alike[0], count, most):
                n, k = weights[0].shape
                key = Key(kind, form_name(form_of(weights[0])), n, k, count)
                if key not in seen:
                    yield Subject(key, alike[0], weights)
                seen.add(key)


def _kind(product: Product, rows: int, most: int) -> str | None:
    """How a step multiplies so many rows; None if no tile is chosen there."""
    gated = " gated" if product.gate else ""
    if rows == 1:
        return f"row{gated}"
    if rows <= most:
        return "split" if product.added else f"skinny{gated}"
    matrix = product.linear.matrix
    if isinstance(form_of(matrix), FP8):
        return "fp8"
    return "packed" if form_of(matrix).per_word > 1 and packed_pays(rows, *matrix.shape) else None


def _copies(weights: list[Weight]) -> list[Weight]:
    """The first of these, and copies where they are too few."""
    wanted = min(MOST_COPIES, -(-COLD_BYTES // weight_bytes(weights[0])))
    copies = itertools.islice(itertools.cycle(weights), max(0, wanted - len(weights)))
    return [*weights[:wanted], *map(_copy, copies)]


def _copy(weight: Weight) -> Weight:
    if isinstance(weight, Tensor):
        return weight.clone()
    return StoredWeight(weight.form, weight.numbers.clone(), weight.scales.clone())


def weight_bytes(weight: Weight) -> int:
    """Bytes of a weight, its scales included."""
    return weight.nbytes if isinstance(weight, Tensor) else weight.numbers.nbytes + weight.scales.nbytes


class Tuner:
    """Times the tiles of products whose x is like this."""

    def __init__(self, like: Tensor, timed: Timed) -> None:
        self._dtype, self._device, self._timed = like.dtype, like.device, timed
        self._room, self._pdl = tile_room(like.device), supports_pdl(like.device)
        partials = torch.empty(MOST_PARTIALS, device=like.device)
        self._space = LinearWorkspace(partials, torch.zeros(1 << 16, dtype=torch.int32, device=like.device))

    def compile(self, subject: Subject) -> None:
        """Launch once with each tile, where launches only compile."""
        for tile in (None, *neighbours(subject.key, self._room)):
            with holding(subject.key, tile), contextlib.suppress(Exception):
                self._launches(subject)[0][0]()

    def find(self, subject: Subject) -> Finding:
        """The best tile, if it is faster than the rule's in every round."""
        rule, found = rule_tile(subject.key, self._room), dict[Tile, float]()
        for tile in neighbours(subject.key, self._room):
            with contextlib.suppress(Exception):  # some do not fit, and say so in many ways
                found[tile] = self._time(subject, tile)
        best = min(found, key=lambda tile: found[tile], default=None)
        rounds = [(self._time(subject, None), self._time(subject, best)) for _ in range(ROUNDS)]
        rule_us, us = (statistics.median(each) for each in zip(*rounds, strict=True))
        wins = all(after < (1 - MARGIN) * before for before, after in rounds)
        if best is None or not wins or not self._agree(subject, best):
            best, us = None, rule_us
        nbytes = weight_bytes(subject.weights[0])
        return Finding(subject.key, rule, best, rule_us, us, nbytes, len(found))

    def _time(self, subject: Subject, tile: Tile | None) -> float:
        with holding(subject.key, tile):
            return self._timed(self._launches(subject)[0])

    def _agree(self, subject: Subject, tile: Tile) -> bool:
        """True if a tile makes of x what the rule's makes, but for how sums are rounded."""
        made = []
        for each in (None, tile):
            with holding(subject.key, each):
                launches, out = self._launches(subject)
                launches[0]()
                made.append((out.sum(0) if subject.key.kind == "split" else out).float())
        return bool((made[1] - made[0]).abs().max() <= TOLERANCE * made[0].abs().max())

    def _launches(self, subject: Subject) -> tuple[Launches, Tensor]:
        """A launch for each copy of the weight, and what they write."""
        kind, _, n, k, rows = subject.key
        gate, device, pdl = subject.product.gate, self._device, self._pdl
        x = torch.linspace(0, 99, rows * k, device=device).sin().to(self._dtype).view(rows, k)
        out = torch.empty(rows, n // (2 if kind.endswith("gated") else 1), dtype=self._dtype, device=device)
        multiply: Callable[..., None]
        if rows == 1:
            multiply = functools.partial(launch.row_linear, x, gate=gate, pdl=pdl)
        elif kind == "split":
            out = torch.empty(launch.slice_count(rows, subject.weights[0]), rows, n, device=device)
            multiply = functools.partial(launch.split_linear, x, pdl=pdl)
        elif kind == "packed":
            multiply = functools.partial(launch.packed_linear, x, workspace=self._space)
        elif kind == "fp8":
            numbers = torch.empty_like(x, dtype=torch.float8_e4m3fn)
            scales = torch.empty(rows, device=device)
            quantize_rows_into(x, numbers, scales)
            multiply = functools.partial(launch.fp8_linear, numbers, scales, pdl=pdl)
        else:
            multiply = functools.partial(launch.skinny_linear, x, workspace=self._space, gate=gate, pdl=pdl)
        return [functools.partial(multiply, each, out) for each in subject.weights], out


@torch.inference_mode()
def tune(
    model: DecoderModel, rows: Sequence[int], tell: Callable[[str], object], timed: Timed | None = None
) -> list[Finding]:
    """The best tile for each product of a model, which is in half precision, at these numbers of rows. `tell` is called with what is being done."""
    tuner, every = Tuner(model.embedding.weight, timed or time_in_graph), list(subjects(model, rows))
    if timed is None:
        tell(f"compiling the tiles of {len(every)} products")
        with compiling_ahead(os.cpu_count() or 1):
            for each in every:
                tuner.compile(each)
    findings = []
    for number, each in enumerate(every, 1):
        tell(f"product {number} of {len(every)}")
        findings.append(tuner.find(each))
    return findings


def time_in_graph(launches: Launches, replays: int = REPLAYS) -> float:
    """Microseconds of one launch in a graph of all of them, as a decode step launches them; the median of its replays."""
    launches[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for each in launches:
            each()
    graph.replay()
    taken = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(1000 * float(start.elapsed_time(end)) / len(launches))
    return statistics.median(taken)
