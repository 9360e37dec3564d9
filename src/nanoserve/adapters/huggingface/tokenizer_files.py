"""Reads a model folder's tokenizer files into the parts that encode, decode and fill templates, as transformers does."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from nanoserve.adapters.huggingface.json_files import read_optional
from nanoserve.ports.errors import ModelLoadError

STANDARD_NAMES: Final = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
NEEDS_TRANSFORMERS: Final = frozenset({"fix_mistral_regex", "fast_tokenizer_files"})
VOCABULARIES: Final = ("tokenizer.json", "tokenizer.model*", "vocab*", "*.tiktoken", "tekken.json", "*.model")
"""Files that may hold a tokenizer's vocabulary; without any of them, transformers makes an empty tokenizer."""
EXTRA: Final = "extra_special_tokens"
ADDITIONAL: Final = "additional_special_tokens"  # the older name


@attrs.frozen(eq=False)
class TokenizerParts:
    """A tokenizer and its folder's description of it.

    Attributes:
        backend: encodes and decodes; without truncation and padding.
        class_name: the class that transformers loads it as.
        named_tokens: special tokens by names such as `bos_token`; templates see them as variables.
        chat_template: the source of the default template, if there is one.
        tool_template: that of the template `tool_use` beside others, if there is one.
        model_type: what config.json says of it.
        response_template: the folder's description of how the model's answers are to be read, if there is one.
    """

    backend: Tokenizer
    class_name: str
    named_tokens: Mapping[str, str]
    chat_template: str | None
    tool_template: str | None = None
    model_type: str | None = None
    response_template: Mapping[str, Any] | None = None


