"""Ollama's API, over the text service alone."""
