"""Very many draws of rows that have drafts, from logits that never change, held against their exact chances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.models import DecoderModel, build_random_model
from nanoserve.ports.driven import ModelRunner
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.step import Chunk, StepPlan, StepResult
from tests.plans import admitted
from tests.tiny_spec import tiny_spec
from tests.unit.kernels.chi_square import chi_square

SPEC = tiny_spec(1)
ROWS, WIDTH, LENGTH, BLOCK = 64, 4, 64, 16
PROMPT = (1, 2, 3)
SIZES = EngineSizes(
    max_num_seqs=ROWS,
    max_num_batched_tokens=ROWS * WIDTH,
    max_model_len=LENGTH,
    vocab_size=SPEC.vocab_size,
    block_size=BLOCK,
    num_blocks=1 + ROWS * LENGTH // BLOCK,
    max_width=WIDTH,
)


def make_indifferent_model(device: torch.device) -> DecoderModel:
    """Makes the same of every token, as its embeddings are alike; one in two draws is the likeliest, so that n-grams are right now and then."""
    model = build_random_model(SPEC, dtype=torch.float32, device=device, seed=3)
    with torch.inference_mode():
        for name, weight in model.named_parameters():
            if name == "embedding.weight":
                weight.copy_(weight[:1].expand_as(weight))
            elif name == "head.weight":
                weight.mul_(25)
    return model


class Drawing:
    """Rows of a runner that all decode to their ends, again and again."""

    def __init__(self, runner: ModelRunner[Any]) -> None:
        self._runner, self._step, self._seed = runner, 0, 0

    def _run(self, **plan: Any) -> StepResult:
        self._step += 1
        return self._runner.collect(self._runner.submit(StepPlan(step=self._step, **plan)))

    def _begin(self, **sampling: Any) -> StepResult:
        size, rows = LENGTH // BLOCK, range(ROWS)
        tables = [range(1 + row * size, 1 + (row + 1) * size) for row in rows]
        self._seed += ROWS
        return self._run(
            released=tuple(rows) if self._seed > ROWS else (),
            admitted=tuple(
                admitted(row, PROMPT, tables[row], seed=self._seed + row, max_length=LENGTH, **sampling)
                for row in rows
            ),
            chunks=tuple(Chunk(row, 0, len(PROMPT), samples=True) for row in rows),
        )

    def chances(self) -> Tensor:
        """The probability of each token, float64 [vocab]."""
        (score,) = self._begin(logprobs=SPEC.vocab_size).logprobs[0]
        chances = torch.zeros(SPEC.vocab_size, dtype=torch.float64)
        for token, logprob in score.top:
            chances[token] = logprob
        return chances.exp() / chances.exp().sum()

    def draw(self, count: int) -> list[list[int]]:
        """So many tokens or more, by the number of drafts of their step that stand before them."""
        found = [list[int]() for _ in range(WIDTH)]
        while sum(map(len, found)) < count:
            found[0] += self._begin().token_ids
            while (result := self._run(decoding=tuple(range(ROWS)), width=WIDTH)).token_ids:
                tokens = iter(result.token_ids)
                for gained in result.counts:
                    for place in range(gained):
                        found[place].append(next(tokens))
        return found


def check_frequencies(runner: ModelRunner[Any], count: int) -> None:
    """Tokens are as frequent as they should be, wherever in a step they are drawn."""
    drawing = Drawing(runner)
    chances = drawing.chances()
    found = [torch.tensor(each) for each in drawing.draw(count)]
    assert len(found[1]) > count / 20
    for tokens in (*found, torch.cat(found)):
        assert chi_square(tokens, chances) < 4
