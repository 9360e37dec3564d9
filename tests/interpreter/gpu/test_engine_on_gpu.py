"""The engine over the GPU runner equals transformers, alone, in crowds, preempted, with graphs and without.

On a machine without a GPU a small part of this runs in Triton's interpreter.
"""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.sampling import device_sampler
from nanoserve.kernels.logits.launch import token_logprobs
from nanoserve.ports.sampling import SamplingParams
from tests.interpreter.gpu.serving import DEVICE, ON_GPU, serve
from tests.served import PROCESSED, assert_processed_as_by, assert_scored_as_by, is_greedy
from tests.unit.adapters.pytorch.tiny_models import (
    GEMMA2,
    GEMMA3,
    GLM,
    GPT_OSS,
    GRANITE,
    GRANITE_MOE,
    HYBRID,
    LATENT,
    PHI3,
    YARN_DEEPSEEK,
    TinyModel,
    make_prompt,
    make_tiny_model,
)

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-llama3-tied": ("llama", {"rope": "llama3", "tie_word_embeddings": True}),
    "qwen3-gqa4-wide-heads": ("qwen3", {"num_key_value_heads": 1, "head_dim": 80}),
    "mistral-window": ("mistral", {"sliding_window": 11}),
    "qwen2-bias": ("qwen2", {"head_dim": 64}),
    "llama-gqa8": ("llama", {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 128}),
    "llama-wide": ("llama", {"hidden_size": 1024, "head_dim": 64}),
    "llama-all-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    # Releases of transformers before the limit was a field have this one; tighter ones are tests of the kernel.
    "gpt_oss": ("gpt_oss", {**GPT_OSS, "swiglu_limit": 7.0}),
    "granite": ("granite", GRANITE),
    "granitemoe": ("granitemoe", GRANITE_MOE),
    "olmo2": ("olmo2", {"attention_bias": True}),
    "phi3": ("phi3", PHI3),
    "gemma2": ("gemma2", GEMMA2),
    "gemma3": ("gemma3_text", {**GEMMA3, "head_dim": 24}),
    "gemma3-wide": (
        "gemma3_text",
        {**GEMMA3, "hidden_size": 1152, "head_dim": 256, "num_key_value_heads": 1},
    ),
    "qwen3_moe": ("qwen3_moe", {"mlp_only_layers": [1]}),
    "qwen3_moe-many": ("qwen3_moe", {"num_experts": 40, "norm_topk_prob": False}),
    # Releases of transformers before `rotary_dim` was read have the fraction alone.
    "minimax_m2": (
        "minimax_m2",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    ),
    "glm4_moe": ("glm4_moe", GLM),
    "olmoe": ("olmoe", {}),
    "qwen3_next": ("qwen3_next", HYBRID),
    "qwen3_next-wide": (
        "qwen3_next",
        {**HYBRID, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "head_dim": 64},
    ),
    "deepseek_v3": ("deepseek_v3", {**LATENT, "rope_parameters": YARN_DEEPSEEK}),
    "deepseek_v2-wide": (
        "deepseek_v2",
        {**LATENT, "q_lora_rank": None, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "v_head_dim": 64}
        | {"qk_rope_head_dim": 32, "head_dim": 32, "num_attention_heads": 16},
    ),
    "mixtral-window": ("mixtral", {"sliding_window": 11}),
}
INTERPRETED = ("deepseek_v3", "gpt_oss", "gemma3")
TOKENS = 64 if ON_GPU else 4
CROWD = [2 + 2 * number for number in range(64)] if ON_GPU else [14, 15, 13]
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS)


@pytest.fixture(scope="module", params=FAMILIES if ON_GPU else INTERPRETED)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    architecture, config = FAMILIES[request.param]
    return make_tiny_model(tmp_path_factory.mktemp("model"), architecture, **config)


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> DecoderModel:
    return tiny.build(device=DEVICE)


def prompts_of(tiny: TinyModel, lengths: Sequence[int] = tuple(CROWD)) -> list[list[int]]:
    return [make_prompt(length, vocab_size=tiny.spec.vocab_size, seed=length) for length in lengths]


def is_windowed(tiny: TinyModel) -> bool:
    return all(group.window for group in tiny.spec.cache_groups)


CRAMPED: dict[str, Any] = (
    {"num_blocks": 120, "max_num_seqs": 64, "max_num_batched_tokens": 100}
    if ON_GPU
    else {"num_blocks": 3, "max_model_len": 48}
)


