"""Processes that compile kernels are started where there is a GPU to compute on, and shared by the ranks of a model."""

from __future__ import annotations

from typing import Any

import pytest

from nanoserve.adapters.pytorch import devices
from nanoserve.entrypoints.compose import bootstrap
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings


@pytest.mark.parametrize(
    ("settings", "driver", "cores", "started"),
    [
        ({"device": "cpu"}, True, 6, []),
        ({}, False, 6, []),
        ({}, True, 6, [6]),
        ({}, True, 100, [32]),
        ({"tensor_parallel_size": 4}, True, 6, [1]),
        ({"tensor_parallel_size": 8}, True, 6, [1]),
    ],
)
def test_as_many_as_there_are_cores_for_a_rank(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], driver: bool, cores: int, started: list[int]
) -> None:
    counts: list[int] = []
    monkeypatch.setattr(bootstrap, "has_gpu_driver", lambda: driver)
    monkeypatch.setattr(bootstrap, "wake_gpu", lambda: None)
    monkeypatch.setattr(bootstrap, "start_compilers", counts.append)
    monkeypatch.setattr(bootstrap, "usable_cores", lambda *, logical: cores if logical else 1)
    monkeypatch.setattr(devices, "why_no_gpu", lambda: "none")
    bootstrap.survey(EngineSettings(**settings))
    assert counts == started
