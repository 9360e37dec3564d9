"""How much may wait: a reservation is made before any work is done for a request, and refused where too much waits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import attrs

from nanoserve.entrypoints.app.settings import ServiceSettings
from nanoserve.ports.errors import BadValueError, DrainingError, OverloadedError
from nanoserve.ports.sampling import MAX_SEQUENCES_PER_REQUEST

_CHARACTERS_PER_TOKEN = 4
"""An estimate for prompts that are not tokenized yet; `Reservation.count_tokens` replaces it by the truth."""


def estimated_tokens(characters: int) -> int:
    """About how many tokens a text will have."""
    return characters // _CHARACTERS_PER_TOKEN + 1


@attrs.define(eq=False)
class Reservation:
    """One accepted request: it waits until the engine has started it, and lives until it is given back.

    Attributes:
        num_sequences: how many device rows it will want.
        num_tokens: its prompt's length, estimated until it is tokenized.
    """

    num_sequences: int
    num_tokens: int
    _reservations: Reservations
    _waits: bool = True
    _lives: bool = True

    def count_tokens(self, num_tokens: int) -> None:
        """The prompt is tokenized."""
        if self._waits:
            self._reservations.waiting_tokens += num_tokens - self.num_tokens
        self.num_tokens = num_tokens

    def start(self) -> None:
        """The engine has begun; idempotent."""
        if self._waits:
            self._waits = False
            self._reservations.waiting -= 1
            self._reservations.waiting_tokens -= self.num_tokens
            if self._lives:
                self._reservations.running_sequences += self.num_sequences

    def give_back(self) -> None:
        """The request has ended, or was never sent; idempotent."""
        if self._lives:
            self._lives = False
            self._reservations.living -= 1
            if not self._waits:
                self._reservations.running_sequences -= self.num_sequences
            self.start()


class Reservations:
    """Counts the living requests and refuses those beyond the bounds.

    The engine takes as many sequences as it has free rows without a wait, so those are let in beside the queue.

    Attributes:
        living: accepted requests, of which `waiting` were not started yet.
        waiting_tokens: prompt tokens of the waiting ones.
        running_sequences: sequences of the started ones.
        tokenizing_now: texts being tokenized that belong to no request.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self.draining = False
        self.living = 0
        self.waiting = 0
        self.waiting_tokens = 0
        self.running_sequences = 0
        self.tokenizing_now = 0

    def take(self, wanted: Sequence[tuple[int, int]], *, rows: int) -> list[Reservation]:
        """Reservations for requests that are wanted together, as (sequences, prompt tokens) each: all of them, or none.

        `rows` is how many sequences the engine runs at once. Raises `DrainingError`, `OverloadedError`, or
        `BadValueError` for more requests at once than could ever be let in.
        """
        if self.draining:
            raise DrainingError("the server is shutting down and takes no more requests", retry_after=5)
        self.check_count(len(wanted), rows=rows)
        self._check_sequences(sum(sequences for sequences, _ in wanted), rows)
        self._check_room(len(wanted), sum(tokens for _, tokens in wanted), rows)
        return [self._reserve(sequences, tokens) for sequences, tokens in wanted]

    def check_count(self, requests: int, *, rows: int) -> None:
        """Raise `BadValueError` for more requests at once than could ever be let in."""
        most = self._settings.max_waiting_requests + rows
        if requests > most:
            raise BadValueError("prompt", f"holds {requests} prompts and this server takes at most {most}")

    def _check_sequences(self, sequences: int, rows: int) -> None:
        """What one request may multiply itself to: as many as may wait as requests, or one prompt's most."""
        most = max(MAX_SEQUENCES_PER_REQUEST, self._settings.max_waiting_requests + rows)
        if sequences > most:
            message = (
                f"makes {sequences} answers with all prompts and this server gives at most {most} at once"
            )
            raise BadValueError("n", message)

    @contextlib.contextmanager
    def tokenizing(self) -> Iterator[None]:
        """Tokenizing for its own sake, bounded like the queue; raises `OverloadedError`."""
        if self.tokenizing_now >= max(1, self._settings.max_waiting_requests):
            raise OverloadedError(f"too many texts: {self.tokenizing_now} being tokenized; try again later")
        self.tokenizing_now += 1
        try:
            yield
        finally:
            self.tokenizing_now -= 1

    def _check_room(self, requests: int, tokens: int, rows: int) -> None:
        free_rows = max(0, rows - self.running_sequences)
        most = self._settings.max_waiting_requests + free_rows
        if self.waiting + requests > most:
            raise OverloadedError(f"too many requests: {self.waiting} waiting already; try again later")
        if self.waiting and self.waiting_tokens + tokens > self._settings.max_waiting_tokens:
            message = f"too many prompt tokens: {self.waiting_tokens} waiting and {tokens} more"
            raise OverloadedError(f"{message}; try again later")

    def _reserve(self, sequences: int, tokens: int) -> Reservation:
        self.living += 1
        self.waiting += 1
        self.waiting_tokens += tokens
        return Reservation(sequences, tokens, self)
