"""Tokens that a row may not take: outside `allowed_token_ids`, held back until `min_tokens`, completing a bad word.

If these leave a row no token, bad words and held-back ids do not count for that token. That can happen only if a row excludes at
least as many tokens as it may choose from, so only such rows are checked.

The last token of a bad word of several is excluded while the row's tokens end in the ones before it. The row's last tokens, prompt
included, stay on the device and are compared there, so no token is waited for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling.part import SamplerPart
from nanoserve.ports.step import AdmittedRow, RowSampling

NO_TOKEN = -1
"""Pads tails and prefixes on the left; no token id."""


@attrs.frozen(eq=False)
class Patterns:
    """The bad words of one step: m patterns of at most `width` tokens before the last, over r rows.

    Attributes:
        places: [m] the index among the step's rows of the row that has the pattern.
        owners: [m] the same row's index among `rows`.
        prefixes: [m, width] the tokens before the last, padded on the left with `NO_TOKEN`, which matches anything.
        last: [m] the token to exclude.
        rows: the r device rows, once for each of their places, and `row_places`, [r], these places.
    """

    places: Tensor
    owners: Tensor
    prefixes: Tensor
    last: Tensor
    rows: tuple[int, ...]
    row_places: Tensor


class BadWords(SamplerPart[list[tuple[int, ...]], Patterns]):
    """The patterns and the last tokens of the rows that have any."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        super().__init__(device)
        self._vocab_size = vocab_size
        self._tails: dict[int, Tensor] = {}

    def admit(self, admitted: AdmittedRow) -> None:
        """Remember the row's patterns of two or more tokens, and as many of its last tokens as they need."""
        patterns = [each for each in admitted.sampling.bad_token_sequences if len(each) > 1]
        if patterns:
            width = max(len(each) for each in patterns) - 1
            tail = (NO_TOKEN,) * width + admitted.token_ids[-width:]
            self.asked[admitted.row] = patterns
            self._tails[admitted.row] = self.integers(tail[-width:])

    def release(self, row: int) -> None:
        super().release(row)
        del self._tails[row]

    def select(self, rows: tuple[int, ...]) -> Patterns:
        chosen = [(place, rows[place]) for place in self.places(rows)]
        width = max(len(self._tails[row]) for _, row in chosen)
        found = [
            (place, owner, pattern)
            for owner, (place, row) in enumerate(chosen)
            for pattern in self.asked[row]
        ]
        return Patterns(
            places=self.integers([place for place, _, _ in found]),
            owners=self.integers([owner for _, owner, _ in found]),
            prefixes=self.integers([(NO_TOKEN,) * (width + 1 - len(each)) + each[:-1] for *_, each in found]),
            last=self.integers([pattern[-1] for _, _, pattern in found]),
            rows=tuple(row for _, row in chosen),
            row_places=self.integers([place for place, _ in chosen]),
        )

    def apply(self, logits: Tensor, chosen: Patterns, before: Tensor | None = None) -> None:
        """Exclude the last token of every pattern whose prefix the row ends in; added, as patterns may share it."""
        width = chosen.prefixes.shape[1]
        tails = torch.stack([_widened(self._tails[row], width) for row in chosen.rows])
        if before is not None:
            drafts = before.index_select(0, chosen.row_places).long()
            newest = torch.arange(width, device=drafts.device) + (drafts >= 0).sum(1, keepdim=True)
            tails = torch.cat([tails, drafts], dim=1).gather(1, newest)
        agrees = (tails[chosen.owners] == chosen.prefixes) | (chosen.prefixes == NO_TOKEN)
        penalty = torch.zeros_like(chosen.last, dtype=logits.dtype).masked_fill_(agrees.all(1), -torch.inf)
        logits.index_put_((chosen.places, chosen.last), penalty, accumulate=True)

    def observe(self, chosen: Patterns, tokens: Tensor) -> bool:
        """Append the step's tokens to the tails of its rows."""
        new = torch.where(tokens < 0, -1 - tokens, tokens).long()[chosen.row_places]
        first = 0
        for row, places in itertools.groupby(chosen.rows):
            own, tail = new[first : first + len([*places])], self._tails[row]
            newest = torch.arange(len(tail), device=tail.device) + (own < self._vocab_size).sum()
            self._tails[row] = torch.cat([tail, own]).index_select(0, newest)
            first += len(own)
        return False


def _widened(tail: Tensor, width: int) -> Tensor:
    missing = width - len(tail)
    return torch.nn.functional.pad(tail, (missing, 0), value=NO_TOKEN) if missing else tail


Cells = tuple[Tensor, Tensor]
"""Single logits of a step: the index of their row and of their column, [m] int64 each."""


@attrs.frozen(eq=False)
class ExcludedTokens:
    """The tokens that one step's rows exclude.

    Attributes:
        pending: the step's device rows that may still be below their `min_tokens`, once for each place; `pending_rows`, [p], the same,
            and `pending_places`, [p].
        held_back: logits that are excluded below `min_tokens`, and [m] the row of each.
        limited: indices of the step's rows with `allowed_token_ids`, and those logits of theirs that are allowed.
        banned: logits excluded for certain.
        patterns: bad words of several tokens.
        fragile: indices of the rows that could be left with nothing.
    """

    pending: tuple[int, ...]
    pending_rows: Tensor
    pending_places: Tensor
    held_back: tuple[Cells, Tensor] | None
    limited: tuple[Tensor, Cells] | None
    banned: Cells | None
    patterns: Patterns | None
    fragile: Tensor | None


