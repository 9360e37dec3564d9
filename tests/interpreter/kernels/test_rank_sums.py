"""What ranks add up and gather equals its formulas, with the same bits on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.rank_sums.cases import check_add_slots
from nanoserve.kernels.rank_sums.launch import HEADER, Peers, add_ranks_into, gather_ranks_into
from nanoserve.kernels.testing import Comparison, Inputs, expect
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases
from tests.triton_interpreter import REACHED

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight.float()


def added_ranks(
    x: Tensor, parts: Sequence[Tensor], weight: Tensor, eps: float, branch_norm: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The norm of x and all parts, and their sum, in float32; with `branch_norm` as weight, the parts' sum is normed before it is added."""
    added = torch.stack([each.float() for each in parts]).sum(0)
    total = x.float() + (added if branch_norm is None else _rms_norm(added, branch_norm, eps))
    return _rms_norm(total, weight, eps), total


def make_blocks(ranks: int, device: torch.device) -> torch.Tensor:
    blocks = torch.zeros(ranks, 1 << 16, dtype=torch.uint8, device=device)
    REACHED.append(blocks)
    return blocks


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
    """Every rank's sum and norm; `blocks` is uint8 [ranks, bytes], filled already, so that no kernel waits."""
    stream = inputs.normal(rows, len(weight))
    parts = [inputs.normal(rows, len(weight)) for _ in blocks]
    _fill(blocks, HEADER + 16, parts)
    wanted, total = added_ranks(stream, parts, weight, eps, branch_norm)
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
    out = expect(torch.cat(shards, dim=1), exact=True)
    exchange = {"peers": _peers(inputs, blocks, 0), "offset": HEADER, "share": share}
    return inputs.compare(gather_ranks_into, out=out, **exchange)


@pytest.mark.parametrize("is_normed", [False, True])
@cases("ranks", [2], also=[3, 8])
def test_rows_of_all_ranks_are_added_and_normed(ranks: int, *, is_normed: bool, inputs: Inputs) -> None:
    weight = inputs.normal(96)
    branch_norm = inputs.normal(96, dtype=torch.float32) if is_normed else None
    blocks = make_blocks(ranks, inputs.device)
    results = check_add_ranks(inputs, blocks, weight, eps=1e-2, rows=3, branch_norm=branch_norm)
    agree(results, TOLERANCE[inputs.dtype])


@cases("ranks", [3], also=[2, 5])
def test_columns_of_all_ranks_are_put_side_by_side(ranks: int, inputs: Inputs) -> None:
    agree(check_gather_ranks(inputs, make_blocks(ranks, inputs.device), 3, 4099 * ranks - 2), 0.0)


@pytest.mark.parametrize("is_biased", [False, True])
def test_slots_are_added(*, is_biased: bool, inputs: Inputs) -> None:
    bias = inputs.normal(40) if is_biased else None
    for some in (False, True):
        agree(check_add_slots(inputs, 3, 2, 40, bias, some=some), TOLERANCE[inputs.dtype])
