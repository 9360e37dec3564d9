"""An audited engine over any runner, every KV slot NaN until it is written, for comparisons with transformers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.events import PromptPooled, PromptScored, SequenceRouted, TokensGenerated
from nanoserve.ports.grammar import Constraint, Grammars
from nanoserve.ports.pooling import Pooling
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.step import TokenLogprobs


@attrs.define
class Answer:
    """What one request got."""

    tokens: list[int] = attrs.field(factory=list)
    logprobs: list[TokenLogprobs] = attrs.field(factory=list)
    prompt_logprobs: Sequence[TokenLogprobs | None] = ()
    finish_reason: FinishReason | None = None
    routed_experts: bytes = b""


class Served:
    """An engine over the runner that `make_runner` makes for the model within given limits."""

    def __init__(
        self,
        model: DecoderModel,
        make_runner: Callable[[Limits], Any],
        *,
        block_size: int = 16,
        num_blocks: int | tuple[int, ...] = 600,
        depth: int = 1,
        grammars: Grammars | None = None,
        **limits: Any,
    ) -> None:
        settings = {"max_num_seqs": 16, "max_num_batched_tokens": 48, "max_model_len": 192} | limits
        self.limits = Limits(
            **settings,
            vocab_size=model.spec.vocab_size,
            block_size=block_size,
            num_blocks=num_blocks,
            watermark=0.0,
        )
        runner = make_runner(self.limits)
        for tensor in itertools.chain(*runner.kv.layers):
            tensor.fill_(math.nan)
        self.engine = Engine(
            limits=self.limits,
            cache_groups=model.spec.cache_groups,
            runner=runner,
            clock=SystemClock(),
            depth=depth,
            paranoid=True,
            constraints=None if grammars is None else Constraints(grammars, runner),
            lora_store=getattr(runner, "loras", None),
        )

    @property
    def has_preempted(self) -> bool:
        return self.engine.scheduler.counters.preemptions > 0

    def add(
        self, request_id: str, prompt: Sequence[int], params: SamplingParams, seed: int, **more: Any
    ) -> None:
        self.engine.add(
            Request(request_id=request_id, prompt_token_ids=tuple(prompt), sampling=params, seed=seed, **more)
        )

    def turn(self, answers: dict[str, Answer]) -> None:
        """Make one turn, and note what each request gets."""
        for event in self.engine.turn():
            if isinstance(event, PromptScored):
                answers[event.request_id].prompt_logprobs = event.logprobs
            elif isinstance(event, SequenceRouted):
                answers[event.request_id].routed_experts = event.data
            elif isinstance(event, TokensGenerated):
                assert event.error is None, event.error
                answer = answers[event.request_id]
                answer.tokens.extend(event.token_ids)
                answer.logprobs.extend(event.logprobs)
                answer.finish_reason = event.finish_reason

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        *,
        first_seed: int = 0,
        loras: Sequence[str] = (),
    ) -> list[Answer]:
        """Serve all prompts at once to their last token; the seeds go up from the first. `loras` names each one's adapter."""
        answers = {str(number): Answer() for number in range(len(prompts))}
        named = loras or [""] * len(prompts)
        for number, (prompt, each, lora) in enumerate(zip(prompts, params, named, strict=True)):
            self.add(str(number), prompt, each, first_seed + number, lora=lora)
        while self.engine.has_work:
            self.turn(answers)
        assert all(answer.finish_reason is FinishReason.LENGTH for answer in answers.values())
        return list(answers.values())

    def bound(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], grammars: Sequence[str]
    ) -> list[Answer]:
        """Serve all prompts at once, each bound to answers as `FiniteGrammars` reads them, or to nothing; token 1 ends them."""
        answers = {str(number): Answer() for number in range(len(prompts))}
        for number, (prompt, each, text) in enumerate(zip(prompts, params, grammars, strict=True)):
            more: dict[str, Any] = {"constraint": Constraint("answers", text)} if text else {}
            self.add(str(number), prompt, each, number, eos_token_ids=frozenset({1}), **more)
        while self.engine.has_work:
            self.turn(answers)
        return list(answers.values())

    def pooled(
        self, prompts: Sequence[Sequence[int]], poolings: Sequence[Pooling]
    ) -> list[tuple[float, ...]]:
        """What all prompts at once are made into."""
        nothing = SamplingParams(max_tokens=1)
        for number, (prompt, pooling) in enumerate(zip(prompts, poolings, strict=True)):
            self.add(str(number), prompt, nothing, 0, pooling=pooling)
        found = {}
        while self.engine.has_work:
            for event in self.engine.turn():
                if isinstance(event, PromptPooled):
                    found[event.request_id] = event.vector
        return [found[str(number)] for number in range(len(prompts))]

    def texts(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, first_seed: int = 0
    ) -> list[list[int]]:
        """The tokens of `answers`."""
        return [answer.tokens for answer in self.answers(prompts, params, first_seed=first_seed)]


def is_greedy(reference: Any, prompt: Sequence[int], answer: Sequence[int]) -> bool:
    """Whether transformers, shown prompt and answer, finds each token of the answer the likeliest after those before it.

    That is what its `generate` would have said, at the price of one pass.
    """
    with torch.inference_mode():
        logits = reference(torch.tensor([[*prompt, *answer]])).logits[0]
    likeliest: list[int] = logits.argmax(-1)[len(prompt) - 1 : -1].tolist()
    return likeliest == list(answer)


def assert_scored_as_by(reference: Any, prompt: Sequence[int], answer: Answer, num_top: int) -> None:
    """Each score of the answer, and of the prompt where it has some, is what transformers' logits say."""
    ids = [*prompt, *answer.tokens]
    with torch.inference_mode():
        rows = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
    scores = [*answer.prompt_logprobs[1:], *answer.logprobs]
    assert scores
    for position, score in enumerate(scores, start=len(ids) - len(scores)):
        assert score is not None
        row = rows[position - 1]
        assert score.token_id == ids[position]
        assert abs(score.logprob - row[ids[position]].item()) < 1e-4
        assert score.rank == int((row > row[ids[position]]).sum()) + 1
        best = row.topk(len(score.top)).values
        assert (
            max(abs(value - each) for (_, value), each in zip(score.top, best.tolist(), strict=True)) < 1e-4
        )
        assert position < len(prompt) or len(score.top) == num_top


PROCESSED = SamplingParams(
    temperature=0.6, top_k=6, logit_bias={5: 2.0}, max_tokens=8, ignore_eos=True, logprobs=3
)


def assert_processed_as_by(reference: Any, prompt: Sequence[int], answer: Answer) -> None:
    """Each score of an answer to `PROCESSED` is that of what it was drawn from, which transformers' logits make."""
    ids = [*prompt, *answer.tokens]
    with torch.inference_mode():
        logits = reference(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
        logits[:, 5] += 2.0
        scaled = logits / 0.6
    kept = scaled.masked_fill(scaled < scaled.topk(6).values[:, -1:], -math.inf).log_softmax(-1)
    assert len(answer.logprobs) == len(answer.tokens) > 0
    for score, row in zip(answer.logprobs, kept, strict=True):
        assert abs(score.logprob - float(row[score.token_id])) < 1e-4
        assert [token for token, _ in score.top] == row.topk(3).indices.tolist()
