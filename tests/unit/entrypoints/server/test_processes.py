"""How many processes answer HTTP where nobody says."""

from __future__ import annotations

import pytest

from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.serve_settings import ListenSettings
from nanoserve.entrypoints.server import serve


@pytest.mark.parametrize(
    ("listen", "device", "has_driver", "cores", "expected"),
    [
        (ListenSettings(), "auto", True, 16, 3),
        (ListenSettings(), "cuda", True, 64, 3),
        (ListenSettings(), "auto", True, 8, 2),
        (ListenSettings(), "auto", True, 4, 1),
        (ListenSettings(), "auto", True, 1, 1),
        (ListenSettings(), "cpu", True, 16, 1),
        (ListenSettings(), "auto", False, 16, 1),
        (ListenSettings(in_process=True), "auto", True, 16, 1),
        (ListenSettings(http_workers=1), "auto", True, 16, 1),
        (ListenSettings(http_workers=5), "cpu", False, 1, 5),
    ],
)
def test_a_gpu_has_several_where_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
    *,
    listen: ListenSettings,
    device: str,
    has_driver: bool,
    cores: int,
    expected: int,
) -> None:
    monkeypatch.setattr(serve, "has_gpu_driver", lambda: has_driver)
    monkeypatch.setattr(serve, "usable_cores", lambda: cores)
    found = serve.choose_processes(listen, EngineSettings(device=device))
    assert found == expected
