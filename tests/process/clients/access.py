"""What the tests of this folder call the server by: its model and its keys."""

from __future__ import annotations

from typing import Final

MODEL: Final = "built-in"
KEY: Final = "sk-for-tests"
LIMITED_KEY: Final = "sk-seldom"
KEY_FILE: Final = f"""
[[key]]
key = "{KEY}"
name = "tests"

[[key]]
key = "{LIMITED_KEY}"
name = "limited"
rate_limit = 0.01
"""
