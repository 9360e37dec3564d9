"""transformers' own implementation of a model in float32 on the CPU: the truth that ours is measured by."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import pathlib
from collections.abc import Sequence
from typing import Any, Final

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from nanoserve.adapters.huggingface.json_files import read_json_object
from nanoserve.ports.driven import Activations
from nanoserve.ports.errors import ModelLoadError

GGUF_LINK: Final = "model.gguf"
GGUF_INDEX: Final = "model.gguf.index.json"
"""The index that a folder of `adapters/gguf` holds instead of weights; its config says more than transformers reads."""
ALIASES: Final = {"kimi_k2": "deepseek_v3"}
REPLACEMENTS: Final = ("fla", "causal_conv1d")
LOAD_ERRORS = (OSError, ValueError, RuntimeError, LookupError, AttributeError, ImportError)


class HFReferenceModel:
    """`ports.ReferenceModel` over `AutoModelForCausalLM`, with plain (eager) attention and experts.

    Raises `ModelLoadError` if transformers cannot load the folder, or would make up some of its weights. No code of the folder is run.
    """

    def __init__(self, folder: str) -> None:
        disable_progress_bar()
        is_gguf = (pathlib.Path(folder) / GGUF_INDEX).is_file()
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # a progress bar of GGUF files that has no switch
                config = _config(folder)
                _check_formulas(folder, config)
                loaded: Any = AutoModelForCausalLM.from_pretrained(
                    folder,
                    config=config,
                    gguf_file=GGUF_LINK if is_gguf else None,
                    dtype=torch.float32,
                    attn_implementation="eager",
                    experts_implementation="eager",
                    trust_remote_code=False,
                    local_files_only=True,
                    output_loading_info=True,
                )
        except LOAD_ERRORS as error:
            message = " ".join(str(error).split())
            raise ModelLoadError(f"{folder}: transformers cannot load this model ({message})") from None
        model, report = loaded
        if missing := report["missing_keys"]:
            raise ModelLoadError(f"{folder}: transformers finds no tensor {min(missing)!r} in this model")
        self._model = model.eval()

    @torch.inference_mode()
    def activations(self, token_ids: Sequence[int], /) -> Activations:
        # Each layer's own output, because the last of transformers' `hidden_states` has been normed.
        layers = self._model.get_decoder().layers
        seen: list[list[list[float]]] = []  # in the order of the calls

        def keep_input(_layer: Any, inputs: Any, keywords: Any) -> None:
            seen.append((inputs[0] if inputs else keywords["hidden_states"])[0].float().tolist())

        def keep(_layer: Any, _inputs: Any, output: Any) -> None:
            seen.append((output[0] if isinstance(output, tuple) else output)[0].float().tolist())

        hooks = [layer.register_forward_hook(keep) for layer in layers]
        hooks.append(layers[0].register_forward_pre_hook(keep_input, with_kwargs=True))
        try:
            logits = self._model(torch.tensor([list(token_ids)]), use_cache=False).logits
        finally:
            for hook in hooks:
                hook.remove()
        # Embeddings as the first layer gets them: multiplied by the family's factor.
        return Activations(embeddings=seen[0], layers=seen[1:], logits=logits[0].float().tolist())

    @torch.inference_mode()
    def greedy(self, token_ids: Sequence[int], /, *, max_tokens: int) -> list[int]:
        inputs = torch.tensor([list(token_ids)])
        cache = None
        chosen: list[int] = []
        for _ in range(max_tokens):
            step = self._model(inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = step.past_key_values
            inputs = step.logits[:, -1].argmax(dim=-1, keepdim=True)
            chosen.append(int(inputs))
        return chosen


def _config(folder: str) -> Any:
    """The config as transformers reads it, which does not know every name of a family."""
    raw = read_json_object(pathlib.Path(folder) / "config.json")
    if (known := ALIASES.get(str(raw.get("model_type")))) is not None:
        return CONFIG_MAPPING[known].from_dict({**raw, "model_type": known})
    return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def _check_formulas(folder: str, config: Any) -> None:
    """Raise `ModelLoadError` if transformers would leave linear attention to a package's kernels."""
    if "linear_attention" not in (getattr(config, "layer_types", None) or ()):
        return
    for name in REPLACEMENTS:
        if importlib.util.find_spec(name) is not None:
            raise ModelLoadError(
                f"{folder}: with the package {name} transformers computes linear attention by its kernels and not by its own "
                "formulas; compare in an environment without it"
            )
