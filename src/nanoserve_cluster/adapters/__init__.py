"""Readers of published traces of requests."""
