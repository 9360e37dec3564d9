"""Ranks whose blocks lie on one device and are filled already, so that no kernel waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nanoserve.kernels.rank_sums import reference
from nanoserve.kernels.rank_sums.launch import (
    HEADER,
    Peers,
    add_ranks_into,
    add_slots_into,
    gather_ranks_into,
)
from nanoserve.kernels.testing import Comparison, Inputs, expect


def _peers(inputs: Inputs, blocks: Tensor, rank: int) -> Peers:
    addresses = inputs.these([each.data_ptr() for each in blocks], torch.int64)
    counts = inputs.these([1, 0, 1, 0], torch.int64)
    words = torch.zeros(2, dtype=torch.int64, device=inputs.device)
    return Peers(rank, len(blocks), addresses, counts, words, waits=False)


def _fill(blocks: Tensor, offset: int, parts: Sequence[Tensor]) -> None:
    for block, part in zip(blocks, parts, strict=True):
        block[offset : offset + part.nbytes].view(part.dtype).view(part.shape).copy_(part)


def check_add_ranks(
    inputs: Inputs,
    blocks: Tensor,
    weight: Tensor,
    *,
    eps: float,
    rows: int,
    branch_norm: Tensor | None = None,
) -> Iterator[Comparison]:
    """Every rank's sum and norm; `blocks` is uint8 [ranks, bytes]."""
    stream = inputs.normal(rows, len(weight))
    parts = [inputs.normal(rows, len(weight)) for _ in blocks]
    _fill(blocks, HEADER + 16, parts)
    wanted, total = reference.add_ranks(stream, parts, weight, eps, branch_norm)
    sums = []
    for rank in range(len(blocks)):
        for each in inputs.compare(
            add_ranks_into,
            f"on rank {rank} of {len(blocks)}",
            x=expect(total, stream),
            peers=_peers(inputs, blocks, rank),
            offset=HEADER + 16,
            parity=rank % 2,
            eps=eps,
            weight=weight,
            out=expect(wanted),
            branch_norm=branch_norm,
        ):
            sums += [each.got] if each.case.startswith("x,") else []
            yield each
    yield Comparison("sums of all ranks", torch.stack(sums), sums[0].expand(len(sums), -1, -1), exact=True)


def check_gather_ranks(inputs: Inputs, blocks: Tensor, rows: int, width: int) -> Iterator[Comparison]:
    """All columns; the last rank has fewer."""
    share = -(-width // len(blocks))
    shards = [inputs.normal(rows, min(share, width - rank * share)) for rank in range(len(blocks))]
    _fill(blocks, HEADER, shards)
    out = expect(reference.gather_ranks(shards), exact=True)
    exchange = {"peers": _peers(inputs, blocks, 0), "offset": HEADER, "share": share, "block": 16}
    return inputs.compare(gather_ranks_into, out=out, **exchange)


def check_add_slots(
    inputs: Inputs, slots: int, rows: int, size: int, bias: Tensor | None = None
) -> Iterator[Comparison]:
    """The sum of partial sums in either dtype."""
    for dtype in {torch.float32, inputs.dtype}:
        partials = inputs.normal(slots, rows, size, dtype=dtype)
        out = expect(reference.add_slots(partials, bias))
        yield from inputs.compare(add_slots_into, partials=partials, out=out, bias=bias)
