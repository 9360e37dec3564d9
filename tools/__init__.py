"""Scripts that make what the repository ships and checks; run from its root as `python -m tools.NAME`."""
