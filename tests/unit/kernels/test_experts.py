"""A mixture of experts on a CPU equals its formula, whoever chooses what; the choice is that of the families' routers."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from nanoserve.kernels.experts import Chosen, Experts, Routing, choose, feed, invariant_feed, reference

ROUTINGS = {
    "softmax": (7, Routing(top=3)),
    "one of many": (9, Routing(top=1)),
    "not normalized": (5, Routing(top=2, normalized=False, scale=1.5)),
    "best of groups": (12, Routing(top=3, groups=3, top_groups=2)),
    "as many groups as experts": (6, Routing(top=2, groups=6, top_groups=4, score="sigmoid")),
    "best two of groups": (
        12, Routing(top=3, score="sigmoid", groups=3, top_groups=2, group_score="top2", sum_eps=1e-20, scale=2.5)
    ),
    "softmax of chosen": (5, Routing(top=2, score="softmax_of_chosen")),
    "shared": (6, Routing(top=3, shared=2, scale=3.0)),
    "gated": (6, Routing(top=3, shared=2, shared_gate=True)),
    "every one": (4, Routing(top=4)),
}  # fmt: skip


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tokens", [1, 2, 17, 64, 65, 1000])
@pytest.mark.parametrize("corrected", [False, True], ids=["bare", "corrected"])
@pytest.mark.parametrize("kind", ROUTINGS)
def test_choice_is_that_of_the_formula(kind: str, corrected: bool, tokens: int) -> None:
    count, routing = ROUTINGS[kind]
    logits = 3 * noise(tokens, count + routing.shared_gate)
    correction = noise(count, seed=1) - 1.5 if corrected else None
    got, wanted = choose(logits, routing, correction), reference.choose(logits, routing, correction)
    assert torch.equal(got.experts, wanted.experts)
    torch.testing.assert_close(got.weights, wanted.weights, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("law", [choose, reference.choose], ids=["cpu", "formula"])
def test_of_equal_scores_the_lower_index_wins(law: Any) -> None:
    logits = torch.tensor([[0.0] * 7, [1, 2, 2, 2, 0, 2, 1], [0.0, -0.0, 0, -0.0, 0, 0, 0]])
    assert law(logits, Routing(top=3)).experts.tolist() == [[0, 1, 2], [1, 2, 3], [0, 1, 2]]
    grouped = Routing(top=2, groups=3, top_groups=1)
    assert law(torch.tensor([[1.0, 2, 2, 1, 0, 2]]), grouped).experts.tolist() == [[1, 0]]
    among_many = choose(torch.zeros(3, 512), Routing(top=10))
    assert among_many.experts.tolist() == [list(range(10))] * 3


def test_the_weights_know_nothing_of_the_correction() -> None:
    logits, routing = torch.tensor([[0.0, 1.0, 2.0]]), Routing(top=1, score="sigmoid", normalized=False)
    chosen = choose(logits, routing, torch.tensor([5.0, 0.0, 0.0]))
    assert chosen.experts.tolist() == [[0]]
    assert chosen.weights.tolist() == [[0.5]]


def test_closed_groups_stay_closed_where_open_scores_are_negative() -> None:
    logits, routing = torch.zeros(1, 4), Routing(top=2, score="sigmoid", groups=2, top_groups=1)
    assert choose(logits, routing, torch.tensor([-3.0, -4, -5, -6])).experts.tolist() == [[0, 1]]


V3 = Routing(top=3, score="sigmoid", groups=3, top_groups=2, group_score="top2", sum_eps=1e-20, scale=2.5)
V3_CONFIG = {"num_experts_per_tok": 3, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 2.5}
V2_CONFIG = V3_CONFIG | {"n_routed_experts": 12, "routed_scaling_factor": 1.5}
ROUTERS: dict[str, tuple[str, dict[str, Any], Routing]] = {
    "Qwen3MoeTopKRouter": ("qwen3_moe", {"num_experts": 12, "norm_topk_prob": True}, Routing(top=8)),
    "OlmoeTopKRouter": ("olmoe", {"num_experts": 12}, Routing(top=8, normalized=False)),
    "MixtralTopKRouter": ("mixtral", {"num_local_experts": 12}, Routing(top=2)),
    "MiniMaxM2TopKRouter": ("minimax_m2", {"num_local_experts": 12}, Routing(top=8, score="sigmoid")),
    "GptOssTopKRouter": ("gpt_oss", {"num_local_experts": 12}, Routing(top=4, score="softmax_of_chosen")),
    "GraniteMoeTopKRouter": (
        "granitemoe",
        {"num_local_experts": 12},
        Routing(top=2, score="softmax_of_chosen"),
    ),
    "DeepseekV3TopkRouter": ("deepseek_v3", {**V3_CONFIG, "n_routed_experts": 12}, V3),
    "Glm4MoeTopkRouter": ("glm4_moe", {**V3_CONFIG, "n_routed_experts": 12}, V3),
    "DeepseekV2TopkRouter": (
        "deepseek_v2",
        {**V2_CONFIG, "topk_method": "group_limited_greedy"},
        Routing(top=3, groups=3, top_groups=2, normalized=False, scale=1.5),
    ),
}
"""transformers' own, by their classes."""


