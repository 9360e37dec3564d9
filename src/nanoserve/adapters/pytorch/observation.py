"""One prompt through our model with every layer's output kept, as plain lists: one side of `nanoserve verify`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import CPU, DTYPES
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.step_inputs import StepInputs
from nanoserve.ports.driven import Activations

BLOCK_SIZE = 16


class ObservedModel:
    """Computes a prompt in one step, in a KV cache of its own; `dtype` names the numbers the model computes in."""

    def __init__(self, model: DecoderModel, *, dtype: str) -> None:
        self._model = model
        self._dtype = DTYPES[dtype]

    @torch.inference_mode()
    def activations(self, token_ids: Sequence[int], /) -> Activations:
        """The activations of every layer for a prompt."""
        seen: dict[str, list[list[float]]] = {}

        def keep(name: str, hidden: Tensor) -> None:
            seen[name] = hidden.float().tolist()

        spec = self._model.spec
        num_blocks = -(-len(token_ids) // BLOCK_SIZE)
        kv = KVStore(spec, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=self._dtype, device=CPU)
        inputs = StepInputs.of_prompt(token_ids, block_size=BLOCK_SIZE, num_groups=len(spec.cache_groups))
        hidden = self._model(inputs, kv, keep)
        return Activations(
            embeddings=seen["embeddings"],
            layers=[seen[f"layers.{layer}"] for layer in range(spec.num_layers)],
            logits=self._model.logits(hidden).tolist(),
        )