class Exclusions(SamplerPart[RowSampling, ExcludedTokens]):
    """The tokens that rows exclude, now or later.

    How many tokens a row lacks to its `min_tokens` the device counts. The host counts too, where a row has had several places too many.
    """

    settings = ("min_tokens", "allowed_token_ids", "bad_token_sequences")

    def __init__(self, vocab_size: int, max_rows: int, device: torch.device) -> None:
        super().__init__(device)
        self._vocab_size = vocab_size
        self._missing: dict[int, int] = {}
        self._lacking = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._bad_words = BadWords(vocab_size, device)
        self._out = torch.full((), -torch.inf, device=device)  # a number would be copied there at every use

    def admit(self, admitted: AdmittedRow) -> None:
        sampling, row = admitted.sampling, admitted.row
        missing = sampling.min_tokens - (len(admitted.token_ids) - admitted.num_prompt_tokens)
        if missing > 0 and sampling.held_back_ids:
            self._missing[row] = missing
            self._lacking[row].fill_(missing)
        if row in self._missing or _always_excludes(sampling):
            self.asked[row] = sampling
        self._bad_words.admit(admitted)

    def release(self, row: int) -> None:
        super().release(row)
        self._missing.pop(row, None)
        if row in self._bad_words.asked:
            self._bad_words.release(row)

    def select(self, rows: tuple[int, ...]) -> ExcludedTokens:
        chosen = [(place, rows[place], self.asked[rows[place]]) for place in self.places(rows)]
        words = ((place, word) for place, _, each in chosen for word in {*each.bad_token_sequences})
        banned = [(place, word[0]) for place, word in words if len(word) == 1]
        limited = [place for place, _, each in chosen if each.allowed_token_ids is not None]
        allowed = [(place, token) for place, _, each in chosen for token in each.allowed_token_ids or ()]
        fragile = [place for place, _, each in chosen if _may_exclude_all(each, self._vocab_size)]
        pending = [(place, row) for place, row, _ in chosen if row in self._missing]
        held = [(place, token, row) for place, row in pending for token in self.asked[row].held_back_ids]
        return ExcludedTokens(
            pending=tuple(row for _, row in pending),
            pending_rows=self.integers([row for _, row in pending]),
            pending_places=self.integers([place for place, _ in pending]),
            held_back=(self._cells([each[:2] for each in held]), self.integers([each[2] for each in held]))
            if held
            else None,
            limited=(self.integers(limited), self._cells(allowed)) if limited else None,
            banned=self._cells(banned) if banned else None,
            patterns=self._bad_words.chosen(rows),
            fragile=self.integers(fragile) if fragile else None,
        )

    def apply(self, logits: Tensor, chosen: ExcludedTokens, before: Tensor | None = None) -> None:
        """Set the excluded logits to -inf, in place."""
        if chosen.limited is not None:
            places, allowed = chosen.limited
            values = logits[allowed]
            logits.index_fill_(0, places, -torch.inf)
            logits[allowed] = values
        whole = None if chosen.fragile is None else logits.index_select(0, chosen.fragile)
        if chosen.banned is not None:
            logits.index_put_(chosen.banned, self._out)
        if chosen.held_back is not None:
            cells, rows = chosen.held_back
            lacking = self._lacking.index_select(0, rows)
            if before is not None:
                lacking = lacking - (before >= 0).sum(1).index_select(0, cells[0])
            penalty = torch.zeros_like(lacking, dtype=logits.dtype).masked_fill_(lacking > 0, -torch.inf)
            logits.index_put_(cells, penalty, accumulate=True)
        if chosen.patterns is not None:
            self._bad_words.apply(logits, chosen.patterns, before)
        if chosen.fragile is not None and whole is not None:
            after = logits.index_select(0, chosen.fragile)
            nothing_left = after.amax(1, keepdim=True) == -torch.inf
            logits.index_copy_(0, chosen.fragile, torch.where(nothing_left, whole, after))

    def observe(self, chosen: ExcludedTokens, tokens: Tensor) -> bool:
        """Take note of a step's tokens; True if a row has now generated its `min_tokens`."""
        if chosen.patterns is not None:
            self._bad_words.observe(chosen.patterns, tokens)
        if not chosen.pending:
            return False
        given = (tokens < self._vocab_size).int().index_select(0, chosen.pending_places)
        self._lacking.index_add_(0, chosen.pending_rows, -given)
        rows = dict.fromkeys(chosen.pending)
        for row in rows:
            self._missing[row] -= 1
        enough = [row for row in rows if self._missing[row] == 0]
        for row in enough:
            del self._missing[row]
            if not _always_excludes(self.asked[row]):
                del self.asked[row]
        return bool(enough)

    def _cells(self, cells: Iterable[tuple[int, int]]) -> Cells:
        places, token_ids = zip(*cells, strict=True)
        return self.integers(places), self.integers(token_ids)


def _always_excludes(sampling: RowSampling) -> bool:
    return sampling.allowed_token_ids is not None or bool(sampling.bad_token_sequences)


def _may_exclude_all(sampling: RowSampling, vocab_size: int) -> bool:
    allowed = sampling.allowed_token_ids
    choices = vocab_size if allowed is None else len(set(allowed))
    ends = {each[-1] for each in sampling.bad_token_sequences}
    return len(ends.union(sampling.held_back_ids)) >= choices
