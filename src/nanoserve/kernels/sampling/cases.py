"""Rows on a device that draw with every filter, and which tokens the sampling rule allows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nanoserve.kernels.philox import gumbel_rows
from nanoserve.kernels.sampling.launch import DrawScratch, sample_and_append
from nanoserve.kernels.testing import Comparison, Inputs


class SamplingSetting(NamedTuple):
    """A row's sampling settings, its number of tokens, and the number of its prompt's."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    length: int = 3
    prompt: int = 2


SETTINGS: Final = (
    SamplingSetting(0.0),
    SamplingSetting(0.0),
    SamplingSetting(1.0),
    SamplingSetting(5.0, top_k=3),
    SamplingSetting(5.0, top_p=0.05),
    SamplingSetting(5.0, min_p=0.5),
    SamplingSetting(9.0, top_p=0.7),
    SamplingSetting(9.0, top_k=1000),
    SamplingSetting(2.0, top_k=40, top_p=0.8, min_p=0.02),
    SamplingSetting(9.0, top_k=2),
    SamplingSetting(9.0, top_k=2),
    SamplingSetting(9.0, top_p=0.02),
    SamplingSetting(9.0, min_p=0.8),
    SamplingSetting(1.0),
)
"""Mostly high temperatures, whose tokens most likely lie outside of a filter that is not applied."""
LAST_TOKEN, BROKEN = 1, 13
"""The row whose likeliest token is the vocabulary's last, and the one with a logit that is not a number."""
NOT_A_NUMBER = 3
"""Which of its logits that is."""
UNUSED: Final = 2
"""Rows that no place names."""
ROUNDING: Final = 1e-4
"""The most that rounding may move a score, or the edge of a filter."""


class DeviceRows(NamedTuple):
    """R rows and the sink, as a runner keeps them, and the ring that it hands tokens over in."""

    tokens: Tensor
    lengths: Tensor
    num_prompt_tokens: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    drawn: Tensor
    ring_position: Tensor

    @classmethod
    def of(
        cls,
        inputs: Inputs,
        settings: Sequence[SamplingSetting],
        *,
        width: int = 16,
        ring: int = 4,
        columns: int = 64,
    ) -> DeviceRows:
        """Rows with these settings, the last of which is the sink's."""
        temperature, top_k, top_p, min_p, seeds, lengths, prompts = zip(*settings, strict=True)
        halves = [(signed(seed, 32), signed(seed >> 32, 32)) for seed in seeds]
        return cls(
            tokens=inputs.poisoned(len(settings), width, dtype=torch.int32),
            lengths=inputs.these(lengths),
            num_prompt_tokens=inputs.these(prompts),
            temperature=inputs.these(temperature, torch.float32),
            top_k=inputs.these(top_k),
            top_p=inputs.these(top_p, torch.float32),
            min_p=inputs.these(min_p, torch.float32),
            seeds=inputs.these(halves),
            drawn=inputs.poisoned(ring, columns, dtype=torch.int32),
            ring_position=inputs.these([0]),
        )

    def step(
        self,
        logits: Tensor,
        batch_rows: Tensor,
        *,
        pdl: bool = False,
        limits: Tensor | None = None,
        width: int = 1,
    ) -> DrawScratch:
        """Draw for these rows; returns the kernels' scratch memory, which was poisoned before."""
        scratch = DrawScratch(max_batch=len(logits), vocab_size=logits.shape[1], device=logits.device)
        scratch.cutoffs.fill_(torch.nan)
        scratch.candidates.fill_(2**30)
        if pdl:
            torch.cuda.synchronize(logits.device)
        how: dict[str, Any] = {"scratch": scratch, "pdl": pdl, "limits": limits, "width": width}
        sample_and_append(logits, batch_rows=batch_rows, **how, **self._asdict())
        return scratch


