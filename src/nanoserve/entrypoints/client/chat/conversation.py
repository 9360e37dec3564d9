"""What has been said, and what it cost."""

from __future__ import annotations

import attrs

Message = dict[str, str]


@attrs.define
class Cost:
    """One answer; whoever gives it fills in the tokens, whoever shows it the seconds.

    Attributes:
        prompt_tokens: the whole conversation, as it was read; 0 where nobody counts.
        first_seconds: until its first text; None where there was none. `seconds` until its end.
        finish_reason: why it ended; None where it was stopped.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    first_seconds: float | None = None
    seconds: float = 0.0
    finish_reason: str | None = None

    @property
    def rate(self) -> float:
        """Tokens per second, the wait for the first one not counted where there is a second one."""
        if self.first_seconds is not None and self.output_tokens > 1:
            return (self.output_tokens - 1) / max(self.seconds - self.first_seconds, 1e-9)
        return self.output_tokens / self.seconds if self.seconds else 0.0


@attrs.define
class Conversation:
    """The messages so far; `system` stays when they are forgotten."""

    system: str | None = None
    turns: list[Message] = attrs.field(factory=list)
    costs: list[Cost] = attrs.field(factory=list)

    def asking(self, text: str) -> list[Message]:
        """The messages with one more from the user, who has not been answered yet."""
        opening = [] if self.system is None else [_message("system", self.system)]
        return [*opening, *self.turns, _message("user", text)]

    def keep(self, text: str, answer: str, cost: Cost) -> None:
        """Remember a question and its answer, or as much of it as there was."""
        self.turns += [_message("user", text), _message("assistant", answer)]
        self.costs.append(cost)

    def reset(self) -> None:
        """Forget what was said; the statistics stay."""
        self.turns.clear()

    def statistics(self) -> list[tuple[str, str]]:
        """Of the last answer and of all, as names and values."""
        if not self.costs:
            return [("answers", "none yet")]
        last, generated = self.costs[-1], sum(each.output_tokens for each in self.costs)
        seconds = sum(each.seconds for each in self.costs)
        first = "none" if last.first_seconds is None else f"{1000 * last.first_seconds:.0f} ms"
        return [
            ("last answer", f"{last.output_tokens} tokens, {last.rate:.1f} tok/s, first text after {first}"),
            ("conversation", f"{last.prompt_tokens + last.output_tokens} tokens, {len(self.turns)} messages"),
            ("all answers", f"{len(self.costs)}: {generated} tokens in {seconds:.1f} s"),
        ]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
