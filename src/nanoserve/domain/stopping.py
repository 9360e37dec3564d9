"""When a sequence ends by its own tokens: stop ids first, then length."""

from __future__ import annotations

from nanoserve.domain.sequence import Sequence
from nanoserve.ports.request import FinishReason


def stop_reason(sequence: Sequence, token_id: int) -> FinishReason | None:
    """Why the sequence ends with `token_id`, its newest token, or None if it goes on.

    A stop id on the last budgeted token is a stop, not a length. Stop strings are the text stream's to find.
    """
    length = len(sequence.token_ids)
    if token_id in sequence.stop_ids and length > sequence.min_total_tokens:
        return FinishReason.STOP
    if length >= sequence.max_total_tokens:
        return FinishReason.LENGTH
    return None
