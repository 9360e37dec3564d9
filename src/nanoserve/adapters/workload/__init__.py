"""Traces of requests that others have published, read from their files."""
