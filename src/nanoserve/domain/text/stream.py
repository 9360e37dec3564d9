"""The visible output of one sequence: text, ids and log-probabilities, released together and cut at the same place.

Half a character is never shown. A window of recent ids is decoded again with each token, so that what a tokenizer does between
tokens (spaces, joined bytes) comes out as in the whole decode; the technique is that of Hugging Face's text-generation-inference.
A token whose text does not depend on its neighbours is looked up instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import attrs

from nanoserve.domain.text.dialects.reader import held_back
from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.request import Request
from nanoserve.ports.step import TokenLogprobs

_REPLACEMENT = "\ufffd"
_LONGEST_INCOMPLETE = 3
"""A UTF-8 character has at most 4 bytes, so at most 3 are there before it is complete."""
_PROMPT_CONTEXT = 6
_LONGEST_WINDOW = 48


@attrs.define
class _Token:
    token_id: int
    logprobs: TokenLogprobs | None
    start: int | None = None
    end: int | None = None
    is_known: bool = False

    def starts_before(self, cut: int) -> bool:
        return self.start is not None and self.start < cut


class Released(NamedTuple):
    """Output that can be shown, because it will not change."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...]


NOTHING = Released((), "", ())


class IdStream:
    """Output without text: every token can be shown at once."""

    def __init__(self) -> None:
        self._held: list[tuple[int, TokenLogprobs | None]] = []

    def push(self, token_id: int, logprobs: TokenLogprobs | None) -> str | None:
        """Take a token in; nothing can match."""
        self._held.append((token_id, logprobs))
        return None

    push_unseen = push

    def take(self) -> Released:
        """Everything since the last call."""
        held, self._held = self._held, []
        return Released(
            tuple(token for token, _ in held), "", tuple(each for _, each in held if each is not None)
        )

    close = take


