"""Tiny random models made with transformers, and the steps that run them through ours."""

from __future__ import annotations

import copy
import itertools
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
import transformers
from torch import Tensor

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.models import DecoderModel, Observer, build_model
from nanoserve.adapters.pytorch.step_inputs import GroupInputs, StepInputs
from nanoserve.ports.layer_spec import Llama3RopeScaling
from nanoserve.ports.model_spec import ModelSpec

CPU = torch.device("cpu")
LLAMA3_SCALING = Llama3RopeScaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=32
)
_SHAPE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "attention_dropout": 0.0,
}
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
_ROPE_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": LLAMA3_SCALING.factor,
    "low_freq_factor": LLAMA3_SCALING.low_freq_factor,
    "high_freq_factor": LLAMA3_SCALING.high_freq_factor,
    "original_max_position_embeddings": LLAMA3_SCALING.original_max_position,
}
HYBRID: dict[str, Any] = {
    "num_hidden_layers": 5,
    "layer_types": [*["linear_attention"] * 2, *["full_attention", "linear_attention"], "full_attention"],
    "mlp_only_layers": [1],
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
}
"""Qwen3-Next, no two of whose dimensions are equal."""
ROPES: dict[str, dict[str, Any]] = {
    "default": _ROPE,
    "llama3": _ROPE_LLAMA3,
    "linear": {**_ROPE, "rope_type": "linear", "factor": 8.0},
    "yarn": {**_ROPE, "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32},
    "yarn-not-truncated": {
        **_ROPE,
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "truncate": False,
        "beta_fast": 8.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
}
YARN_DEEPSEEK: dict[str, Any] = {
    **_ROPE,
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}
LATENT: dict[str, Any] = {
    "num_attention_heads": 3,
    "num_key_value_heads": None,
    "head_dim": 6,
    "q_lora_rank": 28,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "rms_norm_eps": 1e-2,
    "first_k_dense_replace": 1,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
    "n_group": 3,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}
"""DeepSeek with dimensions that all differ; `rms_norm_eps` shows where it is taken for norms that have another one."""
GLM: dict[str, Any] = {
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "first_k_dense_replace": 1,
    "n_routed_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
    "routed_scaling_factor": 2.5,
}
_VISION: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}

GEMMA2: dict[str, Any] = {
    "sliding_window": 5,
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}
"""Windows and soft caps so small that they change everything, and a scale that is not that of the heads."""
GEMMA3: dict[str, Any] = {
    "sliding_window": 7,
    "query_pre_attn_scalar": 24,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {"full_attention": {**ROPES["linear"], "rope_theta": 1e5}, "sliding_attention": _ROPE},
}

GPT_OSS: dict[str, Any] = {
    "rope_parameters": ROPES["yarn-not-truncated"],
    "sliding_window": 5,
    "intermediate_size": 20,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "swiglu_limit": 0.5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
GRANITE: dict[str, Any] = {
    "head_dim": 12,  # it has no key for another one
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.4,
    "logits_scaling": 0.7,
    "rms_norm_eps": 1e-2,
}
"""Scales that all change much, and an epsilon that shows in which unit the residual stream is."""
GRANITE_MOE = {**GRANITE, "intermediate_size": 20, "num_local_experts": 5}
LONG_ROPE: dict[str, Any] = {
    "pad_token_id": None,
    "hidden_size": 64,
    "max_position_embeddings": 256,
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        **_ROPE,
        "rope_type": "longrope",
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.1, 1.3, 1.6, 1.9, 2.0],
        "long_factor": [1.5, 2.0, 2.9, 4.0, 7.0, 11.0],
    },
}
"""Phi-3 whose factors for long sequences count from the 65th token on."""
PHI3: dict[str, Any] = {"pad_token_id": None, "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.75}}


def _gemma3_beside_vision(**text: Any) -> Any:
    around: dict[str, Any] = {"attn_implementation": text.pop("attn_implementation")}
    return transformers.Gemma3Config(text_config=text, vision_config=_VISION, mm_tokens_per_image=4, **around)


_NAMES: dict[str, str] = {
    "glm4_moe": "Glm4Moe",
    "granitemoe": "GraniteMoe",
    "minimax_m2": "MiniMaxM2",
}
"""Of families whose classes are not called as their keys, in capitals."""


def _classes(family: str) -> tuple[Callable[..., Any], type[Any]]:
    """Those of transformers: the config, and the model that writes text."""
    if family == "gemma3":
        return _gemma3_beside_vision, transformers.Gemma3ForConditionalGeneration
    name = _NAMES.get(family) or family.removesuffix("_text").title().replace("_", "")
    config = name + "Text" * family.endswith("_text")
    return getattr(transformers, f"{config}Config"), getattr(transformers, f"{name}ForCausalLM")


_EXPERTS: dict[str, dict[str, Any]] = {
    "minimax_m2": {
        "num_attention_heads": 6,
        "intermediate_size": 20,
        "num_local_experts": 7,
        "num_experts_per_tok": 3,
        "rotary_dim": 6,
    },
    "mixtral": {"intermediate_size": 20, "num_local_experts": 5, "num_experts_per_tok": 2},
    "olmoe": {
        "head_dim": 12,  # it has no key for another one
        "intermediate_size": 20,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "clip_qkv": 0.5,
    },
    "qwen3_moe": {
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
        "norm_topk_prob": True,
    },
}
"""What families with experts have besides; no two sizes are equal."""


CASES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {**LATENT, "rope_parameters": YARN_DEEPSEEK, "topk_method": "group_limited_greedy"},
    "deepseek_v3": {**LATENT, "rope_parameters": YARN_DEEPSEEK},
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "glm4_moe": GLM,
    "gpt_oss": GPT_OSS,
    "granite": GRANITE,
    "granitemoe": GRANITE_MOE,
    "llama": {},
    "minimax_m2": {},
    "mistral": {"sliding_window": 11},
    "mixtral": {},
    "olmo2": {},
    "olmoe": {},
    "phi3": PHI3,
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {"mlp_only_layers": [1]},
    "qwen3_next": HYBRID,
}
"""What `make_tiny_model` needs for one model of each family that has all that the family has."""


