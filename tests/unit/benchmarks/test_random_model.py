"""Random models: prompts of words are as long as they are asked for, every id has a text, and packed weights are read as such."""

from __future__ import annotations

import pathlib
import shutil

import torch
from tokenizers import Tokenizer

from benchmarks.random_model import GROUP, fill_vocabulary, write_model
from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.models import build_model
from nanoserve.adapters.pytorch.step_inputs import StepInputs
from nanoserve.entrypoints.bench.serving.client import WORDS
from nanoserve.ports.model_spec import Packing

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


def test_a_packed_model_is_read_as_one(tmp_path: pathlib.Path) -> None:
    write_model("shape:tiny", tmp_path, int4=True)
    spec, cpu = read_spec(str(tmp_path)), torch.device("cpu")
    assert spec.packing == Packing("compressed-tensors", 4, GROUP)
    model = build_model(spec, str(tmp_path), dtype=torch.float32, device=cpu, keep=False)
    kv = KVStore(spec, num_blocks=2, block_size=16, dtype=torch.float32, device=cpu)
    inputs = StepInputs.of_prompt(list(range(20)), block_size=16, num_groups=len(spec.cache_groups))
    with torch.inference_mode():
        hidden = model(inputs, kv)
    assert hidden.isfinite().all()
    assert (hidden[1:] != hidden[:-1]).any()
