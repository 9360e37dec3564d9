"""nanoserve: an LLM inference engine that is meant to be read. This file imports nothing: see `docs/architecture.md`."""
