"""Traffic as values: requests of a recorded or a drawn trace."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class TracedRequest:
    """One request of a trace, without words.

    Attributes:
        at: seconds since the trace began.
        prompt: pieces (id, tokens): equal ids are equal text. A piece that is an answer has the id of the piece before it, and 1 more.
        output_tokens: how many the answer has.
        affinity: equal for the requests of one conversation.
    """

    at: float
    prompt: tuple[tuple[int, int], ...]
    output_tokens: int
    affinity: int

    def scaled(self, scale: float) -> TracedRequest:
        """With its lengths and its time multiplied; no length is below one token."""
        prompt = tuple((piece, max(1, round(scale * count))) for piece, count in self.prompt)
        output_tokens = max(1, round(scale * self.output_tokens))
        return attrs.evolve(self, at=scale * self.at, prompt=prompt, output_tokens=output_tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum(count for _, count in self.prompt)

    def token_ids(self) -> tuple[int, ...]:
        """The prompt, token by token."""
        ids: list[int] = []
        for piece, count in self.prompt:
            ids += [piece] * count
        return tuple(ids)
