"""Checks of the draw and of what surrounds it: penalties before, log-probabilities after."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.self_test.bench import Bench
from nanoserve.adapters.pytorch.cuda.self_test.comparison import Comparison
from nanoserve.kernels.logprobs.launch import token_logprobs
from nanoserve.kernels.logprobs.reference import token_logprobs as reference_logprobs
from nanoserve.kernels.penalties.launch import apply_penalties, count_tokens
from nanoserve.kernels.penalties.reference import penalized
from nanoserve.kernels.philox import gumbel_rows
from nanoserve.kernels.sampling.launch import DrawScratch, sample_and_append

SETTINGS = (  # temperature, top-k (0 is off), top-p, min-p
    (0.0, 0, 1.0, 0.0),
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (5.0, 3, 1.0, 0.0),
    (5.0, 0, 0.05, 0.0),
    (5.0, 0, 1.0, 0.5),
    (9.0, 0, 0.7, 0.0),
    (9.0, 1000, 1.0, 0.0),
    (2.0, 40, 0.8, 0.02),
    (9.0, 2, 1.0, 0.0),
    (9.0, 2, 1.0, 0.0),
    (9.0, 0, 0.02, 0.0),
    (9.0, 0, 1.0, 0.8),
    (1.0, 0, 1.0, 0.0),
)
"""Hot rows, whose tokens most likely lie outside of a filter that is not applied."""
LAST_TOKEN, BROKEN = 1, 13
"""The row whose likeliest token is the vocabulary's last, and the one with a logit that is not a number."""
NOT_A_NUMBER = 3
"""Which of its logits that is."""
NUM_ROWS, WIDTH, RING = 16, 33, 8
"""Rows, the sink not counted, tokens of a row, and slots of the ring."""
ROUNDING = 1e-4
"""How far rounding may move a score, or the edge of a filter."""
STRENGTHS = ((1.3, 0.5, 0.2), (1.0, 0.0, 0.0), (1.0, 0.3, 0.0), (0.8, 0.0, 1.5))
"""Repetition, frequency and presence penalties; the second row has none."""
PENALIZED_ROWS = (2, 4, 0, 1)
"""Rows of which counts are kept; the second place's row is none of them."""


@attrs.frozen(eq=False)
class Rows:
    """What the device keeps by row, the sink last."""

    tokens: Tensor
    lengths: Tensor
    num_prompt_tokens: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor


@attrs.frozen(eq=False)
class Law:
    """What the law of `kernels.sampling` says of n places.

    Two tokens whose scores, or whose fate at the edge of a filter, differ by a rounding may both be drawn.

    Attributes:
        best: float32 [n], the best score of a token that is kept for sure.
        scores: float32 [n, vocab] of all tokens that may be kept; -inf for the others.
    """

    best: Tensor
    scores: Tensor

    @classmethod
    def of(cls, logits: Tensor, rows: Rows, own: Tensor) -> Law:
        """Of logits [n, vocab] at places that are the rows `own` [n]."""
        temperature, vocab = rows.temperature[own], logits.shape[1]
        values = logits.float()
        heat = torch.where(temperature > 0, temperature, 1)[:, None]
        scaled = (values - values.amax(1, keepdim=True)) / heat
        low, high = rows.seeds[own].long().unbind(1)
        positions = (rows.lengths - rows.num_prompt_tokens)[own].long()
        noise = gumbel_rows(high << 32 | low & 0xFFFFFFFF, positions, vocab)
        scores = scaled + torch.where(temperature[:, None] > 0, noise, 0)
        best = scores.where(_kept(scaled, rows, own, -ROUNDING), -torch.inf).amax(1)
        return cls(best, scores.where(_kept(scaled, rows, own, ROUNDING), -torch.inf))

    def allows(self, tokens: Tensor) -> Tensor:
        """Whether each place may have been given its token, [n]."""
        vocab = self.scores.shape[1]
        score = self.scores.gather(1, tokens.clamp(0, vocab - 1)[:, None])[:, 0]
        return (tokens >= 0) & (tokens < vocab) & (score >= self.best - ROUNDING)


def check_sample_and_append(bench: Bench) -> Iterator[Comparison]:
    """Greedy and drawn rows with every filter, a broken row and a padded place; logits as the head and penalties make them."""
    rows = _rows(bench)
    places = [NUM_ROWS, *reversed(range(len(SETTINGS)))]
    batch_rows = bench.these(places)
    own = batch_rows[1:].long()
    for dtype in dict.fromkeys((bench.dtype, torch.float32)):
        logits = 3 * bench.normal(len(places), bench.spec.vocab_size, dtype=dtype)
        logits[places.index(LAST_TOKEN), -1] = 50.0
        logits[places.index(BROKEN), NOT_A_NUMBER] = torch.nan
        law = Law.of(logits[1:], rows, own)
        for pdl in bench.launches if dtype is bench.dtype else (False,):
            state = attrs.evolve(rows, tokens=rows.tokens.clone(), lengths=rows.lengths.clone())
            drawn, ring = bench.poisoned(RING, NUM_ROWS, dtype=torch.int32), bench.these([0])
            scratch = DrawScratch(
                max_batch=len(places), vocab_size=bench.spec.vocab_size, device=bench.device
            )
            bench.settle()
            sample_and_append(
                logits,
                batch_rows=batch_rows,
                drawn=drawn,
                ring_position=ring,
                scratch=scratch,
                pdl=pdl,
                **attrs.asdict(state, recurse=False),
            )
            case = f"{len(places)} rows of {bench.spec.vocab_size} logits in {dtype}"
            taken = drawn[0, 1 : len(places)].long()
            yield from _taken(case, law, own, taken, before=rows, after=state)
            yield Comparison(case=f"ring, {case}", got=ring, wanted=torch.ones_like(ring), exact=True)