class Allowed(NamedTuple):
    """The tokens that the sampling rule allows n places.

    Two tokens whose scores, or whose fate at the edge of a filter, differ by a rounding may both be drawn.

    Attributes:
        best: float32 [n], the best score of a token that is kept for sure.
        scores: float32 [n, vocab] of all tokens that may be kept; -inf for the others.
    """

    best: Tensor
    scores: Tensor

    @classmethod
    def of(cls, logits: Tensor, rows: DeviceRows, own: Tensor) -> Allowed:
        """Make it of logits [n, vocab] at places that are the rows `own` [n]."""
        temperature = rows.temperature[own][:, None]
        values = logits.float()
        divisor = torch.where(temperature > 0, temperature, 1)
        scaled = (values - values.amax(1, keepdim=True)) / divisor
        low, high = rows.seeds[own].long().unbind(1)
        positions = (rows.lengths - rows.num_prompt_tokens)[own].long()
        noise = gumbel_rows(high << 32 | low & 0xFFFFFFFF, positions, logits.shape[1])
        scores = scaled + torch.where(temperature > 0, noise, 0)
        best = scores.where(_kept(scaled, rows, own, -ROUNDING), -torch.inf).amax(1)
        return cls(best, scores.where(_kept(scaled, rows, own, ROUNDING), -torch.inf))

    def holds(self, tokens: Tensor) -> Tensor:
        """True if each place may have been given its token, [n]."""
        vocab = self.scores.shape[1]
        score = self.scores.gather(1, tokens.clamp(0, vocab - 1)[:, None])[:, 0]
        return (tokens >= 0) & (tokens < vocab) & (score >= self.best - ROUNDING)


def check_sample_and_append(inputs: Inputs, vocab_size: int) -> Iterator[Comparison]:
    """Greedy and drawn rows with every filter, a broken row and a padded place; logits as the head and penalties make them."""
    seeds = inputs.integers(0, 2**31 - 1, len(SETTINGS), 2).tolist()
    lengths = inputs.integers(5, 33, len(SETTINGS)).tolist()
    drawing = [
        setting._replace(seed=low << 33 ^ high << 1, length=length, prompt=1 + length % 4)
        for setting, (low, high), length in zip(SETTINGS, seeds, lengths, strict=True)
    ]
    rows = DeviceRows.of(inputs, [*drawing, *[drawing[0]] * (UNUSED + 1)], width=33, ring=8)
    places = [len(drawing) + UNUSED, *reversed(range(len(drawing)))]
    batch_rows = inputs.these(places)
    for dtype in dict.fromkeys((inputs.dtype, torch.float32)):
        logits = 3 * inputs.normal(len(places), vocab_size, dtype=dtype)
        logits[places.index(LAST_TOKEN), -1] = 50.0
        logits[places.index(BROKEN), NOT_A_NUMBER] = torch.nan
        allowed, kept = Allowed.of(logits[1:], rows, batch_rows[1:].long()), logits.clone()
        case = f"{len(places)} rows of {vocab_size} logits in {dtype}"
        for pdl in inputs.launches if dtype is inputs.dtype else (False,):
            after = DeviceRows(*(tensor.clone() for tensor in rows))
            after.step(logits, batch_rows, pdl=pdl)
            yield from _taken(case, allowed, batch_rows[1:].long(), rows, after)
            yield Comparison(f"logits, {case}", logits.nan_to_num(0.0), kept.nan_to_num(0.0), exact=True)


class Drafts(NamedTuple):
    """The tokens that rows should gain that draw several in a step.

    Attributes:
        rows: as they are before it, with drafts behind their ends.
        limits: int32 [R + 1].
        gained: by place, the tokens as they are reported.
        compared: by place, the number of drafts.
    """

    rows: DeviceRows
    limits: Tensor
    gained: list[list[int]]
    compared: list[int]

    @classmethod
    def of(
        cls, inputs: Inputs, rows: DeviceRows, logits: Tensor, places: Sequence[int], width: int
    ) -> Drafts:
        """By steps of one token for each of the positions: drafts are those, wrong ones from a place's number on, or none."""
        sink, drawn = len(rows.lengths) - 1, []
        for ahead in range(width):
            step = DeviceRows(*(each.clone() for each in rows))._replace(lengths=rows.lengths + ahead)
            step.step(logits[ahead::width].contiguous(), inputs.these(places))
            drawn.append(step.drawn[0, : len(places)].tolist())
        tokens, limits = rows.tokens.clone(), rows.lengths + width + 1
        gained, compared = [], []
        for place, (row, told) in enumerate(zip(places, zip(*drawn, strict=True), strict=True)):
            right, length = place % (width + 1), int(rows.lengths[row])
            most = 0 if row == sink else width
            if place % 4 == 3:  # at its end, or near it
                limits[row], most = length + place % width, min(most, place % width)
            wrong = -1 if place % 3 else (told[right % width] + 1) % logits.shape[1]
            drafts = [max(each, -1) for each in (*told[:right], *[wrong] * width)][: width - 1]
            tokens[row, length : length + width - 1] = inputs.these(drafts)
            count = 1
            while count < min(most, width) and drafts[count - 1] == told[count - 1] >= 0:
                count += 1
            gained.append(list(told[: min(count, most)]))
            compared.append(sum(each >= 0 for each in drafts[: max(most - 1, 0)]))
        return cls(rows._replace(tokens=tokens), limits, gained, compared)


