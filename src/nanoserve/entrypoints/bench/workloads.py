"""What the benchmarks run: prompts of random token ids, drawn anew for every run so that no prefix is cached."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nanoserve.entrypoints.compose.config import BenchSettings
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams

LEAST_NANO_LEN: Final = 100
"""The shortest prompt and answer of the nano workload."""


@attrs.frozen(kw_only=True)
class BenchLoad:
    """One run's prompts and how many tokens each of them gets; `seed` made them."""

    seed: int
    prompts: Sequence[tuple[int, ...]]
    output_lengths: Sequence[int]

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts together."""
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        """To be generated for all prompts together."""
        return sum(self.output_lengths)

    def requests(self, sampling: SamplingParams) -> list[Request]:
        """One request per prompt with a seed of its own; each generates exactly its number of tokens."""
        return [
            Request(
                request_id=f"{self.seed}-{index}",
                prompt_token_ids=prompt,
                sampling=attrs.evolve(sampling, max_tokens=length),
                seed=self.seed * 1_000_003 + index,
                stream=False,
            )
            for index, (prompt, length) in enumerate(zip(self.prompts, self.output_lengths, strict=True))
        ]


@attrs.frozen(kw_only=True)
class BenchWorkload:
    """A kind of load. Lengths are tokens; where `uniform`, they are the upper bounds of lengths drawn uniformly."""

    name: str
    num_prompts: int
    input_len: int
    output_len: int
    uniform: bool = False

    @property
    def longest(self) -> int:
        """The most tokens that one of its sequences can have."""
        return self.input_len + self.output_len

    @property
    def description(self) -> str:
        """In a few words."""
        lengths = (
            f"U({min(LEAST_NANO_LEN, most)}, {most})" if self.uniform else str(most)
            for most in (self.input_len, self.output_len)
        )
        return f"{self.name}: {self.num_prompts} x {' -> '.join(lengths)}"

    def draw(self, *, vocab_size: int, seed: int) -> BenchLoad:
        """The prompts of one run; the same seed gives the same ones, and other ones for every workload."""
        draw = random.Random(f"{self.description} {seed}")  # noqa: S311 - a benchmark wants repeatable numbers
        ins, outs = ([most] * self.num_prompts for most in (self.input_len, self.output_len))
        if self.uniform:
            ins, outs = (
                [draw.randint(min(LEAST_NANO_LEN, most), most) for most in each] for each in (ins, outs)
            )
        prompts = [tuple(draw.choices(range(vocab_size), k=length)) for length in ins]
        return BenchLoad(seed=seed, prompts=prompts, output_lengths=outs)


WORKLOADS: Final[Mapping[str, BenchWorkload]] = {
    each.name: each
    for each in (
        BenchWorkload(name="fixed", num_prompts=64, input_len=512, output_len=256),
        BenchWorkload(name="nano", num_prompts=256, input_len=1024, output_len=1024, uniform=True),
        BenchWorkload(name="prefill", num_prompts=64, input_len=2048, output_len=1),
        BenchWorkload(name="long", num_prompts=1, input_len=32_768, output_len=256),
    )
}
"""`nano` is the protocol of nano-vLLM's bench.py."""


def choose_workload(settings: BenchSettings) -> BenchWorkload:
    """The workload that the settings name, with the numbers that they give."""
    names = ("num_prompts", "input_len", "output_len")
    given = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    return attrs.evolve(WORKLOADS[settings.workload], **given)
