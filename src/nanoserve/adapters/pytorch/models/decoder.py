"""What the engine sees of every model page: ragged tokens in, hidden states and logits out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.adapters.pytorch.layers.step_state import StepState, prepare_step
from nanoserve.adapters.pytorch.step_inputs import StepInputs
from nanoserve.ports.model_spec import ModelSpec

Observer = Callable[[str, Tensor], None]
"""Called with "embeddings", "layers.0" ... and "norm", and the residual stream [T, hidden] there (normed for the
last), for comparison with a reference."""


class DecoderModel(nn.Module):
    """A decoder-only transformer; a page such as `models.llama` says what its layers are.

    Its weights need no gradients, and callers wrap it in `torch.inference_mode()`.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self._rotary = Rotary(spec.rope, spec.head_dim, torch.device("cpu"))

    def forward(self, inputs: StepInputs, kv: KVStore, observe: Observer | None = None) -> Tensor:
        """Compute one step's tokens; their keys and values are written to `kv`.

        Returns:
            Hidden states after the last norm, [T, hidden], in the model's dtype.
        """
        step = prepare_step(self.spec, self._rotary, inputs, kv)
        return self.hidden_states(inputs.token_ids, step, observe or _ignore)

    def hidden_states(self, token_ids: Tensor, step: StepState, observe: Observer) -> Tensor:
        """Token ids [T] to hidden states [T, hidden]: the page's own."""
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [S, hidden] to logits float32 [S, vocab]."""
        raise NotImplementedError

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Every tensor that a checkpoint must hold, by its name there, and where it goes."""
        raise NotImplementedError

    def move_rotary(self, device: torch.device) -> None:
        """Compute rotations on the device where the weights are."""
        self._rotary = Rotary(self.spec.rope, self.spec.head_dim, device)


def _ignore(name: str, tensor: Tensor) -> None:
    del name, tensor
