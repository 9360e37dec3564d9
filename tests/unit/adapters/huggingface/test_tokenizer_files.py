"""Generated tokenizer folders, of every layout and class that models are published with, read by us and by transformers."""

from __future__ import annotations

import json
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.adapters.huggingface.tokenizer_files import read_tokenizer
from nanoserve.ports.errors import ModelLoadError
from tests.unit.adapters.huggingface.conftest import CORPUS, byte_level_tokenizer, sentencepiece_tokenizer
from tests.unit.adapters.huggingface.oracle import oracle


def _unigram() -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer, made.normalizer = pre_tokenizers.Metaspace(), normalizers.NFKC()
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=200, show_progress=False, special_tokens=special, unk_token="<unk>"
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def _word_piece() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, show_progress=False, special_tokens=["[UNK]", "<s>", "</s>"]
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


BACKENDS = [
    each().to_str() for each in (byte_level_tokenizer, sentencepiece_tokenizer, _unigram, _word_piece)
]
CLASSES = [
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
    "GPT2Tokenizer",
    "Qwen2TokenizerFast",
    "NovelTokenizer",
    None,
]
TEXTS = [
    "  two  blanks <a> fox  foxes <im_end>x\n\n\n z",
    "<s> hi </s><unk> don't 1234 Dog dog",
    "naïve café 你好🙂👩‍👩‍👧\x00\t a e\u0301 ﬁ ▁x<a><a> <n1><n2> <n1>",
]
contents = st.sampled_from(
    ["<a>", "<b c>", "fox", "  ", "<im_end>", "é", "<n1>", "<n2>", "<s>", "<|endoftext|>"]
)
flags = st.fixed_dictionaries(
    {name: st.booleans() for name in ("lstrip", "rstrip", "normalized", "single_word")}
)
added = st.builds(
    lambda text, flag, special: {**flag, "content": text, "special": special}, contents, flags, st.booleans()
)
written = contents | added.map(lambda token: {**token, "__type": "AddedToken"})
switches = ("add_bos_token", "add_eos_token", "legacy", "add_prefix_space", "clean_up_tokenization_spaces")
configs = st.fixed_dictionaries(
    {"tokenizer_class": st.sampled_from(CLASSES)},
    optional={
        **{name: written | st.none() for name in ("bos_token", "eos_token", "unk_token", "pad_token")},
        "image_token": contents,
        **{name: st.booleans() for name in switches},
        "extra_special_tokens": st.lists(written, max_size=2) | st.just({"video_token": "<v>"}),
        "additional_special_tokens": st.lists(written, max_size=2),
    },
)
older_files = st.fixed_dictionaries(
    {},
    optional={
        "special_tokens_map.json": st.fixed_dictionaries(
            {}, optional={"bos_token": contents | added, "additional_special_tokens": st.lists(contents)}
        ),
        "added_tokens.json": st.just({"<n1>": 900, "<at>": 901}),
    },
)


folders = st.fixed_dictionaries(
    {
        "backend": st.sampled_from(BACKENDS),
        "tokens": st.lists(added, max_size=4),
        "model": st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]),
        "config": configs,
        "declared": st.booleans(),
        "older": older_files,
    }
)


@settings(max_examples=60, deadline=None)
@given(folders, st.text(max_size=20))
def test_a_folder_is_read_as_transformers_reads_it(folder: dict[str, Any], text: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        _write(pathlib.Path(name), **folder)
        ours, theirs = read_tokenizer(name), oracle.__wrapped__(name)
    assert (ours.class_name, dict(ours.named_tokens)) == (type(theirs).__name__, theirs.special_tokens_map)
    _assert_same(ours.backend, theirs.backend_tokenizer, [*TEXTS, text])


def _write(
    folder: pathlib.Path,
    *,
    backend: str,
    tokens: list[dict[str, Any]],
    model: str,
    config: dict[str, Any],
    declared: bool,
    older: dict[str, Any],
) -> None:
    made = Tokenizer.from_str(backend)
    made.add_tokens([AddedToken(**token) for token in tokens])
    made.save(str(folder / "tokenizer.json"))
    if declared:
        known = made.get_added_tokens_decoder().items()
        config = {**config, "added_tokens_decoder": {place: token.__getstate__() for place, token in known}}
    files = {"tokenizer_config.json": config, "config.json": {"model_type": model}, **older}
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))


def _assert_same(ours: Tokenizer, theirs: Tokenizer, texts: list[str]) -> None:
    assert repr(ours.get_added_tokens_decoder()) == repr(theirs.get_added_tokens_decoder())
    assert ours.get_vocab() == theirs.get_vocab()
    theirs.no_truncation()
    theirs.no_padding()
    for parse_special in (True, False):
        ours.encode_special_tokens = theirs.encode_special_tokens = not parse_special
        for text in texts:
            one, other = ours.encode(text), theirs.encode(text)
            assert (one.ids, one.offsets) == (other.ids, other.offsets)
            assert ours.decode(one.ids, skip_special_tokens=parse_special) == theirs.decode(
                one.ids, skip_special_tokens=parse_special
            )


def test_a_folder_without_tokenizer_json_is_converted_by_transformers(tmp_path: pathlib.Path) -> None:
    byte_level_tokenizer().model.save(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    _assert_same(read_tokenizer(str(tmp_path)).backend, oracle(str(tmp_path)).backend_tokenizer, TEXTS)


@pytest.mark.parametrize("code", [["mine.Mine", None], {"AutoTokenizer": ["mine.Mine", None]}])
@pytest.mark.parametrize(("name", "refused"), [("MineTokenizer", True), ("PreTrainedTokenizerFast", False)])
def test_code_in_the_folder_is_never_run(tmp_path: pathlib.Path, code: Any, name: str, refused: bool) -> None:
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "mine.py").write_text("raise SystemExit")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "auto_map": code}))
    if not refused:
        assert read_tokenizer(str(tmp_path)).class_name == "TokenizersBackend"
        return
    with pytest.raises(ModelLoadError, match=r"MineTokenizer.* Python code"):
        read_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("in_config", "files"),
    [
        ("one", {}),
        ("one", {"chat_template.jinja": "two"}),
        ([{"name": "default", "template": "one"}, {"name": "rag", "template": "two"}], {}),
        ([{"name": "rag", "template": "two"}], {}),
        ({"default": "one"}, {}),
        (None, {"additional_chat_templates/rag.jinja": "two"}),
        ("one", {"additional_chat_templates/rag.jinja": "two", "chat_template.jinja": "three"}),
    ],
)
def test_the_default_template_is_that_of_transformers(
    byte_level_folder: Callable[[str | None], str], in_config: Any, files: dict[str, str]
) -> None:
    folder = pathlib.Path(byte_level_folder(None))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": in_config}))
    for name, source in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(source)
    expected = oracle(str(folder)).chat_template
    expected = expected.get("default") if isinstance(expected, dict) else expected
    assert HFTokenizer(str(folder)).chat_template == expected
