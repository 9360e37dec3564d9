"""Grouped-query attention over keys and values of all earlier tokens, or of a window of them."""