@pytest.mark.gpu
def test_greedy_text_equals_transformers_alone(tiny: TinyModel, model: DecoderModel) -> None:
    prompts = prompts_of(tiny)[::9]
    for eager in (False, True):
        served = serve(model, enforce_eager=eager, depth=2)
        assert all(
            is_greedy(tiny.reference, prompt, served.texts([prompt], [GREEDY])[0]) for prompt in prompts
        )


@pytest.mark.parametrize("eager", [False, True] if ON_GPU else [True])
def test_greedy_text_equals_transformers_in_a_preempted_crowd(
    tiny: TinyModel, model: DecoderModel, eager: bool
) -> None:
    prompts = prompts_of(tiny)
    for depth in (1, 3) if ON_GPU else (2,):
        # Sequences with a window hold few blocks each: a smaller pool cramps them.
        fewer = {"num_blocks": 30} if ON_GPU and is_windowed(tiny) else {}
        crowd = serve(model, depth=depth, enforce_eager=eager, **(CRAMPED | fewer))
        answers = crowd.texts(prompts, [GREEDY] * len(prompts))
        wrong = [
            len(prompt)
            for prompt, answer in zip(prompts, answers, strict=True)
            if not is_greedy(tiny.reference, prompt, answer)
        ]
        assert wrong == []
        assert crowd.has_preempted


@pytest.mark.parametrize("tiny", FAMILIES if ON_GPU else [*INTERPRETED, "qwen3_next"], indirect=True)
def test_prompts_of_one_beginning_at_once_equal_transformers(tiny: TinyModel, model: DecoderModel) -> None:
    vocab_size = tiny.spec.vocab_size
    beginning = make_prompt(96 if ON_GPU else 16, vocab_size=vocab_size, seed=1)
    tails = [make_prompt(1 + number, vocab_size=vocab_size, seed=2 + number) for number in range(3)]
    served = serve(model, max_num_batched_tokens=160, depth=2)
    few = SamplingParams(temperature=0.0, max_tokens=2)
    answers = served.texts([beginning + tail for tail in tails], [few] * len(tails))
    computed = len(beginning) + sum(map(len, tails))
    assert served.engine.scheduler.counters.computed_prompt_tokens == computed
    assert all(
        is_greedy(tiny.reference, beginning + tail, answer)
        for tail, answer in zip(tails, answers, strict=True)
    )


SHAPED = [
    SamplingParams(temperature=0.8, max_tokens=TOKENS),
    SamplingParams(temperature=1.1, top_k=9, max_tokens=TOKENS),
    SamplingParams(temperature=0.9, top_p=0.7, max_tokens=TOKENS, repetition_penalty=1.2),
    SamplingParams(temperature=0.0, max_tokens=TOKENS),
    SamplingParams(temperature=1.0, min_p=0.1, frequency_penalty=0.5, max_tokens=TOKENS),
    SamplingParams(temperature=1.0, logit_bias={5: 3.0}, presence_penalty=1.0, max_tokens=TOKENS),
    SamplingParams(temperature=0.7, allowed_token_ids=range(40), max_tokens=TOKENS),
    SamplingParams(temperature=1.3, logprobs=2, max_tokens=TOKENS),
]


@pytest.mark.matrix
def test_seeded_text_depends_on_nothing_but_the_request(tiny: TinyModel, model: DecoderModel) -> None:
    count = len(SHAPED) if ON_GPU else 3
    prompts, shaped = (
        prompts_of(tiny, range(2, 2 + 2 * count, 2) if ON_GPU else (15, 16, 19)),
        SHAPED[-count:],
    )
    roomy = serve(model, max_num_batched_tokens=500, depth=2).texts(prompts, shaped)
    cramped = serve(
        model,
        num_blocks=(5 if is_windowed(tiny) else 9) if ON_GPU else 3,
        max_model_len=80 if ON_GPU else 48,
        depth=3,
        max_num_seqs=5,
        max_num_batched_tokens=7 if ON_GPU else 19,
    )
    assert cramped.texts(prompts, shaped) == roomy
    assert cramped.has_preempted


@pytest.mark.gpu
def test_seeded_text_is_the_same_in_every_size_of_batch(tiny: TinyModel, model: DecoderModel) -> None:
    prompts = prompts_of(tiny)
    drawn = [SamplingParams(temperature=0.9, top_p=0.95, max_tokens=TOKENS)] * len(prompts)
    crowd = serve(model, max_num_seqs=64, max_num_batched_tokens=2048, num_blocks=2000).texts(prompts, drawn)
    for size in (1, 3, 8, 20):
        served = serve(model, max_num_seqs=size, max_num_batched_tokens=512, depth=2)
        assert served.texts(prompts[:24], drawn[:24]) == crowd[:24]


