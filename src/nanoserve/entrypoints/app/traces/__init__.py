"""Trace files: a step log on disk, written while an engine runs and read again afterwards."""
