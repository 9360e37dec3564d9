"""Measurements, run with `make bench`; nothing here is a test."""
