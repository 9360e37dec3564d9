"""The configs of DeepSeek-V2 and V3 and of families with their experts, as transformers' config classes read them."""

from __future__ import annotations

from typing import Any

import attrs

from nanoserve.adapters.huggingface.attention import Config, read_attention
from nanoserve.adapters.huggingface.json_files import one_of, positive
from nanoserve.adapters.huggingface.rope import attention_sharpness, read_rope
from nanoserve.ports import layer_spec
from nanoserve.ports.errors import ModelLoadError


def deepseek_v2_layers(config: Config) -> tuple[layer_spec.LayerSpec, ...]:
    """Experts chosen by softmax, of all or of the best groups."""
    method = one_of("topk_method", config["topk_method"], "greedy", "group_limited_greedy")
    groups = {} if method == "greedy" else {"groups": config["n_group"], "top_groups": config["topk_group"]}
    # norm_topk_prob is not looked at: transformers never divides these weights by their sum.
    router = layer_spec.RouterSpec(
        normalized=False, scale=config["routed_scaling_factor"], exact=True, **groups
    )
    if config["mlp_bias"]:
        raise ModelLoadError("mlp_bias is not supported for this architecture")
    return _deepseek(config, router, _latent_attention(config))


def deepseek_v3_layers(config: Config) -> tuple[layer_spec.LayerSpec, ...]:
    """Experts chosen by sigmoid and a learned correction, of the best groups."""
    if config.get("head_dim", config["qk_rope_head_dim"]) != config["qk_rope_head_dim"]:
        raise ModelLoadError(f"head_dim must be qk_rope_head_dim or left out, got {config['head_dim']!r}")
    return _deepseek(config, _sigmoid_router(config), _latent_attention(config))


def glm4_moe_layers(config: Config) -> tuple[layer_spec.LayerSpec, ...]:
    """Experts chosen as DeepSeek-V3's, behind grouped-query attention that turns a part of each head."""
    normed = "head" if config["use_qk_norm"] else None
    mixer = read_attention(config, partial_rope=True, qkv_bias=config["attention_bias"], qk_norm=normed)
    return _deepseek(config, _sigmoid_router(config), mixer)


def _sigmoid_router(config: Config) -> layer_spec.RouterSpec:
    return layer_spec.RouterSpec(
        score="sigmoid",
        correction=True,
        groups=config["n_group"],
        top_groups=config["topk_group"],
        group_score="top2",
        normalized=config["norm_topk_prob"],
        sum_eps=1e-20,
        scale=config["routed_scaling_factor"],
        exact=True,
    )


def further_layers(config: Config) -> dict[str, Any]:
    """Layers that predict further tokens follow the others."""
    return {"further_layers": config["num_mtp_layers"]}


def _deepseek(
    config: Config, router: layer_spec.RouterSpec, mixer: layer_spec.Mixer
) -> tuple[layer_spec.LayerSpec, ...]:
    if config.get("moe_layer_freq", 1) != 1:
        raise ModelLoadError("moe_layer_freq other than 1 is not supported")
    count, top = config["n_routed_experts"], config["num_experts_per_tok"]
    groups: Any = router.groups
    best: Any = router.top_groups
    if None in (groups, best) or not 0 < best <= groups or count % groups:
        raise ModelLoadError(
            f"n_group is {groups!r} and topk_group {best!r}: {count} experts cannot be chosen so"
        )
    if not isinstance(top, int) or not 0 < top <= count // groups * best:
        raise ModelLoadError(f"num_experts_per_tok is {top!r}, and there are {count} experts to choose from")
    size = config["moe_intermediate_size"]
    experts = layer_spec.ExpertsSpec(
        count=count,
        top=top,
        size=size,
        router=router,
        shared_size=size * config["n_shared_experts"],
    )
    dense = min(config["first_k_dense_replace"], config["num_hidden_layers"])
    feeds: list[layer_spec.Feed] = [layer_spec.DenseSpec(size=config["intermediate_size"])] * dense + [
        experts
    ] * (config["num_hidden_layers"] - dense)
    return tuple(layer_spec.LayerSpec(mixer, feed) for feed in feeds)


def _latent_attention(config: Config) -> layer_spec.LatentSpec:
    heads, nope, rope = config["num_attention_heads"], config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    if config["num_key_value_heads"] not in (None, heads):
        raise ModelLoadError(
            "num_key_value_heads other than num_attention_heads is not supported for this architecture"
        )
    for name in ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank", "v_head_dim"):
        positive(config, name)
    if rope % 2:
        raise ModelLoadError(f"qk_rope_head_dim must be even, got {rope}")
    rotary = attrs.evolve(read_rope(config, rope), interleaved=config["rope_interleave"])
    return layer_spec.LatentSpec(
        num_heads=heads,
        latent_dim=config["kv_lora_rank"],
        rope_dim=rope,
        nope_dim=nope,
        value_dim=config["v_head_dim"],
        scale=(nope + rope) ** -0.5 * attention_sharpness(config),
        rope=rotary,
        query_dim=config["q_lora_rank"],
        bias=config["attention_bias"],
    )
