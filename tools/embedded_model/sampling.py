"""Sample many prompts at once from the trained model, each batch from its own seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

MAX_NEW_TOKENS: Final = 640
_BATCH: Final = 256

Messages = Sequence[Mapping[str, Any]]


@attrs.frozen
class Answer:
    """The model's text, and whether it ended with the end token."""

    text: str
    stopped: bool


@attrs.frozen
class Sampler:
    """The model, its tokenizer and the device they run on.

    `model` is a `LlamaForCausalLM`; it is typed loosely because transformers annotates `generate` for no class of its own.
    """

    model: Any
    tokenizer: PreTrainedTokenizerFast
    device: torch.device

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Sampler:
        """Load a saved model the way any user would."""
        model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, padding_side="left")
        return cls(model.to(device).eval(), tokenizer, device)

    def chat(
        self,
        conversations: Sequence[Messages],
        seed: int,
        *,
        tools: Sequence[Sequence[Mapping[str, Any]]] = (),
        thinks: bool = False,
        **options: Any,
    ) -> list[Answer]:
        """Answer each conversation with the next assistant turn; `tools` are those that each of them offers."""
        offered = tools or [()] * len(conversations)
        render: Any = self.tokenizer.apply_chat_template
        texts = [
            str(
                render(
                    list(turns),
                    tools=list(given) or None,
                    tokenize=False,
                    add_generation_prompt=True,
                    enable_thinking=thinks,
                )
            )
            for turns, given in zip(conversations, offered, strict=True)
        ]
        return self.complete(texts, seed, special=False, **options)

    def complete(
        self, prompts: Sequence[str], seed: int, *, special: bool = True, **options: float | bool | None
    ) -> list[Answer]:
        """Continue each prompt; `special` adds the BOS that a plain text wants."""
        answers: list[Answer] = []
        for start in range(0, len(prompts), _BATCH):
            torch.manual_seed(seed + start)
            answers += self._batch(list(prompts[start : start + _BATCH]), special, options)
        return answers

    def _batch(
        self, prompts: list[str], special: bool, options: dict[str, float | bool | None]
    ) -> list[Answer]:
        batch = self.tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=special)
        ids, mask = batch["input_ids"].to(self.device), batch["attention_mask"].to(self.device)
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=MAX_NEW_TOKENS, **options
            )
        eos = self.tokenizer.eos_token_id
        rows = [row[ids.shape[1] :].tolist() for row in out]
        return [Answer(str(self.tokenizer.decode(row, skip_special_tokens=True)), eos in row) for row in rows]