class SilentStream:
    """Output without text that is only shown at its end: `token_ids`, which grows elsewhere, from `start` on."""

    def __init__(self, token_ids: list[int], start: int) -> None:
        self._token_ids, self._start = token_ids, start

    def push(self, token_id: int, logprobs: TokenLogprobs | None) -> str | None:
        """Nothing can match."""
        del token_id, logprobs
        return None

    def push_unseen(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        """It is in `token_ids`."""

    def take(self) -> Released:
        """Nothing yet."""
        return NOTHING

    def close(self) -> Released:
        """Everything."""
        return Released(tuple(self._token_ids[self._start :]), "", ())


class TextStream:
    """Holds tokens back while their text is incomplete or may belong to a stop string.

    Offsets count characters of the output text; `_tail` is its end that is not released yet. A token whose text is whole and
    can be shown at once, which nearly all are where there are no stop strings, is `_ready`, and the next `take` gives it out.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        params = request.sampling
        self._stops = params.stop
        self._includes_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._unsearched = request.unsearched_token_ids
        self._detokenizer = Detokenizer(
            tokenizer, request.prompt_token_ids, skip_special_tokens=params.skip_special_tokens
        )
        self._held: list[_Token] = []
        self._tail = ""
        self._released = 0
        self._pushed = 0
        self._search_from = 0
        self._match: StopMatch | None = None
        self._ready: Released | None = None
        self._known = 0

    def push(self, token_id: int, logprobs: TokenLogprobs | None) -> str | None:
        """Take a token in; returns the stop string that it completes, if any."""
        self._pushed += 1
        self._hold_ready()
        text = self._detokenizer.push(token_id)
        if not self._stops and not self._held and not self._detokenizer.is_mid_character:
            self._ready = Released((token_id,), text, () if logprobs is None else (logprobs,))
            return None
        self._held.append(_Token(token_id, logprobs))
        self._extend(text)
        if not self._stops:
            return None
        if self._pushed <= self._min_tokens or token_id in self._unsearched:
            self._search_from = self._released + len(self._tail)
            return None
        self._match = find_stop(self._tail, self._stops, max(0, self._search_from - self._released))
        return self._match.stop if self._match else None

    def push_unseen(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        """Take in a token that ends the sequence and is counted but not printed."""
        self._hold_ready()
        self._extend(self._detokenizer.flush())
        end = self._released + len(self._tail)
        self._held.append(_Token(token_id, logprobs, end, end))

    def _hold_ready(self) -> None:
        """Another token comes before this one was taken: both are decoded."""
        if self._ready is not None:
            (token_id,), self._tail, scores = self._ready
            self._ready = None
            end = self._released + len(self._tail)
            self._held.append(_Token(token_id, scores[0] if scores else None, self._released, end))

    def _extend(self, text: str) -> None:
        mid_character = self._detokenizer.is_mid_character
        if not text and mid_character:
            return
        start = self._released + len(self._tail)
        end = start + len(text)
        self._tail += text
        for token in self._held:
            if token.end is None:
                token.start = start if token.start is None else token.start
                token.end = end
        if mid_character:
            self._held[-1].end = None

    def take(self) -> Released:
        """The text that can be shown now."""
        if self._ready is not None:
            ready, self._ready = self._ready, None
            self._released += len(ready.text)
            return ready._replace(text=self._unknown(ready.text)) if self._known else ready
        searched = self._tail[max(0, self._search_from - self._released) :]
        keep = held_back(searched, self._stops) if self._stops else 0
        return self._release(len(self._tail) - keep)

    def close(self) -> Released:
        """Everything, or what lies before the stop string; tokens whose text begins behind that cut are dropped."""
        self._hold_ready()
        if self._match is None:
            self._extend(self._detokenizer.flush())
        length = len(self._tail)
        if self._match is not None:
            length = self._match.end if self._includes_stop else self._match.start
        cut = self._released + length
        self._held = [token for token in self._held if self._match is None or token.starts_before(cut)]
        for token in self._held:
            token.end = cut
        return self._release(length)

    def _release(self, length: int) -> Released:
        text, self._tail = self._tail[:length], self._tail[length:]
        self._released += length
        count = 0
        for token in self._held:
            if token.end is None or token.end > self._released:
                break
            count += 1
        out, self._held = self._held[:count], self._held[count:]
        scores = [token.logprobs for token in out if token.logprobs is not None]
        ids = tuple([token.token_id for token in out if not token.is_known])
        return Released(ids, self._unknown(text), tuple(scores))

    def skip(self, length: int) -> None:
        """Leave out what the reader has: the tokens that were pushed, and so many characters."""
        self._known = length
        self.take()
        for token in self._held:
            token.is_known = True

    def _unknown(self, text: str) -> str:
        known, self._known = self._known, max(0, self._known - len(text))
        return text[known:]


OutputStream = TextStream | IdStream | SilentStream
"""Takes the tokens of one sequence and releases the output that can be shown."""


@attrs.frozen
class StopMatch:
    """A stop string found at text[start:end]."""

    start: int
    end: int
    stop: str


def find_stop(text: str, stops: Sequence[str], begin: int) -> StopMatch | None:
    """The stop string that ends first in text[begin:]; of two that end together the longer.

    Ending first makes the result the same however the text was cut into tokens.
    """
    matches = []
    for stop in stops:
        start = text.find(stop, begin)
        if start >= 0:
            matches.append(StopMatch(start, start + len(stop), stop))
    return min(matches, key=lambda match: (match.end, match.start)) if matches else None


class Detokenizer:
    """The text of one sequence's output, as a continuation of its prompt.

    A prompt that ends in the middle of a character gives its bytes to the first character of the output.

    `is_mid_character`: the newest tokens are held back because they may be the beginning of a character.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._window = self._context_of(prompt)
        self._prompt_text = self._decode(self._window)
        self._num_fresh = self._unsettled_prompt_tokens()
        self._shown = self._settled_prompt()
        self.is_mid_character = False

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; empty while a character is incomplete."""
        if not self._num_fresh and (alone := self._tokenizer.text_of(token_id)) is not None:
            self._window, self._shown, self._prompt_text = [token_id], alone, ""
            return alone
        self._window.append(token_id)
        self._num_fresh += 1
        text = self._decode(self._window)
        if not text.startswith(self._shown):
            if text.endswith(_REPLACEMENT) and self._num_fresh <= _LONGEST_INCOMPLETE:
                self.is_mid_character = True
                return ""
            text = self._drop_context()
        settled = self._settled(text)
        self.is_mid_character = len(settled) < len(text)
        new = self._show(settled)
        if not self.is_mid_character:
            self._restart(new)
        elif len(self._window) > _LONGEST_WINDOW:
            self._shorten(text)
        return new

    def flush(self) -> str:
        """The remaining text at the end: an incomplete character as U+FFFD."""
        text = self._decode(self._window)
        if not text.startswith(self._shown):
            text = self._drop_context()
        self.is_mid_character = False
        return self._show(text)

    def _show(self, text: str) -> str:
        if len(self._shown) < len(self._prompt_text):
            self._shown = max(self._shown, _common_start(text, self._prompt_text), key=len)
        new = text[len(self._shown) :]
        self._shown += new
        return new

    def _settled(self, text: str) -> str:
        """Text without the replacement characters at its end that later bytes may still complete."""
        settled = _without_incomplete_end(text)
        if self._num_fresh > _LONGEST_INCOMPLETE and len(settled) <= len(self._shown) < len(text):
            older = self._decode(self._window[:-_LONGEST_INCOMPLETE])
            return max(settled, _common_start(older, text), key=len)
        return settled

    def _restart(self, new: str) -> None:
        """Everything is shown: keep the tokens that came since it last was, if they have a text of their own."""
        tail = self._window[-self._num_fresh :]
        text = self._decode(tail)
        if text:
            self._window, self._shown, self._prompt_text = tail, text, ""
        elif not new and len(self._window) > _LONGEST_WINDOW:
            del self._window[-self._num_fresh :]
        self._num_fresh = 0

    def _shorten(self, text: str) -> None:
        """Bytes that never become text: forget the older half, keeping as much unshown as there is."""
        num_unshown = len(text) - len(self._shown)
        self._window = self._window[-_LONGEST_WINDOW // 2 :]
        self._num_fresh = len(self._window)
        text = self._decode(self._window)
        self._shown = text[: len(text) - num_unshown]
        self._prompt_text = ""

    def _drop_context(self) -> str:
        """New bytes made shown ones illegible (byte fallback reads a run whole or not at all): read them alone."""
        self._window = self._window[-self._num_fresh :] if self._num_fresh else []
        self._shown = self._prompt_text = ""
        return self._decode(self._window)

    def _context_of(self, prompt: Sequence[int]) -> list[int]:
        """The last few prompt tokens, and more where those would begin in the middle of a character."""
        for size in range(_PROMPT_CONTEXT, _LONGEST_WINDOW):
            window = list(prompt[-size:])
            if size >= len(prompt) or not self._decode(window).startswith(_REPLACEMENT):
                break
        return window

    def _unsettled_prompt_tokens(self) -> int:
        """How many of the prompt's last tokens may have begun a character."""
        for held in range(_LONGEST_INCOMPLETE):
            if not self._decode(self._window[: len(self._window) - held]).endswith(_REPLACEMENT):
                return held
        return _LONGEST_INCOMPLETE

    def _settled_prompt(self) -> str:
        clean = self._decode(self._window[: len(self._window) - self._num_fresh])
        settled = _without_incomplete_end(self._prompt_text)
        return settled if settled.startswith(_without_incomplete_end(clean)) else clean

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip)


def _without_incomplete_end(text: str) -> str:
    end = len(text)
    while end > 0 and text[end - 1] == _REPLACEMENT and len(text) - end < _LONGEST_INCOMPLETE:
        end -= 1
    return text[:end]


def _common_start(one: str, other: str) -> str:
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return one[:index]
    return min(one, other, key=len)