def check_drafted_draws(inputs: Inputs, vocab_size: int, width: int) -> Iterator[Comparison]:
    """Each row gains what steps of one token would have given it, as far as its drafts agree and its limit lets it."""
    settings = [each._replace(seed=7 << 33 ^ row, length=4 + row % 3) for row, each in enumerate(SETTINGS)]
    places = [len(settings), *reversed(range(len(settings)))]
    columns = len(places) * (width + 2)
    rows = DeviceRows.of(inputs, [*settings, settings[0]], width=8 + width, columns=columns + 1)
    for dtype in dict.fromkeys((inputs.dtype, torch.float32)):
        logits = 3 * inputs.normal(len(places) * width, vocab_size, dtype=dtype)
        logits[places.index(BROKEN) * width] = -torch.inf
        logits[places.index(LAST_TOKEN) * width + 1, NOT_A_NUMBER] = torch.nan
        drafts = Drafts.of(inputs, rows, logits, places, width)
        drawn, tokens, lengths = (each.clone() for each in (rows.drawn, drafts.rows.tokens, rows.lengths))
        for place, (row, gained) in enumerate(zip(places, drafts.gained, strict=True)):
            told = inputs.these([len(gained), drafts.compared[place], *gained])
            drawn[0, place * (width + 2) :][: len(told)] = told
            tokens[row, int(lengths[row]) :][: len(gained)] = torch.where(told < 0, -1 - told, told)[2:]
            lengths[row] += len(gained)
        case = f"{len(places)} rows of {width} places, logits in {dtype}"
        for pdl in inputs.launches:
            after = DeviceRows(*(each.clone() for each in drafts.rows))
            after.step(logits, inputs.these(places), pdl=pdl, limits=drafts.limits, width=width)
            yield Comparison(f"drawn, {case}", after.drawn, drawn, exact=True)
            yield Comparison(f"appended, {case}", after.tokens, tokens, exact=True)
            yield Comparison(f"lengths, {case}", after.lengths, lengths, exact=True)
            yield Comparison(f"ring, {case}", after.ring_position, rows.ring_position + 1, exact=True)


def _taken(
    case: str, allowed: Allowed, own: Tensor, before: DeviceRows, after: DeviceRows
) -> Iterator[Comparison]:
    """True if the tokens are allowed, were appended to their rows, and nothing else was."""
    drawn, broken = after.drawn[0, 1 : 1 + len(own)].long(), own == BROKEN
    token = torch.where(broken, -1 - drawn, drawn)
    right = torch.where(broken, token == NOT_A_NUMBER, allowed.holds(token))
    yield Comparison(f"draw, {case}", right, torch.ones_like(right), exact=True)
    tokens, lengths = before.tokens.clone(), before.lengths.clone()
    tokens[own, lengths[own].long()] = token.int()
    lengths[own] += 1
    yield Comparison(f"lengths, {case}", after.lengths, lengths, exact=True)
    yield Comparison(f"appended, {case}", after.tokens, tokens, exact=True)
    yield Comparison(f"ring, {case}", after.ring_position, before.ring_position + 1, exact=True)


def _kept(scaled: Tensor, rows: DeviceRows, own: Tensor, slack: float) -> Tensor:
    """Which tokens the filters keep, [n, vocab], with edges moved by `slack`; with one sort and no loop over rows."""
    vocab = scaled.shape[1]
    top_k = rows.top_k[own].long()
    ordered = scaled.sort(dim=1, descending=True).values
    kth = ordered.gather(1, torch.where(top_k > 0, top_k, vocab).clamp(max=vocab)[:, None] - 1)
    cutoff = torch.maximum(rows.min_p[own].log()[:, None] - slack, kth)
    weights = ordered.double().exp().where(ordered >= cutoff, 0)
    likelier = weights.cumsum(1) - weights
    inside = likelier < (rows.top_p[own].double()[:, None] + slack) * weights.sum(1, keepdim=True)
    crossing = ordered.gather(1, (inside.sum(1, keepdim=True) - 1).clamp(min=0))
    return scaled >= torch.maximum(cutoff, crossing)


def signed(number: int, bits: int) -> int:
    """The low bits of a number, read as a signed one."""
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half
