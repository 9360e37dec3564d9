"""Folders of models that make vectors, with the dimensions of published ones and random weights."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

MODULE: Any = transformers
WORDS = 30_000
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MODULES = ("Transformer", "Pooling", "Normalize")


def write_encoder(folder: pathlib.Path, layers: int = 12, dtype: torch.dtype = torch.bfloat16) -> None:
    """bge-base (Xiao et al. 2023): BERT of 768, whose vector is its first token's. Its words are w0 to w29999, a token each."""
    pieces = [*SPECIAL, *(f"w{number}" for number in range(WORDS))]
    ids = {piece: place for place, piece in enumerate(pieces)}
    made = Tokenizer(models.WordPiece(ids, unk_token=SPECIAL[1]))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    names = dict(
        zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True)
    )
    MODULE.PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(folder)
    config = MODULE.BertConfig(vocab_size=len(pieces), num_hidden_layers=layers)
    MODULE.BertModel(config).to(dtype).save_pretrained(folder)
    write_modules(folder, "cls_token", config.hidden_size)


def write_modules(folder: pathlib.Path, pooling: str, width: int) -> None:
    """What sentence-transformers reads beside a model: how its vectors are pooled, and that they are normalized."""
    parts = [
        {
            "idx": place,
            "name": str(place),
            "path": "" if place == 0 else f"{place}_{name}",
            "type": f"sentence_transformers.models.{name}",
        }
        for place, name in enumerate(MODULES)
    ]
    modes = {f"pooling_mode_{name}": name == pooling for name in ("lasttoken", "cls_token", "mean_tokens")}
    (folder / "modules.json").write_text(json.dumps(parts))
    for name in ("1_Pooling", "2_Normalize"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": width, **modes})
    )
