"""Reads generation_config.json: the sampling values that a model's authors recommend, and the ids that end a sequence."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, Final

from nanoserve.adapters.huggingface.json_files import read_optional
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.sampling import Door, SamplingDefaults, set_by

FILE_NAME: Final = "generation_config.json"
KEY: Final = "eos_token_id"


def read_sampling_defaults(folder: str) -> SamplingDefaults:
    """The defaults of a model folder, empty if it has none. Raises `ModelLoadError` for a malformed file.

    The values are as written; `SamplingParams` checks them like a client's. `do_sample` is not among them and changes nothing: as in vLLM, a file with
    `do_sample: false` and no temperature leaves the temperature at 1.0; greedy output is asked for with temperature 0.
    """
    path = pathlib.Path(folder) / FILE_NAME
    raw = read_optional(path)
    values = {key: raw[key] for key in set_by(Door.MODEL) if raw.get(key) is not None}
    return SamplingDefaults(values=values, origin=str(path))


def read_eos_ids(folder: str, raw: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, ...]:
    """The union of generation_config.json's and config.json's ids, in that order; each an integer or a list.

    Where neither file names any, the default of the architecture counts. Ids outside the
    vocabulary, which some published configs contain, can never be generated and are left out.
    """
    generation = read_optional(pathlib.Path(folder) / FILE_NAME)
    named = _ids(generation.get(KEY), FILE_NAME) + _ids(raw.get(KEY), "config.json")
    if generation.get(KEY) is None and KEY not in raw:
        named = _ids(config[KEY], "config.json")
    return tuple(token for token in dict.fromkeys(named) if 0 <= token < config["vocab_size"])


def _ids(value: Any, file: str) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise ModelLoadError(f"{KEY} in {file} must be an integer or a list of integers, got {value!r}")
    return tuple(ids)