@pytest.mark.parametrize("name", ROUTERS)
def test_choice_is_that_of_transformers(name: str) -> None:
    model_type, settings, routing = ROUTERS[name]
    make_config: Any = CONFIG_MAPPING[model_type]
    config = make_config(hidden_size=24, num_attention_heads=2, **settings)
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    router = getattr(module, name)(config)
    x, weight, correction = noise(50, 24, seed=1), noise(12, 24), noise(12, seed=2) - 1
    router.weight.data.copy_(weight)
    logits = x @ weight.T
    corrections: tuple[torch.Tensor, ...] = ()
    if hasattr(router, "bias"):
        router.bias.data.copy_(correction)
        logits = logits + correction
    elif hasattr(router, "e_score_correction_bias"):
        router.e_score_correction_bias.copy_(correction)
        corrections = (correction,)
    elif model_type == "minimax_m2":
        corrections = (correction,)
    _, weights, experts = router(x, *corrections if model_type == "minimax_m2" else ())
    agree_as_sets(choose(logits, routing, *corrections), experts, weights)


def agree_as_sets(chosen: Chosen, experts: torch.Tensor, weights: torch.Tensor) -> None:
    by_expert = [torch.zeros(len(experts), 12), torch.zeros(len(experts), 12)]
    by_expert[0].scatter_(1, chosen.experts.long(), chosen.weights)
    by_expert[1].scatter_(1, experts, weights.detach().float())
    torch.testing.assert_close(*by_expert, rtol=1e-6, atol=1e-6)


def random_feed(
    tokens: int, count: int, slots: int, *, bias: bool, clamp: float | None
) -> tuple[torch.Tensor, Experts, Chosen]:
    experts = Experts(
        noise(count, 40, 33, seed=2) / 5,
        noise(count, 33, 20, seed=3) / 4,
        gate_up_bias=noise(count, 40, seed=4) if bias else None,
        down_bias=noise(count, 33, seed=5) if bias else None,
        clamp=clamp,
    )
    chosen = noise(tokens, count, seed=6).topk(slots).indices.int()
    return noise(tokens, 33), experts, Chosen(chosen, noise(tokens, slots, seed=7))


@pytest.mark.parametrize(
    ("bias", "clamp"), [(False, None), (True, 0.7)], ids=["silu", "clamped, with biases"]
)
@pytest.mark.parametrize("compute", [feed, invariant_feed])
@pytest.mark.parametrize(("tokens", "count", "slots"), [(1, 3, 2), (17, 7, 3), (65, 4, 4), (3, 40, 8)])
def test_feed_is_that_of_the_formula(
    tokens: int, count: int, slots: int, compute: Any, *, bias: bool, clamp: float | None
) -> None:
    x, experts, chosen = random_feed(tokens, count, slots, bias=bias, clamp=clamp)
    torch.testing.assert_close(
        compute(x, experts, chosen), reference.feed(x, experts, chosen), rtol=1e-5, atol=1e-5
    )


def test_all_tokens_may_choose_the_same_experts() -> None:
    x, experts, chosen = random_feed(30, 5, 2, bias=False, clamp=None)
    alike = chosen._replace(experts=chosen.experts[:1].expand(30, -1))
    torch.testing.assert_close(
        feed(x, experts, alike), reference.feed(x, experts, alike), rtol=1e-5, atol=1e-5
    )


def test_no_tokens_are_fed_nothing() -> None:
    _, experts, _ = random_feed(1, 5, 2, bias=False, clamp=None)
    none = choose(torch.zeros(0, 5), Routing(top=2))
    assert feed(torch.zeros(0, 33), experts, none).shape == (0, 33)


def test_the_sum_is_in_the_order_of_the_slots() -> None:
    x, experts, _ = random_feed(1, 3, 2, bias=False, clamp=None)
    gate_up, down = experts.gate_up, experts.down
    assert isinstance(gate_up, torch.Tensor)
    assert isinstance(down, torch.Tensor)
    alike = Experts(gate_up[:1].expand(3, -1, -1), down[:1].expand(3, -1, -1))
    huge = 2.0**40

    def fed(*weights: float) -> torch.Tensor:
        return feed(x, alike, Chosen(torch.tensor([[2, 0, 1]], dtype=torch.int32), torch.tensor([weights])))

    assert not fed(
        huge, 1.0, -huge
    ).any()  # the middle one is lost in the first, as it would not be in another order
    assert bool(fed(huge, -huge, 1.0).all())


def test_a_tokens_bits_do_not_depend_on_the_others() -> None:
    x, experts, chosen = random_feed(70, 6, 3, bias=True, clamp=0.7)
    together = invariant_feed(x, experts, chosen)
    for tokens in (slice(0, 1), slice(69, 70), slice(3, 60)):
        part = Chosen(chosen.experts[tokens], chosen.weights[tokens])
        assert torch.equal(invariant_feed(x[tokens], experts, part), together[tokens])
