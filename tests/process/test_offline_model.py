"""The `LLM` class over a real model, and over files of others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nanoserve.adapters.gguf.folder import present_folder
from nanoserve.adapters.huggingface.reference_model import HFReferenceModel
from nanoserve.entrypoints.offline import LLM, SamplingParams
from nanoserve.ports.errors import ModelLoadError
from tests.unit.adapters.gguf.gguf_files import write_gguf
from tests.unit.adapters.pytorch.tiny_models import make_tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def test_the_library_says_nothing_on_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    with LLM(threads=1, max_model_len=64) as llm:
        llm.generate("Once upon a time", GREEDY)
    assert capfd.readouterr() == ("", "")


def test_a_missing_tokenizer_is_noticed_before_weights_are_read(tmp_path: Path, folder: str) -> None:
    shutil.copy(Path(folder) / "config.json", tmp_path)
    shutil.copy(Path(folder) / "model.safetensors", tmp_path)
    with pytest.raises(ModelLoadError, match="has no tokenizer"):
        LLM(str(tmp_path), threads=1)


def test_a_gguf_file_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tokens = [*"abcdefgh", "<|im_end|>"]
    keys = {"model": "gpt2", "pre": "llama-bpe", "tokens": tokens, "merges": [], "token_type": [1] * 8 + [3]}
    tiny = make_tiny_model(tmp_path / "tiny", vocab_size=len(tokens), tie_word_embeddings=True)
    file = write_gguf(tmp_path / "tiny.gguf", tiny.reference, tokenizer=keys, kind="F16")
    with LLM(str(file), dtype="float32", threads=1, max_model_len=64) as llm:
        (output,) = llm.generate(["abba"], GREEDY)
    assert output.prompt_token_ids == [0, 1, 1, 0]
    expected = HFReferenceModel(present_folder(str(file))).greedy(output.prompt_token_ids, max_tokens=24)
    assert output.outputs[0].token_ids == expected
