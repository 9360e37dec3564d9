"""The reports about a running server for operators: health, metrics, facts, the live page's feed, traces."""
