"""Tiny random encoders of every family, with tokenizers of their kinds, and what made them to compare with."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from tests.process.embedding_models import enlarge

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense

WORDS: Final = (
    "the",
    "fox",
    "is",
    "old",
    "river",
    "long",
    "it",
    "rains",
    "and",
    "who",
    "lives",
    "in",
    "wood",
    "a",
)
LETTERS: Final = tuple("abcdefghijklmnopqrstuvwxyz.?")
TEXTS: Final = [
    "The fox.",
    "The river is long, and the fox is old. " * 4,
    "It rains",
    "A",
    "Who lives in the wood?",
    "The old river " * 9,
]


SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES: Final = tuple(
    dict.fromkeys([*SPECIAL, *WORDS, *LETTERS, *(f"##{each}" for each in LETTERS), ",", "T", "I", "A", "W"])
)
UNIGRAMS: Final = (
    *("<s>", "<pad>", "</s>", "<unk>"),
    *(f"\u2581{each}" for each in WORDS[:-1]),
    *("\u2581", *LETTERS, ",", "T", "I", "A", "W", "<mask>"),
)


def _of_modernbert() -> Any:
    """Pieces of words in a class that has no name of its own; a pair has one type."""
    made = Tokenizer(
        models.WordPiece({piece: place for place, piece in enumerate(PIECES)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    cls: Any = transformers.PreTrainedTokenizerFast
    return cls(tokenizer_object=made, **dict(zip(names, SPECIAL, strict=True)))


PROMPTS: Final = {"query": "the old: ", "document": ""}
SIZES: Final = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80}
FAMILIES: Final = ("bert", "roberta", "xlm-roberta", "modernbert")
_CLASSES: Final = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "modernbert": "ModernBert",
}


def make_tokenizer(family: str) -> Any:
    """The family's kind of tokenizer: BERT's knows types of tokens, XLM-R's is SentencePiece's and puts two ends between texts."""
    module: Any = transformers
    if family == "bert":
        return module.BertTokenizer({piece: place for place, piece in enumerate(PIECES)})
    if family == "modernbert":
        return _of_modernbert()
    return module.XLMRobertaTokenizer(
        [(piece, -float(place % 7 + 1)) for place, piece in enumerate(UNIGRAMS)]
    )


def make_config(family: str, vocab_size: int, **more: Any) -> Any:
    """Small; a window that texts exceed, where there is one."""
    own: dict[str, Any] = {
        "bert": {"type_vocab_size": 2, "max_position_embeddings": 128, "pad_token_id": 0}
    }.get(family, {})
    if family in {"roberta", "xlm-roberta"}:
        own = {"type_vocab_size": 1, "max_position_embeddings": 130, "pad_token_id": 1}
    if family == "modernbert":
        own = {
            "local_attention": 12,
            "max_position_embeddings": 128,
            "num_hidden_layers": 4,
            "pad_token_id": 0,
        }
        own |= {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    config: Any = getattr(transformers, f"{_CLASSES[family]}Config")
    return config(**{**SIZES, "vocab_size": vocab_size, **own, **more})


def make_encoder(folder: pathlib.Path, family: str, kind: str = "Model", **config: Any) -> tuple[Any, Any]:
    """Write a model of a class such as `BertModel` to the folder; its tokenizer and itself, to compare with."""
    tokenizer = make_tokenizer(family)
    tokenizer.save_pretrained(folder)
    cls: Any = getattr(transformers, f"{_CLASSES[family]}{kind}")
    model = cls(make_config(family, len(tokenizer), **config)).eval().float()
    enlarge(model)
    model.save_pretrained(folder)
    return tokenizer, model


def run(tokenizer: Any, model: Any, *texts: str) -> Any:
    """The model's output for a text, or a pair of texts, alone."""
    with torch.inference_mode():
        return model(**tokenizer(*texts, return_tensors="pt"))


def make_vectors(
    folder: pathlib.Path, family: str, mode: str, *, dense: Sequence[Dense] = (), normalized: bool = True
) -> SentenceTransformer:
    """Write a model of sentence-transformers to the folder; what made it, to compare with."""
    import sentence_transformers  # noqa: PLC0415 - takes seconds
    import sentence_transformers.sentence_transformer.modules as st  # noqa: PLC0415 - as above

    make_encoder(folder / "base", family)
    modules: list[Any] = [st.Transformer(str(folder / "base")), st.Pooling(48, pooling_mode=mode), *dense]
    modules += [st.Normalize()] * normalized
    made = sentence_transformers.SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS)
    made.save(str(folder / "model"))
    return made
