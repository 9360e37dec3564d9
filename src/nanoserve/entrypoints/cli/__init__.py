"""The `nanoserve` command. Importing it loads neither torch nor transformers: commands load them when they run."""

from nanoserve.entrypoints.cli.main import main

__all__ = ["main"]
