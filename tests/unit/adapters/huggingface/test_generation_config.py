from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from nanoserve.adapters.huggingface.generation_config import read_sampling_defaults
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.sampling import SamplingParams

PUBLISHED = {
    "bos_token_id": 1,
    "do_sample": True,
    "eos_token_id": [2, 3],
    "max_new_tokens": 2048,
    "min_p": 0.05,
    "repetition_penalty": 1.05,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
    "transformers_version": "4.37.0",
}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            PUBLISHED,
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05},
        ),
        ({"temperature": None, "top_k": 0}, {"top_k": 0}),
        ({"do_sample": False}, {}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.6}),
        ({}, {}),
        (None, {}),
    ],
)
def test_the_sampling_values_and_no_others(
    tmp_path: pathlib.Path, written: dict[str, Any] | None, expected: dict[str, Any]
) -> None:
    if written is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(written))
    defaults = read_sampling_defaults(str(tmp_path))
    assert defaults.values == expected
    assert defaults.origin == str(tmp_path / "generation_config.json")
    sampling = SamplingParams(**defaults.values)
    assert all(getattr(sampling, key) == value for key, value in expected.items())


def test_a_malformed_file_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"generation_config\.json"):
        read_sampling_defaults(str(tmp_path))
