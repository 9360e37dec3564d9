"""The sampling values a model's authors recommend, from its generation_config.json."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import attrs

from nanoserve.adapters.huggingface.json_file import read_json_object

FILE_NAME = "generation_config.json"
SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@attrs.frozen
class GenerationDefaults:
    """Values for `SamplingParams` that stand in where a client gives none; `origin` is the file they come from.

    `do_sample` is not among them and changes nothing: as in vLLM, a file with `do_sample: false` and no
    temperature leaves the temperature at 1.0, and whoever wants greedy output asks for temperature 0.
    """

    values: Mapping[str, Any]
    origin: str


def read_generation_defaults(folder: str) -> GenerationDefaults:
    """The defaults of a model folder, empty where it has none. Raises `ModelLoadError` for a malformed file.

    The values are as written; `SamplingParams` checks them like a client's.
    """
    path = pathlib.Path(folder) / FILE_NAME
    raw = read_json_object(path) if path.exists() else {}
    values = {key: raw[key] for key in SAMPLING_KEYS if raw.get(key) is not None}
    return GenerationDefaults(values, str(path))
