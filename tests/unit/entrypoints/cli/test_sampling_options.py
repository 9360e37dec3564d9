"""Which sampling parameters each command has an option for."""

from __future__ import annotations

import pytest
import rich_click as click

from nanoserve.entrypoints.cli.main import nanoserve
from nanoserve.ports.sampling import PARAMETERS

DRAWS = {"temperature", "top_p", "top_k", "min_p"}
PENALTIES = {"presence_penalty", "frequency_penalty", "repetition_penalty"}
OWN = PARAMETERS.keys() - {"deterministic"}
"""All but those that are options of an engine, for all of its requests."""
OFFERED = {
    "generate": set(OWN),
    "chat": DRAWS | PENALTIES | {"max_tokens", "seed", "stop"},
    "bench throughput": DRAWS,
    "bench latency": DRAWS,
    "bench serve": DRAWS | {"ignore_eos", "seed"},
    "serve": set[str](),
}


@pytest.mark.parametrize("name", OFFERED)
def test_a_command_offers_its_parameters_and_says_what_they_mean(name: str) -> None:
    command: click.Command = nanoserve
    for part in name.split():
        assert isinstance(command, click.Group)
        command = command.commands[part]
    helps = {each.name: each.help for each in command.params if isinstance(each, click.Option)}
    assert helps.keys() & OWN == OFFERED[name]
    for parameter in OFFERED[name]:
        assert (helps[parameter] or "").startswith(PARAMETERS[parameter].meaning)