@attrs.frozen(eq=False)
class TinyModel:
    """A transformers model, float32 and with eager attention, saved in `folder`, and its spec."""

    spec: ModelSpec
    reference: Any
    folder: Path

    def build(
        self,
        *,
        dtype: torch.dtype = torch.float32,
        quantization: str | None = None,
        device: torch.device = CPU,
    ) -> DecoderModel:
        """Ours, from the same folder."""
        return build_model(self.spec, str(self.folder), dtype=dtype, device=device, quantization=quantization)

    def expected(self, token_ids: Sequence[int]) -> dict[str, Tensor]:
        """What transformers makes of one prompt: every layer's output, by our observer's names, and the logits."""
        model = getattr(self.reference.model, "language_model", self.reference.model)
        seen: dict[str, Tensor] = {}

        def keep(name: str) -> Any:
            def hook(_module: Any, _inputs: Any, output: Any) -> None:
                seen[name] = (output[0] if isinstance(output, tuple) else output)[0].clone()

            return hook

        def keep_embeddings(_module: Any, inputs: Any, keywords: Any) -> None:
            seen["embeddings"] = (inputs[0] if inputs else keywords["hidden_states"])[0].clone()

        named = {f"layers.{index}": layer for index, layer in enumerate(model.layers)}
        hooks = [
            module.register_forward_hook(keep(name)) for name, module in {**named, "norm": model.norm}.items()
        ]
        hooks.append(model.layers[0].register_forward_pre_hook(keep_embeddings, with_kwargs=True))
        with torch.inference_mode():
            seen["logits"] = self.reference(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
        for hook in hooks:
            hook.remove()
        return seen


_MADE: dict[str, tuple[Any, dict[str, bytes], Tensor]] = {}
"""The model, its files and the state of torch's draws after it, by what it is made of."""


def make_tiny_model(folder: Path, architecture: str = "llama", *, seed: int = 0, **config: Any) -> TinyModel:
    """Make and save a model; `config` overrides the transformers config, `rope` names one of `ROPES`."""
    key = repr((architecture, seed, sorted(config.items())))
    if key not in _MADE:
        _MADE[key] = _make(architecture, seed, config)
    reference, files, draws = _MADE[key]
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    torch.set_rng_state(draws)
    return TinyModel(read_spec(str(folder)), copy.deepcopy(reference), folder)


def _make(architecture: str, seed: int, config: dict[str, Any]) -> tuple[Any, dict[str, bytes], Tensor]:
    rope = dict(ROPES[config.pop("rope", "default")])  # transformers writes into it
    config_type, model_type = _classes(architecture)
    settings = {**_SHAPE, "rope_parameters": rope, **_EXPERTS.get(architecture, {}), **config}
    made = config_type(**settings, attn_implementation="eager", experts_implementation="eager")
    torch.manual_seed(seed)
    reference = model_type(made).eval().float()
    enlarge(reference)
    with tempfile.TemporaryDirectory() as saved:
        reference.save_pretrained(saved)
        files = {each.name: each.read_bytes() for each in Path(saved).iterdir()}
    return reference, files, torch.get_rng_state()


def enlarge(reference: Any) -> None:
    """Give every tensor, norms, biases and stored buffers included, values that a mix-up would show.

    Matrices, stacked ones too, are scaled by their width: a wide model with large weights would make small rounding errors
    large. Those of routers are larger, so that rounding errors choose no other experts. Some states last and some do not.
    Norms keep what they are centred at.
    """
    stored = reference.state_dict()
    named = [*reference.named_parameters(), *((n, b) for n, b in reference.named_buffers() if n in stored)]
    with torch.no_grad():
        for name, tensor in named:
            noise = torch.randn_like(tensor)
            if "norm" in name:
                tensor.copy_(tensor + 0.2 * noise)
            elif name.endswith("sinks"):
                tensor.copy_(1.5 * noise)
            elif name.endswith("e_score_correction_bias"):
                tensor.copy_(0.5 * noise)
            elif name.endswith("A_log"):
                tensor.copy_(math.log(0.005) + torch.rand_like(tensor) * math.log(16 / 0.005))
            elif name.endswith("dt_bias"):
                tensor.copy_(1 + 0.2 * noise)
            else:
                scale = tensor.shape[-1] ** -0.5 if tensor.dim() in (2, 3) else 0.15
                tensor.copy_((4 if name.endswith(ROUTERS) else 1) * scale * noise)


ROUTERS = ("mlp.gate.weight", "mlp.router.weight", "block_sparse_moe.router.weight")
"""Name endings of the weights that choose experts."""


@attrs.define(eq=False)
class PagedRun:
    """Rows of tokens fed to a model step by step over a cache whose every unallocated position is NaN.

    Each row's blocks are scattered over the pool. Call `step` with, per row, how many of its next tokens to compute.
    """

    model: DecoderModel
    prompts: list[list[int]]
    kv: KVStore
    tables: list[list[list[int]]]
    done: list[int]

    @classmethod
    def start(
        cls, model: DecoderModel, prompts: list[list[int]], *, block_size: int = 4, num_blocks: int = 96
    ) -> PagedRun:
        """Give every row scattered blocks in every cache group, and poison the whole store."""
        dtype = next(model.parameters()).dtype
        kv = KVStore(model.spec, num_blocks=num_blocks, block_size=block_size, dtype=dtype, device=CPU)
        for tensor in itertools.chain(*kv.layers):
            tensor.fill_(torch.nan)
        tables = []
        for group in range(len(model.spec.cache_groups)):
            shuffled = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(group)) + 1
            free = iter(shuffled.tolist())
            tables.append([[next(free) for _ in range(-(-len(p) // block_size))] for p in prompts])
        return cls(model, prompts, kv, tables, [0] * len(prompts))

    def step(self, counts: Sequence[int], observe: Observer | None = None) -> list[Tensor]:
        """Compute the next `counts[row]` tokens of every row (0 skips it); logits [count, vocab] of each."""
        rows = [row for row, count in enumerate(counts) if count]
        inputs = self._inputs(rows, counts)
        with torch.inference_mode():
            hidden = self.model(inputs, self.kv, observe=observe)
            logits = self.model.logits(hidden[inputs.logits_indices])
        for row in rows:
            self.done[row] += counts[row]
        return list(torch.split(logits, [counts[row] for row in rows]))

    def _inputs(self, rows: Sequence[int], counts: Sequence[int]) -> StepInputs:
        spans = [(row, self.done[row], self.done[row] + counts[row]) for row in rows]
        tokens = [token for row, start, stop in spans for token in self.prompts[row][start:stop]]
        positions = [position for _, start, stop in spans for position in range(start, stop)]
        return StepInputs(
            token_ids=torch.tensor(tokens),
            positions=torch.tensor(positions),
            query_lengths=tuple(stop - start for _, start, stop in spans),
            context_lengths=tuple(stop for _, _, stop in spans),
            logits_indices=torch.arange(len(tokens)),
            groups=tuple(self._group(group, spans) for group in range(len(self.tables))),
        )

    def _group(self, group: int, spans: list[tuple[int, int, int]]) -> GroupInputs:
        size, tables = self.kv.block_size, self.tables[group]
        window = self.model.spec.cache_groups[group].window
        width = max(-(-stop // size) for _, _, stop in spans)
        block_tables = torch.zeros(len(spans), width, dtype=torch.int64)
        for index, (row, start, stop) in enumerate(spans):
            first = 0 if window is None else max(0, start + 1 - window) // size
            last = -(-stop // size)
            block_tables[index, first:last] = torch.tensor(tables[row][first:last])
        places = [
            (tables[row][position // size], position % size)
            for row, start, stop in spans
            for position in range(start, stop)
        ]
        blocks, offsets = torch.tensor(places).unbind(1)
        return GroupInputs(block_tables=block_tables, places=(blocks, offsets))


def make_prompt(length: int, *, vocab_size: int = 128, seed: int = 0) -> list[int]:
    """Token ids drawn evenly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (length,), generator=generator).tolist()
