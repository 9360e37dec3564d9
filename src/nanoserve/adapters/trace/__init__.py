"""The step log as JSON lines."""
