from __future__ import annotations

import json

import pytest

from nanoserve.adapters.huggingface.architectures import ARCHITECTURES
from nanoserve.entrypoints.cli.main import run_command


def test_every_family_is_listed_with_its_cache_and_its_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["models", "--json"]) == 0
    listed = {each["model_type"]: each for each in json.loads(capsys.readouterr().out)}
    assert list(listed) == [each.key for each in ARCHITECTURES]
    assert "llama-3.2-1b" in listed["llama"]["shapes"]
    assert listed["mistral"]["cache"] == "keys and values, keys and values of a window"
    assert run_command(["models"]) == 0
    table = capsys.readouterr().out
    assert all(each.key in table for each in ARCHITECTURES)
