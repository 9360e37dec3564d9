"""Small checkpoints with a layer that predicts further tokens, and what transformers' `MtpModel` guesses with it.

transformers leaves Qwen3-Next's layer out, so its parts are put together here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import modeling_layers
from transformers.models.qwen3_next import modeling_qwen3_next

from nanoserve.adapters.huggingface.draft_head import own_draft
from tests.unit.adapters.pytorch.tiny_models import CASES, TinyModel, enlarge, make_tiny_model


@attrs.frozen(eq=False)
class TinyMtp:
    """A model whose spec has its own layer draft; `layers` is transformers' of it, or a `QwenLayer`."""

    tiny: TinyModel
    layers: Any

    @torch.inference_mode()
    def guesses(self, token_ids: Sequence[int], count: int) -> list[int]:
        """What the layer guesses behind these tokens: all is computed anew for each guess."""
        known = self.tiny.expected(token_ids)["norm"][None, :-1]
        tokens, hidden = list(token_ids), known
        for _ in range(count):
            positions = torch.arange(1, len(tokens))[None]
            states = self.layers.forward_layer(
                0, hidden, positions, None, input_ids=torch.tensor([tokens[1:]]), use_cache=False
            )
            tokens.append(int(self.layers.shared_head(states[0, -1]).argmax()))
            hidden = torch.cat((known, states[:, known.shape[1] - 1 :]), dim=1)
        return tokens[len(token_ids) :]


class QwenLayer(nn.Module):
    """Qwen3-Next's, as vLLM computes it; its parts are named as in checkpoints, behind `mtp.`."""

    def __init__(self, reference: Any) -> None:
        super().__init__()
        config, page = reference.config, modeling_qwen3_next
        self._model, self.shared_head = (reference.model,), reference.lm_head
        size = config.hidden_size
        self.fc = nn.Linear(2 * size, size, bias=False)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            self.add_module(name, page.Qwen3NextRMSNorm(size, eps=config.rms_norm_eps))
        attends = config.layer_types.index("full_attention")
        self.layers = nn.ModuleList([page.Qwen3NextDecoderLayer(config, attends)])

    def forward_layer(
        self, _layer: int, hidden: Tensor, positions: Tensor, _mask: None, *, input_ids: Tensor, **_: bool
    ) -> Tensor:
        (model,), named = self._model, dict(self.named_children())
        vectors = named["pre_fc_norm_embedding"](model.embed_tokens(input_ids))
        stream = self.fc(torch.cat((vectors, named["pre_fc_norm_hidden"](hidden)), dim=-1))
        length = stream.shape[1]
        mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
        turns = model.rotary_emb(stream, positions)
        stream = self.layers[0](stream, position_embeddings=turns, attention_mask=mask)
        normed: Tensor = named["norm"](stream)
        return normed


def make_mtp(folder: Path, family: str, **config: Any) -> TinyMtp:
    """Make a model and write it with such a layer, as its family is published."""
    tiny = make_tiny_model(folder, family, **CASES[family] | config)
    if not hasattr(getattr(modeling_layers, "MtpModel", None), "forward_layer"):
        pytest.skip("this transformers has no MtpModel that computes one layer")
    is_qwen = family == "qwen3_next"
    layers: Any = QwenLayer(tiny.reference) if is_qwen else modeling_layers.MtpModel(tiny.reference, 1)
    layers.eval()
    if is_qwen:
        shared, layers.shared_head = layers.shared_head, None
        enlarge(layers)
        written = {f"mtp.{name}": each for name, each in _single(layers.state_dict()).items()}
        layers.shared_head = shared
    else:
        enlarge(layers.layers)
        names = {f"layers.0.{name}": each for name, each in layers.layers[0].state_dict().items()}
        prefix = f"model.layers.{tiny.spec.num_layers}."
        written = {_published(prefix, name): each for name, each in _single(names).items()}
        written |= {f"{prefix}embed_tokens.weight": layers.embed_tokens.weight}
        written |= {f"{prefix}shared_head.head.weight": layers.shared_head.weight}
    plain = {name: each.detach().clone().contiguous() for name, each in written.items()}
    path = folder / "model.safetensors"
    save_file(load_file(path) | plain, path)
    spec = attrs.evolve(tiny.spec, draft=own_draft(tiny.spec))
    return TinyMtp(attrs.evolve(tiny, spec=spec), layers)


def _single(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The experts' matrices each by itself."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        block, _, stack = name.rpartition(".experts.")
        for expert, matrix in enumerate(tensor if block else ()):
            halves = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
            parts = (
                dict(zip(halves, matrix.chunk(2), strict=True))
                if stack in halves.values()
                else {stack: matrix}
            )
            found |= {f"{block}.experts.{expert}.{part}.weight": each for part, each in parts.items()}
        if not block:
            found[name] = tensor
    return found


def _published(prefix: str, name: str) -> str:
    inner = name.removeprefix("layers.0.").removeprefix("mtp_block.")
    return prefix + inner.replace("post_norm.", "shared_head.norm.")
