"""Records the requests that agents send."""