def test_logprobs_are_those_of_transformers(tiny: TinyModel, model: DecoderModel) -> None:
    prompt = make_prompt(23, vocab_size=tiny.spec.vocab_size, seed=1)
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, logprobs=3)
    served = serve(model, max_num_batched_tokens=16, depth=2)
    [answer] = served.answers([prompt], [params])
    assert len(answer.logprobs) == TOKENS
    assert_scored_as_by(tiny.reference, prompt, answer, num_top=3)


def test_processed_logprobs_are_those_of_what_is_drawn_from(tiny: TinyModel, model: DecoderModel) -> None:
    prompt = make_prompt(7, vocab_size=tiny.spec.vocab_size, seed=1)
    [answer] = serve(model, depth=2, processed_logprobs=True).answers([prompt], [PROCESSED])
    assert_processed_as_by(tiny.reference, prompt, answer)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_small_dtypes_are_as_close_to_float32_as_transformers_is(tiny: TinyModel, dtype: torch.dtype) -> None:
    """The stated tolerance: at most twice the mean error that transformers makes in the same dtype, plus 0.01."""
    prompt = make_prompt(40, vocab_size=tiny.spec.vocab_size, seed=1)
    scored = SamplingParams(temperature=0.0, max_tokens=TOKENS, logprobs=0)
    [answer] = serve(tiny.build(device=DEVICE, dtype=dtype)).answers([prompt], [scored])
    ids = torch.tensor([prompt + answer.tokens])
    picked = torch.tensor(answer.tokens)[:, None]
    with torch.inference_mode():
        exact, small = (
            reference(ids).logits[0].float().log_softmax(-1)[len(prompt) - 1 : -1]
            for reference in (tiny.reference, copy.deepcopy(tiny.reference).to(dtype=dtype))
        )
    ours = torch.tensor([score.logprob for score in answer.logprobs])
    exact, small = exact.gather(1, picked)[:, 0], small.gather(1, picked)[:, 0]
    assert (ours - exact).abs().mean() <= 2 * (small - exact).abs().mean() + 0.01


def test_deterministic_logits_are_bitwise_equal_whatever_the_batch_and_when_they_are_read_again(
    tiny: TinyModel, model: DecoderModel
) -> None:
    dtypes = (torch.float32, torch.bfloat16) if ON_GPU else (torch.float32,)
    prompts = prompts_of(tiny)[:12]
    scored = [SamplingParams(temperature=0.9, max_tokens=TOKENS, logprobs=2)] * len(prompts)
    for dtype in dtypes:
        same = model if dtype == torch.float32 else tiny.build(device=DEVICE, dtype=dtype)
        roomy = serve(same, deterministic=True, max_num_batched_tokens=500).answers(prompts, scored)
        cramped = serve(
            same,
            deterministic=True,
            num_blocks=12 if ON_GPU else 3,
            max_model_len=192 if ON_GPU else 48,
            max_num_batched_tokens=17,
            depth=2,
        )
        assert cramped.answers(prompts, scored) == roomy
        assert cramped.has_preempted
        texts = [[*prompt, *answer.tokens] for prompt, answer in zip(prompts, roomy, strict=True)]
        read = cramped.answers(texts, [SamplingParams(max_tokens=1, prompt_logprobs=2)] * len(texts))
        for prompt, answer, again in zip(prompts, roomy, read, strict=True):
            assert list(again.prompt_logprobs[len(prompt) :]) == answer.logprobs


def test_prompts_are_scored_by_the_kernel_that_scores_what_is_generated(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another dtype it would be another kernel, whose sums have another order."""
    tiny, forms = make_tiny_model(tmp_path, "llama"), set[Any]()
    model = tiny.build(device=DEVICE, dtype=torch.bfloat16)

    def note(logits: torch.Tensor, token_ids: torch.Tensor, **out: torch.Tensor) -> None:
        forms.add((logits.dtype, logits.stride(), token_ids.dtype))
        token_logprobs(logits, token_ids, **out)

    monkeypatch.setattr(device_sampler, "token_logprobs", note)
    asked = SamplingParams(temperature=0.0, max_tokens=2, logprobs=1, prompt_logprobs=1)
    (answer,) = serve(model).answers(prompts_of(tiny, [9]), [asked])
    assert len(answer.logprobs) == 2
    assert len(answer.prompt_logprobs) == 9
    assert len(forms) == 1
