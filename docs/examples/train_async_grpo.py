"""TRL's AsyncGRPO trains an adapter of a model that nanoserve serves; docs/rl.md says how to start both.

The task is a toy: stories with many of the letter o. TRL publishes each policy as an adapter, in files and over HTTP.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

PROMPTS = ("Tell me a story.", "Tell me a story about a fox.", "Tell me a story about a lamp.")
TURN = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {"content": {"close_pattern": r"<\|end\|>|$", "content": "text"}},
}
"""How TRL finds the answer in a turn of the model in the box; it knows that of most published models by itself."""


def share_of_o(completions: Sequence[Sequence[dict[str, str]]], **_: Any) -> list[float]:
    """The reward: of each answer, the share of its characters that are an o."""
    texts = [turns[-1]["content"] for turns in completions]
    return [text.count("o") / max(len(text), 1) for text in texts]


def make_trainer(model: str, url: str, folder: str, **settings: Any) -> AsyncGRPOTrainer:
    """A trainer of 30 steps whose adapters go through `folder`, which the server may read; `settings` are of its configuration."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    if "<|assistant|>" in tokenizer.get_vocab():
        tokenizer.response_template = TURN
    config = AsyncGRPOConfig(
        output_dir=folder,
        vllm_server_base_url=url,
        max_steps=30,
        learning_rate=3e-3,
        num_generations=8,
        per_device_train_batch_size=8,
        token_budget=-1,
        max_completion_length=20,
        max_inflight_tasks=8,
        max_staleness=2,
        queue_maxsize=8,
        report_to="none",
        save_strategy="no",
        **settings,
    )
    return AsyncGRPOTrainer(
        model=model,
        reward_funcs=share_of_o,
        args=config,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": prompt}]} for prompt in PROMPTS]
        ),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
    )


if __name__ == "__main__":
    trainer = make_trainer(*sys.argv[1:])
    trainer.train()
    for entry in trainer.state.log_history:
        if "reward" in entry:
            print(f"step {entry['step']:3d}: reward {entry['reward']:.4f}")
