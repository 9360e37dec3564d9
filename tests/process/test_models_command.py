from __future__ import annotations

import json

from nanoserve.adapters.huggingface.architectures import ARCHITECTURES
from tests.process.command import run


def test_every_family_is_listed_with_its_cache_and_its_shapes() -> None:
    listed = {each["model_type"]: each for each in json.loads(run("models", "--json").stdout)}
    assert list(listed) == [each.key for each in ARCHITECTURES]
    assert "llama-3.2-1b" in listed["llama"]["shapes"]
    assert listed["mistral"]["cache"] == "keys and values, keys and values of a window"
    table = run("models").stdout.decode()
    assert all(each.key in table for each in ARCHITECTURES)
