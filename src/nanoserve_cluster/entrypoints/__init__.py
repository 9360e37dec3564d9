"""The commands of clusters: `nanoserve route`, `simulate`, `ray-config` and `ray-status`, and the Ray Serve application."""

from pathlib import Path
from typing import Final

HELP: Final = Path(__file__).with_name("help.toml")
"""The pages of the commands' help."""