def read_tokenizer(folder: str) -> TokenizerParts:
    """The tokenizer of a model folder; no file is fetched and no code of the folder is run.

    Folders that only transformers can read, such as those without a tokenizer.json, import it. Raises
    `ModelLoadError` where there is no tokenizer, or it is damaged, or needs code that the folder brings along.
    """
    path = pathlib.Path(folder)
    config = read_optional(path / "tokenizer_config.json")
    try:
        parts = _read(path, config)
    except (ModelLoadError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - what Rust reports has no narrower type, and its panics are no `Exception`
        message = " ".join(str(error).split())
        raise ModelLoadError(
            f"{folder}: no tokenizer can be loaded from here ({message}); is tokenizer.json missing or damaged?"
        ) from None
    parts.backend.no_truncation()
    parts.backend.no_padding()
    model_type = read_optional(path / "config.json").get("model_type")
    response = config.get("response_template")
    return attrs.evolve(
        parts,
        model_type=model_type if isinstance(model_type, str) else None,
        response_template=response if isinstance(response, dict) else None,
    )


def _read(path: pathlib.Path, config: dict[str, Any]) -> TokenizerParts:
    file = path / "tokenizer.json"
    name = choose_class(config, read_optional(path / "config.json"), file)
    known = name in DEFAULT_TOKENS
    code = config.get("auto_map")
    if not known and (code.get("AutoTokenizer") if isinstance(code, dict) else code):
        raise ModelLoadError(
            f"{path}: its tokenizer ({name}) is Python code in the folder, which nanoserve never runs; "
            "choose a model whose tokenizer is a tokenizer.json"
        )
    if known and file.is_file() and not NEEDS_TRANSFORMERS & config.keys():
        loaded = Tokenizer.from_file(str(file))
        if name == PLAIN or isinstance(loaded.model, models.BPE):
            return _assemble(path, config, name, loaded)
    if not any(each for pattern in VOCABULARIES for each in path.glob(pattern)):
        raise ModelLoadError(
            f"{path}: has no tokenizer (no tokenizer.json and nothing like it); put the tokenizer's files of this model there"
        )
    return _read_through_transformers(path)


def _read_through_transformers(path: pathlib.Path) -> TokenizerParts:
    from transformers import AutoTokenizer  # noqa: PLC0415 - loads torch, and few folders need it

    tokenizer: Any = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    name = type(tokenizer).__name__
    if not getattr(tokenizer, "is_fast", False):
        raise ModelLoadError(
            f"{path}: {name} is not a fast tokenizer; "
            "convert it to a tokenizer.json with transformers and put that into the folder"
        )
    templates = _by_use(tokenizer.chat_template)
    return TokenizerParts(tokenizer.backend_tokenizer, name, tokenizer.special_tokens_map, *templates)


def _assemble(path: pathlib.Path, config: dict[str, Any], name: str, loaded: Tokenizer) -> TokenizerParts:
    backend = rebuild(name, loaded, config)
    config = {**DEFAULT_TOKENS[name], **config}
    if loaded.padding is not None:
        config.setdefault("pad_token", loaded.padding["pad_token"])
    if not config.get(EXTRA) and ADDITIONAL in config:
        config[EXTRA] = config[ADDITIONAL]
    declared = config.get("added_tokens_decoder")
    if declared is None:
        config |= read_optional(path / "special_tokens_map.json")
        by_id = _older_tokens(path, config) | loaded.get_added_tokens_decoder()
    else:
        by_id = {int(place): AddedToken(**token) for place, token in declared.items()}
    added = [by_id[place] for place in sorted(by_id)]
    named, extra = _special_tokens(config, {token.content: token for token in added})
    backend.add_tokens(_missing_tokens(backend, added, named, extra))
    if name == "Qwen2Tokenizer":
        backend.add_tokens([AddedToken(str(token), special=True) for token in (*named.values(), *extra)])
    named_tokens = {key: str(token) for key, token in named.items()}
    return TokenizerParts(backend, name, named_tokens, *_chat_templates(path, config))


def _older_tokens(path: pathlib.Path, config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """The tokens of an added_tokens.json."""
    values = [*(config.get(key) for key in STANDARD_NAMES), *(config.get(EXTRA) or [])]
    # objects in tokenizer_config.json have a type, and do not count here
    special = {str(_token(value)) for value in values if value and "__type" not in value}
    return {
        place: AddedToken(text, normalized=text not in special, special=text in special)
        for text, place in read_optional(path / "added_tokens.json").items()
    }


def _special_tokens(
    config: Mapping[str, Any], added: Mapping[str, AddedToken]
) -> tuple[dict[str, str | AddedToken], list[str | AddedToken]]:
    """Special tokens with a name, which may be the model's own such as `image_token`, and those without."""
    standard = {key: _token(config[key]) for key in STANDARD_NAMES if config.get(key) is not None}
    named = {key: added.get(str(token), token) for key, token in standard.items()}
    others = {key: config[key] for key in config if key.endswith("_token") and key not in STANDARD_NAMES}
    named |= {key: _token(value) for key, value in others.items() if isinstance(value, str | dict)}
    extra = config.get(EXTRA, config.get(ADDITIONAL))
    if isinstance(extra, dict):
        named |= {key: _token(value) for key, value in extra.items()}
        extra = config.get(ADDITIONAL)
    return named, [_token(value) for value in extra or []]


def _token(value: Any) -> str | AddedToken:
    """A special token as JSON has it: its text, or an object with its flags."""
    if isinstance(value, dict):
        return AddedToken(**{key: flag for key, flag in value.items() if key != "__type"})
    if not isinstance(value, str):
        raise TypeError(f"a special token must be text or an object, got {value!r}")
    return value


def _missing_tokens(
    backend: Tokenizer,
    added: Sequence[AddedToken],
    named: Mapping[str, str | AddedToken],
    extra: Sequence[str | AddedToken],
) -> list[AddedToken]:
    """Tokens that the backend has still to learn, in the order in which new ids are given."""
    known = {token.content for token in (*backend.get_added_tokens_decoder().values(), *added)}
    missing: list[str | AddedToken] = list(added)
    for token in (*named.values(), *extra):
        if str(token) not in known and token not in missing:  # one text may come twice, with other flags
            missing.append(token)
    texts = {str(token) for token in named.values()}
    declared = [AddedToken(each, special=True) if isinstance(each, str) else each for each in missing]
    for token in declared:
        token.special = token.special or token.content in texts
    return declared


def _chat_templates(path: pathlib.Path, config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The default template and the one for tools; template files go before what the configuration holds."""
    others = (path / "additional_chat_templates").glob("*.jinja")
    files = {file.stem: file for file in others if file.is_file()}
    if (path / "chat_template.jinja").is_file():
        files["default"] = path / "chat_template.jinja"
    found = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    return _by_use(found or config.get("chat_template"))


def _by_use(templates: Any) -> tuple[str | None, str | None]:
    if isinstance(templates, list):
        templates = {each["name"]: each["template"] for each in templates}
    if not isinstance(templates, dict):
        templates = {"default": templates}
    for template in templates.values():
        if not isinstance(template, str | None):
            raise TypeError(f"a chat template must be text, got {template!r}")
    return templates.get("default"), templates.get("tool_use")


Config = Mapping[str, Any]

PLAIN: Final = "TokenizersBackend"
_ALIASES: Final = {"PreTrainedTokenizer": PLAIN}
_USUAL: Final = {"mistral": PLAIN, "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer"}
_OFTEN_MISLABELLED: Final = ("mistral", "qwen2")


def choose_class(config: Config, model: Config, tokenizer_file: pathlib.Path) -> str:
    """Chooses the tokenizer class as `AutoTokenizer` does, by tokenizer_config.json, config.json, and the text of tokenizer.json."""
    kind = model.get("model_type")
    declared = config.get("tokenizer_class") or model.get("tokenizer_class")
    if not isinstance(declared, str) or kind in _OFTEN_MISLABELLED:
        return _USUAL.get(str(kind), PLAIN)
    declared = declared.removesuffix("Fast")
    if declared == "LlamaTokenizer" and tokenizer_file.is_file():
        byte_level = '"ByteLevel"' in tokenizer_file.read_text(encoding="utf-8")
        return PLAIN if byte_level else declared
    return _ALIASES.get(declared, declared)


def rebuild(name: str, loaded: Tokenizer, config: Config) -> Tokenizer:
    """The backend as the class makes it of the loaded one, whose model is BPE unless the class is plain; its added tokens are still to be declared."""
    if name == PLAIN:
        return loaded
    model = loaded.model
    model.dropout = model.unk_token = None
    model.continuing_subword_prefix = model.end_of_word_suffix = None
    model.fuse_unk = model.byte_fallback = model.ignore_merges = False
    backend = Tokenizer(model)
    if loaded.post_processor is not None:
        backend.post_processor = loaded.post_processor
    REBUILT[name](backend, config)
    return backend


def _llama(backend: Tokenizer, config: Config) -> None:
    backend.model.fuse_unk = backend.model.byte_fallback = True
    prefix = config.get("add_prefix_space") in {None, True}
    scheme = ("always" if config.get("legacy") else "first") if prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    strip = [decoders.Strip(content=" ", left=1)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )


def _gpt2(backend: Tokenizer, config: Config) -> None:
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space")))
    backend.decoder = decoders.ByteLevel()


_QWEN2_WORDS: Final = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _qwen2(backend: Tokenizer, config: Config) -> None:
    prefix = bool(config.get("add_prefix_space"))
    split = pre_tokenizers.Split(_QWEN2_WORDS, behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    backend.decoder = decoders.ByteLevel()


REBUILT: Final[Mapping[str, Callable[[Tokenizer, Config], None]]] = {
    "LlamaTokenizer": _llama,
    "GPT2Tokenizer": _gpt2,
    "Qwen2Tokenizer": _qwen2,
}
_END: Final = "<|endoftext|>"
DEFAULT_TOKENS: Final[Mapping[str, Mapping[str, str | None]]] = {
    PLAIN: {},
    "LlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "GPT2Tokenizer": {"unk_token": _END, "bos_token": _END, "eos_token": _END, "pad_token": None},
    "Qwen2Tokenizer": {"unk_token": _END, "eos_token": _END, "pad_token": _END},
}
