"""Experts that an engine says tokens went through, beside those that transformers' routers choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nanoserve.ports.sampling import SamplingParams
from tests.served import Answer, Served
from tests.unit.adapters.pytorch.tiny_models import CASES, TinyModel, make_prompt, make_tiny_model

FAMILIES = {"qwen3_moe": 3, "mixtral": 2, "deepseek_v3": 3, "gpt_oss": 2, "qwen3_next": 3}
"""Windows beside full attention, latents behind dense layers, states: and how many experts a token has."""
PARAMS = SamplingParams(temperature=0.9, max_tokens=4, ignore_eos=True)


def made(folder: Any, family: str) -> TinyModel:
    # The only limit of releases of transformers before it was a field.
    limit = {"swiglu_limit": 7.0} if family == "gpt_oss" else {}
    return make_tiny_model(folder, family, **(CASES[family] | limit))


def chosen(tiny: TinyModel, ids: Sequence[int], top: int) -> Tensor:
    """Sorted, uint8 [tokens, layers, top]; zeros of layers without experts."""
    found = torch.zeros(len(ids), tiny.spec.num_layers, top, dtype=torch.uint8)
    hooks = []

    def keep(layer: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            found[:, layer] = output[-1].view(len(ids), top).sort(dim=-1).values

        return hook

    for name, module in tiny.reference.named_modules():
        if type(module).__name__.lower().endswith("topkrouter"):
            hooks.append(module.register_forward_hook(keep(int(name.split(".layers.")[1].split(".")[0]))))
    assert hooks
    with torch.inference_mode():
        tiny.reference(torch.tensor([list(ids)]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def sizes(tiny: TinyModel, top: int) -> tuple[int, int, int]:
    """As `EngineSizes.routed_experts`."""
    return tiny.spec.num_layers, top, 1


def serve(served: Served, prompts: Sequence[Sequence[int]], silent: Sequence[int] = ()) -> list[Answer]:
    """Ask for the experts of all prompts but the silent ones."""
    answers = {str(number): Answer() for number in range(len(prompts))}
    for number, prompt in enumerate(prompts):
        served.add(str(number), prompt, PARAMS, number, routed_experts=number not in silent)
    while served.engine.has_work:
        served.turn(answers)
    return list(answers.values())


def check(tiny: TinyModel, top: int, prompt: Sequence[int], answer: Answer) -> None:
    """All tokens but the newest went where transformers sends them."""
    layers = tiny.spec.num_layers
    ids = [*prompt, *answer.tokens[:-1]]
    found = torch.frombuffer(bytearray(answer.routed_experts), dtype=torch.uint8).view(-1, layers, top)
    assert torch.equal(found.sort(dim=-1).values, chosen(tiny, ids, top))


def check_prefix(tiny: TinyModel, top: int, make: Callable[..., Served]) -> None:
    """In chunks, in a batch, of a prefix that is found."""
    served = make(routed_experts=sizes(tiny, top), block_size=4, max_num_batched_tokens=16)
    first = [make_prompt(2), make_prompt(9, seed=5)]
    for prompts in (first, [[*first[1], 7, 8]]):
        for prompt, answer in zip(prompts, serve(served, prompts), strict=True):
            check(tiny, top, prompt, answer)


def check_engine(tiny: TinyModel, top: int, make: Callable[..., Served]) -> None:
    """In chunks, in batches, of prefixes that are found or on their way, after a preemption, beside rows that do not ask."""
    beginning = make_prompt(70, seed=5)
    prompts = [
        make_prompt(3),
        [*beginning, 7, 8],
        make_prompt(60, seed=2),
        [*beginning, 9],
        make_prompt(17, seed=3),
    ]
    served = make(routed_experts=sizes(tiny, top), block_size=8)
    for _ in range(2):  # the second time all is found
        answers = serve(served, prompts, silent=(2,))
        assert [bool(each.routed_experts) for each in answers] == [True, True, False, True, True]
        for place in (0, 1, 3, 4):
            check(tiny, top, prompts[place], answers[place])
    crowd = [make_prompt(20 + number, seed=10 + number) for number in range(5)]
    cramped = make(routed_experts=sizes(tiny, top), block_size=8, num_blocks=math.ceil(5 * 24 / 8) + 1)
    for prompt, answer in zip(crowd, serve(cramped, crowd), strict=True):
        check(tiny, top, prompt, answer)
    assert cramped.has_preempted
