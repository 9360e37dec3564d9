"""An audited engine over the GPU runner: on a GPU where there is one, else in Triton's interpreter without graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.step import TokenLogprobs

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
BLOCK_SIZE = 16


@attrs.define
class Answer:
    """What one request got."""

    tokens: list[int] = attrs.field(factory=list)
    logprobs: list[TokenLogprobs] = attrs.field(factory=list)
    finish_reason: FinishReason | None = None


class Served:
    """An engine over `model`, every KV slot NaN until it is written."""

    def __init__(
        self,
        model: DecoderModel,
        *,
        num_blocks: int = 600,
        depth: int = 1,
        deterministic: bool = False,
        enforce_eager: bool = False,
        **limits: Any,
    ) -> None:
        settings = {"max_num_seqs": 16, "max_num_batched_tokens": 48, "max_model_len": 192} | limits
        self.limits = Limits(
            **settings,
            vocab_size=model.spec.vocab_size,
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            watermark=0.0,
        )
        self.runner, _ = build_runner(
            model, self.limits, deterministic=deterministic, enforce_eager=enforce_eager
        )
        for tensor in (*self.runner.kv.keys, *self.runner.kv.values):
            tensor.fill_(math.nan)
        self.engine = Engine(
            limits=self.limits,
            cache_groups=model.spec.cache_groups,
            runner=self.runner,
            clock=SystemClock(),
            depth=depth,
            paranoid=True,
        )

    def add(self, request_id: str, prompt: Sequence[int], params: SamplingParams, seed: int) -> None:
        self.engine.add(
            Request(request_id=request_id, prompt_token_ids=tuple(prompt), sampling=params, seed=seed)
        )

    def answers(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[Answer]:
        """Serve all prompts at once; request i has seed i."""
        answers = {str(number): Answer() for number in range(len(prompts))}
        for number, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
            self.add(str(number), prompt, each, number)
        while self.engine.has_work:
            for event in self.engine.turn():
                if isinstance(event, TokensGenerated):
                    assert event.finish_reason in {None, FinishReason.LENGTH}, event.error
                    answers[event.request_id].tokens.extend(event.token_ids)
                    answers[event.request_id].logprobs.extend(event.logprobs)
        return list(answers.values())

    def texts(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[list[int]]:
        """The tokens of `answers`."""
        return [answer.tokens for answer in self.answers(prompts, params)]
