"""Packed training rows: documents encoded and laid end to end, each row beginning at a document's first token."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tools.embedded_model.corpus.documents import Split, document

Rows = npt.NDArray[np.uint16]
_DOCUMENTS_PER_SHARD: Final = 10_000_000


def pack_shard(shard: int, *, rows: int, length: int, split: Split, tokenizer_file: Path) -> Rows:
    """Make one shard, shape [rows, length]: a pure function of its arguments, whoever computes it.

    The document that crosses a row's end is cut there, and the next row begins with the next document.
    """
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    packed = np.zeros((rows, length), dtype=np.uint16)
    documents = count(shard * _DOCUMENTS_PER_SHARD)
    for row in packed:
        filled = 0
        while filled < length:
            text = document(next(documents), split).rendered()
            ids = tokenizer.encode(text, add_special_tokens=False).ids[: length - filled]
            row[filled : filled + len(ids)] = ids
            filled += len(ids)
    return packed


def pack(shards: int, *, rows: int, length: int, split: Split, tokenizer_file: Path, workers: int) -> Rows:
    """All shards of a split, shape [shards * rows, length], made by `workers` processes."""
    make = partial(pack_shard, rows=rows, length=length, split=split, tokenizer_file=tokenizer_file)
    with ProcessPoolExecutor(workers) as pool:
        return np.concatenate(list(pool.map(make, range(shards))))
