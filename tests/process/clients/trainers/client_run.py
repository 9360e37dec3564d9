"""Asks a server all that TRL's client asks without NCCL, as its GRPO does in server mode, and prints the answers as JSON.

As a program, in a process of its own: URL.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from transformers import AutoTokenizer
from trl.generation.vllm_client import VLLMClient

from nanoserve.adapters.embedded import model_folder

TALK = [{"role": "user", "content": "Tell me a story."}]


def main(url: str) -> None:
    """Ask and print."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    client = VLLMClient(base_url=url, connection_timeout=60)
    info = client.get_server_info()
    prompts = [tokenizer(text)["input_ids"] for text in ("Once upon a time", "One morning")]
    options: dict[str, Any] = {"max_tokens": 6, "generation_kwargs": {"seed": 1, "ignore_eos": True}}
    generated = client.generate(prompts, n=2, logprobs=3, **options)
    sampled = client.generate(prompts, logprobs=0, **options)
    unscored = client.generate(prompts, logprobs=None, **options)
    chosen = client.generate(prompts, n=2, max_tokens=8, structured_outputs_regex="(yes|no)")
    sequences = [made + ids for made, ids in zip(prompts, sampled["completion_ids"], strict=True)]
    sys.stdout.write(
        json.dumps(
            {
                "world_size": client.get_world_size(),
                "dtype": info["model_config"]["dtype"],
                "weight_transfer": info["weight_transfer_config"],
                "reset": client.reset_prefix_cache() is None,
                "prompts": prompts,
                "generated": generated,
                "chatted": client.chat([TALK, TALK], n=2, logprobs=2, **options),
                "sampled_ids": sampled["completion_ids"],
                "sampled_only": sampled["logprob_token_ids"],
                "unscored": [unscored["logprobs"], unscored["logprob_token_ids"]],
                "chosen": tokenizer.batch_decode(chosen["completion_ids"], skip_special_tokens=True),
                "scored": client.get_sequence_logprobs(sequences, [len(each) for each in prompts]),
                "told": [[score for (score,) in each] for each in sampled["logprobs"]],
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
