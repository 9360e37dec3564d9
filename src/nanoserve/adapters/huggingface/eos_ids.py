"""Which token ids end a sequence, from all the places a model folder says so."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from nanoserve.adapters.huggingface.generation_defaults import FILE_NAME
from nanoserve.adapters.huggingface.json_file import read_json_object
from nanoserve.ports.errors import ModelLoadError

KEY = "eos_token_id"


def read_eos_ids(folder: str, raw: Mapping[str, Any], config: Any) -> tuple[int, ...]:
    """The union of generation_config.json's and config.json's ids, in that order; each an integer or a list.

    Where neither file names any, the default of the architecture's config class counts. Ids outside the
    vocabulary, which some published configs contain, can never be generated and are left out.
    """
    path = pathlib.Path(folder) / FILE_NAME
    generation = read_json_object(path) if path.exists() else {}
    named = _ids(generation.get(KEY), FILE_NAME) + _ids(raw.get(KEY), "config.json")
    if generation.get(KEY) is None and KEY not in raw:
        named = _ids(config.eos_token_id, "config.json")
    return tuple(token for token in dict.fromkeys(named) if 0 <= token < config.vocab_size)


def _ids(value: Any, file: str) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise ModelLoadError(f"{KEY} in {file} must be an integer or a list of integers, got {value!r}")
    return tuple(ids)
