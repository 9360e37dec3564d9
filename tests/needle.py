"""A model that is constructed to find a needle: one layer, whose only head looks for the token that a question names.

A token has a random key and a random value; a question has the key of one token as its query, and what is attended to is compared with the
values of all tokens. Keys lie in the pairs of a head that hardly turn, so the distance does not matter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CODE, HEAD, HIDDEN = 64, 128, 256
QUERIES, KEYS, VALUES, FOUND = (slice(CODE * part, CODE * (part + 1)) for part in range(4))
STILL = [*range(32, 64), *range(96, 128)]
"""The elements of a head in pairs that turn by less than a millionth each token."""


def make_needle_model(folder: Path, tokens: int, questions: int, longest: int) -> None:
    """A checkpoint whose ids below `tokens` are hay; id `tokens` + i asks for token i."""
    vocab_size = tokens + questions
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=HEAD,
        vocab_size=vocab_size, max_position_embeddings=longest, rope_parameters={"rope_type": "default", "rope_theta": 1e12},
        tie_word_embeddings=False,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    model.to(torch.float32)
    codes = torch.randn(tokens, 2, CODE, generator=torch.Generator().manual_seed(0))
    layer, eye = model.model.layers[0], torch.eye(CODE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0 if parameter.dim() == 1 else 0.0)
        model.model.embed_tokens.weight[:tokens, KEYS] = codes[:, 0]
        model.model.embed_tokens.weight[:tokens, VALUES] = codes[:, 1]
        model.model.embed_tokens.weight[tokens:, QUERIES] = codes[:questions, 0]
        layer.self_attn.q_proj.weight[STILL, QUERIES] = 2 * eye
        layer.self_attn.k_proj.weight[STILL, KEYS] = eye
        layer.self_attn.v_proj.weight[:CODE, VALUES] = eye
        layer.self_attn.o_proj.weight[FOUND, :CODE] = 10 * eye
        model.lm_head.weight[:tokens, FOUND] = codes[:, 1]
    model.save_pretrained(folder)


def haystack(tokens: int, questions: int, length: int) -> list[int]:
    """So many tokens in random order, of which those that are asked for come once, evenly spread."""
    hay = torch.randint(questions, tokens, (length,), generator=torch.Generator().manual_seed(1)).tolist()
    for needle in range(questions):
        hay[(2 * needle + 1) * length // (2 * questions)] = needle
    return hay
