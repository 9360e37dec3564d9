"""Clients of the OpenAI endpoints: of the server that all protocols share, and of one over the embedded model."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from nanoserve.entrypoints.app.orders import ServiceSettings
from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.config.configuration import argument_settings
from nanoserve.ports.driven import TokenizerFacts
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world

FACTS = TokenizerFacts(
    tokenizer_class="Letters", bos_token="<|bos|>", eos_token="<|end|>", chat_template="{{ messages }}"
)


@pytest.fixture
def raw(world: AppWorld) -> Iterator[httpx.Client]:
    with world.client() as client:
        yield client


@pytest.fixture(scope="session")
def raw_embedded() -> Iterator[httpx.Client]:
    settings = {
        "dtype": "float32",
        "threads": 1,
        "max_model_len": 256,
        "max_num_seqs": 8,
        "max_logprobs": 100,
    }
    assembly = assemble(argument_settings({**settings, "enable_prefix_caching": False}))
    service = ServiceSettings(model_names=("m",), tokenizer_facts=FACTS)
    with app_world(assembly=assembly, service=service) as world, world.client() as client:
        yield client
