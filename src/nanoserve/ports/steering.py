"""Commands of trainers: pauses, weights, sleep; and the engine's state after them."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, Final, Protocol

import attrs

WEIGHTS: Final = "weights"
KV_CACHE: Final = "kv_cache"
PARTS: Final = (WEIGHTS, KV_CACHE)
"""The parts of an engine that sleep; vLLM's words."""


class PauseMode(enum.Enum):
    """The fate of running requests; vLLM's words.

    `KEEP` stops them where they are, with their blocks, once the steps in flight are home. `WAIT` finishes those that run and
    admits no other. `ABORT` ends all, with what they have.
    """

    KEEP = "keep"
    WAIT = "wait"
    ABORT = "abort"


@attrs.frozen(kw_only=True)
class WeightsFacts:
    """The version of an engine's weights.

    Attributes:
        version: how often they were changed since they were loaded; `label` is what their trainer calls them.
        digest: of what they were read from, hexadecimal; empty for those that it was started with.
    """

    version: int = 0
    digest: str = ""
    label: str = ""


HANDLE_BYTES: Final = 64


@attrs.frozen
class SharedTensor:
    """A tensor in the GPU memory of another process of the same machine.

    Attributes:
        name: in a checkpoint.
        dtype: torch's name of a plain float.
        handle: the driver's, of the allocation (CUDA IPC).
        offset: bytes from its beginning.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    handle: bytes
    offset: int


RankSource = str | tuple[SharedTensor, ...]
"""Weights that every rank of a model can read: a folder, or another process's GPU memory."""
WeightSource = RankSource | Iterable[tuple[str, Any]]


class WeightStore(Protocol):
    """Prepares new weights beside the engine's, and then replaces them.

    Attributes:
        is_lost: the weights went with their memory, and no folder has them: nothing is computed before all are sent.
    """

    is_lost: bool

    def read(self, source: WeightSource, /, *, anew: bool, partial: bool) -> None:
        """Read a folder of safetensors files, or tensors by their names there, on top of what was read before unless `again`; in any thread.

        With `partial`, what is not read stays as it is. Raises `BadValueError`, and nothing is changed.
        """

    def complete(self) -> str:
        """Check that nothing is missing, and make all ready to be written; returns the digest. In any thread; raises as `read` does."""

    def write(self) -> None:
        """Write the complete weights into the model, in place; no step is in flight."""

    def sleep(self, level: int, /) -> None:
        """Free the memory of the KV cache, and at level 2 of the weights; at level 1 these are kept in host memory.

        No step is in flight, and none is made before all parts are awake. Raises `BadValueError`, and nothing is freed.
        """

    def wake(self, part: str, /) -> None:
        """Have memory for a part again, and for weights what was in it. In any thread; raises `BadValueError`, and may be tried again."""


@attrs.frozen(kw_only=True)
class Steering:
    """An engine's state under steering.

    Attributes:
        paused: whether it makes no steps until it is resumed.
        asleep: the parts that there is no memory for; no steps are made while there are any.
        lost: why a new engine could not read again the weights that the one before had; empty if it has them.
    """

    paused: bool = False
    asleep: tuple[str, ...] = ()
    weights: WeightsFacts = WeightsFacts()
    lost: str = ""
