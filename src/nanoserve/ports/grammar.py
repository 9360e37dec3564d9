"""The port to grammars, which say what may come next in an answer, and to runners that draw only what they allow.

A mask is one bit per token id, set where the id is allowed: bit `id % 8` of byte `id // 8`, in whole words of 32 bits, so
that a device can read it as little-endian int32 words [ceil(vocab / 32)].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import attrs

TicketT_contra = TypeVar("TicketT_contra", contravariant=True)


@attrs.frozen
class Constraint:
    """What an answer must be: `kind` names a language of constraints, `text` is written in it."""

    kind: str
    text: str


class Matcher(Protocol):
    """One answer on its way through a grammar; its state is a function of the tokens that it has consumed."""

    def consume(self, token_id: int, /) -> bool:
        """Go on by one token, which is no end-of-sequence id; False where the grammar does not allow it."""

    def may_end(self) -> bool:
        """Whether the answer so far is whole."""

    def copy(self) -> Matcher:
        """Another one in the same state."""


class Grammar(Protocol):
    """A constraint made ready; never changes, and may be shared."""

    def matcher(self) -> Matcher:
        """One that has consumed nothing."""


class Grammars(Protocol):
    """Makes grammars of one vocabulary."""

    def compile(self, constraint: Constraint, /) -> Grammar:
        """Raises `BadValueError` for a constraint that cannot be kept, and says why."""

    def masks(self, matchers: Sequence[Matcher], /) -> Sequence[bytes]:
        """What each matcher would consume next. End-of-sequence ids are left to the engine."""


class LateDrawing(Protocol[TicketT_contra]):
    """A `ModelRunner` that accepts plans with `masked` rows."""

    def draw(self, ticket: TicketT_contra, masks: Mapping[int, bytes], /) -> None:
        """Draw for every sampling row of the newest submitted step, which had masked rows; once, before `collect`.

        A masked row without a mask has ended: whatever is drawn for it is dropped. May raise as `submit` does.
        """
