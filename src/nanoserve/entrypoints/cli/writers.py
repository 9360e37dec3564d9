"""How answers reach standard output: as they grow, or whole and in the prompts' order."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import rich_click as click

from nanoserve.entrypoints.cli.prompt_sources import Source
from nanoserve.entrypoints.offline.outputs import CompletionOutput, Job, PositionLogprobs, RequestOutput
from nanoserve.ports.events import EngineEvent, TokensGenerated


class StreamWriter:
    """One answer, shown while it grows."""

    def __init__(self) -> None:
        self._ends_line = True

    def take(self, event: EngineEvent) -> None:
        """Write the new text at once."""
        if isinstance(event, TokensGenerated) and event.text:
            click.echo(event.text, nl=False)
            self._ends_line = event.text.endswith("\n")

    def close(self) -> None:
        """End the last line."""
        if not self._ends_line:
            click.echo()


class OrderedWriter:
    """Many answers, each whole, written as soon as all before it are written."""

    def __init__(
        self, jobs: Sequence[Job], sources: Sequence[Source], render: Callable[[RequestOutput, Source], str]
    ) -> None:
        self._waiting = deque(zip(jobs, sources, strict=True))
        self._render = render

    def take(self, _event: EngineEvent) -> None:
        """Write every finished answer that is next."""
        while self._waiting and self._waiting[0][0].finished:
            self._write_next()

    def close(self) -> None:
        """Write what unfinished answers have so far."""
        while self._waiting:
            self._write_next()

    def _write_next(self) -> None:
        job, source = self._waiting.popleft()
        if job.has_run and (text := self._render(job.output(), source)):
            click.echo(text)


Writer = StreamWriter | OrderedWriter
"""Takes what happens, writes what can be shown, and in the end what is left, also after an interruption."""


def render_text(output: RequestOutput, _source: Source) -> str:
    """Nothing but the answers, one after the other."""
    return "\n".join(each.text for each in output.outputs if each.text or each.finish_reason != "abort")


def render_json(output: RequestOutput, source: Source) -> str:
    """One JSON object: the first answer's fields, all answers under `choices` if there are several, and the usage."""
    choices = [_choice(each) for each in output.outputs]
    prompt, generated = len(output.prompt_token_ids), sum(len(each.token_ids) for each in output.outputs)
    answer = {"id": source.id, **choices[0]}
    if len(choices) > 1:
        answer["choices"] = choices
    if output.prompt_logprobs:
        answer["prompt_logprobs"] = [each and _position(each) for each in output.prompt_logprobs]
    answer["usage"] = {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "cached_tokens": output.num_cached_tokens,
    }
    return json.dumps(answer, ensure_ascii=False)


def _choice(completion: CompletionOutput) -> dict[str, Any]:
    logprobs = completion.logprobs
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "logprobs": None if logprobs is None else [_position(each) for each in logprobs],
    }


def _position(entries: PositionLogprobs) -> list[dict[str, Any]]:
    """One position: the actual token first."""
    return [
        {"token_id": token, "token": entry.decoded_token, "logprob": entry.logprob, "rank": entry.rank}
        for token, entry in entries.items()
    ]
