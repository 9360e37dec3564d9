"""The tokenizer beside random weights: prompts of words are as long as they are asked for, and every id has a text."""

from __future__ import annotations

import pathlib
import shutil

from tokenizers import Tokenizer

from benchmarks.random_model import fill_vocabulary
from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.bench.serving.client import WORDS

SIZE = 8192


def test_words_of_prompts_are_a_token_each_and_all_ids_have_a_text(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "tokenizer.json"
    shutil.copy(model_folder() / file.name, file)
    fill_vocabulary(file, SIZE)
    tokenizer: Tokenizer = Tokenizer.from_file(str(file))
    encoded = tokenizer.encode(" ".join(["", *WORDS]), add_special_tokens=False)
    assert [tokenizer.decode([each]).strip() for each in encoded.ids] == list(WORDS)
    assert tokenizer.get_vocab_size() == SIZE
    assert all(tokenizer.id_to_token(each) for each in range(SIZE))
