"""Token ids to text, a token at a time, never showing half a character.

A window of recent ids is decoded anew with each token, so that what a tokenizer does between tokens (spaces, joined
bytes) comes out as in the whole decode; the technique is that of Hugging Face's text-generation-inference. A token whose text
does not depend on its neighbours is looked up instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from nanoserve.ports.driven import Tokenizer

_REPLACEMENT = "\ufffd"
_LONGEST_INCOMPLETE = 3
"""A UTF-8 character has at most 4 bytes, so at most 3 are there before it is complete."""
_PROMPT_CONTEXT = 6
_LONGEST_WINDOW = 48


class Detokenizer:
    """The text of one sequence's output, as a continuation of its prompt.

    A prompt that ends in the middle of a character gives its bytes to the first character of the output.
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
        self._mid_character = False

    @property
    def is_mid_character(self) -> bool:
        """True if the newest tokens are held back because they may be the beginning of a character."""
        return self._mid_character

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
                self._mid_character = True
                return ""
            text = self._drop_context()
        settled = self._settled(text)
        self._mid_character = len(settled) < len(text)
        new = self._show(settled)
        if not self._mid_character:
            self._restart(new)
        elif len(self._window) > _LONGEST_WINDOW:
            self._shorten(text)
        return new

    def flush(self) -> str:
        """The remaining text at the end: an incomplete character as U+FFFD."""
        text = self._decode(self._window)
        if not text.startswith(self._shown):
            text = self._drop_context()
        self._mid_character = False
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
