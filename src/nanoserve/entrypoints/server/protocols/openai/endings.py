"""Why an answer ended and how many tokens it took, in the words of the wire."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from nanoserve.entrypoints.app.generation import Generation, Piece
from nanoserve.entrypoints.server.protocols.openai.answers import (
    FinishName,
    PromptTokensDetails,
    Timings,
    Usage,
)
from nanoserve.ports.request import FinishReason


def finish_name(piece: Piece) -> FinishName | None:
    """`stop` or `length`, the two reasons that clients know.

    An answer that was cut by its deadline, or because the server had to leave, is one that is shorter than it could
    have been: `length`, with the cause in `stop_reason`.
    """
    if piece.finish_reason is None:
        return None
    return "stop" if piece.finish_reason is FinishReason.STOP else "length"


def stop_reason(piece: Piece) -> str | int | UnsetType:
    """The stop string or stop token id, or what cut the answer; unset where the finish reason says it all."""
    if piece.stop is not None:
        return piece.stop
    if piece.finish_reason in {FinishReason.TIMEOUT, FinishReason.ABORT}:
        return str(piece.finish_reason.value)
    return UNSET


def timings(piece: Piece) -> Timings | UnsetType:
    """Where the time of an answer went; unset on all pieces but the last."""
    times = piece.times
    if times is None:
        return UNSET
    return Timings(
        queue=_between(times.arrived, times.first_scheduled),
        prefill=_between(times.first_scheduled, times.first_token),
        decode=_between(times.first_token, times.finished),
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(end - start, 0.0), 6)


class UsageCount:
    """Counts the tokens of the answers to several prompts while they grow."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self._generations = generations
        self._generated: dict[tuple[int, int], int] = {}

    def note(self, number: int, piece: Piece) -> None:
        """A piece of a generation has come."""
        self._generated[number, piece.index] = piece.num_generated

    def usage(self) -> Usage:
        """So far; a prompt counts once, however many answers it gets."""
        prompt = sum(len(each.prompt_token_ids) for each in self._generations)
        generated = sum(self._generated.values())
        cached = sum(each.num_cached_tokens for each in self._generations)
        return Usage(prompt, generated, prompt + generated, PromptTokensDetails(cached))
