"""Small EAGLE-3 heads in folders, and what they guess, by plain operations over whole sequences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors.torch import save_file
from torch import Tensor

from nanoserve.adapters.huggingface.draft_head import read_draft
from nanoserve.adapters.pytorch.models import DecoderModel, build_model
from nanoserve.adapters.pytorch.models.eagle import EagleHead
from nanoserve.ports.model_spec import ModelSpec
from tests.unit.adapters.pytorch.tiny_models import CPU, TinyModel

HIDDEN, HEADS, HEAD_DIM, INNER, SIZE, THETA, EPS = 40, 4, 16, 72, 44, 500.0, 1e-5


@attrs.frozen(eq=False)
class TinyHead:
    """A head of random weights in a folder, by the names of its tensors there."""

    folder: Path
    tensors: dict[str, Tensor]
    taps: tuple[int, ...]
    adds_normed: bool
    kv_heads: int

    def load(
        self, tiny: TinyModel, dtype: torch.dtype = torch.float32, device: torch.device = CPU
    ) -> tuple[DecoderModel, EagleHead]:
        """The model that it drafts for, and itself."""
        spec = attrs.evolve(tiny.spec, draft=read_draft(str(self.folder), tiny.spec))
        model = build_model(spec, str(tiny.folder), dtype=dtype, device=device, draft=str(self.folder))
        assert isinstance(model.draft_head, EagleHead)
        return model, model.draft_head

    @torch.inference_mode()
    def guesses(self, tiny: TinyModel, token_ids: Sequence[int], count: int) -> list[int]:
        """What it guesses behind these tokens: all is computed anew for each guess."""
        seen = tiny.expected(token_ids)
        names = ["embeddings" if each == 0 else f"layers.{each - 1}" for each in self.taps]
        known = torch.cat([seen[name] for name in names], dim=1)[:-1] @ self.tensors["fc.weight"].T
        tokens, hidden = list(token_ids), known
        for _ in range(count):
            states = self._states(torch.tensor(tokens[1:]), hidden)
            logits = _norm(states[-1:], self.tensors["norm.weight"]) @ self.tensors["lm_head.weight"].T
            best = int(logits.argmax())
            tokens.append(best + int(self.tensors["d2t"][best]))
            hidden = torch.cat((known, states[len(known) - 1 :]))
        return tokens[len(token_ids) :]

    def _states(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        layer = {name.removeprefix("midlayer."): each for name, each in self.tensors.items()}
        normed = _norm(hidden, layer["hidden_norm.weight"])
        entering = torch.cat(
            (_norm(self.tensors["embed_tokens.weight"][token_ids], layer["input_layernorm.weight"]), normed),
            dim=1,
        )
        length = len(token_ids)
        q, k, v = (
            (entering @ layer[f"self_attn.{name}_proj.weight"].T).view(length, -1, HEAD_DIM).transpose(0, 1)
            for name in "qkv"
        )
        k, v = (each.repeat_interleave(HEADS // self.kv_heads, 0) for each in (k, v))
        scores = _turned(q) @ _turned(k).transpose(1, 2) / HEAD_DIM**0.5
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        attended = (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, -1)
        stream = (normed if self.adds_normed else hidden) + attended @ layer["self_attn.o_proj.weight"].T
        x = _norm(stream, layer["post_attention_layernorm.weight"])
        gated = torch.nn.functional.silu(x @ layer["mlp.gate_proj.weight"].T) * (
            x @ layer["mlp.up_proj.weight"].T
        )
        states: Tensor = stream + gated @ layer["mlp.down_proj.weight"].T
        return states


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight


def _turned(x: Tensor) -> Tensor:
    """Heads [heads, T, head_dim], rotated."""
    turns = THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.arange(x.shape[1])[:, None] * turns
    cosines, sines = (torch.cat((each, each), dim=1) for each in (angles.cos(), angles.sin()))
    first, second = x.chunk(2, dim=-1)
    turned: Tensor = x * cosines + torch.cat((-second, first), dim=-1) * sines
    return turned


def make_head(
    folder: Path,
    spec: ModelSpec,
    *,
    speculators: bool = False,
    adds_normed: bool = False,
    taps: tuple[int, ...] = (),
    kv_heads: int = 2,
    **config: Any,
) -> TinyHead:
    """Write one, as its authors do or as speculators does."""
    folder.mkdir(exist_ok=True)
    read = taps or (2, spec.num_layers // 2, spec.num_layers - 3)
    tensors = _make_tensors(spec, len(read), kv_heads)
    layer = {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": kv_heads,
        "head_dim": HEAD_DIM,
        "vocab_size": spec.vocab_size,
        "rope_theta": THETA,
        "rms_norm_eps": EPS,
        "max_position_embeddings": 256,
    }
    whole: dict[str, Any] = {"draft_vocab_size": SIZE, "target_hidden_size": spec.hidden_size}
    whole |= {"norm_before_residual": adds_normed}
    whole |= {"eagle_aux_hidden_state_layer_ids": list(taps)} if taps else {}
    written, named = {"architectures": ["LlamaForCausalLMEagle3"], **layer, **whole}, tensors
    if speculators:
        written = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", **whole}
        written["transformer_layer_config"] = layer
        named = {name.replace("midlayer", "layers.0"): each for name, each in tensors.items()}
    (folder / "config.json").write_text(json.dumps(written | config))
    save_file({name: each.contiguous() for name, each in named.items()}, folder / "model.safetensors")
    return TinyHead(folder, tensors, tuple(sorted(read)), adds_normed, kv_heads)


def _make_tensors(spec: ModelSpec, taps: int, kv_heads: int) -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(5)

    def drawn(*shape: int) -> Tensor:
        scaled: Tensor = torch.randn(*shape, generator=noise) / shape[-1] ** 0.5
        return scaled

    def near_one(size: int) -> Tensor:
        return 1 + 0.2 * torch.randn(size, generator=noise)

    chosen = torch.randperm(spec.vocab_size, generator=noise)[:SIZE].sort().values
    return {
        "fc.weight": drawn(HIDDEN, taps * spec.hidden_size),
        "midlayer.input_layernorm.weight": near_one(HIDDEN),
        "midlayer.hidden_norm.weight": near_one(HIDDEN),
        "midlayer.post_attention_layernorm.weight": near_one(HIDDEN),
        "midlayer.self_attn.q_proj.weight": drawn(HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": drawn(kv_heads * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": drawn(kv_heads * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": drawn(HIDDEN, HEADS * HEAD_DIM),
        "midlayer.mlp.gate_proj.weight": drawn(INNER, HIDDEN),
        "midlayer.mlp.up_proj.weight": drawn(INNER, HIDDEN),
        "midlayer.mlp.down_proj.weight": drawn(HIDDEN, INNER),
        "norm.weight": near_one(HIDDEN),
        "lm_head.weight": drawn(SIZE, HIDDEN),
        "embed_tokens.weight": drawn(spec.vocab_size, HIDDEN),
        "d2t": chosen - torch.arange(SIZE),
        "t2d": torch.zeros(spec.vocab_size, dtype=torch.bool).index_fill_(0, chosen, True),
    }
