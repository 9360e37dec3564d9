"""Log-probabilities to report: of the model's own logits, or of the drawn distribution, after penalties, bias, exclusions, temperature and filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import upload
from nanoserve.adapters.pytorch.sampling.row_settings import NUMBERS, DeviceSettings, acting, device_settings
from nanoserve.kernels.sampling import processed
from nanoserve.ports.step import RowSampling, TokenLogprobs

_ROWS_AT_ONCE: Final = 32
"""Bounds the memory for filters, which sort the vocabulary."""


@attrs.frozen(eq=False)
class Scores:
    """n scored tokens, still on the device.

    `token_ids`, `logprobs` and `ranks` are [n]; `top_ids` and `top_logprobs` [n, most], likeliest first, of which entry i reports the first `top[i]`.
    """

    token_ids: Tensor
    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    top: tuple[int, ...]

    def read(self) -> list[TokenLogprobs]:
        """Bring the scores to the host, one per token."""
        return unpack(pack(self).cpu(), self.top)


def pack(scores: Scores) -> Tensor:
    """All numbers of n scores as one int32 tensor [n, 3 + 2 * most], floats as their bits, to be copied in one go."""
    columns = (
        scores.token_ids[:, None].int(),
        scores.logprobs.view(torch.int32)[:, None],
        scores.ranks[:, None].int(),
        scores.top_ids.int(),
        scores.top_logprobs.view(torch.int32),
    )
    return torch.cat(columns, dim=1)


def unpack(packed: Tensor, top: Sequence[int]) -> list[TokenLogprobs]:
    """The scores in a packed tensor on the host, of which entry i reports the first `top[i]`."""
    most = (packed.shape[1] - 3) // 2
    floats = packed.view(torch.float32)
    entries = zip(
        packed[:, 0].tolist(),
        floats[:, 1].tolist(),
        packed[:, 2].tolist(),
        packed[:, 3 : 3 + most].tolist(),
        floats[:, 3 + most :].tolist(),
        top,
        strict=True,
    )
    return [
        TokenLogprobs(token, logprob, rank, tuple(zip(ids[:count], values[:count], strict=True)))
        for token, logprob, rank, ids, values, count in entries
    ]


def score_tensors(logits: Tensor, token_ids: Tensor, top: Sequence[int]) -> Scores:
    """Log-softmax at `token_ids` [n] of logits [n, vocab] float32, with the `top[i]` likeliest beside them.

    A token's rank is one more than the number of strictly likelier tokens. Equally likely ones come in the order of their ids.
    """
    total = logits.logsumexp(-1, keepdim=True)
    own = logits.gather(-1, token_ids[:, None])
    ranks = (logits > own).sum(-1) + 1
    count = min(max(top, default=0), logits.shape[-1])
    ids = likeliest(logits, count)
    return Scores(token_ids, (own - total)[:, 0], ranks, ids, logits.gather(-1, ids) - total, tuple(top))


def likeliest(logits: Tensor, count: int) -> Tensor:
    """The ids [n, count] of the largest of logits [n, vocab] of any float dtype, of equal ones the lowest; the host waits for nothing.

    Which of equal ones `topk` finds depends on `count`, and so on what other rows of the step report. Here it finds the last value, and then
    which of the tokens that have it come first.
    """
    num_rows, vocab_size = logits.shape
    if not count or not num_rows:
        return torch.empty(num_rows, count, dtype=torch.int64, device=logits.device)
    ids = torch.arange(vocab_size, dtype=torch.int32, device=logits.device)
    found = list[Tensor]()
    for start in range(0, num_rows, _ROWS_AT_ONCE):
        part = logits[start : start + _ROWS_AT_ONCE]
        values, larger = part.topk(count, dim=-1)
        last = values[:, -1:]
        equal = torch.where(part == last, ids, vocab_size).topk(count, largest=False).values.long()
        either = torch.where(values <= last, vocab_size, larger)  # NaN is the largest, as `topk` has it
        either = torch.cat((either, equal), dim=-1).sort(dim=-1).values
        at_most = torch.where(
            either < vocab_size, part.gather(-1, either.clamp(max=vocab_size - 1)), -torch.inf
        )
        order = at_most.sort(dim=-1, descending=True, stable=True).indices[:, :count]
        found.append(either.gather(-1, order).clamp(max=vocab_size - 1))
    return torch.cat(found)


def drawn_from(logits: Tensor, token_ids: Tensor, settings: Sequence[DeviceSettings]) -> Tensor:
    """Shaped logits [n, vocab] of n rows to those that the draw takes, float32: over the temperature, what filters exclude at -inf.

    A row that takes the likeliest token keeps its logits. `token_ids` [n] were drawn, and are not excluded.
    """
    off = device_settings(RowSampling(seed=0), logits.shape[1])
    drawing = [each if each.temperature else off for each in settings]
    found = torch.empty_like(logits, dtype=torch.float32)
    for start in range(0, len(drawing), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        numbers = {
            name: upload(values, torch.int64 if NUMBERS[name] is int else torch.float32, logits.device)[
                :, None
            ]
            for name, values in acting(drawing[rows], logits.shape[1]).items()
        }
        found[rows] = processed(logits[rows], token_ids[rows], **numbers)
    return found
