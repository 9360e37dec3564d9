"""From what was read to what can be run: templates applied, tokens counted, errors named by their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nanoserve.entrypoints.cli.prompt_sources import Source
from nanoserve.entrypoints.config import GenerateSettings
from nanoserve.entrypoints.config.sampling_settings import override_sampling
from nanoserve.entrypoints.offline.prompts import Prompt
from nanoserve.entrypoints.offline.requests import Job
from nanoserve.entrypoints.offline.running import PromptRefusedError
from nanoserve.entrypoints.offline.session import Session
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import SamplingParams


def make_jobs(
    sources: Sequence[Source], session: Session, settings: GenerateSettings, sampling: SamplingParams
) -> list[Job]:
    """One job per source; raises `BadValueError` with the source's place."""
    return [_make_job(each, session, settings, sampling) for each in sources]


def placed(source: Source, error: BadValueError) -> BadValueError:
    """The error with the place of the prompt that caused it."""
    reason = error.reason if isinstance(error, PromptRefusedError) else str(error)
    if not source.place or source.place in reason:
        return error
    return BadValueError(source.place, reason)


def _make_job(source: Source, session: Session, settings: GenerateSettings, sampling: SamplingParams) -> Job:
    try:
        own = override_sampling(sampling, source.sampling, source.place) if source.sampling else sampling
        return session.job(_read(source, session, settings), own, source.priority)
    except BadValueError as error:
        raise placed(source, error) from error


def _read(source: Source, session: Session, settings: GenerateSettings) -> Prompt:
    if source.messages is not None:
        return session.read_conversation(_with_system(source.messages, settings.system))
    if settings.is_chat and isinstance(source.prompt, str):
        return session.read_conversation(
            _with_system([{"role": "user", "content": source.prompt}], settings.system)
        )
    return session.read_prompt(source.prompt)


def _with_system(messages: Any, system: str | None) -> list[dict[str, Any]]:
    """The messages, opened by the system message unless they bring their own."""
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise BadValueError("messages", "must be a list of objects with `role` and `content`")
    has_system = bool(messages) and messages[0].get("role") == "system"
    return messages if system is None or has_system else [{"role": "system", "content": system}, *messages]
