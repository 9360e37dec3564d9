"""Checks of the kernels between products and attention, and of the one that writes a step's changes into the arena."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nanoserve.adapters.pytorch.cuda.self_test.bench import Bench
from nanoserve.adapters.pytorch.cuda.self_test.comparison import Comparison
from nanoserve.kernels.embedding.launch import embed_newest, embed_tokens
from nanoserve.kernels.embedding.reference import embed
from nanoserve.kernels.linear.tuning import split_count
from nanoserve.kernels.rms_norm.launch import add_rms_norm_into
from nanoserve.kernels.rms_norm.reference import add_rms_norm, rms_norm
from nanoserve.kernels.scatter_runs import reference as scatter_reference
from nanoserve.kernels.scatter_runs.launch import SEGMENT, pack_runs, scatter_runs
from nanoserve.kernels.silu_mul.launch import silu_mul_into
from nanoserve.kernels.silu_mul.reference import silu_mul

LENGTHS = (3, 1, 8, 5)
"""Tokens of the rows that are embedded."""
ROWS = (5, 33)
"""Numbers of rows on either side of where kernels change their shape."""


def check_embed_newest(bench: Bench) -> Iterator[Comparison]:
    """The newest token of each row, the first and the last of the vocabulary among them."""
    weight, places = bench.model.embedding.weight, [2, 0, 3, 1]
    tokens = bench.integers(0, len(weight), len(LENGTHS), max(LENGTHS))
    tokens[1, 0], tokens[2, LENGTHS[2] - 1] = 0, len(weight) - 1
    lengths, batch_rows = bench.these(LENGTHS), bench.these(places)
    wanted = embed(tokens, places, [LENGTHS[row] - 1 for row in places], weight)
    for pdl in bench.launches:
        out = bench.poisoned(len(places), weight.shape[1])
        bench.settle()
        embed_newest(tokens, lengths, batch_rows, weight, out, pdl=pdl)
        yield Comparison(case=_shape(out), got=out, wanted=wanted, exact=True)


def check_embed_tokens(bench: Bench) -> Iterator[Comparison]:
    """Tokens by row and position."""
    weight, rows, positions = bench.model.embedding.weight, [3, 3, 0, 1], [0, 4, 2, 0]
    tokens = bench.integers(0, len(weight), len(LENGTHS), max(LENGTHS))
    tokens[0, 2], tokens[1, 0] = 0, len(weight) - 1
    out = bench.poisoned(len(rows), weight.shape[1])
    embed_tokens(tokens, bench.these(rows), bench.these(positions), weight, out)
    wanted = embed(tokens, rows, positions, weight)
    yield Comparison(case=_shape(out), got=out, wanted=wanted, exact=True)


def check_add_rms_norm(bench: Bench) -> Iterator[Comparison]:
    """The norm alone, and after the partial sums of a split product."""
    norm = bench.model.norm
    output = next(each.linear for each in bench.model.products() if each.norm is None)
    for rows in ROWS:
        splits = split_count(rows, *output.weight.shape)
        for partials, bias in (
            (None, None),
            (bench.normal(splits, rows, len(norm.weight), dtype=torch.float32), output.bias),
        ):
            stream = bench.normal(rows, len(norm.weight))
            wanted, total = rms_norm(stream, norm.weight, norm.eps), stream.float()
            if partials is not None:
                added = partials.float().sum(0) + (0 if bias is None else bias.float())
                wanted, total = add_rms_norm(added, stream, norm.weight, norm.eps)
            for pdl in bench.launches:
                x, out = stream.clone(), bench.poisoned(*stream.shape)
                bench.settle()
                add_rms_norm_into(x, norm.weight, out, partials=partials, bias=bias, eps=norm.eps, pdl=pdl)
                case = f"{_shape(x)}, {0 if partials is None else len(partials)} partial sums"
                yield Comparison(case=f"norm of {case}", got=out, wanted=wanted)
                yield Comparison(case=f"sum of {case}", got=x, wanted=total)


def check_silu_mul(bench: Bench) -> Iterator[Comparison]:
    """The gate of a batch too large for the products that have it fused in."""
    size = bench.spec.intermediate_size
    for pdl in bench.launches:
        gate_up, out = bench.normal(ROWS[0], 2 * size), bench.poisoned(ROWS[0], size)
        bench.settle()
        silu_mul_into(gate_up, out, pdl=pdl)
        yield Comparison(case=_shape(gate_up), got=out, wanted=silu_mul(gate_up))


def check_scatter_runs(bench: Bench) -> Iterator[Comparison]:
    """Short runs, and one of more than a segment."""
    target = bench.integers(0, 1 << 30, 4 * SEGMENT)
    runs = [(5, [1, -2, 3]), (SEGMENT, range(2 * SEGMENT + 9)), (len(target) - 1, [-(1 << 31)])]
    buffer = torch.empty(4 * SEGMENT, dtype=torch.int32, device="cpu")
    packed = pack_runs(runs, buffer)
    got = target.clone()
    scatter_runs(got, buffer.to(bench.device), packed.segments)
    wanted = scatter_reference.scatter_runs(target, runs)
    yield Comparison(case=f"{packed.segments} segments", got=got, wanted=wanted, exact=True)


def _shape(tensor: torch.Tensor) -> str:
    return " x ".join(str(size) for size in tensor.shape)
