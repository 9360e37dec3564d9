"""Turns token ids into text that can be shown while it grows."""
