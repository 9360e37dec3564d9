"""What ours must equal: transformers' own tokenizer of a folder, and what publishers wrote into their config.json."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

from transformers import AutoTokenizer


@functools.cache
def oracle(folder: str) -> Any:
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def published(model: str) -> dict[str, Any]:
    """The keys of a published config.json, those that say nothing of layers left out."""
    found: dict[str, Any] = json.loads(pathlib.Path(__file__).with_name("published.json").read_text())[model]
    return found
