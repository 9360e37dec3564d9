"""Runs `nanoserve embed` once its settings and texts are read: load, run, write."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

import rich_click as click

from nanoserve.entrypoints.cli.generation import placed
from nanoserve.entrypoints.cli.prompt_sources import Source
from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.config.configuration import Configuration
from nanoserve.entrypoints.compose.log import log_model
from nanoserve.entrypoints.offline.session import PromptRefusedError, Session
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.pooling import Task


def run_embedding(
    configuration: Configuration, sources: Sequence[Source], prompt_name: str | None, dimensions: int | None
) -> None:
    """Write one JSON object for each source, in their order, once all are computed."""
    assembly = assemble(configuration.engine)
    log_model(assembly)
    with contextlib.closing(Session(assembly)) as session:
        pooler = session.pooler(Task.EMBED)
        pooler.check_dimensions(dimensions)
        before = pooler.prompt(prompt_name)
        prompts = []
        for source in sources:
            try:
                prompts.append(session.read_text(source.prompt, before))
            except BadValueError as error:
                raise placed(source, error) from error
        try:
            found = session.pool(prompts, pooler, progress=len(prompts) > 1)
        except PromptRefusedError as error:
            raise placed(sources[error.index], error) from error
        for source, (job, pooled) in zip(sources, found, strict=True):
            vector = pooler.vector(pooled, dimensions)
            shown = {"id": source.id, "embedding": vector, "prompt_tokens": len(job.prompt.token_ids)}
            click.echo(json.dumps(shown))
