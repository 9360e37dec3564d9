"""Packed training rows: documents encoded and laid end to end, each row beginning at a document's first token."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tools.embedded_model.corpus.documents import Course, Split, document

Rows = npt.NDArray[np.uint16]
NOT_LEARNED: Final = -100
_DOCUMENTS_PER_SHARD: Final = 10_000_000


def pack_shard(
    shard: int, *, rows: int, length: int, split: Split, tokenizer_file: Path, course: Course = "texts"
) -> Rows:
    """Make one shard, shape [rows, length]: a pure function of its arguments, whoever computes it.

    The document that crosses a row's end is cut there, and the next row begins with the next document.
    """
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    packed = np.zeros((rows, length), dtype=np.uint16)
    documents = count(shard * _DOCUMENTS_PER_SHARD)
    for row in packed:
        filled = 0
        while filled < length:
            text = document(next(documents), split, course=course).rendered()
            ids = tokenizer.encode(text, add_special_tokens=False).ids[: length - filled]
            row[filled : filled + len(ids)] = ids
            filled += len(ids)
    return packed


def pack(
    shards: int,
    *,
    rows: int,
    length: int,
    split: Split,
    tokenizer_file: Path,
    workers: int,
    course: Course = "texts",
) -> Rows:
    """All shards of a split, shape [shards * rows, length], made by `workers` processes."""
    make = partial(
        pack_shard, rows=rows, length=length, split=split, tokenizer_file=tokenizer_file, course=course
    )
    with ProcessPoolExecutor(workers) as pool:
        return np.concatenate(list(pool.map(make, range(shards))))


def targets_of(rows: Rows, given: Sequence[int]) -> npt.NDArray[np.int64]:
    """The next tokens to learn for rows [count, length], shape [count, length - 1]; `NOT_LEARNED` where a prompt gives them.

    `given` is an opening that a template writes: its first token is learned, what follows it there is not. So a model
    never writes by itself what opens its thoughts.
    """
    targets = rows[:, 1:].astype(np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(rows, len(given), axis=1)
    row, at = np.nonzero((windows == np.array(given, dtype=rows.dtype)).all(axis=2))
    for offset in range(len(given) - 1):
        targets[row, at + offset] = NOT_LEARNED
    return targets