def check_apply_penalties(bench: Bench) -> Iterator[Comparison]:
    """Penalties on some of the places."""
    vocab, places = bench.spec.vocab_size, len(STRENGTHS)
    counts, in_prompt = _occurrences(bench)
    strengths, logits = (
        bench.these(STRENGTHS, torch.float32),
        bench.normal(places, vocab, dtype=torch.float32),
    )
    of_places = bench.these([row % len(counts) for row in PENALIZED_ROWS]).long()
    wanted = penalized(
        logits, output_counts=counts[of_places], in_prompt=in_prompt[of_places], strengths=strengths
    )
    apply_penalties(
        logits,
        batch_rows=bench.these(PENALIZED_ROWS),
        output_counts=counts,
        in_prompt=in_prompt,
        strengths=strengths,
    )
    yield Comparison(case=f"{places} x {vocab}", got=logits, wanted=wanted)


def check_count_tokens(bench: Bench) -> Iterator[Comparison]:
    """Tokens of the places that have penalties, one of them reported as broken."""
    vocab = bench.spec.vocab_size
    counts, _ = _occurrences(bench)
    wanted = counts.clone()
    for place, token in ((0, vocab - 1), (2, 0), (3, 5)):
        wanted[PENALIZED_ROWS[place], token] += 1
    count_tokens(
        bench.these([vocab - 1, 1, 0, -1 - 5]),
        batch_rows=bench.these(PENALIZED_ROWS),
        output_counts=counts,
        strengths=bench.these(STRENGTHS, torch.float32),
    )
    yield Comparison(case=f"{len(counts)} x {vocab}", got=counts, wanted=wanted, exact=True)


def check_token_logprobs(bench: Bench) -> Iterator[Comparison]:
    """Scores of the vocabulary's first and last token and of one reported as broken."""
    vocab = bench.spec.vocab_size
    tokens = [0, vocab - 1, 7]
    logits = 3 * bench.normal(len(tokens), vocab)
    logprobs, totals = bench.poisoned(2, len(tokens), dtype=torch.float32).unbind(0)
    ranks = bench.poisoned(len(tokens), dtype=torch.int32)
    token_logprobs(logits, bench.these([0, vocab - 1, -1 - 7]), logprobs=logprobs, ranks=ranks, totals=totals)
    wanted = reference_logprobs(logits, bench.these(tokens))
    case = f"{len(tokens)} x {vocab}"
    yield Comparison(case=case, got=logprobs, wanted=wanted[0])
    yield Comparison(case=f"ranks, {case}", got=ranks, wanted=wanted[1], exact=True)
    yield Comparison(case=f"sums, {case}", got=totals, wanted=wanted[2])


def _rows(bench: Bench) -> Rows:
    unused = NUM_ROWS + 1 - len(SETTINGS)
    temperature, top_k, top_p, min_p = zip(*SETTINGS, *[SETTINGS[0]] * unused, strict=True)
    return Rows(
        tokens=bench.poisoned(NUM_ROWS + 1, WIDTH, dtype=torch.int32),
        lengths=bench.integers(5, WIDTH, NUM_ROWS + 1),
        num_prompt_tokens=bench.integers(1, 5, NUM_ROWS + 1),
        temperature=bench.these(temperature, torch.float32),
        top_k=bench.these(top_k),
        top_p=bench.these(top_p, torch.float32),
        min_p=bench.these(min_p, torch.float32),
        seeds=bench.integers(-(1 << 31), 1 << 31, NUM_ROWS + 1, 2),
    )


def _kept(scaled: Tensor, rows: Rows, own: Tensor, slack: float) -> Tensor:
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


def _taken(
    case: str, law: Law, own: Tensor, drawn: Tensor, *, before: Rows, after: Rows
) -> Iterator[Comparison]:
    """Whether the tokens are lawful, were appended to their rows, and nothing else was."""
    broken = own == BROKEN
    token = torch.where(broken, -1 - drawn, drawn)
    lawful = torch.where(broken, token == NOT_A_NUMBER, law.allows(token))
    yield Comparison(case=f"draw, {case}", got=lawful, wanted=torch.ones_like(lawful), exact=True)
    tokens, lengths = before.tokens.clone(), before.lengths.clone()
    tokens[own, lengths[own].long()] = token.int()
    lengths[own] += 1
    yield Comparison(case=f"lengths, {case}", got=after.lengths, wanted=lengths, exact=True)
    yield Comparison(case=f"appended, {case}", got=after.tokens, wanted=tokens, exact=True)


def _occurrences(bench: Bench) -> tuple[Tensor, Tensor]:
    shape = (3, bench.spec.vocab_size)
    return bench.integers(0, 3, *shape), bench.integers(0, 2, *shape).bool()
