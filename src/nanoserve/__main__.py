"""`python -m nanoserve`: the same as the `nanoserve` command."""

from nanoserve.entrypoints.cli import main

main()
