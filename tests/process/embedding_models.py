"""Tiny random models that make vectors of texts, written as sentence-transformers writes them."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import transformers
from tokenizers import processors

from nanoserve.adapters.embedded import model_folder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PROMPTS = {"query": "Find what answers this: ", "document": ""}


def make_tokenizer(folder: pathlib.Path) -> Any:
    """That of the model in the box; a text ends with the end of sequence, as in Qwen3-Embedding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder())
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    tokenizer.chat_template = None  # or texts would be put into it
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {tokenizer.eos_token}", special_tokens=[(tokenizer.eos_token, tokenizer.eos_token_id)]
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def qwen3_config(tokenizer: Any, **more: Any) -> Any:
    return transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **more,
    )


def enlarge(model: Any, seed: int = 0) -> None:
    """Weights so large that every token counts."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn_like(tensor)
            tensor.copy_(1 + 0.2 * noise if "norm" in name.lower() else noise * tensor.shape[-1] ** -0.5)


def make_embedding_model(
    folder: pathlib.Path,
    mode: str = "lasttoken",
    *,
    normalized: bool = True,
    prompts: Mapping[str, str] = PROMPTS,
    default: str | None = None,
) -> SentenceTransformer:
    """Write a model to the folder; what made it, to compare with."""
    import sentence_transformers  # noqa: PLC0415 - takes seconds
    import sentence_transformers.sentence_transformer.modules as st  # noqa: PLC0415 - as above

    base = folder / "base"
    model: Any = transformers.Qwen3Model(qwen3_config(make_tokenizer(base)))
    enlarge(model)
    model.save_pretrained(base)
    modules: list[Any] = [st.Transformer(str(base)), st.Pooling(48, pooling_mode=mode)]
    modules += [st.Normalize()] * normalized
    made = sentence_transformers.SentenceTransformer(
        modules=modules, device="cpu", prompts=dict(prompts), default_prompt_name=default
    )
    made.save(str(folder / "model"))
    return made


def make_classifier(folder: pathlib.Path, **config: Any) -> tuple[Any, Any]:
    """Write a classifier to the folder; the tokenizer and the model, to compare with."""
    tokenizer = make_tokenizer(folder)
    classifier: Any = transformers.Qwen3ForSequenceClassification
    model: Any = classifier(qwen3_config(tokenizer, **config))
    enlarge(model.eval().float())
    model.save_pretrained(folder)
    model.config.pad_token_id = None  # the end of a sequence pads as well, and is no padding here
    return tokenizer, model


CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% if not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


def make_writer(folder: pathlib.Path) -> tuple[Any, Any, tuple[int, int]]:
    """Write a model that writes text to the folder, with a chat template; what reads texts, the model, the ids of no and yes."""
    tokenizer = make_tokenizer(folder)
    tokenizer.chat_template = CHAT
    tokenizer.add_tokens(["no"])
    tokenizer.save_pretrained(folder)
    words = tuple(tokenizer.convert_tokens_to_ids(word) for word in ("no", "yes"))
    model: Any = transformers.Qwen3ForCausalLM(qwen3_config(tokenizer))
    enlarge(model.eval().float())
    model.save_pretrained(folder)
    return make_tokenizer(folder.parent / "plain"), model, words  # in texts the word is none of its own
