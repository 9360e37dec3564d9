"""`transformers.generate` on a load; started by `benchmarks.generation`."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.sides import Load, serve, threads


def main() -> None:
    """Load, warm up, time."""
    load = Load.from_arguments()
    torch.set_num_threads(threads())
    model: Any = AutoModelForCausalLM.from_pretrained(load.folder, dtype=torch.bfloat16)

    def generate(prompts: list[list[int]]) -> int:
        ids = torch.tensor(prompts)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            temperature=None,
            top_p=None,
            min_new_tokens=load.tokens,
            max_new_tokens=load.tokens,
            pad_token_id=0,
        )
        return int(out.shape[0] * (out.shape[1] - ids.shape[1]))

    with torch.inference_mode():
        serve(load, model.config.vocab_size, generate)


if __name__ == "__main__":
    main()
