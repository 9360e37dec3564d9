"""Train the model's own byte-level BPE tokenizer on the corpus and save it with its chat template.

Byte-level BPE (Sennrich et al. 2016; Radford et al. 2019) covers every Unicode string. The tokenizer puts one BOS
before plain text; the chat template renders its own, so a rendered chat is encoded with `add_special_tokens=False`.

Run from the repository root: `python -m tools.embedded_model.tokenizer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tools.embedded_model.corpus.documents import BOS, EOS, document

VOCAB_SIZE: Final = 4096
PAD: Final = "<|pad|>"
SPECIAL_TOKENS: Final = (BOS, EOS, PAD, "<|system|>", "<|user|>", "<|assistant|>")
DOCUMENTS: Final = 60_000
CONTEXT: Final = 2048
TEMPLATE: Final = Path(__file__).parent / "chat_template.jinja"
MODEL_FOLDER: Final = Path(__file__).parents[2] / "src" / "nanoserve" / "adapters" / "embedded" / "model"


def _texts(count: int) -> Iterator[str]:
    for index in range(count):
        made = document(index)
        yield from (content for _, content in made.turns) if made.turns else (made.text,)


def train_bpe(documents: int = DOCUMENTS) -> Tokenizer:
    """Train the merges on the first `documents` documents of the training split."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(documents), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    make: type[Any] = PreTrainedTokenizerFast
    fast = make(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=list(SPECIAL_TOKENS[3:]),
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE.read_text(encoding="utf-8").rstrip("\n"),
    )
    fast.save_pretrained(folder)


if __name__ == "__main__":
    trained = train_bpe()
    save(trained, MODEL_FOLDER)
    print(f"{trained.get_vocab_size()} tokens -> {MODEL_FOLDER}")
