"""What ours must equal: transformers' own tokenizer of a folder."""

from __future__ import annotations

import functools
from typing import Any

from transformers import AutoTokenizer


@functools.cache
def oracle(folder: str) -> Any:
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
