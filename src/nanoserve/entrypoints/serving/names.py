"""What clients call the model."""

from __future__ import annotations

import pathlib
from typing import Final

from nanoserve.entrypoints.config import EngineSettings
from nanoserve.entrypoints.config.serve_settings import ListenSettings

BUILT_IN: Final = "built-in"


def model_names(engine: EngineSettings, listen: ListenSettings) -> tuple[str, ...]:
    """The names that were chosen; else the model's on the hub, or its folder's last part, which tells no path."""
    if listen.served_model_name:
        return listen.served_model_name
    if engine.model is None:
        return (BUILT_IN,)
    path = pathlib.Path(engine.model).expanduser()
    return (path.resolve().name if path.is_dir() else engine.model,)
