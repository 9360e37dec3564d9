"""Token ids to text, a token at a time, never showing half a character.

A window of recent ids is decoded anew with each token, so that what a tokenizer does between tokens (spaces, joined
bytes) comes out as in the whole decode; the technique is that of Hugging Face's text-generation-inference.
"""

from __future__ import annotations

from collections.abc import Sequence

from nanoserve.ports.tokenizer import Tokenizer

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
        self._window = list(prompt[-_PROMPT_CONTEXT:])
        self._shown = len(_settled(self._decode()))
        self._mid_character = False

    @property
    def is_mid_character(self) -> bool:
        """Whether the newest tokens are held back because they may be the beginning of a character."""
        return self._mid_character

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; empty while a character is incomplete."""
        context = len(self._window)
        self._window.append(token_id)
        text = self._decode()
        settled = _settled(text)
        new = settled[self._shown :]
        self._mid_character = len(settled) < len(text)
        if new and not self._mid_character:
            self._restart(context)
        else:
            self._shown = max(self._shown, len(settled))
        return new

    def flush(self) -> str:
        """What is left at the end: an incomplete character as U+FFFD."""
        text = self._decode()
        rest = text[self._shown :]
        self._shown = len(text)
        self._mid_character = False
        return rest

    def _restart(self, context: int) -> None:
        """Everything is shown: keep only the newest token as context, if it has a text of its own."""
        tail = self._window[context:]
        shown = len(self._tokenizer.decode(tail, skip_special_tokens=self._skip))
        if shown or len(self._window) > _LONGEST_WINDOW:
            self._window, self._shown = tail, shown
        else:
            self._shown = len(self._decode())

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=self._skip)


def _settled(text: str) -> str:
    """Text without the replacement characters at its end that later bytes may still complete."""
    end = len(text)
    while end > 0 and text[end - 1] == _REPLACEMENT and len(text) - end < _LONGEST_INCOMPLETE:
        end -= 1
    return text[:end]
