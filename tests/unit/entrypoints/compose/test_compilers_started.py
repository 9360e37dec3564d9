"""Processes that compile kernels are started where there is a GPU to compute on, and shared by the ranks of a model."""

from __future__ import annotations

import os
from typing import Any

import pytest

from nanoserve.adapters.pytorch import devices
from nanoserve.entrypoints.compose import bootstrap
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings


@pytest.mark.parametrize(
    ("settings", "driver", "started"),
    [
        ({"device": "cpu"}, True, []),
        ({}, False, []),
        ({}, True, [6]),
        ({"tensor_parallel_size": 4}, True, [1]),
    ],
)
def test_as_many_as_there_are_cores_for_a_rank(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], driver: bool, started: list[int]
) -> None:
    counts: list[int] = []
    monkeypatch.setattr(bootstrap, "has_gpu_driver", lambda: driver)
    monkeypatch.setattr(bootstrap, "wake_gpu", lambda: None)
    monkeypatch.setattr(bootstrap, "start_compilers", counts.append)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(devices, "why_no_gpu", lambda: "none")
    bootstrap.survey(EngineSettings(**settings))
    assert counts == started
