"""How much may wait: a reservation is made before any work is done for a request, and refused where too much waits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from nanoserve.entrypoints.app.settings import ServiceSettings
from nanoserve.ports.counts import Counts
from nanoserve.ports.errors import BadValueError, DrainingError, OverloadedError
from nanoserve.ports.sampling import MAX_SEQUENCES_PER_REQUEST

_CHARACTERS_PER_TOKEN = 4
"""An estimate for prompts that are not tokenized yet; `Reservation.count_tokens` replaces it by the truth."""


def estimated_tokens(characters: int) -> int:
    """About how many tokens a text will have."""
    return characters // _CHARACTERS_PER_TOKEN + 1


RESERVATION_NAMES: Final = (
    *("draining", "living", "waiting", "waiting_tokens", "waiting_bytes"),
    *("running_sequences", "tokenizing_now"),
)
"""The counters: `running_sequences` of the started requests, `tokenizing_now` texts that belong to no request."""


@attrs.define(eq=False)
class Reservation:
    """One accepted request: it waits until the engine has started it, and lives until it is given back.

    Attributes:
        num_sequences: how many device rows it will want.
        num_tokens: its prompt's length, estimated until it is tokenized.
        num_bytes: its constraint's length.
    """

    num_sequences: int
    num_tokens: int
    _reservations: Reservations
    num_bytes: int = 0
    _waits: bool = True
    _lives: bool = True

    def count_tokens(self, num_tokens: int) -> None:
        """The prompt is tokenized."""
        if self._waits:
            self._reservations.change(waiting_tokens=num_tokens - self.num_tokens)
        self.num_tokens = num_tokens

    def count_bytes(self, num_bytes: int) -> None:
        """The constraint is known. Raises `OverloadedError` where too much of others' waits."""
        self._reservations.add_bytes(num_bytes)
        self.num_bytes += num_bytes

    def start(self) -> None:
        """The engine has begun; idempotent."""
        if self._waits:
            self._waits = False
            running = self.num_sequences if self._lives else 0
            self._reservations.change(
                waiting=-1,
                waiting_tokens=-self.num_tokens,
                waiting_bytes=-self.num_bytes,
                running_sequences=running,
            )

    def give_back(self) -> None:
        """The request has ended, or was never sent; idempotent."""
        if self._lives:
            self._lives = False
            self._reservations.change(living=-1, running_sequences=0 if self._waits else -self.num_sequences)
            self.start()


class Reservations:
    """Counts the living requests and refuses those beyond the bounds.

    The engine takes as many sequences as it has free rows without a wait, so those are let in beside the queue.

    Args:
        counts: of `RESERVATION_NAMES`; shared by all processes that hand requests to one engine.
    """

    def __init__(self, settings: ServiceSettings, counts: Counts | None = None) -> None:
        self._settings = settings
        self.counts = counts or Counts()

    @property
    def draining(self) -> bool:
        """True if nothing more is taken."""
        return self.counts["draining"] > 0

    @property
    def living(self) -> int:
        """Accepted requests that have not ended."""
        return self.counts["living"]

    @property
    def waiting(self) -> int:
        """Those of them that were not started yet."""
        return self.counts["waiting"]

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of the waiting ones."""
        return self.counts["waiting_tokens"]

    def begin_drain(self) -> None:
        """Take nothing more, in any process."""
        self.change(draining=1)

    def change(self, **changes: int) -> None:
        """Change several counts at once."""
        with self.counts.lock:
            for name, number in changes.items():
                self.counts.add(name, number)

    def add_bytes(self, number: int) -> None:
        """More of a constraint waits, or raise `OverloadedError`."""
        with self.counts.lock:
            waiting = self.counts["waiting_bytes"]
            if waiting and waiting + number > self._settings.max_waiting_bytes:
                message = f"too many constraints: {waiting} characters of them waiting and {number} more"
                raise OverloadedError(f"{message}; try again later")
            self.counts.add("waiting_bytes", number)

    def take(self, wanted: Sequence[tuple[int, int]], *, rows: int) -> list[Reservation]:
        """Reservations for requests that are wanted together, as (sequences, prompt tokens) each: all of them, or none.

        `rows` is how many sequences the engine runs at once. Raises `DrainingError`, `OverloadedError`, or
        `BadValueError` for more requests at once than could ever be let in.
        """
        requests, all_tokens = len(wanted), sum(tokens for _, tokens in wanted)
        with self.counts.lock:
            if self.draining:
                raise DrainingError("the server is shutting down and takes no more requests", retry_after=5)
            self.check_count(requests, rows=rows)
            self._check_sequences(sum(sequences for sequences, _ in wanted), rows)
            self._check_room(requests, all_tokens, rows)
            self.counts.add("living", requests)
            self.counts.add("waiting", requests)
            self.counts.add("waiting_tokens", all_tokens)
        return [Reservation(sequences, tokens, self) for sequences, tokens in wanted]

    def check_count(self, requests: int, *, rows: int) -> None:
        """Raise `BadValueError` for more requests at once than could ever be let in."""
        most = self._settings.max_waiting_requests + rows
        if requests > most:
            raise BadValueError("prompt", f"holds {requests} prompts and this server takes at most {most}")

    def _check_sequences(self, sequences: int, rows: int) -> None:
        """The bound on what one request may multiply itself to: as many as may wait as requests, or one prompt's most."""
        most = max(MAX_SEQUENCES_PER_REQUEST, self._settings.max_waiting_requests + rows)
        if sequences > most:
            message = (
                f"makes {sequences} answers with all prompts and this server gives at most {most} at once"
            )
            raise BadValueError("n", message)

    @contextlib.contextmanager
    def tokenizing(self) -> Iterator[None]:
        """Tokenizing for its own sake, bounded like the queue; raises `OverloadedError`."""
        with self.counts.lock:
            now = self.counts["tokenizing_now"]
            if now >= max(1, self._settings.max_waiting_requests):
                raise OverloadedError(f"too many texts: {now} being tokenized; try again later")
            self.counts.add("tokenizing_now")
        try:
            yield
        finally:
            self.counts.add("tokenizing_now", -1)

    def _check_room(self, requests: int, tokens: int, rows: int) -> None:
        free_rows = max(0, rows - self.counts["running_sequences"])
        most = self._settings.max_waiting_requests + free_rows
        if self.waiting + requests > most:
            raise OverloadedError(f"too many requests: {self.waiting} waiting already; try again later")
        if self.waiting and self.waiting_tokens + tokens > self._settings.max_waiting_tokens:
            message = f"too many prompt tokens: {self.waiting_tokens} waiting and {tokens} more"
            raise OverloadedError(f"{message}; try again later")
