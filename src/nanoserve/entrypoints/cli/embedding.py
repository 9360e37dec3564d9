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


def run_embedding(
    configuration: Configuration, sources: Sequence[Source], prompt_name: str | None, dimensions: int | None
) -> None:
    """Write one JSON object for each source, in their order, once all are computed."""
    assembly = assemble(configuration.engine)
    log_model(assembly)
    with contextlib.closing(Session(assembly)) as session:
        session.pooler.check_dimensions(dimensions)
        jobs = []
        for source in sources:
            try:
                jobs.append(session.embedding_job(session.read_text(source.prompt, prompt_name)))
            except BadValueError as error:
                raise placed(source, error) from error
        try:
            for _ in session.run(jobs, progress=len(jobs) > 1):
                pass
        except PromptRefusedError as error:
            raise placed(sources[error.index], error) from error
        for job, source in zip(jobs, sources, strict=True):
            output = session.embedding(job, dimensions)
            shown = {"embedding": output.embedding, "prompt_tokens": len(output.prompt_token_ids)}
            click.echo(json.dumps({"id": source.id, **shown}))
