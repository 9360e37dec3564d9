"""Latent attention of a case's queries as those of rows that decode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanoserve.kernels.device.launch import SplitScratch
from nanoserve.kernels.latent_attention.cases import Case
from nanoserve.kernels.latent_attention.launch import latent_decode
from nanoserve.kernels.tiles import BlockSizes


def decoded(
    case: Case, splits: int, blocks: BlockSizes | None = None, *, places: slice = slice(None)
) -> Tensor:
    """The last query of some chunks, as decoding rows: [rows, num_heads, latent_dim]."""
    query, rows, lengths = case.queries.newest()
    query, rows, latent_dim = query[places], rows[places], case.sizes.latent_dim
    out = query.new_full((*query.shape[:2], latent_dim), torch.nan)
    scratch = SplitScratch.create(len(query), query.shape[1], latent_dim, splits, out.device)
    for tensor in scratch:
        tensor.fill_(torch.nan)
    which: dict[str, Any] = {
        "batch_rows": rows,
        "lengths": lengths,
        "scale": case.sizes.scale,
        "splits": splits,
    }
    latent_decode(query, case.cache, out, **which, scratch=scratch, blocks=blocks)
    return out
